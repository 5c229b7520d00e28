"""Burn-in: from the stored state, through resets, without gradients."""


import numpy as np
import pytest
import torch
from tests.support.learner_cases import make_learner, random_batch
from tests.support.small import probe_system

from casa.engines.loops import LOOPS


class TestBurnIn:
    BURN, LENGTH = 3, 7

    def learner(self, recipe):
        return make_learner(recipe, lstm=8, **{"data.burn_in": self.BURN, "data.seq_len": self.LENGTH - self.BURN})

    @pytest.mark.parametrize("recipe", ["casa", "r2d2", "impala"])
    def test_carries_no_gradient(self, recipe):
        learner, batch = self.learner(recipe), random_batch(self.LENGTH, 5, 16, ends=0)
        obs, state = batch.obs.requires_grad_(), batch.state.requires_grad_()
        learner.compute(batch._replace(obs=obs, state=state), torch.ones(5)).loss.backward()
        assert state.grad is None or not state.grad.any()
        assert not obs.grad[: self.BURN].any()
        # The last observation only bootstraps.
        assert obs.grad[self.BURN : -1].flatten(1).any(1).all()
        assert not obs.grad[-1].any()

    def test_is_the_same_function_as_a_whole_unroll(self):
        learner, batch = self.learner("casa"), random_batch(self.LENGTH, 5, 16, seed=1)
        out, _ = learner.outputs(batch)
        whole, _ = learner.network(batch.obs, batch.state, batch.starts)
        assert out.v.shape == (self.LENGTH - self.BURN + 1, 5)
        torch.testing.assert_close(out.v, whole.v[self.BURN :])
        torch.testing.assert_close(out.log_pi, whole.log_pi[self.BURN :])

    def test_starts_from_the_stored_state_and_resets_inside(self):
        learner, batch = self.learner("casa"), random_batch(self.LENGTH, 2, 16, ends=0)
        batch.starts[2, 1] = True  # the second sequence starts anew within the burn-in
        base = learner.outputs(batch)[0].v
        other_state = learner.outputs(batch._replace(state=batch.state + 1))[0].v
        assert (other_state[:, 0] != base[:, 0]).all()
        assert torch.equal(other_state[:, 1], base[:, 1])
        obs = batch.obs.clone()
        obs[0] += 1  # before the reset
        before = learner.outputs(batch._replace(obs=obs))[0].v
        assert (before[:, 0] != base[:, 0]).all()
        assert torch.equal(before[:, 1], base[:, 1])
        obs = batch.obs.clone()
        obs[2] += 1  # at the reset
        assert (learner.outputs(batch._replace(obs=obs))[0].v != base).all()

    def test_without_lstm_it_is_skipped(self):
        learner = make_learner("casa", **{"data.burn_in": 3, "data.seq_len": 4})
        batch = random_batch(7, 5)
        out, _ = learner.outputs(batch)
        torch.testing.assert_close(out.v, learner.network(batch.obs[3:])[0].v)

    @pytest.mark.parametrize(("recipe", "burn_in"), [("casa", 8), ("r2d2", 4)])
    def test_ring_stores_the_state_at_the_first_observation(self, recipe, burn_in):
        """Unrolled from the stored state with the acting weights, the learner sees log μ as the actor did."""
        system = probe_system(
            recipe,
            **{
                **dict.fromkeys(("env.num_envs", "data.batch"), 24),
                "net.lstm": 8,
                "data.burn_in": burn_in,
                "steps": 24 * 40,
                "learner.pull_every": 10_000,  # one policy acts all the time
                "data.min_fill": 24,
                "agent.behaviour": "sample",
            },
        )
        seen = 0
        for _ in LOOPS["sync"](system):
            slots = system.ring.written[0]
            batch = system.ring.gather(np.arange(24), np.full(24, max(slots - 20, 0) // 4 * 4), burn_in + 4)
            if slots < burn_in + 24:
                continue
            out, _ = system.actor_network(batch.obs, batch.state, batch.starts)
            log_pi = out.log_pi[:-1].gather(-1, batch.actions[..., None]).squeeze(-1)
            torch.testing.assert_close(log_pi, batch.log_mu, atol=1e-5, rtol=1e-5)
            wrong, _ = system.actor_network(batch.obs, batch.state * 0, batch.starts)
            seen += bool((wrong.log_pi[0] - out.log_pi[0]).abs().max() > 1e-4)
        assert seen
