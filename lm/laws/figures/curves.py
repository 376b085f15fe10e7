"""Learning curves of every run against FLOPs, with their lower envelope."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lm.laws.figures.style import (
    INK,
    LABELS,
    amount_bar,
    amount_colours,
    count,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 60  # points a curve is drawn with: a logged loss is one batch's and noisy

SHOWN = 1000  # times less than the shortest run: what lies before it is the flat start


@dataclass(frozen=True)
class LearningCurve:
    """One run: its size, and FLOPs spent and loss at its logged steps, (steps,) each, in order."""

    run_id: str
    n: float
    flops: np.ndarray
    loss: np.ndarray


def smoothed(curve: LearningCurve, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and loss averaged over equal steps of log FLOPs, (at most bins,) each.

    Every logged step belongs to one bin, so early, sparse steps stay as they were logged.
    """
    usable = np.isfinite(curve.loss) & np.isfinite(curve.flops) & (curve.flops > 0)
    flops, loss = curve.flops[usable], curve.loss[usable]
    if flops.size == 0:
        return flops, loss
    edges = np.geomspace(flops[0], flops[-1] * (1 + 1e-9), bins + 1)
    code = np.clip(np.searchsorted(edges, flops, side="right") - 1, 0, bins - 1)
    code = np.unique(code, return_inverse=True)[1]
    members = np.bincount(code)
    return np.exp(np.bincount(code, np.log(flops)) / members), np.bincount(code, loss) / members


def lower_envelope(
    curves: list[tuple[np.ndarray, np.ndarray]], points: int = 200
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest loss that any run has reached by each FLOP count: both (points,)."""
    grid = np.geomspace(min(c[0][0] for c in curves), max(c[0][-1] for c in curves), points)
    at = np.log(grid)
    losses = [np.interp(at, np.log(c), loss, left=np.inf, right=np.inf) for c, loss in curves]
    return grid, np.minimum.accumulate(np.min(losses, axis=0))


@styled
def learning_curves(curves: list[LearningCurve]) -> "Figure":
    """Training loss of every run against FLOPs, coloured by size, and the lower envelope."""
    drawn, axes = figure(size=(5.6, 4.0))
    shown = [(c, *smoothed(c)) for c in curves]
    shown = [item for item in shown if item[1].size]
    sizes = np.array([c.n for c, _, _ in shown])
    for (curve, flops, loss), colour in zip(shown, amount_colours(sizes), strict=True):
        axes.plot(flops, loss, color=colour, lw=1.1, alpha=0.9, label=f"_{curve.run_id}")
        axes.plot(flops[-1:], loss[-1:], "o", color=colour, ms=3, label="_end")
    long = [(flops, loss) for _, flops, loss in shown if flops.size > 1]
    if long:
        axes.plot(*lower_envelope(long), color=INK, lw=1.2, ls=(0, (4, 2)), label="lowest so far")
        axes.legend(loc="upper right")
    ends = [flops[-1] for _, flops, _ in shown]
    axes.set_xlim(min(ends) / SHOWN, max(ends) * 1.4)
    axes.set(xlabel=LABELS["flops"], ylabel=f"training {LABELS['loss']}")
    log_axis(axes, "x", power, 6)
    log_axis(axes, "y", plain)
    amount_bar(drawn, axes, sizes, LABELS["n"], count)
    axes.set_title("Loss curve of every run")
    return drawn
