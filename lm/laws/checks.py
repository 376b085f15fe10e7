"""What a fit is checked by, as it is written to law.json."""

from dataclasses import asdict
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.delta import published_test
from lm.laws.fit import Fit
from lm.laws.isoflop import budgets
from lm.laws.law import Law
from lm.laws.profile import flat_names, profile
from lm.laws.published import published
from lm.laws.quantity import quantity
from lm.laws.runs import Runs
from lm.laws.validate import compare, leave_out, predict_above

Array = np.ndarray


def add_profiles(content: dict[str, Any], found: Fit) -> None:
    """Profile intervals of every free parameter and exponent; an open one makes the fit flat."""
    names = list(found.problem.coordinates.free)
    if found.exponents and "a" not in found.law.names:
        names.append("a")  # b is 1 - a
    profiles = {n: profile(found, quantity(found.law, n)) for n in names}
    content["profile"] = {
        name: {f"{level:g}": list(ends) for level, ends in p.intervals.items()}
        for name, p in profiles.items()
    }
    for name in flat_names(profiles):
        low, high = profiles[name].intervals[max(profiles[name].intervals)]
        start = "0" if low is None else f"{low:.4g}"
        text = f"{start} to {'any size' if high is None else f'{high:.4g}'}"
        content["warnings"].append(
            f"flat in {name}: its 95 % profile interval is {text}, so its value is no measurement"
        )
        if content["status"] == "converged":
            content["status"] = "flat"


def test_of(found: Fit, name: str) -> dict[str, Any]:
    """The test of a published law's constants against the table."""
    known = published(name)
    if known.law != found.law.name:
        raise BadInput(f"{name} is of law {known.law}, the fit of law {found.law.name}: use --law")
    return {"name": name, **published_test(found, known.params)}


def log_errors(found: Fit, runs: Runs, rest: Runs | None) -> dict[str, Any]:
    """Root mean square of log(predicted) - log(loss) over the fitted rows and over the rest."""

    def rms(table: Runs) -> float:
        return float(np.sqrt(np.mean(np.log(found.predict(table.x) / table.y) ** 2)))

    made: dict[str, Any] = {"fitted": rms(runs), "n_fitted": len(runs)}
    if rest is not None:
        made |= {"left_out": rms(rest), "n_left_out": len(rest)}
    return made


def holdout(law: Law, runs: Runs, threshold: float, **settings: Any) -> dict[str, Any]:
    """The law fitted below a FLOP threshold, and how far off it is above."""
    held = predict_above(law, runs.x, runs.y, budgets(runs), threshold, **settings)
    return {
        "threshold": threshold,
        "n_fitted": int(held.fitted.size),
        "n_predicted": int(held.held.size),
        "mean_relative_error": held.mean_relative_error,
        "relative_errors": held.errors,
        "params": held.params,
        "status": held.status,
    }


def left_out(found: Fit, labels: Array) -> list[dict[str, Any]]:
    """Each value of a column left out in turn, and how far off the others' law is there."""
    return [
        {
            "left_out": held.label,
            "n_predicted": int(held.held.size),
            "mean_relative_error": held.mean_relative_error,
            "params": held.params,
            "status": held.status,
        }
        for held in leave_out(found, labels)
    ]


def comparison(laws: list[Law], runs: Runs, **settings: Any) -> list[dict[str, Any]]:
    """Laws ranked by the error of their roll-outs over FLOPs, with AIC and BIC."""
    lacking = {law.name: sorted(set(law.inputs) - runs.x.keys()) for law in laws}
    for name, roles in lacking.items():
        if roles:
            raise BadInput(f"law {name} needs columns that were not read: {', '.join(roles)}")
    for key in ("fixed", "tied", "bounds"):
        if settings.get(key):
            raise BadInput(
                "laws of different parameters are compared without --fix, --tie, --bound"
            )
    return [asdict(s) for s in compare(laws, runs.x, runs.y, budgets(runs), **settings)]
