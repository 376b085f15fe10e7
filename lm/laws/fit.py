"""Fit a law to a table of runs: many starts at once, finished by Newton. Imports NumPy only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lm.errors import BadInput
from lm.laws.law import Law
from lm.laws.newton import Minimum, minimise
from lm.laws.objective import Objective, objective
from lm.laws.problem import Constraints, Problem
from lm.laws.starts import retraction, start_points

Array = np.ndarray

WIDEST = 0.008  # the widest quadratic part that a Huber fit begins with, in log loss
RELATIVE = Objective("relative", "identity", float("inf"))  # with weights 1 / y^2
CARRIED = 60  # distinct points that go on from the first stage
SAME = 1e-8  # relative difference of objectives below which two starts reached the same minimum


@dataclass(frozen=True)
class Fit:
    """A fitted law: parameters in natural units and how sure one can be that it is the minimum.

    status: "converged"; "at_bound" (a parameter ended on a bound of its range); "flat" (the table
    does not determine every parameter); "no_minimum" (no start reached a vanishing gradient).
    gradient is the largest component relative to the sum of the absolute values of its terms.
    """

    law: Law
    params: dict[str, float]
    sum: float
    mean: float
    gradient: float
    tried: int
    agreeing: int
    status: str
    warnings: list[str]
    problem: Problem = field(repr=False)
    theta: Array = field(repr=False)
    objectives: Array = field(repr=False)

    @property
    def exponents(self) -> dict[str, float] | None:
        """a and b of N* and D*; None where the law has none, or none at these parameters."""
        found = self.law.exponents(self.params)
        if found is None or not np.isfinite(list(found.values())).all():
            return None
        return {k: float(v) for k, v in found.items()}

    def predict(self, x: Mapping[str, Array]) -> Array:
        """Predicted loss at inputs in natural units."""
        return self.law.predict(self.params, x)

    def residuals(self) -> Array:
        """Residual of every fitted row in the objective's link; above zero: predicted too high."""
        return self.problem.residuals(self.theta)[0]


