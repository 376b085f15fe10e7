"""What a fit minimises: a function of one residual, with its slope and curvature. Imports NumPy.

Every objective is sum over rows of weight * rho(r), r = link(prediction) - link(observed), with
rho continuous and once differentiable, so that one Newton method serves them all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lm.errors import BadInput

# Width of the rounded corner of the absolute-value objectives, in units of the residual.
CORNER = 1e-8

Residual = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Objective:
    """A named objective with its settings.

    link: "log", "identity" or "log1p". Quadratic within `delta` of zero and linear outside
    (infinite: least squares). `scale` multiplies rho. `over` and `under` weight residuals above
    and below zero (prediction too high and too low).
    """

    name: str
    link: str
    delta: float
    scale: float = 1.0
    over: float = 1.0
    under: float = 1.0

    def with_delta(self, delta: float) -> "Objective":
        """The same objective with a wider or narrower quadratic part, of the same slope."""
        if not np.isfinite(self.delta):
            return self
        return replace(self, delta=delta, scale=self.scale * self.delta / delta)

    def on_differences(self) -> "Objective":
        """The same objective of plain differences: accuracies may be zero."""
        return replace(self, link="identity")

    def residual(self, predicted: np.ndarray, observed: np.ndarray) -> np.ndarray:
        """link(predicted) - link(observed), accurate where the two are close."""
        gap = predicted - observed
        if self.link == "identity":
            return gap
        base = observed if self.link == "log" else 1.0 + observed
        return np.log1p(gap / base)

    def link_slopes(self, predicted: np.ndarray) -> tuple[np.ndarray | float, np.ndarray | float]:
        """First and second derivative of the link at the prediction."""
        if self.link == "identity":
            return 1.0, 0.0
        first = 1.0 / (predicted if self.link == "log" else 1.0 + predicted)
        return first, -first * first

    def rho(self, r: np.ndarray) -> np.ndarray:
        """The contribution of each residual."""
        size = np.abs(r)
        inside = np.minimum(size, self.delta)
        return self._side(r) * (inside * (size - 0.5 * inside))

    def slopes(self, r: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """rho', rho'' and the secant rho'/r (the curvature of the parabola that lies above)."""
        side = self._side(r)
        if not np.isfinite(self.delta):
            ones = np.broadcast_to(np.asarray(side, dtype=np.float64), r.shape)
            return side * r, ones, ones
        size = np.abs(r)
        within = size <= self.delta
        first = side * np.clip(r, -self.delta, self.delta)
        secant = side * (self.delta / np.maximum(size, self.delta))
        return first, side * within, secant

    def _side(self, r: np.ndarray) -> np.ndarray | float:
        if self.over == self.under:
            return self.scale * self.over
        return self.scale * np.where(r > 0, self.over, self.under)


def objective(name: str = "huber", delta: float = 1e-3, tau: float = 0.5) -> Objective:
    """The objective called `name`.

    huber: Huber on log loss, quadratic within delta. squared_log, squared, squared_log1p: least
    squares of log y, y, log(1 + y) (the sum of squared residuals). absolute: |log residual|.
    asymmetric: Huber on log loss in which a prediction below the observed loss counts 2 tau and one
    above it 2 (1 - tau): runs fail upwards, so tau < 0.5 leans towards the best of them.
    """
    infinite = float("inf")
    if name in ("huber", "asymmetric") and not (np.isfinite(delta) and delta > 0):
        raise BadInput(f"delta is {delta}, but the Huber width must be a positive number")
    if name == "asymmetric" and not 0 < tau < 1:
        raise BadInput(f"tau is {tau}, but the asymmetry must lie between 0 and 1")
    table = {
        "huber": Objective("huber", "log", delta),
        "squared_log": Objective("squared_log", "log", infinite, scale=2.0),
        "squared": Objective("squared", "identity", infinite, scale=2.0),
        "squared_log1p": Objective("squared_log1p", "log1p", infinite, scale=2.0),
        "absolute": Objective("absolute", "log", CORNER, scale=1 / CORNER),
        "asymmetric": Objective("asymmetric", "log", delta, over=2 * (1 - tau), under=2 * tau),
    }
    if name not in table:
        raise BadInput(f"objective {name!r} is not known: choose one of {', '.join(table)}")
    return table[name]
