"""π = softmax(A/τ), Q = A - sg(π)·A + sg(V) as a policy of Stable-Baselines3, with its losses.

    from casa.integrations.sb3 import CasaPolicy
    from stable_baselines3 import PPO

    PPO(CasaPolicy, "CartPole-v1").learn(100_000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from casa.errors import UserError
from casa.heads import casa_head
from casa.losses import taken

try:
    from stable_baselines3.common.distributions import Distribution
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.preprocessing import is_image_space
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
    from stable_baselines3.common.type_aliases import PyTorchObs
except ModuleNotFoundError as error:
    raise ImportError(
        "casa.integrations.sb3 needs Stable-Baselines3: install it with pip install 'casa-rl[sb3]'"
    ) from error


class CasaPolicy(ActorCriticPolicy):
    """π = softmax(A/τ), Q = A - sg(π)·A + sg(V); the gradient followed is that of α1 L_V + α2 L_Q - J (eq. 6 to 9).

    Use it with an unmodified PPO or A2C. Its `action_net` is A and its `value_net` is V. With SB3's default
    `vf_coef` of 0.5, L_V = ½ E[(V^ - V)²] has the weight α1 = `v_weight` and L_Q = ½ E[(Q^ - Q)²] the weight
    α2 = `q_weight`; another `vf_coef` scales both by vf_coef / 0.5. Q^ = V^ = SB3's λ-returns. J is SB3's policy loss
    times τ. `train/value_loss` in SB3's log is v_weight E[(V^ - V)²] + q_weight E[(Q^ - Q)²].

    Scale. A and Q are in units of returns: τ is the advantage that makes an action e times as likely. SB3 normalises
    the advantages in J (to a standard deviation of 1) and not the errors in L_Q, so rewards times k leave J's gradient
    as it is, make L_Q's k times as large, and π greedier at the same τ. The defaults were chosen for rewards divided
    by the standard deviation of returns: `VecNormalize(env, norm_obs=False)`.

    Weights. The paper has α2 = 1, one epoch and advantages as they are: `q_weight=1`, `n_epochs=1`,
    `normalize_advantage=False`. SB3's PPO has ten epochs, and its clipping limits how far J moves π, but not how far
    L_Q does; with these settings 0.3 learned LunarLander better than 1.

    Actions are Discrete, MultiDiscrete or MultiBinary. With several action dimensions A(s, a) = Σ_k A_k(s, a_k):
    the equations hold for the joint action. Images go through `NatureCNN`, dictionaries through `CombinedExtractor`,
    unless `features_extractor_class` says otherwise; all other arguments are those of SB3's `ActorCriticPolicy`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Callable[[float], float],
        *,
        tau: float = 0.1,
        v_weight: float = 0.5,
        q_weight: float = 0.3,
        **kwargs: Any,
    ) -> None:
        if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise UserError(
                f"CasaPolicy needs Discrete, MultiDiscrete or MultiBinary actions, because π = softmax(A/τ) is over a "
                f"finite set; this environment has {action_space}"
            )
        if not tau > 0:
            raise UserError(f"tau must be positive, got {tau}")
        if v_weight < 0 or q_weight < 0:
            raise UserError(f"v_weight and q_weight must not be negative, got {v_weight} and {q_weight}")
        kwargs.setdefault("features_extractor_class", _features_extractor(observation_space))
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)
        self.tau, self.v_weight, self.q_weight = tau, v_weight, q_weight

    def evaluate_actions(self, obs: PyTorchObs, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """V(s) [N, 1], log π(a|s) [N] and the entropy [N], with gradients such that SB3 follows α1 L_V + α2 L_Q and J.

        log π has the gradient τ ∇log π. V carries Q(s, a) along, for the loss that SB3 computes from it.
        """
        advantage, values = self._outputs(obs)
        distribution = self._distribution(advantage)
        log_prob = distribution.log_prob(actions)
        # The value is log π to the last bit: SB3's ratio π/μ is exactly 1 in the first update of a rollout.
        log_prob = log_prob.detach() + self.tau * (log_prob - log_prob.detach())
        critic = _Critic(self._q_taken(advantage, values, actions), self.v_weight, self.q_weight)
        return critic.carried_by(values), log_prob, distribution.entropy()

    def q_values(self, obs: PyTorchObs) -> Tensor:
        """Q(s, ·) = A - sg(π)·A + sg(V), [N, actions], for Discrete actions."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise UserError(f"q_values lists Discrete actions; this policy has {self.action_space}")
        advantage, values = self._outputs(obs)
        q = casa_head(advantage, values.squeeze(-1), self.tau).q
        assert q is not None
        return q

    def _outputs(self, obs: PyTorchObs) -> tuple[Tensor, Tensor]:
        """(A [N, Σ_k actions_k], V [N, 1])."""
        features = self.extract_features(obs)
        if self.share_features_extractor:
            latent_pi, latent_vf = self.mlp_extractor(features)
        else:
            pi_features, vf_features = features
            latent_pi = self.mlp_extractor.forward_actor(pi_features)
            latent_vf = self.mlp_extractor.forward_critic(vf_features)
        return self.action_net(latent_pi), self.value_net(latent_vf)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        return self._distribution(self.action_net(latent_pi))

    def _distribution(self, advantage: Tensor) -> Distribution:
        """π = softmax(A/τ), of each action dimension."""
        return self.action_dist.proba_distribution(action_logits=advantage / self.tau)

    def _q_taken(self, advantage: Tensor, values: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a) = sg(V) + Σ_k (A_k(a_k) - sg(π_k)·A_k), [N], from A [N, Σ_k actions_k], V [N, 1], a [N(, K)]."""
        if isinstance(self.action_space, spaces.MultiDiscrete):
            parts = list(advantage.split(self.action_space.nvec.tolist(), dim=-1))
        elif isinstance(self.action_space, spaces.MultiBinary):
            # SB3's logits are those of 1 against 0: A_k(0) = 0.
            parts = [torch.stack([torch.zeros_like(a), a], dim=-1) for a in advantage.unbind(-1)]
        else:
            parts = [advantage]
        q = values.detach().squeeze(-1)
        for part, action in zip(parts, actions.reshape(len(actions), -1).unbind(-1), strict=True):
            head = casa_head(part, torch.zeros_like(q), self.tau)
            assert head.q is not None
            q = q + taken(head.q, action)
        return q

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"tau": self.tau, "v_weight": self.v_weight, "q_weight": self.q_weight}
        return {**super()._get_constructor_parameters(), **own}


