"""How far a law can be believed: residuals, predictions against measurements, roll-outs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.laws.figures.style import (
    BLUE,
    GREY,
    INK,
    LABELS,
    ORANGE,
    RED,
    SKY,
    count,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip
from lm.laws.validate import Holdout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the sizes of the dots mean in `residuals`, and how each amount is written.
FORMS = {"n": count, "d": count, "flops": power}


@styled
def residuals(
    measured: np.ndarray,
    predicted: np.ndarray,
    amount: np.ndarray,
    role: str = "flops",
    outliers: np.ndarray | None = None,
    label: str = "",
) -> "Figure":
    """Measured over predicted, in percent, against an amount, and their histogram.

    outliers: indices of rows to be ringed.
    """
    percent = 100 * np.expm1(np.log(measured) - np.log(predicted))
    drawn, axes = figure(1, 2, (6.2, 4.2), width_ratios=[3.2, 1], sharey=True)
    left, right = axes[0]
    left.axhline(0, color=GREY, lw=1)
    left.plot(amount, percent, "o", color=BLUE, ms=3.8, mew=0, alpha=0.75, label="runs")
    if outliers is not None and len(outliers):
        left.plot(
            amount[outliers], percent[outliers], "o", mfc="none", mec=RED, ms=8, mew=1.2,
            label="flagged as outliers",
        )  # fmt: skip
        left.legend(loc="best")
    log_axis(left, "x", FORMS.get(role, count), 5)
    left.set(xlabel=LABELS.get(role, label or role), ylabel="measured / law - 1 (%)")
    middle, spread = np.median(percent), 1.4826 * np.median(np.abs(percent - np.median(percent)))
    low, high = percent.min(), percent.max()
    right.hist(
        percent, bins=np.linspace(low, high, 25) if high > low else 5, orientation="horizontal",
        color=BLUE, alpha=0.75,
    )  # fmt: skip
    right.axhline(0, color=GREY, lw=1)
    right.set(xlabel="runs")
    left.set_title(
        f"Residuals of {len(percent)} runs: median {middle:+.2g} %, spread {spread:.2g} %"
    )
    return drawn


@styled
def predicted_measured(
    measured: np.ndarray, predicted: np.ndarray, held_out: Mapping[str, Any] | None = None
) -> "Figure":
    """Measured against predicted loss: the fitted runs, and a run that was predicted first.

    held_out: predicted, interval_80 (or None), measured, run_id, and best_fitted_loss where known.
    """
    drawn, axes = figure(size=(4.8, 4.3))
    values = [measured, predicted]
    axes.plot(predicted, measured, "o", color=BLUE, ms=4, mew=0, alpha=0.7, label="fitted runs")
    if held_out:
        at, value = float(held_out["predicted"]), float(held_out["measured"])
        interval = held_out.get("interval_80")
        error = None if interval is None else [[at - interval[0]], [interval[1] - at]]
        axes.errorbar(
            [at], [value], xerr=None if error is None else np.maximum(error, 0), fmt="*",
            color=ORANGE, mec=INK, mew=0.7, ms=11, capsize=3, zorder=4,
            label="predicted before training (80 %)",
        )  # fmt: skip
        values.append(np.array([at, value, *(interval or [])]))
        best = held_out.get("best_fitted_loss")
        if best:
            axes.axhline(best, color=GREY, lw=1, ls=":", label="best fitted run's loss")
    everything = np.concatenate([np.ravel(v) for v in values])
    edge = (everything.max() / everything.min()) ** 0.04
    low, high = everything.min() / edge, everything.max() * edge
    axes.plot([low, high], [low, high], color=GREY, lw=1, zorder=1, label="equal")
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="predicted loss (nats per token)", ylabel="measured loss (nats per token)")
    log_axis(axes, "x", plain)
    log_axis(axes, "y", plain)
    axes.legend(loc="upper left")
    title = "Predicted against measured loss"
    if held_out:
        error = held_out.get("error")
        if error is not None:
            title = f"Held-out run: {100 * abs(error):.2g} % from its prediction"
    axes.set_title(title)
    return drawn


@styled
def rollout(thresholds: Sequence[float], held: Sequence[Holdout]) -> "Figure":
    """Errors of predictions from fits below growing thresholds of FLOPs, one Holdout a threshold.

    Every run above is a dot; their mean is the line.
    """
    drawn, axes = figure(size=(5.6, 3.9))
    errors = [100 * np.abs(h.errors) for h in held]
    mean = np.array([e.mean() for e in errors])
    for x, e in zip(thresholds, errors, strict=True):
        axes.plot(np.full(e.size, x), e, "o", color=SKY, ms=3.5, mew=0, alpha=0.6, label="_runs")
    axes.plot([], [], "o", color=SKY, ms=4, label="each larger run")
    axes.plot(thresholds, mean, "D-", color=BLUE, mec=INK, mew=0.6, ms=6, label="their mean")
    top = 1.12 * max(e.max() for e in errors)
    for x, h in zip(thresholds, held, strict=True):
        axes.annotate(
            f"{h.fitted.size} \u2192 {h.held.size}", (x, 0.985), fontsize=7.5, ha="center",
            va="top", xycoords=("data", "axes fraction"),
            bbox={"fc": "white", "ec": "none", "pad": 0.8},
        )  # fmt: skip
    axes.set(
        xlabel="fitted to the runs below (training FLOPs)", ylabel="error of the prediction (%)"
    )
    axes.set_ylim(0, 1.1 * top)
    axes.margins(x=0.1)
    if len(thresholds) == 1:
        axes.set_xlim(thresholds[0] / 5, thresholds[0] * 5)
    log_axis(axes, "x", power, 6)
    drawn.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", ncols=2,
        title="at the top: runs fitted \u2192 larger runs predicted",
    )  # fmt: skip
    axes.set_title("Predicting larger runs from smaller ones")
    return drawn
