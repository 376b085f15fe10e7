"""Profile intervals: how far a quantity can move before the objective, minimised over all else,
rises by more than chance. They stay honest where the surface is no parabola, and open where it is
flat. Imports NumPy, and scipy.special inside a function.
"""

from dataclasses import dataclass

import numpy as np

from lm.laws.delta import Noise, noise_of, slope_of, standard_error, student
from lm.laws.fit import SAME, Fit
from lm.laws.jet import Jet
from lm.laws.newton import Point, minimise
from lm.laws.problem import Problem
from lm.laws.quantity import Quantity

Array = np.ndarray

STEPS = (0.6, 1.2, 1.8, 2.5, 3.5, 5.0, 8.0, 15.0, 40.0, 120.0)  # standard errors looked at
FAR = 30.0  # in logarithm: further than this a positive parameter is as good as zero or infinite


@dataclass(frozen=True)
class Profile:
    """The profile of one quantity: values (m,) in order, and the objective's rise at each (m,).

    intervals: level in percent -> (low, high), None where the objective never rises enough;
    walls: level in percent -> the rise at which its interval ends.
    """

    quantity: Quantity
    values: Array
    rises: Array
    intervals: dict[float, tuple[float | None, float | None]]
    walls: dict[float, float]

    @property
    def open(self) -> bool:
        """Whether the widest interval has an end that the table does not bound."""
        return None in self.intervals[max(self.intervals)]


class _Pulled:
    """The objective plus a spring that pulls the quantity towards a target, one a problem."""

    def __init__(self, problem: Problem, wanted: Quantity, targets: Array, stiffness: float):
        self.problem, self.wanted = problem, wanted
        self.targets, self.stiffness = targets, stiffness

    def value(self, theta: Array) -> Jet:
        """The quantity on its natural scale as a jet (S, 1)."""
        coordinates = self.problem.coordinates
        with np.errstate(all="ignore"):
            natural = coordinates.law.rescale(coordinates.leaves(theta), coordinates.factors)
            q = self.wanted.value(natural)
            if not isinstance(q, Jet):
                q = Jet(np.broadcast_to(np.asarray(q, dtype=np.float64), (len(theta), 1)), {}, {})
            return np.log(q) if self.wanted.log else q

    def __call__(self, theta: Array, rows: Array) -> Point:
        point = self.problem(theta, rows)
        with np.errstate(all="ignore"):
            q = self.value(theta)
            gap = np.broadcast_to(q.v, (len(theta), 1))[:, 0] - self.targets[rows]
            slope = np.zeros_like(theta)
            for k, d in q.g.items():
                slope[:, k] = np.broadcast_to(d, (len(theta), 1))[:, 0]
            s = self.stiffness
            point.f += 0.5 * s * gap * gap
            point.g += s * gap[:, None] * slope
            point.terms += s * np.abs(gap[:, None] * slope)
            outer = s * slope[:, :, None] * slope[:, None, :]
            point.M += outer
            point.H += outer
            for (i, j), d in q.h.items():
                bend = s * gap * np.broadcast_to(d, (len(theta), 1))[:, 0]
                point.H[:, i, j] += bend
                if i != j:
                    point.H[:, j, i] += bend
        point.f[~np.isfinite(point.f)] = np.inf
        return point