def fit(
    law: Law,
    x: Mapping[str, Array],
    y: Array,
    *,
    objective: str | Objective = "huber",
    delta: float = 1e-3,
    tau: float = 0.5,
    weights: Array | None = None,
    fixed: Mapping[str, float] | None = None,
    tied: Mapping[str, str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Fit:
    """The law's minimum over the rows of x (role -> (n,), natural units) and y (n,).

    Raises BadInput where the table cannot be fitted at all: fewer rows than free parameters + 1,
    values that are not positive numbers.
    """
    goal = make_objective(objective, delta, tau)
    if law.target == "accuracy":
        goal = goal.on_differences()
    constraints = Constraints.of(law, fixed, tied, bounds)
    y = np.asarray(y, dtype=np.float64)
    _check(law, x, y, weights, constraints)
    scale = 1.0
    if weights is not None:
        weights = np.asarray(weights, dtype=np.float64)
        scale = float(np.mean(weights))
        weights = weights / scale
    problem = Problem(law, x, y, goal, constraints, weights)
    minimum, tried, left = from_starts(problem)
    if np.isfinite(goal.delta):
        minimum, tried = search_valley(problem, minimum, tried)
    return _conclude(problem, minimum, tried, left, scale)


def make_objective(name: str | Objective, delta: float = 1e-3, tau: float = 0.5) -> Objective:
    """The objective itself, or the one of that name."""
    return name if isinstance(name, Objective) else objective(name, delta, tau)


def from_starts(problem: Problem) -> tuple[Minimum, Array, int]:
    """The starts' distinct minima, how many starts led to each (S,), and how many were left behind.

    First least squares of the relative error, linear parameters projected out: smooth, so that
    starts which meet there would go the same way from there on, and go on as one. A Huber
    objective is then approached through wider ones. Of very many starts the best go on.
    """
    theta = start_points(problem)
    weight = np.ones(len(theta), dtype=int)
    retract = retraction(problem)
    first = problem.replaced(RELATIVE).reweighted(problem.weights / problem.unit**2)
    steps = 12 if retract else 15
    found = minimise(first, theta, first.lower, first.upper, steps, 1e-9, retract=retract)
    theta, weight = _distinct(found, weight)
    left = int(weight[CARRIED:].sum())
    theta, weight = theta[:CARRIED], weight[:CARRIED]
    for stage in stages(problem.objective)[:-1]:
        here = problem.replaced(stage)
        theta = minimise(here, theta, here.lower, here.upper, 6, 1e-3).theta
    found = minimise(problem, theta, problem.lower, problem.upper, 60)
    # A start that is still moving goes on only where it may end lower than those that arrived.
    lowest = np.min(found.point.f[found.converged], initial=np.inf)
    moving = np.flatnonzero(~found.converged & (found.point.f < lowest * (1 + SAME)))
    if moving.size and lowest > rounding_level(problem):
        more = minimise(problem, found.theta[moving], problem.lower, problem.upper, 150)
        found.put(moving, more)
    return found, weight, left


def search_valley(problem: Problem, found: Minimum, weight: Array) -> tuple[Minimum, Array]:
    """More starts, from around the best minimum along its two flattest directions.

    An objective of absolute values has small hollows all along a flat valley. A quadratic model of
    the valley says how far to go for the objective to rise by what one and six rows contribute.
    Repeated while it finds something lower.
    """
    for _ in range(6):
        best = int(np.argmin(np.where(found.converged, found.point.f, np.inf)))
        f = found.point.f[best]
        if not (found.converged[best] and f > rounding_level(problem)):
            return found, weight
        values, vectors = np.linalg.eigh(found.point.M[best])
        steps = []
        for value, vector in zip(values[:2], vectors.T[:2], strict=False):
            for rise in (1.0, 6.0):
                length = np.sqrt(2 * rise * f / problem.y.size / max(value, 1e-300))
                step = vector * min(length, 3.0 / np.abs(vector).max())
                steps += [step, -step]
        around = np.clip(found.theta[best] + np.array(steps), problem.lower, problem.upper)
        more = minimise(problem, around, problem.lower, problem.upper)
        found = found.joined(more)
        weight = np.concatenate([weight, np.ones(len(steps), dtype=int)])
        if not np.any(more.converged & (more.point.f < f * (1 - SAME))):
            break
    return found, weight


def stages(goal: Objective) -> list[Objective]:
    """Objectives from wide and smooth to the one asked for."""
    made = []
    delta = WIDEST
    while np.isfinite(goal.delta) and delta > 1.5 * goal.delta:
        made.append(goal.with_delta(delta))
        delta /= 8
    return [*made, goal]


def _distinct(found: Minimum, weight: Array) -> tuple[Array, Array]:
    """Different minima, best first, with the number of starts behind each.

    Points still moving stay apart.
    """
    theta: list[Array] = []
    counts: list[int] = []
    for k in np.argsort(found.point.f):
        for m, other in enumerate(theta):
            close = np.abs(found.theta[k] - other) <= 1e-6 * (1.0 + np.abs(other))
            if found.converged[k] and close.all():
                counts[m] += weight[k]
                break
        else:
            theta.append(found.theta[k])
            counts.append(weight[k])
    return np.array(theta), np.array(counts)


def _conclude(problem: Problem, found: Minimum, starts: Array, left: int, scale: float) -> Fit:
    """The best converged minimum as a Fit, with its status."""
    value = np.where(np.isfinite(found.point.f), found.point.f, np.inf)
    warnings: list[str] = []
    exact = rounding_level(problem)
    reached = found.converged | (value <= exact)
    ranked = np.where(reached, value, np.inf)
    best = int(np.argmin(ranked if reached.any() else value))
    near = np.abs(value - value[best]) <= SAME * value[best] + exact
    lower_unfinished = np.any(~reached & (value < value[best] * (1 - 1e-6) - exact))
    theta = found.theta[best : best + 1]
    point = found.point.take(np.array([best]))
    natural = problem.coordinates.natural(theta)
    params = {n: float(natural[n][0]) for n in problem.law.names}
    free = ~_on_bound(problem, theta[0])
    g, terms = problem.gradient_terms(theta[0])
    gradient = float(np.max(np.abs(g)[free] / np.maximum(terms[free], 1e-300), initial=0.0))
    status = "converged"
    unidentified = null_parameters(problem, point.M[0], float(value[best]))
    if not reached[best]:
        unidentified = structurally_null(problem)
    if unidentified:
        status = "flat"
        warnings.append(_flat_message(problem, unidentified))
    elif not reached[best] or lower_unfinished:
        status = "no_minimum"
        warnings.append(
            "no minimum: the objective keeps falling as parameters run away; "
            "the table does not hold this law, or needs a fixed parameter"
        )
    elif not free.all():
        status = "at_bound"
        names = [n for n, inside in zip(problem.coordinates.free, free, strict=True) if not inside]
        warnings.append(f"at the bound of its range: {', '.join(names)}")
    return Fit(
        law=problem.law,
        params=params,
        sum=float(value[best]) * scale,
        mean=float(value[best]) * scale / problem.y.size,
        gradient=gradient,
        tried=int(starts.sum()) + left,
        agreeing=int(starts[near & reached].sum()),
        status=status,
        warnings=warnings,
        problem=problem,
        theta=theta,
        objectives=np.append(np.repeat(value, starts) * scale, np.full(left, np.inf)),
    )


def rounding_level(problem: Problem) -> float:
    """An objective below this is the rounding of data without noise."""
    return float(np.sum(problem.weights) * problem.objective.rho(np.array(1e-13)))


def _on_bound(problem: Problem, theta: Array) -> Array:
    return (theta <= problem.lower) | (theta >= problem.upper)


def null_parameters(problem: Problem, M: Array, f: float) -> list[str]:
    """Parameters that move along a direction which leaves every prediction unchanged.

    Either in company (an eigenvector of M without curvature), or alone: a step of 1 (a factor e for
    a positive parameter) changes the objective f by nothing beside one row's share of it.
    """
    scale = np.sqrt(np.maximum(np.diag(M), 1e-300))
    values, vectors = np.linalg.eigh(M / np.outer(scale, scale))
    flat = vectors[:, values < 1e-11]
    share = np.sqrt(np.sum(flat**2, axis=1))
    alone = np.diag(M) < 1e-9 * f / problem.y.size
    names = problem.coordinates.free
    return [n for n, s, one in zip(names, share, alone, strict=True) if s > 1e-3 or one]


def structurally_null(problem: Problem) -> list[str]:
    """Parameters that the table cannot tell apart anywhere: not only where a fit ran off to."""
    theta = start_points(problem)
    theta = theta[np.linspace(0, len(theta) - 1, 3).astype(int)]
    point = problem(theta, np.arange(len(theta)))
    named = [
        null_parameters(problem, point.M[k], float(point.f[k]))
        for k in range(len(theta))
        if np.all(np.isfinite(point.M[k]))
    ]
    return [n for n in (named[0] if named else []) if all(n in other for other in named)]


def _flat_message(problem: Problem, names: list[str]) -> str:
    same = [role for role, v in problem.x.items() if np.ptp(v) <= 1e-9 * np.abs(v).max()]
    cause = f": every run has the same {' and '.join(same)}" if same else ""
    return f"not identified by this table: {', '.join(names)}{cause}"


def _check(law: Law, x: Mapping[str, Array], y: Array, weights, constraints: Constraints) -> None:
    free = len(law.names) - len(constraints.fixed) - len(constraints.tied)
    if y.size < free + 1:
        raise BadInput(
            f"{y.size} usable rows cannot fit the {free} free parameters of law {law.name}: "
            f"give at least {free + 1} runs, or fix parameters"
        )
    for role in law.inputs:
        values = np.asarray(x[role], dtype=np.float64)
        if values.shape != y.shape:
            raise BadInput(f"{role} has {values.size} values and the loss has {y.size}")
        if not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise BadInput(f"{role} must be positive numbers: remove or repair those rows")
    low = y < 0 if law.target == "accuracy" else y <= 0
    if not np.all(np.isfinite(y)) or np.any(low):
        raise BadInput(f"{law.target} must be positive numbers: remove or repair those rows")
    if weights is not None:
        w = np.asarray(weights, dtype=np.float64)
        if w.shape != y.shape or not np.all(np.isfinite(w)) or np.any(w < 0) or w.sum() <= 0:
            raise BadInput("weights must be one number of at least zero a row, not all zero")
