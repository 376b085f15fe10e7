"""Figures 2.3 and 2.4 of the source: the three phases of a learning curve, and Kaplan's laws.

Both are drawn from laws and published constants alone, so they need no table.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lm.laws.figures.style import (
    BLUE,
    GREEN,
    GREY,
    LABELS,
    RED,
    figure,
    log_axis,
    plain,
    power,
    styled,
)  # fmt: skip
from lm.laws.forms.kaplan_d import kaplan_d
from lm.laws.forms.kaplan_n import kaplan_n
from lm.laws.forms.three_phase import three_phase as law
from lm.laws.published import KAPLAN_D, KAPLAN_N

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A curve whose three phases are each more than two decades wide; not a measurement.
EXAMPLE = {"E": 1.7, "L_0": 10.4, "x_c": 1e7, "alpha": 0.35}
KNEE = 0.1  # a phase ends where the law is this share away from its neighbour's straight line


@styled
def three_phase(params: Mapping[str, float] = EXAMPLE, runs: tuple | None = None) -> "Figure":
    """Figure 2.3: slow start at L_0, power law, floor E, with the two knees between them.

    runs: (x, loss) to be drawn as points, of a fit of the law three_phase.
    """
    drawn, axes = figure(size=(5.8, 4.0))
    first, last = knees(params)
    low, high = first / 300, last * 300
    x = np.geomspace(low, high, 400)
    loss = law.predict(params, {"x": x})
    E, L_0 = params["E"], params["L_0"]
    for (left, right), colour, name in zip(
        ((low, first), (first, last), (last, high)), (GREY, BLUE, GREEN),
        ("slow start:\nbest guess", "power law", "irreducible\nloss"), strict=True,
    ):  # fmt: skip
        axes.axvspan(left, right, color=colour, alpha=0.08, lw=0)
        axes.annotate(
            name, (np.sqrt(left * right), 0.97), xycoords=("data", "axes fraction"), ha="center",
            va="top", fontsize=8.5, color=colour, weight="bold",
        )  # fmt: skip
    axes.axhline(L_0, color=GREY, lw=1, ls="--", label=f"$L_0$ = {L_0:.3g}")
    axes.axhline(E, color=GREEN, lw=1, ls="--", label=f"E = {E:.3g}")
    if E < L_0:
        middle = E + (L_0 - E) * (x / params["x_c"]) ** -params["alpha"]
        straight = (x >= params["x_c"]) & (middle < L_0)
        axes.plot(
            x[straight], (middle - E)[straight] + E, ":", color=RED, lw=1.2,
            label=rf"E + ($L_0$ - E) (x / {power(params['x_c'])})$^{{-{params['alpha']:.2g}}}$",
        )  # fmt: skip
    axes.plot(x, loss, color=BLUE, lw=2.2, label="the law")
    if runs is not None:
        axes.plot(*runs, "o", color=RED, ms=4, mew=0, label="runs")
    axes.set(xlim=(low, high), ylim=(E * 0.85, L_0 * 1.6))
    axes.set(xlabel="training set (tokens), or compute", ylabel=LABELS["loss"])
    log_axis(axes, "x", power, 8)
    log_axis(axes, "y", plain)
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.6))
    whose = "an example" if runs is None else "the fit"
    axes.set_title(f"Three phases of learning ({whose})")
    return drawn


def knees(params: Mapping[str, float]) -> tuple[float, float]:
    """Where the slow start ends and where the floor begins.

    The slow start ends where a tenth of the way to the floor is gone; the floor begins where a
    tenth of it is left.
    """
    at = np.array([1 - KNEE, KNEE])
    first, last = params["x_c"] * (at ** (-1 / params["alpha"]) - 1)
    return float(first), float(last)


@styled
def kaplan() -> "Figure":
    """Figure 2.4: L(N) = (8.8e13 / N)^0.076 and L(D) = (5.4e13 / D)^0.095 in log-log axes."""
    drawn, axes = figure(1, 2, (7.6, 3.6), sharey=True)
    for ax, form, known, role, (low, high), colour in zip(
        axes[0], (kaplan_n, kaplan_d), (KAPLAN_N, KAPLAN_D), ("n", "d"),
        ((1e5, 1e11), (1e8, 1e12)), (BLUE, GREEN), strict=True,
    ):  # fmt: skip
        x = np.geomspace(low, high, 200)
        letter = role.upper()
        front, exponent = known.params[f"{letter}_c"], known.params[f"alpha_{letter}"]
        ax.plot(
            x, form.predict(known.params, {role: x}), color=colour, lw=2.2,
            label=rf"L({letter}) = ({power(front)} / {letter})$^{{{exponent}}}$",
        )  # fmt: skip
        ax.set(xlabel=LABELS[role] + (", without embeddings" if role == "n" else ""))
        log_axis(ax, "x", power, 7)
        ax.legend(loc="upper right", fontsize=9)
    axes[0][0].set(ylabel="test " + LABELS["loss"])
    for ax in axes[0]:
        log_axis(ax, "y", plain)
    drawn.suptitle(
        "Kaplan et al. 2020: loss against model size and data", x=0.01, ha="left", weight="bold"
    )
    return drawn
