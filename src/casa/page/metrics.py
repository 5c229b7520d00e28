"""What the columns of metrics.jsonl are called in a report, and in which order they stand."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Section(NamedTuple):
    """Charts under one heading; `patterns` name their columns, with * as a wildcard. `open`: shown at once."""

    title: str
    note: str
    patterns: tuple[str, ...]
    open: bool = True


SECTIONS = (
    Section("Learning", "", ("return", "return_*", "hns", "saber", "episode_length")),
    Section(
        "Conflict of the gradients",
        "χ = 1: the gradient of Q is that of log π, up to a factor. cos β > 0: evaluation and improvement pull the "
        "network the same way.",
        ("chi", "cos_beta", "cos_*", "conflict*", "norm_ratio*", "noise*"),
    ),
    Section("Conflict by layer", "", ("cos_beta/*", "cos_*/*"), False),
    Section("Policy", "", ("entropy", "entropy_*", "policy_lag", "rho", "tau", "advantage_scale", "kl*", "clip*")),
    Section("Value", "", ("explained_variance", "value", "shaped_reward", "q_*", "value_*")),
    Section("Losses", "", ("loss", "loss_*", "gradient_norm")),
    Section("Gradients of the losses", "", ("grad_norm*", "grad_square*", "grad_variance*"), False),
    Section("Features", "", ("*rank*", "dormant*")),
    Section("Throughput", "time: the share of each stage.", ("steps_per_second", "time_*", "rss_bytes")),
    Section(
        "Data",
        "",
        ("reuse", "replay_*", "max_priority", "learner_steps", "episodes", "skipped", "chi_states", "measured_*"),
        False,
    ),
)
REST = Section("Other columns", "", ("*",), False)
HIDDEN = ("step", "frames", "seconds", "return_scale")

LABELS = {
    "return": ("Return", "mean of the last 100 episodes"),
    "hns": ("HNS", "human-normalized return: 0 is random play, 1 the average human"),
    "episode_length": ("Episode length", "agent steps, mean of the last 100 episodes"),
    "chi": ("χ", "how near ∇Q is to a multiple of ∇log π, 1 at most"),
    "cos_beta": ("cos β", "cosine of the gradients of evaluation and improvement"),
    "cos_v_pi": ("cos ⟨L_V, J⟩", ""),
    "cos_v_q": ("cos ⟨L_V, L_Q⟩", ""),
    "conflict_q_pi": ("Conflict of L_Q and J", "share of the measured steps with cos β < 0"),
    "conflict_v_pi": ("Conflict of L_V and J", "share of the measured steps with a cosine < 0"),
    "conflict_v_q": ("Conflict of L_V and L_Q", "share of the measured steps with a cosine < 0"),
    "norm_ratio_q_pi": ("|∇L_Q| / |∇J|", ""),
    "norm_ratio_v_pi": ("|∇L_V| / |∇J|", ""),
    "norm_ratio_v_q": ("|∇L_V| / |∇L_Q|", ""),
    "noise_scale_v": ("Noise scale of L_V", "in sequences"),
    "noise_scale_q": ("Noise scale of L_Q", "in sequences"),
    "noise_scale_pi": ("Noise scale of J", "in sequences"),
    "feature_rank": ("Effective rank of the features", ""),
    "dormant_units": ("Dormant units", "share"),
    "chi_states": ("States of χ", "that it is a mean over"),
    "entropy": ("Entropy of π", "nats"),
    "entropy_q": ("Entropy of softmax(Q/τ)", "nats"),
    "policy_lag": ("Policy lag", "learner steps between the acting and the learning policy"),
    "rho": ("ρ", "mean importance ratio π/μ"),
    "kl": ("KL(μ ‖ π)", "from the acting to the learning policy, on the batch"),
    "clip_fraction": ("Clip fraction", "share of steps with π/μ outside 1 ± agent.clip"),
    "tau": ("Temperature τ", "of the policy softmax(A/τ)"),
    "advantage_scale": ("Advantage scale", ""),
    "explained_variance": ("Explained variance", "share of the targets' variance that V explains"),
    "value": ("V", "mean over the batch"),
    "shaped_reward": ("Shaped reward", "mean over the batch"),
    "loss": ("Loss", ""),
    "loss_v": ("L_V", ""),
    "loss_q": ("L_Q", ""),
    "loss_pi": ("J", ""),
    "gradient_norm": ("Norm of the gradient", "before clipping"),
    "steps_per_second": ("Speed", "agent steps per second"),
    "rss_bytes": ("Memory", "resident bytes of the process"),
    "reuse": ("Reuse", "learner steps per sample"),
    "learner_steps": ("Learner steps", ""),
    "episodes": ("Episodes", ""),
    "skipped": ("Skipped learner steps", "not finite"),
}


def sections(names: Iterable[str]) -> list[dict[str, Any]]:
    """The sections that have columns among `names`, each with its charts: column, title, note."""
    left = [name for name in names if name not in HIDDEN]
    found = []
    for section in (*SECTIONS, REST):
        charts: list[str] = []
        for pattern in section.patterns:
            charts += sorted(name for name in left if _matches(name, pattern) and name not in charts)
        left = [name for name in left if name not in charts]
        if charts:
            found.append(
                {
                    "title": section.title,
                    "note": section.note,
                    "open": section.open,
                    "charts": [_chart(name) for name in charts],
                }
            )
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether `name` fits; within a pattern, * has no slash, which separates a measure from the layer that it is of."""
    return pattern == "*" or (name.count("/") == pattern.count("/") and fnmatchcase(name, pattern))


def _chart(name: str) -> dict[str, str]:
    title, note = LABELS.get(name, (name, ""))
    if name.startswith("time_"):
        title = f"Time: {name.removeprefix('time_')}"
    return {"column": name, "title": title, "note": note}
