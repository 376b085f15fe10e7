"""What a fitted law says about a run that was not made, and whether it saw anything like it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.laws.bootstrap import PERCENTILES
from lm.laws.law import Law

Array = np.ndarray


@dataclass(frozen=True)
class Prediction:
    """Predictions at m points: loss (m,), quantiles of the law and of a single run (m, levels),
    None where the law has no samples.

    kind: "interpolation" where every input lies within the fitted range, else "extrapolation";
    factor (m,) is how far outside the furthest input lies (1 inside).
    """

    loss: Array
    levels: tuple[float, ...]
    law_quantiles: Array | None
    run_quantiles: Array | None
    kind: list[str]
    factor: Array


def predict(
    law: Law,
    params: Mapping[str, float],
    samples: Mapping[str, Array] | None,
    fitted: Mapping[str, Array],
    y: Array,
    x: Mapping[str, Any],
    levels: tuple[float, ...] = PERCENTILES,
    seed: int = 0,
) -> Prediction:
    """Loss at x (role -> (m,), natural units) with percentiles, of a law fitted to y (n,) at
    `fitted` (role -> (n,)); samples: name -> (samples,).

    law_quantiles hold only the uncertainty of the parameters; run_quantiles add the scatter of
    single runs around the law, drawn from the residuals of the fit.
    """
    points = {role: np.atleast_1d(np.asarray(x[role], dtype=np.float64)) for role in law.inputs}
    fitted = {role: fitted[role] for role in law.inputs}
    factor = outside(fitted, points)
    law_quantiles = run_quantiles = None
    if samples is not None:
        curves = law.predict(samples, points)
        relative = law.target == "loss"
        expected = law.predict(params, fitted)
        scatter = np.log(y) - np.log(expected) if relative else y - expected
        freedom = scatter.size / max(scatter.size - len(law.names), 1)
        drawn = np.random.default_rng(seed).choice(scatter, curves.shape) * np.sqrt(freedom)
        runs = curves * np.exp(drawn) if relative else curves + drawn
        law_quantiles = np.percentile(curves, levels, axis=0).T
        run_quantiles = np.percentile(runs, levels, axis=0).T
    return Prediction(
        loss=law.predict(params, points),
        levels=levels,
        law_quantiles=law_quantiles,
        run_quantiles=run_quantiles,
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
