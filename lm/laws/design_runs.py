"""How many runs an interval takes: the delta method on a design that nobody has trained yet.

Runs are independent with Gaussian noise on log loss. With J the derivatives of log loss in the
parameters (one row a run) and g those of the quantity, least squares gives it the standard error
noise * sqrt(g (J^T J)^-1 g); k times the runs divide it by sqrt(k).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from lm.errors import BadInput
from lm.laws.allocate import optimum
from lm.laws.surface import surface

Quantity = Callable[[Mapping[str, np.ndarray]], np.ndarray]  # parameters (samples,) -> (samples,)
NORMAL = {0.8: 1.2815515655446004, 0.95: 1.959963984540054}  # standard deviations each side
MOST_RUNS = 1e9


class Design(NamedTuple):
    """Runs to be trained: N and D of each, (runs,)."""

    n: np.ndarray
    d: np.ndarray


def isoflop_design(
    law: str, params: Mapping[str, float], budgets: list[float], sizes: int = 7, spread: float = 4.0
) -> Design:
    """Returns a grid of runs: `sizes` models a budget of 6 N D FLOPs, N*/spread to N* spread."""
    s = surface(law, params)
    factors = np.geomspace(1 / spread, spread, sizes)
    n = np.concatenate([optimum(s, c).n[0] * factors for c in budgets])
    return Design(n, np.repeat(budgets, sizes) / (6 * n))


def log_optimal_size(law: str, flops: float) -> Quantity:
    """Returns the quantity log N* at a budget of 6 N D FLOPs."""
    return lambda params: np.log(optimum(surface(law, params), flops).n)


def standard_error(
    law: str, params: Mapping[str, float], design: Design, quantity: Quantity, noise: float
) -> float:
    """Returns the standard error of a quantity of the law's parameters after training the design.

    noise is the standard deviation of log loss. Infinite where the design does not identify the
    quantity, such as all runs at one size.
    """

    def log_loss(p):
        return np.log(surface(law, p).loss(design.n, design.d))

    J = _derivatives(params, log_loss).T
    g = _derivatives(params, quantity)
    # Columns to unit length: log A and alpha differ by orders of magnitude.
    scale = np.linalg.norm(J, axis=0)
    if len(design.n) < len(params) or not (scale > 0).all():
        return math.inf
    _, singular, Vt = np.linalg.svd(J / scale, full_matrices=False)
    if singular[-1] < 1e-9 * singular[0]:  # derivatives are good to about 1e-10
        return math.inf
    return noise * float(np.linalg.norm(Vt @ (g / scale) / singular))


def runs_needed(
    law: str, params: Mapping[str, float], design: Design, quantity: Quantity, noise: float,
    half_width: float, level: float = 0.8,
) -> int:  # fmt: skip
    """Returns how many runs, spread as the design is, bring the interval to +- half_width.

    The quantity is a logarithm and half_width relative: 0.05 asks for a factor of 1.05 each way.
    Raises BadInput where no number of such runs can.
    """
    error = standard_error(law, params, design, quantity, noise)
    if not math.isfinite(error):
        raise BadInput(
            "runs like these never pin the answer down, however many: they need at least two "
            f"sizes, two amounts of data and {len(params)} runs"
        )
    return max(len(params) + 1, _times(len(design.n), NORMAL[level] * error, half_width))


def runs_like_the_fitted(interval: list[float], n_runs: int, half_width: float) -> int:
    """Returns how many runs, spread as the fitted ones, bring an interval to +- half_width.

    interval is (low, high) of a positive quantity at n_runs; half_width is relative. Widths fall
    as the square root of the number of runs.
    """
    now = (math.log(interval[1]) - math.log(interval[0])) / 2
    return _times(n_runs, now, half_width)


def _times(runs: int, error: float, half_width: float) -> int:
    """How many runs bring an error of log of a quantity at `runs` runs to a relative half width."""
    narrower = error / math.log1p(half_width)
    if not narrower <= math.sqrt(MOST_RUNS / runs):
        raise BadInput(
            f"--half_width={half_width:g} would take more than {MOST_RUNS:g} runs: ask for "
            "a wider one, or give a smaller --noise"
        )
    return math.ceil(runs * narrower**2)


def _derivatives(params: Mapping[str, float], f: Callable) -> np.ndarray:
    """Derivatives of f in each parameter, (parameters, ...): differences of fourth order."""
    rows = []
    for name, value in params.items():
        h = 1e-3 * abs(value) if value else 1e-3
        steps = value + h * np.array([-2.0, -1.0, 1.0, 2.0])
        moved = f({k: steps if k == name else np.full(4, v) for k, v in params.items()})
        rows.append(np.tensordot([1.0, -8.0, 8.0, -1.0], moved, 1) / (12 * h))
    return np.array(rows)
