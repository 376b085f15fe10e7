"""Approach 2 of Hoffmann et al. 2022: at each FLOP budget find the size of lowest loss.

Each group of runs of one budget gets a parabola of loss in log N (or an Akima curve through its
sizes); its minimum, where one lies between measured sizes, is that budget's N*; a power law through
the minima gives a, and the same for tokens b. Parabolas are biased where the loss curve is not
symmetric around its minimum or the sizes are not: `surface_bias` says by how much.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import failure_warning
from lm.laws.runs import Runs

Array = np.ndarray

BANDWIDTH = 0.12  # of log FLOPs, where budgets have to be told apart without a group column
VARIES = 0.01  # spread of log FLOPs in a group above which the parabola also gets a slope in it


@dataclass(frozen=True)
class Group:
    """One budget: members (indices into the table), FLOPs, and its minimum or why it has none.

    n, d, loss are at the minimum (NaN where skipped says why there is none); curve is
    (c0, c1, c2) of loss = c0 + c1 u + c2 u^2 in u = log N - center, None for Akima.
    """

    name: str
    members: Array
    flops: float
    n: float
    d: float
    loss: float
    skipped: str | None
    center: float = 0.0
    curve: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Frontier:
    """N* = N_0 C^a and D* = D_0 C^b through the groups' minima; samples: name -> (samples,)."""

    params: dict[str, float]
    groups: list[Group]
    warnings: list[str]
    samples: dict[str, Array] = field(default_factory=dict)

    @property
    def exponents(self) -> dict[str, float]:
        return {"a": self.params["a"], "b": self.params["b"]}


def group_members(runs: Runs) -> list[tuple[str, Array]]:
    """(name, row indices) of each budget: by the column "group", else by clusters of FLOPs."""
    flops = budgets(runs)
    if "group" in runs.labels:
        labels = np.asarray([str(v) for v in runs.labels["group"]])
        found = [(name, np.flatnonzero(labels == name)) for name in dict.fromkeys(labels)]
    else:
        code = _clusters(np.log(flops))
        found = [("", np.flatnonzero(code == k)) for k in range(code.max() + 1)]
        found = [(f"{np.median(flops[m]):.3g}", m) for _, m in found]
    return sorted(found, key=lambda item: float(np.median(flops[item[1]])))


def budgets(runs: Runs) -> Array:
    """FLOPs of every run: the column, or 6 N D where the table has none."""
    if "flops" in runs.x:
        flops = runs.x["flops"]
        if np.all(np.isfinite(flops)) and np.all(flops > 0):
            return flops
        raise BadInput(f"{runs.columns['flops']} must be positive numbers to group runs by budget")
    return 6.0 * runs.x["n"] * runs.x["d"]


