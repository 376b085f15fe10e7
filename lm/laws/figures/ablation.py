"""Variants of an ablation against their baseline: differences paired by seed, with intervals."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lm.laws.figures.style import BLUE, GREY, ORANGE, figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def differences(found: Mapping[str, Any]) -> "Figure":
    """Each variant's loss less the baseline's of the same seed; where the variants are numbers of
    one field, such as steps of staleness, against that number."""
    variants = found["variants"]
    base = next(v for v in variants if v["variant"] == found["baseline"])
    amounts = _amounts(variants)
    fig, ax = figure(size=(5.6, 3.4 if amounts else 0.9 + 0.36 * len(variants)))
    for i, v in enumerate(variants):
        at = amounts[1][i] if amounts else len(variants) - 1 - i
        own = [
            loss - base["losses"][seed]
            for seed, loss in v["losses"].items()
            if seed in base["losses"]
        ]
        place = lambda xs, at=at: ([at] * len(xs), xs) if amounts else (xs, [at] * len(xs))
        ax.plot(*place(own), "o", color=ORANGE, ms=4, alpha=0.8, zorder=2)
        d = v["difference"]
        if d and d["interval_95"]:
            ax.plot(*place(d["interval_95"]), "-", color=BLUE, lw=2, zorder=1)
        if d and d["mean"] is not None:
            ax.plot(*place([d["mean"]]), "D", color=BLUE, ms=6, zorder=3)
    what = f"loss less that of {found['baseline']}, nats per token"
    if amounts:
        ax.set_xlabel(amounts[0])
        ax.set_ylabel(what)
        ax.axhline(0, color=GREY, lw=0.8)
    else:
        ax.set_yticks(range(len(variants)), [v["variant"] for v in reversed(variants)])
        ax.set_xlabel(what)
        ax.axvline(0, color=GREY, lw=0.8)
    return fig


def _amounts(variants: Any) -> tuple[str, list[float]] | None:
    """(field, its value in each variant) where that is all that differs, and a number."""
    swept = [v["settings"] for v in variants]
    if any(len(s) != 1 or s.keys() != swept[0].keys() for s in swept):
        return None
    values = [next(iter(s.values())) for s in swept]
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
    return (next(iter(swept[0])), values) if numbers else None