def profile(
    fit: Fit, wanted: Quantity, levels: tuple[float, ...] = (80.0, 95.0), noise: Noise | None = None
) -> Profile:
    """The profile of a quantity around the fit and its intervals at `levels` percent."""
    problem = fit.problem
    noise = noise_of(fit) if noise is None else noise
    pulled = _Pulled(problem, wanted, np.zeros(1), 0.0)
    center = float(np.ravel(pulled.value(fit.theta).v)[0])
    here = pulled.value(fit.theta)
    unit = standard_error(fit, here, noise)
    rise_unit = noise.unit_along(slope_of(here, fit.theta.shape[1]))
    if not (np.isfinite(unit) and unit > 0):
        unit = 1.0
    steps = np.array([-s for s in reversed(STEPS)] + list(STEPS)) * unit
    if wanted.log or wanted.name in fit.law.log:
        # Far enough to see an open end, near enough to follow.
        far = np.array([1.0, 2.0, 4.0, 8.0, 16.0, FAR])
        steps = np.unique(np.concatenate([steps[np.abs(steps) < FAR], far, -far]))
    # Wherever the spring settles is a point of the profile; it only has to be stiff enough.
    pulled.targets = center + steps
    pulled.stiffness = 100.0 * rise_unit / unit**2
    start = _along(fit, pulled, steps)
    found = minimise(pulled, start, problem.lower, problem.upper, 50, 1e-8)
    q = np.broadcast_to(pulled.value(found.theta).v, (len(steps), 1))[:, 0]
    rise = problem(found.theta, np.arange(len(steps))).f - _value(fit)
    good = np.isfinite(rise) & np.isfinite(q)
    q, rise = np.append(q[good], center), np.append(np.maximum(rise[good], 0.0), 0.0)
    order = np.argsort(q)
    q, rise = q[order], rise[order]
    intervals, walls = {}, {}
    for level in levels:
        walls[level] = wall = 0.5 * rise_unit * student(level, noise.freedom) ** 2
        low = _crossing(-q[q <= center][::-1], rise[q <= center][::-1], wall)
        high = _crossing(q[q >= center], rise[q >= center], wall)
        ends = (None if low is None else -low, high)
        if low is None and not wanted.log:
            ends = (_limit(fit, wanted, 0), ends[1])
        if high is None and not wanted.log:
            ends = (ends[0], _limit(fit, wanted, 1))
        intervals[level] = tuple(
            None if end is None else float(np.exp(end)) if wanted.log else float(end)
            for end in ends
        )
    values = np.exp(q) if wanted.log else q
    return Profile(wanted, values, rise, intervals, walls)  # type: ignore[arg-type]


def flat_names(profiles: dict[str, Profile]) -> list[str]:
    """Positive parameters whose profile the table leaves open."""
    return [n for n, p in profiles.items() if p.quantity.log and p.open]


def _value(fit: Fit) -> float:
    return float(fit.problem(fit.theta, np.zeros(1, dtype=int)).f[0])


def _along(fit: Fit, pulled: _Pulled, steps: Array) -> Array:
    """Starts: the fit moved so that the quantity moves by `steps` to first order, least rise."""
    slope = slope_of(pulled.value(fit.theta), fit.theta.shape[1])
    M = fit.problem(fit.theta, np.zeros(1, dtype=int)).M[0]
    M = M + 1e-9 * np.diag(np.diag(M)) + 1e-300 * np.eye(len(slope))
    direction = np.linalg.solve(M, slope)
    per = float(slope @ direction)
    if not (np.isfinite(per) and per > 0):
        return np.repeat(fit.theta, len(steps), axis=0)
    move = direction / per
    longest = np.abs(move).max() * np.abs(steps)
    steps = steps * np.minimum(1.0, 2.0 / np.maximum(longest, 1e-300))
    return np.clip(fit.theta + steps[:, None] * move, fit.problem.lower, fit.problem.upper)


def _crossing(q: Array, rise: Array, wall: float) -> float | None:
    """Where the rise first passes the wall on the way out; between points its root is linear."""
    beyond = np.flatnonzero(rise >= wall * (1 - SAME))
    if not beyond.size:
        return None
    k = int(beyond[0])
    if k == 0:
        return float(q[0])
    low, high = np.sqrt(rise[k - 1]), np.sqrt(rise[k])
    share = (np.sqrt(wall) - low) / max(high - low, 1e-300)
    return float(q[k - 1] + np.clip(share, 0, 1) * (q[k] - q[k - 1]))


def _limit(fit: Fit, wanted: Quantity, side: int) -> float | None:
    """The end of a bounded parameter's range, for intervals that the table leaves open."""
    limits = fit.law.bounds.get(wanted.name)
    if wanted.name in ("a", "b") and wanted.name not in fit.law.names:
        limits = (0.0, 1.0)
    if limits is None or not np.isfinite(limits[side]):
        return None
    return float(limits[side])
