"""The figures of a study, in the paper's arrangement, as PNG, PDF and SVG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from casa.config import recipes
from casa.errors import UserError
from casa.experiments.collect import Curve
from casa.experiments.studies import Study
from casa.statistics import Array

FORMATS = ("png", "pdf", "svg")
LABELS = {
    "return": "return",
    "chi": "χ",
    "cos_beta": "cos β",
    "entropy": "entropy",
    "entropy_q": "entropy of softmax(Q/τ)",
}
# Okabe and Ito's palette: distinct for every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(curves: Sequence[Curve], study: Study, stem: Path) -> list[Path]:
    """Write STEM.png, .pdf and .svg of the finished runs; UserError without matplotlib."""
    arrange = {"motivation": _motivation, "ablation": _ablation, "curves": _curves}[study.figure]
    finished = [curve for curve in curves if curve.finished]
    return write(stem, lambda pyplot: arrange(pyplot, finished, study))


def write(stem: Path, arrange: Callable[[Any], Any]) -> list[Path]:
    """Write the figure that `arrange` makes of pyplot as STEM.png, .pdf and .svg; UserError without matplotlib."""
    if not available():
        raise UserError("figures need matplotlib; pip install 'casa-rl[report]', then add --figures-only")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 9, "svg.fonttype": "none"}):
        figure = arrange(pyplot)
        written = []
        for kind in FORMATS:
            path = stem.with_name(f"{stem.name}.{kind}")
            figure.savefig(path, dpi=130)
            written.append(path)
        pyplot.close(figure)
    return written


def _colour(study: Study, version: str) -> str:
    return COLOURS[list(study.versions).index(version) % len(COLOURS)]


def grid(curves: Sequence[Curve], name: str, points: int = 100) -> tuple[Array, Array] | None:
    """(steps [n], values [runs, n]) of a column, interpolated to common steps; None if no run has it."""
    known = []
    for curve in curves:
        keep = ~np.isnan(curve.columns[name])
        if keep.any():
            known.append((curve.columns["step"][keep], curve.columns[name][keep]))
    if not known:
        return None
    steps = np.linspace(max(s[0] for s, _ in known), min(s[-1] for s, _ in known), points)
    return steps, np.stack([np.interp(steps, s, values) for s, values in known])


def _plot(axis: Any, curves: Sequence[Curve], study: Study, versions: Sequence[str], name: str) -> None:
    """Mean over seeds, with a band of one standard error."""
    for version in versions:
        found = grid([curve for curve in curves if curve.version == version], name)
        if found is None:
            continue
        steps, values = found
        mean, error = values.mean(0), values.std(0, ddof=min(len(values) - 1, 1)) / math.sqrt(len(values))
        colour = _colour(study, version)
        axis.plot(steps / 1000, mean, color=colour, label=version, linewidth=1.3)
        if len(values) > 1:
            axis.fill_between(steps / 1000, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    if not axis.lines:
        axis.text(0.5, 0.5, f"no {LABELS[name]} measured", ha="center", transform=axis.transAxes)


def _legend(axes: Sequence[Any]) -> None:
    """Name the versions in the first of the axes that shows any."""
    for axis in axes:
        if axis.lines:
            axis.legend(frameon=False, fontsize=7)
            return


def _rows(pyplot: Any, rows: int, columns: int, width: float = 2.9, height: float = 2.2) -> tuple[Any, Any]:
    return pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False)


def _of(curves: Sequence[Curve], env: str) -> list[Curve]:
    return [curve for curve in curves if curve.env == env]


def _motivation(pyplot: Any, curves: Sequence[Curve], study: Study) -> Any:
    """Figure 3: return, χ, cos β, entropy; one row for each family of agents in each environment."""
    families: dict[str, list[str]] = {}
    for version, settings in study.versions.items():
        families.setdefault(recipes.get(str(settings["recipe"])).family, []).append(version)
    rows = [(env, family) for env in study.envs for family in families]
    figure, axes = _rows(pyplot, len(rows), 4)
    for row, (env, family) in zip(axes, rows, strict=True):
        # The paper's entropy of R2D2 is that of the Boltzmann policy on Q.
        entropy = "entropy_q" if family == "R2D2" else "entropy"
        for axis, name in zip(row, ("return", "chi", "cos_beta", entropy), strict=True):
            _plot(axis, _of(curves, env), study, families[family], name)
            axis.set_title(LABELS[name])
        row[0].set_ylabel(f"{env}\n{family}")
        _legend(row)
    for axis in axes[-1]:
        axis.set_xlabel("thousand agent steps")
    return figure


def _ablation(pyplot: Any, curves: Sequence[Curve], study: Study) -> Any:
    """Figure 4: return, χ, cos β, scatter and box plot of (χ, cos β); one row for each environment."""
    figure, axes = _rows(pyplot, len(study.envs), 5)
    versions = list(study.versions)
    for row, env in zip(axes, study.envs, strict=True):
        here = _of(curves, env)
        for axis, name in zip(row, ("return", "chi", "cos_beta"), strict=False):
            _plot(axis, here, study, versions, name)
            axis.set_title(LABELS[name])
        row[0].set_ylabel(env)
        _scatter(row[3], here, study)
        _boxes(row[4], here, study)
    _legend(axes[:, 0])
    for axis in axes[-1][:3]:
        axis.set_xlabel("thousand agent steps")
    return figure


def points(curves: Sequence[Curve], version: str) -> tuple[Array, Array]:
    """(χ, cos β) of every measurement of a version: one batch in every 100."""
    mine = [curve for curve in curves if curve.version == version]
    chi, beta = (np.concatenate([c.columns[n] for c in mine] or [np.zeros(0)]) for n in ("chi", "cos_beta"))
    keep = ~np.isnan(chi) & ~np.isnan(beta)
    return chi[keep], beta[keep]


def _scatter(axis: Any, curves: Sequence[Curve], study: Study) -> None:
    for version in study.versions:
        chi, beta = points(curves, version)
        axis.scatter(chi, beta, s=3, alpha=0.35, linewidths=0, color=_colour(study, version), rasterized=True)
    axis.set(title="one batch in every 100", xlabel="χ", ylabel="cos β")


def _boxes(axis: Any, curves: Sequence[Curve], study: Study) -> None:
    """Interquartile range in both directions, with the medians inside."""
    from matplotlib.patches import Rectangle

    for version in study.versions:
        chi, beta = points(curves, version)
        if not len(chi):
            continue
        colour = _colour(study, version)
        (left, x, right), (low, y, high) = (np.quantile(values, [0.25, 0.5, 0.75]) for values in (chi, beta))
        # χ is constant for some heads: a box without width would not be seen.
        width = max(right - left, 0.01)
        box = Rectangle((x - width / 2 if width == 0.01 else left, low), width, high - low)
        box.set(facecolor=colour, alpha=0.35, edgecolor=colour)
        axis.add_patch(box)
        axis.plot([x], [y], "o", color=colour, markersize=3)
    axis.autoscale_view()
    axis.set(title="interquartile ranges", xlabel="χ", ylabel="cos β")


def _curves(pyplot: Any, curves: Sequence[Curve], study: Study) -> Any:
    """Figure 5: the return in each environment."""
    figure, axes = _rows(pyplot, 1, len(study.envs), height=2.6)
    for axis, env in zip(axes[0], study.envs, strict=True):
        _plot(axis, _of(curves, env), study, list(study.versions), "return")
        axis.set(title=env, xlabel="thousand agent steps")
    axes[0][0].set_ylabel("return")
    _legend(axes[0])
    return figure


