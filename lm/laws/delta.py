"""Delta method: standard errors from the curvature of the fit. Imports NumPy only.

For an objective sum of rho(r) with independent errors of one size, the covariance of the fitting
coordinates is E[rho'^2] / E[rho'']^2 times the inverse of J^T J, J the slopes of the residuals.
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
    """E[rho'^2] n / (n - P), E[rho''], degrees of freedom, and J^T J in fitting coordinates.

    unit is twice the rise of the objective that a parameter one standard error away costs.
    """

    square: float
    curvature: float
    freedom: int
    JTJ: Array

    @property
    def unit(self) -> float:
        return self.square / self.curvature

    @property
    def covariance(self) -> Array:
        """Covariance of the fitting coordinates (P, P)."""
        scale = np.sqrt(np.maximum(np.diag(self.JTJ), 1e-300))
        inverse = np.linalg.pinv(self.JTJ / np.outer(scale, scale), rcond=1e-12)
        return self.square / self.curvature**2 * inverse / np.outer(scale, scale)


def noise_of(fit: Fit) -> Noise:
    """The size of the errors, from the fit's own residuals.

    rho'' of an absolute value is all at zero, so that E[rho''] is a density: it is taken over the
    central third of the residuals, or over the quadratic part where that holds more.
    """
    problem, goal = fit.problem, fit.problem.objective
    residuals = problem.residuals(fit.theta)[0]
    weights = problem.weights
    first, second, _ = goal.slopes(residuals)
    n, P = residuals.size, fit.theta.shape[1]
    if n <= P:
        raise BadInput(f"{n} rows and {P} free parameters leave nothing to judge the errors by")
    square = float(np.average(first**2, weights=weights)) * n / (n - P)
    curvature = float(np.average(second, weights=weights))
    if np.isfinite(goal.delta):
        reach = float(np.quantile(np.abs(residuals), INSIDE))
        if reach > goal.delta:
            side = 0.5 * goal.scale * (goal.over + goal.under)
            curvature = side * INSIDE * goal.delta / reach
    return Noise(square, max(curvature, 1e-300), n - P, _slopes_squared(fit))


def standard_error(fit: Fit, q: Jet, noise: Noise) -> float:
    """Standard error of a quantity given as a jet at the fit."""
    slope = np.zeros(fit.theta.shape[1])
    for k, d in q.g.items():
        slope[k] = np.ravel(d)[0]
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


def _slopes_squared(fit: Fit) -> Array:
    """J^T W J, J the slopes of the residuals in fitting coordinates."""
    _, slopes = fit.problem.slopes(fit.theta[0])
    return (slopes * fit.problem.weights) @ slopes.T
