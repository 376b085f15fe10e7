"""How well a law predicts runs that it was not fitted to: the only test that matters for a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.bootstrap import refit
from lm.laws.fit import Fit, fit
from lm.laws.law import Law

Array = np.ndarray
Table = Mapping[str, Array]


@dataclass(frozen=True)
class Holdout:
    """Runs kept out of a fit: their label or threshold, and errors predicted / observed - 1.

    fitted and held are row numbers into the table; params those of the fit without them.
    """

    label: str
    fitted: Array
    held: Array
    errors: Array
    params: dict[str, float]
    status: str

    @property
    def mean_relative_error(self) -> float:
        """Mean of |predicted / observed - 1| over the runs kept out."""
        return float(np.mean(np.abs(self.errors)))


def predict_above(
    law: Law, x: Table, y: Array, by: Array, threshold: float, **settings: Any
) -> Holdout:
    """Fit the runs with `by` below the threshold (FLOPs, say) and predict those at or above it."""
    by, y = np.asarray(by, dtype=np.float64), np.asarray(y, dtype=np.float64)
    low = by < threshold
    if low.all() or not low.any():
        raise BadInput(
            f"a threshold of {threshold:g} leaves {low.sum()} runs below and {(~low).sum()} above: "
            f"choose one between {by.min():.3g} and {by.max():.3g}"
        )
    found = fit(law, _rows(x, low), y[low], **_settings(settings, low))
    errors = found.predict(_rows(x, ~low)) / y[~low] - 1
    return Holdout(
        f"below {threshold:.4g}", np.flatnonzero(low), np.flatnonzero(~low), errors,
        found.params, found.status,
    )  # fmt: skip


def roll_out(
    law: Law, x: Table, y: Array, by: Array, thresholds: Sequence[float] | None = None,
    **settings: Any,
) -> list[Holdout]:  # fmt: skip
    """`predict_above` over growing thresholds: quantiles of `by` from a half to nine tenths.

    Thresholds that leave too few runs below to fit the law are passed over.
    """
    by = np.asarray(by, dtype=np.float64)
    if thresholds is None:
        thresholds = list(np.unique(np.quantile(by, [0.5, 0.6, 0.7, 0.8, 0.9])))
    fixed = len(settings.get("fixed") or {}) + len(settings.get("tied") or {})
    least = len(law.names) - fixed + 1
    usable = [t for t in thresholds if least <= np.sum(by < t) < by.size]
    if not usable:
        raise BadInput(f"no threshold leaves the {least} runs that law {law.name} needs below it")
    return [predict_above(law, x, y, by, t, **settings) for t in usable]


def leave_out(found: Fit, labels: Array) -> list[Holdout]:
    """Each group of a label left out in turn: refits from the full fit, all at once.

    For leave-one-size-out the labels are the sizes. Groups without which the law cannot be fitted
    are passed over.
    """
    problem = found.problem
    labels = np.asarray(labels)
    if labels.shape != problem.y.shape:
        raise BadInput(f"{labels.size} labels for {problem.y.size} runs")
    names = np.unique(labels)
    if names.size < 2:
        raise BadInput("all runs carry one label: nothing is left when it is left out")
    keep = labels != names[:, None]
    enough = keep.sum(axis=1) > found.theta.shape[1]
    names, keep = names[enough], keep[enough]
    refits = refit(found, keep * problem.weights, drop_failed=False)
    made = []
    for k, name in enumerate(names):
        params = {n: float(v[k]) for n, v in refits.params.items()}
        held = ~keep[k]
        errors = found.law.predict(params, _rows(problem.x, held)) / problem.y[held] - 1
        made.append(
            Holdout(
                str(name), np.flatnonzero(keep[k]), np.flatnonzero(held), errors, params,
                "converged" if refits.reached[k] else "no_minimum",
            )
        )  # fmt: skip
    return made


@dataclass(frozen=True)
class Score:
    """One law in a comparison: out-of-sample error first, then in-sample error, AIC and BIC."""

    law: str
    out_of_sample: float
    in_sample: float
    aic: float
    bic: float
    parameters: int
    status: str


def compare(laws: Sequence[Law], x: Table, y: Array, by: Array, **settings: Any) -> list[Score]:
    """The laws ranked by the mean relative error of their roll-outs over `by`.

    AIC and BIC assume double-exponential errors of the log loss for objectives of absolute
    values, Gaussian ones for least squares, and count the size of the errors as a parameter.
    """
    y = np.asarray(y, dtype=np.float64)
    scores = []
    for law in laws:
        found = fit(law, x, y, **settings)
        held = [h for h in roll_out(law, x, y, by, **settings) if h.status != "no_minimum"]
        errors = np.concatenate([np.abs(h.errors) for h in held]) if held else np.array([np.inf])
        residual = np.log(found.predict(x)) - np.log(y)
        count = found.theta.shape[1] + 1
        surprise = minus_two_log_likelihood(residual, np.isfinite(found.problem.objective.delta))
        scores.append(
            Score(
                law=law.name,
                out_of_sample=float(np.mean(errors)),
                in_sample=float(np.mean(np.abs(np.expm1(residual)))),
                aic=surprise + 2 * count,
                bic=surprise + np.log(y.size) * count,
                parameters=count - 1,
                status=found.status,
            )
        )
    return sorted(scores, key=lambda s: s.out_of_sample)


def minus_two_log_likelihood(residual: Array, absolute: bool) -> float:
    """-2 log likelihood at the best scale: Laplace errors where absolute, Gaussian otherwise."""
    n = residual.size
    if absolute:
        return float(2 * n * (np.log(2 * max(np.mean(np.abs(residual)), 1e-300)) + 1))
    return float(n * (np.log(2 * np.pi * max(np.mean(residual**2), 1e-300)) + 1))


def _rows(x: Table, rows: Array) -> dict[str, Array]:
    return {role: np.asarray(v)[rows] for role, v in x.items()}


def _settings(settings: dict[str, Any], rows: Array) -> dict[str, Any]:
    """Settings of a fit with the weights of these rows."""
    weights = settings.get("weights")
    return settings if weights is None else {**settings, "weights": np.asarray(weights)[rows]}
