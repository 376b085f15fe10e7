"""Approach 1 of Hoffmann et al. 2022: the lower envelope of learning curves.

At every FLOP count the run of lowest loss gives N and D; power laws through these give a and b.
FLOP counts where the best run is the smallest or the largest one are left out: nothing smaller or
larger was there to beat it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import failure_warning
from lm.laws.isoflop import Frontier, Group, budgets
from lm.laws.runs import Runs

Array = np.ndarray

POINTS = 1500  # FLOP counts looked at, spaced evenly in logarithm as in the paper


@dataclass(frozen=True)
class Curve:
    """One run's learning curve: log FLOPs, log tokens and loss at its checkpoints, and its size."""

    log_c: Array
    log_d: Array
    loss: Array
    log_n: float


def curves(runs: Runs, run_column: str = "run_id") -> list[Curve]:
    """The table's runs as curves; a run needs two checkpoints with different FLOPs."""
    if run_column not in runs.labels:
        raise BadInput(
            f"method envelope reads several rows a run and needs column {run_column!r}: "
            "give a table of learning curves"
        )
    flops, labels = budgets(runs), np.asarray([str(v) for v in runs.column(run_column)])
    made = []
    for name in dict.fromkeys(labels):
        at = np.flatnonzero(labels == name)
        at = at[np.argsort(flops[at])]
        log_c, first = np.unique(np.log(flops[at]), return_index=True)
        if log_c.size < 2:
            continue
        rows = at[first]
        sizes = runs.x["n"][rows]
        if np.ptp(sizes) > 1e-9 * sizes.max():
            raise BadInput(f"run {name} changes its n between checkpoints: one run has one size")
        made.append(Curve(log_c, np.log(runs.x["d"][rows]), runs.y[rows], float(np.log(sizes[0]))))
    if len({c.log_n for c in made}) < 3:
        raise BadInput("method envelope needs learning curves of at least three sizes")
    return made


def envelope(
    runs: Runs,
    bootstrap: int = 0,
    seed: int = 0,
    run_column: str = "run_id",
    progress: Callable[[int], None] | None = None,
) -> Frontier:
    """The frontier through the envelope, with frontiers of resampled runs where asked."""
    found = curves(runs, run_column)
    params, points = _frontier(found)
    if params is None:
        raise BadInput(
            "the envelope never passes through a size between the smallest and the largest: "
            "train more sizes, or longer"
        )
    warnings = (
        [] if len(points) > 2 else ["only two sizes lie on the envelope between the extremes"]
    )
    samples: dict[str, Array] = {}
    if bootstrap:
        rng = np.random.default_rng(seed)
        drawn = []
        for done in range(bootstrap):
            if progress is not None:
                progress(done)
            again, _ = _frontier([found[i] for i in rng.integers(0, len(found), len(found))])
            if again is not None:
                drawn.append(again)
        samples = {name: np.array([p[name] for p in drawn]) for name in params}
        warnings += failure_warning(bootstrap - len(drawn), bootstrap)
    return Frontier(params, points, warnings, samples)


def _frontier(found: list[Curve]) -> tuple[dict[str, float] | None, list[Group]]:
    """N_0, a, D_0, b and the stretch of each size on the envelope."""
    grid = np.linspace(min(c.log_c[0] for c in found), max(c.log_c[-1] for c in found), POINTS)
    losses = np.stack([np.interp(grid, c.log_c, c.loss, left=np.inf, right=np.inf) for c in found])
    best = np.argmin(losses, axis=0)
    lowest = losses[best, np.arange(POINTS)]
    log_n = np.array([c.log_n for c in found])[best]
    seen = np.isfinite(losses)
    sizes = np.array([c.log_n for c in found])
    smallest = np.where(seen, sizes[:, None], np.inf).min(0)
    largest = np.where(seen, sizes[:, None], -np.inf).max(0)
    inner = np.isfinite(lowest) & (log_n > smallest) & (log_n < largest)
    if np.unique(log_n[inner]).size < 2:
        return None, []
    log_d = np.empty(POINTS)
    for k in np.unique(best):
        on = best == k
        log_d[on] = np.interp(grid[on], found[k].log_c, found[k].log_d)
    c, n, d, y = grid[inner], log_n[inner], log_d[inner], lowest[inner]
    a, n_0 = np.polyfit(c - c.mean(), n, 1)
    b, d_0 = np.polyfit(c - c.mean(), d, 1)
    params = {
        "N_0": float(np.exp(n_0 - a * c.mean())),
        "a": float(a),
        "D_0": float(np.exp(d_0 - b * c.mean())),
        "b": float(b),
    }
    points = []
    for size in np.unique(n):
        on = n == size
        points.append(
            Group(
                f"{np.exp(size):.3g}", np.flatnonzero(on), float(np.exp(c[on].mean())),
                float(np.exp(size)), float(np.exp(d[on].mean())), float(y[on].mean()), None,
            )
        )  # fmt: skip
    return params, points
