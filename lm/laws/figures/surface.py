"""The fitted surface L over FLOPs and N with the frontier N*(C) and its band."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.errors import BadInput
from lm.laws.allocate import Optimum
from lm.laws.evidence import TableLedger
from lm.laws.figures.style import (
    BLUE,
    INK,
    LABELS,
    ORANGE,
    RED,
    count,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip
from lm.laws.isoflop import Frontier, budgets
from lm.laws.runs import Runs
from lm.laws.surface import Surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = (0.1, 0.9)  # the 80 % band


@styled
def surface_frontier(
    runs: Runs,
    law: Surface,
    samples: Surface | None = None,
    minima: Frontier | None = None,
    plan: Mapping[str, Any] | None = None,
) -> "Figure":
    """Loss contours over FLOPs and N, the runs, the IsoFLOP minima and N*(C) with its 80 % band.

    FLOPs per token are those of the table (TableLedger). With a plan, the view reaches its budget
    and shows its N* with the 80 % interval.
    """
    from matplotlib import colormaps

    drawn, axes = figure(size=(5.6, 4.6))
    ledger, cost = TableLedger(runs), budgets(runs)
    planned = _planned(plan)
    low, high = cost.min() / 1.4, max(cost.max(), planned[0] if planned else 0) * 1.4
    line = np.geomspace(low, high, 60)
    path = _path(ledger, law, line)
    best = path.n[:, 0]
    bottom = min(runs.x["n"].min(), np.nanmin(best)) / 1.5
    top = max(runs.x["n"].max(), np.nanmax(best)) * 1.5
    c, n = np.meshgrid(np.geomspace(low, high, 90), np.geomspace(bottom, top, 90))
    loss = law.loss(n, ledger.tokens(n, c))
    levels = contour_levels(path.loss[:, 0], float(runs.y.max()))
    shades = [colormaps["viridis_r"](s) for s in np.linspace(0.15, 1, len(levels))]
    axes.contourf(c, n, loss, levels=np.append(levels, 1e9), colors=shades, alpha=0.22)
    contours = axes.contour(c, n, loss, levels=levels, colors=shades, linewidths=0.8)
    log_axis(axes, "x", power, 6)
    log_axis(axes, "y", count)
    axes.clabel(contours, fmt=plain, fontsize=7, colors=INK, inline_spacing=2)
    if samples is not None:
        paths = ledger.best(samples, line).n
        band = np.nanquantile(paths, LEVEL, axis=1)
        axes.fill_between(line, band[0], band[1], color=RED, alpha=0.16, lw=0, label="80 % band")
    axes.plot(line, best, color=RED, lw=2, label="N*(C) of the law")
    axes.plot(cost, runs.x["n"], "o", color=INK, ms=2.6, mew=0, alpha=0.7, label="runs")
    if minima is not None:
        shown = [g for g in minima.groups if g.skipped is None]
        axes.plot(
            [g.flops for g in shown], [g.n for g in shown], "D", color=ORANGE, mec=INK, mew=0.7,
            ms=5.5, label="IsoFLOP minima",
        )  # fmt: skip
    if planned:
        flops, value, interval = planned
        error = None if interval is None else [[value - interval[0]], [interval[1] - value]]
        axes.errorbar(
            [flops], [value], yerr=yerror_shape(error), fmt="*", color=BLUE, mec=INK, mew=0.6,
            ms=11, capsize=3, label="plan (80 %)",
        )  # fmt: skip
    axes.set(xlim=(low, high), ylim=(bottom, top), xlabel=LABELS["flops"], ylabel=LABELS["n"])
    log_axis(axes, "x", power, 6)
    log_axis(axes, "y", count)
    axes.grid(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3)
    axes.set_title("Fitted loss (contours, nats per token) and frontier")
    return drawn


def yerror_shape(error: list[list[float]] | None) -> np.ndarray | None:
    """Error bars as (2, 1), never negative: a value may lie outside its own percentiles."""
    return None if error is None else np.maximum(np.array(error), 0.0)


def contour_levels(along: np.ndarray, worst: float) -> np.ndarray:
    """Round levels that cross the frontier at even steps of log FLOPs, and one for the worst run.

    along: the loss along the frontier, (points,), falling.
    """
    along = along[np.isfinite(along)]
    wanted = along[np.linspace(0, len(along) - 1, 9).astype(int)[1:-1]]
    digits = max(1, int(np.ceil(-np.log10(np.abs(np.diff(wanted)).min() / 2 + 1e-9))))
    levels = np.unique(np.round(wanted, min(digits, 4)))
    beyond = np.round(np.geomspace(levels[-1], max(worst, levels[-1] * 1.01), 3)[1:], 1)
    return np.unique(np.append(levels, beyond[beyond > levels[-1]]))


def _planned(plan: Mapping[str, Any] | None) -> tuple[float, float, list[float] | None] | None:
    if not plan or None in (plan["flops"]["value"], plan["n"]["value"]):
        return None
    return plan["flops"]["value"], plan["n"]["value"], plan["n"]["interval_80"]


def _path(ledger: TableLedger, law: Surface, budgets: np.ndarray) -> Optimum:
    """The law's best runs; BadInput where it has none, as with an exponent at its bound of 0."""
    path = ledger.best(law, budgets)
    if not np.isfinite(path.n).any():
        raise BadInput("the law has no optimum at these budgets")
    return path


@styled
def frontier_bands(
    runs: Runs, law: Surface, samples: Surface | None = None, plan: Mapping[str, Any] | None = None
) -> "Figure":
    """N*(C), D*(C) and L*(C) with their 80 % bands; beyond the largest run the line is dotted."""
    drawn, axes = figure(1, 3, (9.6, 3.3))
    ledger, cost = TableLedger(runs), budgets(runs)
    planned = _planned(plan)
    largest = float(cost.max())
    high = max(largest, planned[0] if planned else 0) * 1.4
    line = np.unique(np.append(np.geomspace(cost.min() / 1.4, high, 80), largest))
    path = _path(ledger, law, line)
    paths = None if samples is None else ledger.best(samples, line)
    inside = line <= largest
    for ax, key, label in zip(axes[0], ("n", "d", "loss"), ("N*", "D*", "L*"), strict=True):
        value = getattr(path, key)[:, 0]
        if paths is not None:
            band = np.nanquantile(getattr(paths, key), LEVEL, axis=1)
            ax.fill_between(line, band[0], band[1], color=RED, alpha=0.16, lw=0, label="80 % band")
        ax.plot(line[inside], value[inside], color=RED, label=f"{label} of the law")
        beyond = line >= largest
        if beyond.sum() > 1:
            ax.plot(line[beyond], value[beyond], ":", color=RED, label="beyond the runs")
        if planned and plan and plan[key]["value"] is not None:
            interval = plan[key]["interval_80"]
            v = plan[key]["value"]
            error = None if interval is None else [[v - interval[0]], [interval[1] - v]]
            ax.errorbar(
                [planned[0]], [v], yerr=yerror_shape(error), fmt="*", color=BLUE, mec=INK, mew=0.6,
                ms=11, capsize=3, label="plan (80 %)",
            )  # fmt: skip
        ax.set(xlabel=LABELS["flops"], ylabel=LABELS[key])
        log_axis(ax, "x", power, 4)
        log_axis(ax, "y", plain if key == "loss" else count, 6)
    drawn.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left", ncols=4)
    drawn.suptitle("The best size, tokens and loss of a budget", x=0.01, ha="left", weight="bold")
    return drawn
