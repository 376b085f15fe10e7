"""Where to spend compute: the N and D that a law makes best, under a count of FLOPs.

Under C = 6 N D and two falling powers, L = E + A N^-alpha + B D^-beta, the optimum has a closed
form (Hoffmann et al. 2022, equation 4):
    N* = G (C/6)^a,  D* = (C/6)^b / G,  G = (alpha A / (beta B))^(1/(alpha+beta)),
    a = beta / (alpha+beta),  b = alpha / (alpha+beta).
Exact counts, served tokens and repeated data have none: there the budget line is searched.
A served token costs one forward pass, 2 N (Sardana et al. 2024, Beyond Chinchilla-Optimal).
Every result has one value a parameter set; where no interior optimum exists it is NaN.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from lm.laws.surface import Surface


class Ledger(Protocol):
    """What a model of a size costs. `log_size` is the coordinate that the search moves along."""

    convention: str
    bounds: tuple[float, float]  # of log_size

    def counts(self, log_size: Any) -> tuple[Any, Any, Any]:
        """Returns (N, training FLOPs per token, FLOPs per served token)."""

    def log_size(self, n: Any) -> Any:
        """Returns the coordinate of a model with N parameters."""


class SixND:
    """C = 6 N D to train, 2 N a served token."""

    convention = "6nd"
    bounds = (0.0, 60.0)

    def counts(self, log_size):
        n = np.exp(log_size)
        return n, 6 * n, 2 * n

    def log_size(self, n):
        return np.log(n)


SIX_ND = SixND()


class Optimum(NamedTuple):
    """N, D, the loss and the FLOPs they cost, each (samples,); flops = training + serving."""

    n: np.ndarray
    d: np.ndarray
    loss: np.ndarray
    flops_training: np.ndarray
    flops_serving: np.ndarray

    @property
    def flops(self) -> np.ndarray:
        return self.flops_training + self.flops_serving


def at(surface: Surface, n: Any, d: Any, ledger: Ledger = SIX_ND, served: float = 0.0) -> Optimum:
    """Returns the loss and cost of given N and D, optimal or not."""
    n = np.broadcast_to(np.asarray(n, np.float64), (surface.samples,))
    d = np.broadcast_to(np.asarray(d, np.float64), (surface.samples,))
    _, train, serve = ledger.counts(ledger.log_size(n))
    loss = surface.loss(n[:, None], d[:, None])[:, 0]
    return Optimum(n, d, loss, train * d, serve * served)


def optimum(
    surface: Surface, flops: float, ledger: Ledger = SIX_ND, served: float = 0.0
) -> Optimum:
    """Returns the N and D of least loss whose training and serving cost `flops` together."""
    if surface.core is not None and ledger is SIX_ND and not served and surface.unique is None:
        return _closed_form(surface, flops)

    def tokens(log_size):
        _, train, serve = ledger.counts(log_size)
        left = flops - serve * served
        return np.where(left > 0, left, np.nan) / train

    def loss(log_size):
        return surface.loss(ledger.counts(log_size)[0], tokens(log_size))

    size = minimise(loss, ledger.bounds, surface.samples)
    return at(surface, ledger.counts(size)[0], tokens(size), ledger, served)


def cheapest(
    surface: Surface, loss: float | np.ndarray, ledger: Ledger = SIX_ND, served: float = 0.0
) -> Optimum:
    """Returns the N and D that reach the loss for the fewest FLOPs of training and serving.

    `loss` is one number or one a parameter set. NaN where the loss cannot be reached.
    """
    target = np.broadcast_to(np.asarray(loss, np.float64), (surface.samples,))[:, None]

    def log_cost(log_size):
        n, train, serve = ledger.counts(log_size)
        return np.log(train * surface.tokens(n, target) + serve * served)

    size = minimise(log_cost, ledger.bounds, surface.samples)
    n = ledger.counts(size)[0]
    return at(surface, n, surface.tokens(n[:, None], target)[:, 0], ledger, served)


def _closed_form(surface: Surface, flops: float) -> Optimum:
    core = surface.core
    assert core is not None
    with np.errstate(all="ignore"):
        total = core.alpha + core.beta
        G = (core.alpha * core.A / (core.beta * core.B)) ** (1 / total)
        n = G * (flops / 6) ** (core.beta / total)
        usable = (core.alpha > 0) & (core.beta > 0) & (core.A > 0) & (core.B > 0)
        n = np.where(usable, n, np.nan)[:, 0]
    return at(surface, n, flops / (6 * n))


def minimise(
    f: Callable[[np.ndarray], np.ndarray], bounds: tuple[float, float], samples: int
) -> np.ndarray:
    """Returns where each sample's f is least inside the bounds, (samples,); NaN at an edge.

    f maps (samples, points) to the same shape and may be NaN outside its domain. Three grids, each
    inside the bracket of the last, then Newton on five-point differences: about 1e-11 where f is
    smooth. The first grid sees several minima, which repeated data can make.
    """

    def safe(x):
        with np.errstate(all="ignore"):
            y = f(x)
        return np.where(np.isnan(y), np.inf, y)

    low, high = (np.full(samples, b, np.float64) for b in bounds)
    inside = np.ones(samples, bool)
    for points in (161, 33, 33):
        x = np.linspace(low, high, points, axis=1)
        y = safe(x)
        best = y.argmin(axis=1)
        # Only the first grid ends where the problem does; later ones lie inside a bracket.
        inside &= (best > 0) & (best < points - 1) & np.isfinite(y.min(axis=1))
        best = best.clip(1, points - 2)
        low, high = (x[np.arange(samples), best + k] for k in (-1, 1))
    centre, h = (low + high) / 2, 2e-3
    for _ in range(4):
        y = safe(centre[:, None] + h * np.array([-2.0, -1.0, 0.0, 1.0, 2.0]))
        with np.errstate(all="ignore"):
            slope = y @ np.array([1.0, -8.0, 0.0, 8.0, -1.0]) / (12 * h)
            curvature = y @ np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / (12 * h * h)
            step = np.where(curvature > 0, slope / curvature, 0.0)
        centre = np.where(np.isfinite(step), np.clip(centre - step, low, high), centre)
    return np.where(inside, centre, np.nan)


def off_optimum(
    surface: Surface,
    best: Optimum,
    factors: np.ndarray,
    ledger: Ledger = SIX_ND,
    served: float = 0.0,
) -> dict[str, np.ndarray]:
    """Returns what a model `factors` times too large costs, arrays (samples, factors).

    n, d and loss lie on the same budget as the optimum; flops_ratio is how many times the FLOPs
    that size needs to reach the optimum's loss, infinite where it cannot.
    """
    n = best.n[:, None] * factors
    _, train, serve = ledger.counts(ledger.log_size(n))
    left = best.flops[:, None] - serve * served
    d = np.where(left > 0, left, np.nan) / train
    needed = surface.tokens(n, best.loss[:, None])
    return {
        "n": n,
        "d": d,
        "loss": surface.loss(n, d),
        "flops_ratio": (train * needed + serve * served) / best.flops[:, None],
    }


def frontier(
    surface: Surface, flops: np.ndarray, ledger: Ledger = SIX_ND, served: float = 0.0
) -> Optimum:
    """Returns the optima over an array of budgets, fields of shape (budgets, samples).

    From bootstrap samples of the parameters it gives the bands of N*(C), D*(C) and L*(C).
    """
    optima = [optimum(surface, c, ledger, served) for c in np.asarray(flops, np.float64)]
    return Optimum(*(np.stack(field) for field in zip(*optima, strict=True)))
