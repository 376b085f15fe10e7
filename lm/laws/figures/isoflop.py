"""IsoFLOP curves with their minima, and the power laws through the minima."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lm.laws.evidence import TableLedger
from lm.laws.figures.style import (
    GREY,
    INK,
    LABELS,
    ORANGE,
    amount_bar,
    amount_colours,
    count,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip
from lm.laws.isoflop import Frontier, Group
from lm.laws.runs import Runs
from lm.laws.surface import Surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 7  # more budgets than this get a colour bar instead of a legend


@styled
def isoflop_curves(
    runs: Runs, frontier: Frontier, law: Surface | None = None, title: str = ""
) -> "Figure":
    """Loss against N along each FLOP budget: runs, parabolas, their minima, the law dashed.

    A budget without a trusted minimum is grey, and the reason stands below the axes.
    """
    drawn, axes = figure()
    groups = frontier.groups
    shown = [g for g in groups if g.skipped is None]
    colours = amount_colours([g.flops for g in shown])
    ledger = TableLedger(runs)
    for group in groups:
        n, loss = runs.x["n"][group.members], runs.y[group.members]
        if group.skipped is not None:
            axes.plot(n, loss, "x", color=GREY, ms=4.5, mew=1, label="_skipped", zorder=1)
            continue
        colour = colours[shown.index(group)]
        axes.plot(n, loss, "o", color=colour, ms=4, alpha=0.85, mew=0, label="_runs", zorder=2)
        sizes = np.geomspace(n.min(), n.max(), 120)
        if group.curve is not None:
            u = np.log(sizes) - group.center
            axes.plot(
                sizes, np.polyval(group.curve[::-1], u), "-", color=colour, lw=1.5,
                label=f"{power(group.flops)}" if len(shown) <= NAMED else "_curve",
            )  # fmt: skip
        if law is not None:
            d = ledger.tokens(sizes, group.flops)
            axes.plot(
                sizes, law.loss(sizes, d)[0], "--", color=colour, lw=1, alpha=0.9, label="_law"
            )
    axes.plot(
        [g.n for g in shown], [g.loss for g in shown], "D", color=ORANGE, mec=INK, mew=0.7, ms=6,
        zorder=4, label="minimum",
    )  # fmt: skip
    if law is not None:
        axes.plot([], [], "--", color=GREY, lw=1, label="fitted law")
    if len(shown) < len(groups):
        axes.plot([], [], "x", color=GREY, ms=4.5, mew=1, label="no minimum (below)")
    axes.margins(x=0.04, y=0.06)
    axes.set(xlabel=LABELS["n"], ylabel=LABELS["loss"])
    axes.set_title(title or "Loss along each FLOP budget")
    log_axis(axes, "x", count)
    log_axis(axes, "y", plain)
    if len(shown) <= NAMED:
        axes.legend(title="FLOPs", loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
        amount_bar(drawn, axes, np.array([g.flops for g in shown]), LABELS["flops"], power)
    _reasons(drawn, groups)
    return drawn


def _reasons(drawn: "Figure", groups: list[Group]) -> None:
    """Why some budgets have no minimum, one line each, below the axes."""
    lines = [f"{g.flops:.2g} FLOPs left out: {g.skipped}" for g in groups if g.skipped]
    if not lines:
        return
    if len(lines) > 4:
        lines = [*lines[:3], f"and {len(lines) - 3} more"]
    text = "\n".join(textwrap.shorten(line, 95, placeholder=" ...") for line in lines)
    drawn.supxlabel(text.replace("e+", "e"), x=0.02, ha="left", fontsize=7.5, color=GREY)


@styled
def minima_powers(frontier: Frontier, band: Mapping[str, np.ndarray] | None = None) -> "Figure":
    """N* and D* of every budget against its FLOPs with N_0 C^a and D_0 C^b through them.

    band: resampled N_0, a, D_0, b; their 80 % band is shaded.
    """
    drawn, axes = figure(1, 2, (7.6, 3.5))
    groups = [g for g in frontier.groups if g.skipped is None]
    flops = np.array([g.flops for g in groups])
    line = np.geomspace(flops.min() / 1.3, flops.max() * 1.3, 100)
    samples = band or frontier.samples
    for ax, (values, front, exponent, role, name) in zip(
        axes[0],
        (
            ([g.n for g in groups], "N_0", "a", "n", "N*"),
            ([g.d for g in groups], "D_0", "b", "d", "D*"),
        ),
        strict=True,
    ):
        p = frontier.params
        colour = amount_colours([1, 2])[0]
        if samples:
            paths = samples[front][:, None] * line ** samples[exponent][:, None]
            low, high = np.quantile(paths, [0.1, 0.9], axis=0)
            ax.fill_between(line, low, high, color=colour, alpha=0.15, lw=0, label="80 % interval")
        ax.plot(
            line, p[front] * line ** p[exponent], color=colour,
            label=f"{name} grows as $C^{{{p[exponent]:.3f}}}$",
        )  # fmt: skip
        ax.plot(flops, values, "D", color=ORANGE, mec=INK, mew=0.7, ms=6, label="minima")
        ax.set(xlabel=LABELS["flops"], ylabel=LABELS[role].replace(role.upper(), name))
        log_axis(ax, "x", power, 4)
        log_axis(ax, "y", count, 6)
        ax.legend(loc="upper left")
    drawn.suptitle("Best size and tokens of each budget", x=0.01, ha="left", weight="bold")
    return drawn
