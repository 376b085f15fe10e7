"""Laws of one input with their breaks, and an emergent metric: no single power law."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lm.laws.figures.style import (
    BLUE,
    GREY,
    INK,
    KINDS,
    LABELS,
    RED,
    count,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip
from lm.laws.forms.bnsl import bnsl
from lm.laws.law import Law

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Double descent as a broken law: falls, rises after the first break, falls again after the second.
DOUBLE_DESCENT = {
    "a": 0.9, "b": 40.0, "c0": 0.35,
    "c1": -0.75, "d1": 3e5, "f1": 0.12,
    "c2": 0.85, "d2": 3e6, "f2": 0.1,
}  # fmt: skip


def double_descent_example(points: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Generated (x, loss), (points,): DOUBLE_DESCENT with 1 % noise on log loss."""
    x = np.geomspace(1e4, 1e8, points)
    noise = 0.01 * np.random.default_rng(seed).standard_normal(points)
    return x, bnsl(2).predict(DOUBLE_DESCENT, {"x": x}) * np.exp(noise)


@styled
def one_input(
    law: Law,
    params: Mapping[str, float],
    x: np.ndarray,
    y: np.ndarray,
    *,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
    label: str = "x",
    title: str = "",
) -> "Figure":
    """A law of one input through its runs, its breaks marked, held-out runs hollow.

    held_out: (x, y) that the fit did not see. samples: bootstrap parameters, for the 80 % band.
    """
    drawn, axes = figure()
    role = law.inputs[0]
    everything = x if held_out is None or not len(held_out[0]) else np.append(x, held_out[0])
    line = np.geomspace(everything.min() / 1.2, everything.max() * 1.2, 400)
    value = law.predict(params, {role: line})
    if samples is not None:
        low, high = np.quantile(law.predict(samples, {role: line}), [0.1, 0.9], axis=0)
        axes.fill_between(line, low, high, color=RED, alpha=0.15, lw=0, label="80 % band")
    axes.plot(line, value, color=RED, lw=1.8, label=f"fit of {law.name}")
    axes.plot(x, y, "o", color=BLUE, ms=4.5, mew=0, label="runs", zorder=3)
    if held_out is not None and len(held_out[0]):
        axes.plot(
            *held_out, "o", mfc="white", mec=BLUE, mew=1.3, ms=5.5, label="not fitted", zorder=3
        )
    breaks = [v for k, v in params.items() if law.name == "bnsl" and k[0] == "d"]
    for number, at in enumerate(b for b in breaks if line[0] < b < line[-1]):
        axes.axvline(at, color=GREY, lw=1, ls=":", label="_" if number else "breaks")
    axes.set(xlabel=label, ylabel=LABELS["loss"] if law.target == "loss" else law.target)
    log_axis(axes, "x", count)
    log_axis(axes, "y", plain)
    axes.legend(loc="best")
    axes.set_title(title or f"{law.name} and its runs")
    return drawn


def exact_match(loss: np.ndarray, floor: float, length: int) -> np.ndarray:
    """Chance that `length` tokens in a row are right, at a loss of nats per token above the floor.

    Per-token accuracy is taken as exp(-(loss - floor)), the geometric mean of the chance given to
    the right token where the text itself leaves no doubt; tokens are taken as independent
    (Schaeffer et al. 2023, section 2).
    """
    return np.exp(-length * np.maximum(np.asarray(loss) - floor, 0.0))


@styled
def emergence(
    amount: np.ndarray,
    loss: np.ndarray,
    floor: float,
    *,
    line: tuple[np.ndarray, np.ndarray] | None = None,
    lengths: tuple[int, ...] = (2, 4, 8, 16),
    role: str = "flops",
) -> "Figure":
    """The same runs by a smooth metric (per-token accuracy) and by a sharp one (exact match).

    line: (amount, loss) of the law's best runs, which may reach beyond the runs; dotted there.
    """
    drawn, axes = figure(1, 2, (8.2, 3.9), sharex=True)
    smooth, sharp = axes[0]
    for ax, shown in ((smooth, (1,)), (sharp, lengths)):
        for length, colour in zip(shown, (INK,) if ax is smooth else KINDS, strict=False):
            ax.plot(
                amount, exact_match(loss, floor, length), "o", color=colour, ms=3, mew=0,
                alpha=0.6, label="_runs",
            )  # fmt: skip
            name = "per-token accuracy" if ax is smooth else f"{length} tokens right"
            if line is None:
                ax.plot([], [], "o", color=colour, ms=4, label=name)
                continue
            value = exact_match(line[1], floor, length)
            inside = line[0] <= amount.max()
            ax.plot(line[0][inside], value[inside], color=colour, label=name)
            ax.plot(line[0][~inside], value[~inside], ":", color=colour, label="_beyond")
        ax.set(xlabel=LABELS.get(role, role), ylim=(-0.03, 1.03))
        ax.legend(loc="upper left")
    smooth.set(ylabel="accuracy (share)")
    sharp.set(ylabel="exact match (share)")
    smooth.set_title("Smooth: each token")
    sharp.set_title("Sharp: all tokens at once")
    for ax in (smooth, sharp):
        log_axis(ax, "x", power if role == "flops" else count, 5)
    what = f"exp(-(loss - {floor:.3g}))" if floor else "exp(-loss)"
    drawn.supxlabel(
        f"Accuracy is computed from each run's loss as {what}, exact match of k tokens as its k-th "
        "power;\nlines: the fitted law along its best sizes, dotted beyond the largest run."
        if line is not None else
        f"Accuracy is computed from each run's loss as {what}, exact match of k tokens as its k-th "
        "power.",
        x=0.02, ha="left", fontsize=7.5, color=GREY,
    )  # fmt: skip
    return drawn