def _features_extractor(observation_space: spaces.Space[Any]) -> type:
    if isinstance(observation_space, spaces.Dict):
        return CombinedExtractor
    return NatureCNN if is_image_space(observation_space) else FlattenExtractor


@dataclass
class _Critic:
    """What V takes along to its loss: Q(s, a) [N], the weights α1 and α2, and whether the loss has been computed."""

    q: Tensor
    v_weight: float
    q_weight: float
    used: bool = False

    def carried_by(self, values: Tensor) -> Tensor:
        """V as `_Values`; a gradient that reaches it without L_Q is an error."""
        if values.requires_grad:
            values.register_hook(self._check)
        carrier = values.as_subclass(_Values)
        carrier.critic = self
        return carrier

    def loss(self, squared: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """α1 E[(V^ - V)²] + α2 E[(Q^ - Q)²] = 2 (α1 L_V + α2 L_Q), where `squared`(x) = E[(V^ - x)²]."""
        self.used = True
        return self.v_weight * squared(values) + self.q_weight * squared(self.q)

    def _check(self, gradient: Tensor) -> None:
        if not self.used:
            raise UserError(
                "CasaPolicy adds L_Q where the algorithm calls torch.nn.functional.mse_loss(returns, values), and "
                "this algorithm computes its value loss otherwise: train with PPO or A2C of Stable-Baselines3"
            )


class _Values(Tensor):
    """V(s), a tensor like any other, whose `mse_loss` against returns is that of V and of Q(s, a).

    SB3's value loss has one prediction for each state, and L_Q needs two: no gradient of V alone, however arranged,
    yields (V^ - V) ∇V + (Q^ - Q) ∇Q for every `vf_coef`. So V brings Q along through what SB3 does with it
    (`flatten`, and the clipping of `clip_range_vf`, which is of V alone) to the loss itself.
    """

    critic: _Critic

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        carriers = [x for x in (*args, *kwargs.values()) if isinstance(x, cls) and hasattr(x, "critic")]
        if func is F.mse_loss and len(carriers) == 1:
            (values,) = carriers
            (returns,) = (x for x in args[:2] if x is not values)  # both positional, however they were passed
            with torch._C.DisableTorchFunctionSubclass():
                return values.critic.loss(lambda x: F.mse_loss(x, returns, **kwargs), values.as_subclass(Tensor))
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if carriers and isinstance(result, cls):
            result.critic = carriers[0].critic
        return result
