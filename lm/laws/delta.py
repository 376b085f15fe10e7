"""Delta method: standard errors from the curvature of the fit. Imports NumPy only.

For an objective sum of rho(r) with independent errors, the covariance of the fitting coordinates is
B^-1 V B^-1 with B = sum of rho'' J J^T, V = sum of rho'^2 J J^T, J the slopes of the residuals.
It needs many runs: of tables of 15 its 80 % intervals held the truth 70 times in 100, those of
the bootstrap 83 to 93 times.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lm.errors import BadInput
from lm.laws.fit import Fit
from lm.laws.jet import Jet
from lm.laws.quantity import Quantity

Array = np.ndarray

INSIDE = 0.35  # share of residuals from which the density at zero is estimated, at least


@dataclass(frozen=True)
class Noise:
    """How the fit's errors spread: covariance of the fitting coordinates and B^-1, both (P, P).

    The size of the errors may differ from row to row. unit is twice the rise of the objective that
    one standard error costs, averaged over the coordinates.
    """

    covariance: Array
    bread: Array
    unit: float
    freedom: int

    def unit_along(self, slope: Array) -> float:
        """The unit for a quantity of this slope (P,)."""
        ratio = slope @ self.covariance @ slope / max(float(slope @ self.bread @ slope), 1e-300)
        return float(ratio) if np.isfinite(ratio) and ratio > 0 else self.unit


def noise_of(fit: Fit) -> Noise:
    """The spread of the errors, from the fit's own residuals.

    rho'' of an absolute value is all at zero, so that its mean is a density: it is taken over the
    central third of the residuals, or over the quadratic part where that holds more.
    """
    problem, goal = fit.problem, fit.problem.objective
    residuals, J = problem.slopes(fit.theta[0])
    w = problem.weights
    first, second, _ = goal.slopes(residuals)
    n, P = residuals.size, fit.theta.shape[1]
    if n <= P:
        raise BadInput(f"{n} rows and {P} free parameters leave nothing to judge the errors by")
    if np.isfinite(goal.delta):
        reach = float(np.quantile(np.abs(residuals), INSIDE))
        if reach > goal.delta:
            side = goal.over if goal.over == goal.under else 0.5 * (goal.over + goal.under)
            second = side * goal.scale * goal.delta / reach * (np.abs(residuals) <= reach)
    correction = n / (n - P)
    bread = _inverse((J * (w * second)) @ J.T)
    meat = (J * (w * first) ** 2) @ J.T * correction
    return Noise(bread @ meat @ bread, bread, float(np.trace(bread @ meat)) / P, n - P)


def _inverse(A: Array) -> Array:
    """Inverse of a positive matrix of any units; directions without curvature are left out."""
    scale = np.sqrt(np.maximum(np.diag(A), 1e-300))
    return np.linalg.pinv(A / np.outer(scale, scale), rcond=1e-12) / np.outer(scale, scale)


def slope_of(q: Jet, size: int) -> Array:
    """The derivatives of a quantity at one point by all coordinates (size,)."""
    slope = np.zeros(size)
    for k, d in q.g.items():
        slope[k] = np.ravel(d)[0]
    return slope


def standard_error(fit: Fit, q: Jet, noise: Noise) -> float:
    """Standard error of a quantity given as a jet at the fit."""
    slope = slope_of(q, fit.theta.shape[1])
    return float(np.sqrt(max(slope @ noise.covariance @ slope, 0.0)))


def delta_interval(
    fit: Fit, wanted: Quantity, levels: tuple[float, ...] = (80.0, 95.0), noise: Noise | None = None
) -> dict[float, tuple[float, float]]:
    """Intervals of a quantity on its natural scale: estimate +- t standard errors."""
    noise = noise_of(fit) if noise is None else noise
    coordinates = fit.problem.coordinates
    natural = coordinates.law.rescale(coordinates.leaves(fit.theta), coordinates.factors)
    q = wanted.value(natural)
    if not isinstance(q, Jet):  # fixed by the user
        return {level: (float(q), float(q)) for level in levels}
    q = np.log(q) if wanted.log else q
    center, error = float(np.ravel(q.v)[0]), standard_error(fit, q, noise)
    made = {}
    for level in levels:
        reach = student(level, noise.freedom) * error
        low, high = center - reach, center + reach
        made[level] = (float(np.exp(low)), float(np.exp(high))) if wanted.log else (low, high)
    return made


def student(level: float, freedom: int) -> float:
    """Two-sided quantile of Student's t for a level in percent."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 200.0))


def published_test(fit: Fit, constants: Mapping[str, float], noise: Noise | None = None) -> dict:
    """Whether published constants are compatible with the table: statistic, dimensions, p value.

    The rise of the objective from the fit to the constants, in units of chance, against an F
    distribution; parameters that are not given are minimised over.
    """
    from scipy.special import fdtrc

    from lm.laws.fit import fit as refit

    noise = noise_of(fit) if noise is None else noise
    unknown = set(constants) - set(fit.law.names)
    if unknown:
        raise BadInput(f"law {fit.law.name} has no parameter {', '.join(sorted(unknown))}")
    held = {n: float(v) for n, v in constants.items() if n in fit.problem.coordinates.index}
    coordinates = fit.problem.coordinates
    if len(held) == len(coordinates.free):
        theta = coordinates.theta({n: np.array([v]) for n, v in {**fit.params, **held}.items()})
        value = float(fit.problem(theta, np.zeros(1, dtype=int)).f[0])
    else:
        problem = fit.problem
        weights = None if np.all(problem.weights == 1) else problem.weights
        other = refit(
            fit.law, problem.x, problem.y, objective=problem.objective, weights=weights,
            fixed={**coordinates.constraints.fixed, **held}, tied=coordinates.constraints.tied,
            bounds=coordinates.constraints.bounds,
        )  # fmt: skip
        value = other.sum if weights is None else other.sum / float(np.mean(weights))
    own = float(fit.problem(fit.theta, np.zeros(1, dtype=int)).f[0])
    dimensions = len(held)
    statistic = 2 * max(value - own, 0.0) / noise.unit
    return {
        "objective": value,
        "rise": value - own,
        "statistic": statistic,
        "dimensions": dimensions,
        "p_value": float(fdtrc(dimensions, noise.freedom, statistic / dimensions)),
    }