def isoflop(
    runs: Runs,
    curve: str = "parabola",
    bootstrap: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Frontier:
    """The frontier through the minima of every budget, with resampled frontiers where asked.

    Rows are resampled within their budget. Raises BadInput where fewer than two budgets have an
    interior minimum.
    """
    if curve not in CURVES:
        raise BadInput(f"curve {curve!r} is not known: choose {' or '.join(CURVES)}")
    groups = [minimum(name, members, runs, CURVES[curve]) for name, members in group_members(runs)]
    usable = [g for g in groups if g.skipped is None]
    if len(usable) < 2:
        reasons = "; ".join(f"{g.name}: {g.skipped}" for g in groups if g.skipped) or "one budget"
        raise BadInput(f"fewer than two budgets have a minimum between measured sizes ({reasons})")
    params = power_through(usable)
    warnings = [f"budget {g.name} skipped: {g.skipped}" for g in groups if g.skipped]
    if abs(params["a"] + params["b"] - 1) > 0.02:
        warnings.append(
            f"a + b is {params['a'] + params['b']:.3f}, not 1: flops is not proportional to N D"
        )
    samples = _resample(runs, groups, curve, bootstrap, seed, progress) if bootstrap else {}
    if samples:
        warnings += failure_warning(bootstrap - samples["a"].size, bootstrap)
    return Frontier(params, groups, warnings, samples)


def minimum(name: str, members: Array, runs: Runs, curve: Callable) -> Group:
    """The group's minimum, or the reason why it has none that can be trusted."""
    log_n, loss = np.log(runs.x["n"][members]), runs.y[members]
    flops = budgets(runs)[members]
    middle = float(np.exp(np.median(np.log(flops))))
    sizes = np.unique(np.round(log_n, 9))
    nothing = Group(name, members, middle, np.nan, np.nan, np.nan, None)

    def skip(reason: str) -> Group:
        return Group(**{**nothing.__dict__, "skipped": reason})

    if sizes.size < 3:
        return skip(f"{sizes.size} sizes, at least 3 are needed")
    log_c = np.log(flops / middle)
    best, lowest, shape = curve(log_n, loss, log_c)
    if not np.isfinite(best):
        return skip("the losses do not curve upwards")
    if best <= sizes[0]:
        return skip(f"the minimum lies below the smallest size {np.exp(sizes[0]):.3g}")
    if best >= sizes[-1]:
        return skip(f"the minimum lies above the largest size {np.exp(sizes[-1]):.3g}")
    # Tokens at the minimum: log D is nearly linear in log N along a budget.
    slope, level = np.polyfit(log_n - best, np.log(runs.x["d"][members]) - log_c, 1)
    del slope
    center, coefficients = shape
    return Group(
        name, members, middle, float(np.exp(best)), float(np.exp(level)), float(lowest), None,
        center, coefficients,
    )  # fmt: skip


def parabola(log_n: Array, loss: Array, log_c: Array) -> tuple[float, float, tuple]:
    """Minimum (log N, loss) of the least-squares parabola, NaN where it opens downwards."""
    center = float(log_n.mean())
    u = log_n - center
    columns = [np.ones_like(u), u, u * u]
    if np.ptp(log_c) > VARIES and u.size > 5:
        columns.append(log_c)
    c = np.linalg.lstsq(np.stack(columns, 1), loss, rcond=None)[0]
    if not c[2] > 0:
        return np.nan, np.nan, (center, None)
    at = -c[1] / (2 * c[2])
    return (
        center + at,
        c[0] - c[1] ** 2 / (4 * c[2]),
        (center, (float(c[0]), float(c[1]), float(c[2]))),
    )


def akima(log_n: Array, loss: Array, log_c: Array) -> tuple[float, float, tuple]:
    """Minimum (log N, loss) of Akima's curve through the sizes (mean loss of equal ones)."""
    from scipy.interpolate import Akima1DInterpolator

    sizes, index = np.unique(np.round(log_n, 9), return_inverse=True)
    means = np.bincount(index, loss) / np.bincount(index)
    if sizes.size < 3:
        return np.nan, np.nan, (0.0, None)
    if sizes.size == 3:  # Akima's slopes need more points; the parabola passes through three
        return parabola(sizes, means, np.zeros(3))[:2] + ((0.0, None),)
    curve = Akima1DInterpolator(sizes, means)
    turning = curve.derivative().roots(extrapolate=False)
    candidates = np.concatenate([sizes, turning[np.isfinite(turning)]])
    values = curve(candidates)
    best = int(np.nanargmin(values))
    return float(candidates[best]), float(values[best]), (0.0, None)


CURVES: dict[str, Callable] = {"parabola": parabola, "akima": akima}


def power_through(groups: list[Group]) -> dict[str, float]:
    """N_0, a, D_0, b of least squares in logarithms through the groups' minima."""
    log_c = np.log([g.flops for g in groups])
    a, n_0 = np.polyfit(log_c - log_c.mean(), np.log([g.n for g in groups]), 1)
    b, d_0 = np.polyfit(log_c - log_c.mean(), np.log([g.d for g in groups]), 1)
    return {
        "N_0": float(np.exp(n_0 - a * log_c.mean())),
        "a": float(a),
        "D_0": float(np.exp(d_0 - b * log_c.mean())),
        "b": float(b),
    }


def surface_bias(
    frontier: Frontier, runs: Runs, predict: Callable[[Mapping[str, Array]], Array], a: float
) -> float:
    """What this method would add to the true exponent a of a known surface, at these very runs."""
    losses = predict(runs.x)
    exact = Runs(runs.x, losses, runs.rows, [], [], runs.columns, runs.labels)
    groups = []
    for group in frontier.groups:
        curve = akima if group.curve is None and group.skipped is None else parabola
        groups.append(minimum(group.name, group.members, exact, curve))
    usable = [g for g in groups if g.skipped is None]
    return power_through(usable)["a"] - a if len(usable) > 1 else float("nan")


def _resample(
    runs: Runs,
    groups: list[Group],
    curve: str,
    count: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: list[dict[str, float]] = []
    for done in range(count):
        if progress is not None:
            progress(done)
        drawn = [
            minimum(g.name, rng.choice(g.members, g.members.size), runs, CURVES[curve])
            for g in groups
            if g.skipped is None
        ]
        usable = [g for g in drawn if g.skipped is None]
        if len({g.flops for g in usable}) > 1:
            found.append(power_through(usable))
    return {name: np.array([f[name] for f in found]) for name in ("N_0", "a", "D_0", "b")}


def _clusters(log_c: Array) -> Array:
    """Cluster number of each run: split at the valleys of a smoothed density of log FLOPs."""
    grid = np.arange(log_c.min() - 3 * BANDWIDTH, log_c.max() + 3 * BANDWIDTH, BANDWIDTH / 10)
    density = np.exp(-0.5 * ((grid[:, None] - log_c) / BANDWIDTH) ** 2).sum(1)
    valley = (density[1:-1] < density[:-2]) & (density[1:-1] <= density[2:])
    code = np.searchsorted(grid[1:-1][valley], log_c)
    return np.unique(code, return_inverse=True)[1]
