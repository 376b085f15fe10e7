"""Damped Newton on many small problems at once: starts, bootstrap samples, profile points.

Each problem minimises a sum over the same rows with its own weights. The matrix of a step is
H + damping * M: H the exact Hessian, M that of the parabolas lying above each residual's
contribution (the reweighted least squares matrix, positive semi-definite), so that a step falls
back to reweighted least squares where H is not convex and ends in pure Newton steps.
Imports NumPy only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

ROUNDING = 1e-13  # a gradient this small beside the sum of its terms' absolute values is zero


FEW = 64  # problems up to which LAPACK, one call a problem inside, beats L D L^T over all
FIELDS = ("f", "g", "terms", "noise", "H", "M")


@dataclass
class Point:
    """Objective f (S,), gradient g (S, P), matrices H and M (S, P, P) of every problem.

    terms (S, P): a bound on the sum of the absolute values of the gradient's terms; noise (S, P):
    what rounding of the residuals alone can put into the gradient.
    """

    f: Array
    g: Array
    terms: Array
    noise: Array
    H: Array
    M: Array

    def put(self, where: Array, other: "Point", rows: Array) -> None:
        """Overwrite problems `where` by problems `rows` of another point."""
        for name in FIELDS:
            getattr(self, name)[where] = getattr(other, name)[rows]

    def take(self, rows: Array) -> "Point":
        return Point(*(getattr(self, name)[rows] for name in FIELDS))


@dataclass
class Minimum:
    """Where each problem ended: theta (S, P), its point, and whether the gradient vanished (S,)."""

    theta: Array
    point: Point
    converged: Array
    iterations: Array

    def put(self, rows: Array, other: "Minimum") -> None:
        """Overwrite problems `rows` by those of another."""
        self.theta[rows], self.converged[rows] = other.theta, other.converged
        self.iterations[rows] += other.iterations
        self.point.put(rows, other.point, np.arange(len(rows)))

    def joined(self, other: "Minimum") -> "Minimum":
        """The problems of both."""
        both = [np.concatenate([getattr(self.point, n), getattr(other.point, n)]) for n in FIELDS]
        return Minimum(
            np.concatenate([self.theta, other.theta]),
            Point(*both),
            np.concatenate([self.converged, other.converged]),
            np.concatenate([self.iterations, other.iterations]),
        )


def solve(A: Array, b: Array, floor: Array) -> tuple[Array, Array]:
    """Solutions (S, P) of A s = b by L D L^T over all problems at once, and which A are positive.

    A pivot below floor[:, k] marks the problem as not positive definite.
    """
    S, P = b.shape
    if S <= FEW:
        # LAPACK costs more a problem and less a call; it can only say that one of them failed.
        try:
            np.linalg.cholesky(A)
            return np.linalg.solve(A, b[:, :, None])[:, :, 0], np.ones(S, dtype=bool)
        except np.linalg.LinAlgError:
            pass
    L = [[A[:, i, j].copy() for j in range(i + 1)] for i in range(P)]
    positive = np.ones(len(b), dtype=bool)
    pivots = []
    for k in range(P):
        d = L[k][k]
        good = d > floor[:, k]
        positive &= good
        d = np.where(good, d, 1.0)
        pivots.append(d)
        for i in range(k + 1, P):
            factor = L[i][k] / d
            for j in range(i, P):
                L[j][i] -= factor * L[j][k]
            L[i][k] = factor
    # After the loop L[i][k] for i > k holds the unit lower factor.
    s = [b[:, i].copy() for i in range(P)]
    for i in range(P):
        for k in range(i):
            s[i] -= L[i][k] * s[k]
    for i in range(P):
        s[i] /= pivots[i]
    for i in reversed(range(P)):
        for k in range(i + 1, P):
            s[i] -= L[k][i] * s[k]
    return np.stack(s, axis=1), positive


def minimise(
    evaluate: Callable[[Array, Array], Point],
    theta: Array,
    lower: Array,
    upper: Array,
    max_steps: int = 200,
    tolerance: float = ROUNDING,
    damping: float = 1e-2,
    retract: Callable[[Array], Array] | None = None,
) -> Minimum:
    """Minimise every problem from its start.

    evaluate(theta (s, P), rows (s,)) gives the point of problems `rows`; `lower` and `upper`, (P,)
    or (S, P), are closed bounds. `retract` may move a trial point anywhere lower, to solve for some
    components exactly. Convergence is judged by the gradient alone, so that a start which could not
    move is not taken for a minimum.
    """
    with np.errstate(all="ignore"):  # what overflows is refused as a step
        return _minimise(evaluate, theta, lower, upper, max_steps, tolerance, damping, retract)


def _minimise(
    evaluate: Callable[[Array, Array], Point],
    theta: Array,
    lower: Array,
    upper: Array,
    max_steps: int,
    tolerance: float,
    damping: float,
    retract: Callable[[Array], Array] | None,
) -> Minimum:
    theta = np.clip(np.array(theta, dtype=np.float64), lower, upper)
    S, P = theta.shape
    lower, upper = np.broadcast_to(lower, (S, P)), np.broadcast_to(upper, (S, P))
    point = evaluate(theta, np.arange(S))
    lam = np.full(S, damping)
    fails = np.zeros(S, dtype=int)
    converged = np.zeros(S, dtype=bool)
    iterations = np.zeros(S, dtype=int)
    active = np.flatnonzero(np.isfinite(point.f))
    for _ in range(max_steps):
        if active.size:
            free = _free(theta[active], point.g[active], lower[active], upper[active])
            small = _vanishes(point.take(active), free, tolerance)
            converged[active[small]] = True
            active = active[~small]
        if not active.size:
            break
        here = point.take(active)
        low, high = lower[active], upper[active]
        free = _free(theta[active], here.g, low, high)
        step, lam[active] = _step(here, free, lam[active])
        trial = np.clip(theta[active] + step, low, high)
        moved = trial - theta[active]
        if retract is not None:
            trial = np.clip(retract(trial), low, high)
        there = evaluate(trial, active)
        expected = -np.einsum("sp,sp->s", here.g, moved) - 0.5 * np.einsum(
            "sp,spq,sq->s", moved, here.H, moved
        )
        gain = here.f - there.f
        ratio = np.where(np.isfinite(gain), gain, -1.0) / np.where(expected > 0, expected, np.inf)
        # Below the rounding of f only the gradient can tell whether a step helped.
        tiny = np.abs(expected) <= 1e-12 * np.abs(here.f) + 1e-30
        better = _norm(there, free) < _norm(here, free)
        finite = np.isfinite(there.f)
        accept = finite & np.where(tiny, better, (ratio > 1e-4) & (gain > 0))
        good = accept & (tiny | (ratio > 0.5))
        lam_now = lam[active]
        lam_now = np.where(good, lam_now * 0.1, lam_now)
        lam_now = np.where(lam_now < 1e-7, 0.0, lam_now)
        poor = ~accept | (~tiny & (ratio < 0.2))
        lam[active] = np.where(poor, np.clip(lam_now * 6.0, 1e-4, 1e30), lam_now)
        fails[active] = np.where(accept, 0, fails[active] + 1)
        won = np.flatnonzero(accept)
        theta[active[won]] = trial[won]
        point.put(active[won], there, won)
        iterations[active] += 1
        # A stalled problem at rounding level stops after a few refused steps, others go on longer.
        rounded = np.all(here.terms < 30 * here.noise, axis=1)
        stalled = fails[active] >= np.where(tiny | rounded, 4, 25)
        active = active[~stalled]
    free = _free(theta, point.g, lower, upper)
    converged |= _vanishes(point, free, max(10 * tolerance, 1e-12)) & np.isfinite(point.f)
    return Minimum(theta, point, converged, iterations)


def _norm(point: Point, free: Array) -> Array:
    """Size of the gradient beside its terms (S,), floored by rounding noise."""
    scale = np.maximum(point.terms, point.noise)
    return (np.where(free, np.abs(point.g), 0.0) / np.maximum(scale, 1e-300)).max(axis=1)


def _vanishes(point: Point, free: Array, tolerance: float) -> Array:
    bound = tolerance * point.terms + 0.3 * point.noise * (point.terms < 30 * point.noise)
    # A change by 1 that gains nothing beside f itself: the direction is flat, not descending.
    bound = np.maximum(bound, 1e-14 * point.f[:, None])
    return np.all(~free | (np.abs(point.g) <= bound), axis=1)


def _free(theta: Array, g: Array, lower: Array, upper: Array) -> Array:
    """Components that are not held by a bound which the descent direction would cross."""
    return ~(((theta <= lower) & (g > 0)) | ((theta >= upper) & (g < 0)))


def _step(point: Point, free: Array, lam: Array) -> tuple[Array, Array]:
    """A descent step (S, P) for every problem and the damping it needed (S,)."""
    S, P = point.g.shape
    both = free[:, :, None] & free[:, None, :]
    identity = np.eye(P)
    H = np.where(both, point.H, identity * ~free[:, :, None])
    M = np.where(both, point.M, identity * ~free[:, :, None])
    g = np.where(free, point.g, 0.0)
    diagonal = np.einsum("spp->sp", M)
    # A coordinate without any effect gets a curvature of its own, so that it stays where it is.
    M = M + identity * np.where(diagonal > 0, 1e-13 * diagonal, 1.0)[:, :, None]
    floor = 1e-12 * diagonal
    lam = lam.copy()
    step = np.zeros((S, P))
    todo = np.arange(S)
    for attempt in range(40):
        A = H[todo] + lam[todo, None, None] * M[todo]
        s, positive = solve(A, -g[todo], floor[todo])
        step[todo[positive]] = s[positive]
        todo = todo[~positive]
        if not todo.size:
            break
        lam[todo] = np.clip(10.0 * lam[todo], 1e-3, 1e30)
        if attempt == 30:  # M itself is singular here: make it diagonal
            M[todo] = (
                identity * (diagonal[todo] + 1e-12 * diagonal[todo].max(1)[:, None])[:, :, None]
            )
    return step, lam
