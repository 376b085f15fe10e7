"""What the table leaves open: the bootstrap cloud of two parameters, and profile curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lm.laws.figures.style import (
    BLUE,
    GREY,
    INK,
    KINDS,
    ORANGE,
    RED,
    count,
    figure,
    log_axis,
    plain,
    styled,
)  # fmt: skip
from lm.laws.profile import Profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNS = {
    "alpha": r"$\alpha$", "beta": r"$\beta$", "eta": r"$\eta$", "gamma": r"$\gamma$",
    "epsilon": r"$\epsilon$", "alpha_N": r"$\alpha_N$", "alpha_D": r"$\alpha_D$",
    "n_star": "N*", "d_star": "D*",
}  # fmt: skip


def sign(name: str) -> str:
    """A parameter's name as it is written in its paper."""
    if name in SIGNS:
        return SIGNS[name]
    letter, index = (name[0], name[1:]) if name[1:].isdigit() else name.partition("_")[::2]
    return f"${letter}_{{{index}}}$" if index else f"${name}$"


@styled
def bootstrap_cloud(
    x: np.ndarray,
    y: np.ndarray,
    point: tuple[float, float],
    names: tuple[str, str] = ("alpha", "beta"),
    published: Mapping[str, tuple[float, float]] | None = None,
) -> "Figure":
    """The refits of resampled tables in the plane of two parameters, with the fit itself.

    Contours hold 50 and 95 % of a Gaussian with the samples' mean and covariance.
    published: name -> (x, y) of other constants to compare with.
    """
    drawn, axes = figure(size=(5.2, 4.3))
    axes.plot(x, y, "o", color=BLUE, ms=2.2, mew=0, alpha=0.35, label="_samples")
    axes.plot([], [], "o", color=BLUE, ms=4, mew=0, label=f"{len(x)} resampled fits")
    for share, style in ((0.5, "-"), (0.95, "--")):
        axes.plot(
            *ellipse(x, y, share), style, color=INK, lw=1, label=f"{100 * share:g} % of a Gaussian"
        )
    axes.plot(*point, "D", color=ORANGE, mec=INK, mew=0.7, ms=7, label="the fit")
    for (name, at), colour, mark in zip(
        (published or {}).items(), (RED, KINDS[2], KINDS[4], KINDS[5]), "^vsP", strict=False
    ):
        axes.plot(*at, mark, color=colour, mec=INK, mew=0.5, ms=7, label=name.replace("_", " "))
    axes.set(xlabel=sign(names[0]), ylabel=sign(names[1]))
    for which, (values, fitted) in enumerate(((x, point[0]), (y, point[1]))):
        # A few wild refits must not squeeze the rest into a corner.
        also = [at[which] for at in (published or {}).values()]
        ends = np.array([*np.quantile(values, [0.002, 0.998]), *also, fitted])
        pad = 0.08 * np.ptp(ends)
        (axes.set_xlim, axes.set_ylim)[which](ends.min() - pad, ends.max() + pad)
    axes.legend(loc="best")
    axes.set_title(f"Bootstrap of {sign(names[0])} and {sign(names[1])}")
    return drawn


def ellipse(x: np.ndarray, y: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The border of the region that holds this share of a Gaussian with the samples' moments."""
    radius = np.sqrt(-2 * np.log1p(-share))  # of a chi-square with two degrees of freedom
    values, vectors = np.linalg.eigh(np.cov(x, y))
    angle = np.linspace(0, 2 * np.pi, 181)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    border = vectors @ (np.sqrt(np.maximum(values, 0))[:, None] * circle) * radius
    return x.mean() + border[0], y.mean() + border[1]


@styled
def profile_curves(profiles: Sequence[Profile], center: Mapping[str, float]) -> "Figure":
    """The objective's rise as each quantity is moved and all others are fitted again.

    In units of the rise at which the widest interval ends, which the noise decides. center: the
    fitted values by name. The title says where an interval ends or that the table leaves it open.
    """
    columns = min(3, len(profiles))
    rows = -(-len(profiles) // columns)
    drawn, axes = figure(rows, columns, (3.1 * columns, 2.7 * rows), sharey=True)
    for ax, shown in zip(axes.flat, profiles, strict=False):
        _one_profile(ax, shown, center[shown.quantity.name])
    for ax in axes.flat[len(profiles) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("rise of the objective\n(1: the interval ends)")
    drawn.suptitle("Profile curves with their intervals", x=0.01, ha="left", weight="bold")
    return drawn


def _one_profile(ax, shown: Profile, fitted: float, top: float = 1.5) -> None:
    unit = max(shown.walls.values())
    inside = shown.rises <= 4 * top * unit
    values, rises = shown.values[inside], shown.rises[inside] / unit
    # The square root of the rise is nearly straight on each side: interpolate there, not in rises.
    position = np.log(values) if shown.quantity.log else values
    middle = np.log(fitted) if shown.quantity.log else fitted
    root = np.sqrt(rises) * np.sign(position - middle)
    fine = np.linspace(position[0], position[-1], 400)
    curve = np.interp(fine, position, root) ** 2
    ax.plot(np.exp(fine) if shown.quantity.log else fine, curve, color=BLUE)
    ax.plot(values, rises, "o", color=BLUE, ms=3, mew=0)
    ax.plot([fitted], [0], "D", color=ORANGE, mec=INK, mew=0.7, ms=6, clip_on=False, zorder=4)
    for (level, wall), style in zip(sorted(shown.walls.items()), ("--", ":"), strict=False):
        wall /= unit
        ax.axhline(wall, color=GREY, lw=1, ls=style)
        ax.annotate(
            f"{level:g} %", (0.5, wall), xycoords=("axes fraction", "data"), fontsize=7, color=GREY,
            ha="center", va="bottom",
        )  # fmt: skip
    widest = max(shown.intervals)
    low, high = shown.intervals[widest]
    ends = ["open" if end is None else plain(float(f"{end:.3g}")) for end in (low, high)]
    ax.set_title(
        f"{sign(shown.quantity.name)}: {widest:g} % from {ends[0]} to {ends[1]}", fontsize=8.5
    )
    near = values[rises <= top]
    edge = [v for v in (low, high) if v is not None]
    span = np.array([near.min(), near.max(), *edge])
    ax.set_ylim(-0.03 * top, top)
    if shown.quantity.log:
        pad = (span.max() / span.min()) ** 0.08
        ax.set_xlim(span.min() / pad, span.max() * pad)
        log_axis(ax, "x", count, 5)
    else:
        pad = 0.08 * (span.max() - span.min() + 1e-12)
        ax.set_xlim(span.min() - pad, span.max() + pad)
        ax.locator_params(axis="x", nbins=5)
