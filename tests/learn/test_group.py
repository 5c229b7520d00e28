"""Several learners that share a batch have the gradient of one learner with the whole batch."""

import threading

import pytest
import torch
from tests.support.learner_cases import make_learner, random_batch

from casa.learn import shares
from casa.learn.group import Group, shared_gradient, tensors_to_share

GAUSSIAN = {"agent.head": "casa-gaussian"}
CASES = {
    "ppo-casa": ("ppo-casa", {"agent.advantage_norm": True, "agent.advantage_centre": True}),  # over the whole batch
    "casa": ("casa", {}),
    "casa with a Gaussian": ("casa", GAUSSIAN),  # no gradient flows into its Q
    "r2d2": ("r2d2", {}),  # with a target network
    "r2d2-casa with a Gaussian": ("r2d2-casa", GAUSSIAN),
    "impala": ("impala", {}),
    "rainbow": ("rainbow", {}),  # with a distribution, and the noise of the step
}


def in_a_group(size, work):
    """[work(group) of each rank], each in a thread of its own; an error in one is raised here."""
    results, errors, ports = {}, [], []
    listening = threading.Event()

    def meet(port):
        ports.append(port)
        listening.set()

    def member(rank):
        try:
            if rank:
                assert listening.wait(20)
            results[rank] = work(Group("127.0.0.1", ports[0] if rank else 0, rank, size, meet))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_batch_have_the_gradient_of_the_whole(case, size):
    recipe, changes = CASES[case]
    settings = {**changes, "data.burn_in": 2, "data.seq_len": 5}
    learners = [make_learner(recipe, lstm=8, **settings) for _ in range(size)]
    learner = learners[0]
    batch, weights = random_batch(7, 6, 16, seed=3, ends=0.5, box=changes is GAUSSIAN), torch.rand(6)
    parts = shares.split(batch, size)
    assert len({int(part.valid[2:].sum()) for part in parts}) > 1  # averaging their losses would be wrong
    for each in learners:
        each.renew_noise()
    whole = learner.differentiate(batch, weights)
    trained = learner.trained_steps(batch, weights)

    def work(group):
        mine = learners[group.rank]
        with torch.no_grad():
            for x in tensors_to_share(mine, target=True) if group.rank else ():
                x.add_(1)  # what a helper had before is no matter
        group.broadcast(tensors_to_share(mine, target=True))
        return shared_gradient(mine, group, parts[group.rank], trained)

    for found in in_a_group(size, work):
        torch.testing.assert_close(found.loss, whole.loss)
        torch.testing.assert_close(found.td_errors, whole.td_errors)
        for a, b in zip(found.grads, whole.grads, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
