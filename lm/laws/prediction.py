"""What a fitted law says about a run that was not made, and whether it saw anything like it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lm.laws.bootstrap import PERCENTILES, Samples
from lm.laws.fit import Fit

Array = np.ndarray


@dataclass(frozen=True)
class Prediction:
    """Predictions at m points: loss (m,), quantiles of the law and of a single run (m, levels).

    kind: "interpolation" where every input lies within the fitted range, else "extrapolation";
    factor (m,) is how far outside the furthest input lies (1 inside).
    """

    loss: Array
    levels: tuple[float, ...]
    law_quantiles: Array
    run_quantiles: Array
    kind: list[str]
    factor: Array


def predict(
    fit: Fit,
    samples: Samples,
    x: Mapping[str, Array],
    levels: tuple[float, ...] = PERCENTILES,
    seed: int = 0,
) -> Prediction:
    """Loss at x (role -> (m,), natural units) with percentiles.

    law_quantiles hold only the uncertainty of the parameters; run_quantiles add the scatter of
    single runs around the law, drawn from the residuals of the fit.
    """
    points = {role: np.atleast_1d(np.asarray(x[role], dtype=np.float64)) for role in fit.law.inputs}
    loss = fit.predict(points)
    curves = fit.law.predict(samples.params, points)
    relative = fit.law.target == "loss"
    fitted = fit.predict(fit.problem.x)
    scatter = np.log(fit.problem.y) - np.log(fitted) if relative else fit.problem.y - fitted
    freedom = scatter.size / max(scatter.size - fit.theta.shape[1], 1)
    drawn = np.random.default_rng(seed).choice(scatter, curves.shape) * np.sqrt(freedom)
    runs = curves * np.exp(drawn) if relative else curves + drawn
    factor = outside(fit.problem.x, points)
    return Prediction(
        loss=loss,
        levels=levels,
        law_quantiles=np.percentile(curves, levels, axis=0).T,
        run_quantiles=np.percentile(runs, levels, axis=0).T,
        kind=["interpolation" if f == 1.0 else "extrapolation" for f in factor],
        factor=factor,
    )


def outside(fitted: Mapping[str, Array], x: Mapping[str, Array]) -> Array:
    """How many times beyond the fitted range each point lies, in its furthest input; 1 inside.

    A law of N and D is also judged by their product: both may be known, and not together.
    """
    fitted, x = dict(fitted), dict(x)
    if {"n", "d"} <= x.keys():
        fitted["compute"], x["compute"] = fitted["n"] * fitted["d"], x["n"] * x["d"]
    worst = np.ones(len(next(iter(x.values()))))
    for role, values in x.items():
        low, high = fitted[role].min(), fitted[role].max()
        beyond = np.maximum(values / (high * (1 + 1e-12)), low * (1 - 1e-12) / values)
        worst = np.maximum(worst, beyond)
    return worst
