"""From the table of runs to the answer: law, prediction of a run not yet trained, plan."""

import math
import shlex
from pathlib import Path
from typing import Any

from lm.budget import n_params
from lm.errors import BadInput
from lm.laws.forms import LAWS
from lm.laws.law_file import KnownLaw, read_law
from lm.laws.plan import Question, make_plan
from lm.laws.request import Request, fit_table
from lm.laws.result import write_law
from lm.laws.runs import read_runs
from lm.laws.shape import Family
from lm.laws.validate import predict_above
from lm.progress import say
from lm.sweep.points import Point
from lm.sweep.table import result_of
from lm.train.workdir import write_json

TIMES_LARGEST = 10  # the plan's budget, in units of the largest group's
NEAR = 1.05  # FLOPs of one budget differ by less: a run ends with a whole step
# Laws of N and D: two powers and a floor that add up, and two limits that multiply, without a
# floor, which is what losses far above theirs look like.
CANDIDATES = ("chinchilla", "kaplan_nd")


def fit(workdir: Path) -> KnownLaw:
    """Fits runs.csv by every law of CANDIDATES and writes law.json, the one that validated best.

    The rule, fixed before the answer is known: each law is fitted without the largest budget and
    predicts its runs; the smallest mean relative error wins. All candidates stay in laws/, the
    errors in validation.json, and the parabolas' answer in isoflop/ where the budgets have any.
    """
    try:
        _fit(workdir, "isoflop", workdir / "isoflop")
    except BadInput as e:
        say(f"no answer from IsoFLOP parabolas: {e}")
    errors = {law: validation_error(workdir, law) for law in CANDIDATES}
    best = min(errors, key=lambda law: errors[law])
    for law in CANDIDATES:
        _fit(workdir, law, workdir / "laws" / law)
    finite = {law: error if error < math.inf else None for law, error in errors.items()}
    write_json(workdir / "validation.json", {"chosen": best, "largest_budget_error": finite})
    for law, error in errors.items():
        if error < math.inf:
            say(f"{law}: predicts the largest budget from the others within {error:.2%}")
        else:
            say(f"{law}: too few runs below the largest budget to validate; {best} is used")
    return read_law(str(_fit(workdir, best, workdir)))


def validation_error(workdir: Path, law: str) -> float:
    """Returns the mean relative error on the largest budget's runs of a fit to the others;
    infinite where the others are too few to tell the candidates apart."""
    runs = read_runs(str(workdir / "runs.csv"), LAWS[law])
    flops = runs.x["flops"]
    largest = flops.max() / NEAR
    if (flops < largest).sum() <= max(len(LAWS[name].names) for name in CANDIDATES):
        return math.inf
    return predict_above(LAWS[law], runs.x, runs.y, flops, largest).mean_relative_error


def _fit(workdir: Path, law: str, out: Path) -> Path:
    table = str(workdir / "runs.csv")
    content, samples = fit_table(Request(runs=table, law=law))
    content["command"] = _command("fit", runs=table, law=law, out=out)
    return write_law(out, content, samples)


def _command(entry: str, **flags: Any) -> str:
    return shlex.join(
        ["python", "-m", f"experiments.{entry}", *(f"--{k}={v}" for k, v in flags.items())]
    )


def family(points: list[Point]) -> Family:
    """Returns the shapes like those of the widest point."""
    widest = max(points, key=lambda p: p.config.model.d_model).config
    return Family(widest.model, widest.length)


def plan(known: KnownLaw, points: list[Point], workdir: Path) -> dict[str, Any]:
    """Returns the plan at TIMES_LARGEST times the largest fitted budget, as plan.json holds it."""
    flops = TIMES_LARGEST * max(p.config.train.flops or p.horizon.flops for p in points)
    command = _command("plan", law=workdir / "law.json", flops=repr(flops), out=workdir)
    return make_plan(known, Question(flops=flops), family(points), "exact", command)


def predict(known: KnownLaw, point: Point, points: list[Point]) -> dict[str, Any]:
    """Returns what the law says of a run before it is trained: loss and 80 % interval."""
    h = point.horizon
    n = float(n_params(point.config.model))
    asked = Question(n=n, d=float(h.n_tokens))
    loss = make_plan(known, asked, family(points), "exact", "")["loss"]
    return {
        "run_id": point.run_id,
        "flops": h.flops,
        "times_largest_fitted": h.flops / max(p.horizon.flops for p in points),
        "n_params": int(n),
        "n_tokens": h.n_tokens,
        "predicted": loss["value"],
        "interval_80": loss["interval_80"],
    }


def check(
    prediction: dict[str, Any], point: Point, points: list[Point], runs: Path
) -> dict[str, Any]:
    """Returns the prediction beside what was measured, and the error of the simplest guess:
    that the best loss of the fitted runs stays."""
    result = result_of(point, runs)
    assert result is not None, "the run has ended"
    measured = result["eval_loss"]  # None: it diverged
    losses = [r["eval_loss"] for p in points if (r := result_of(p, runs)) and r["eval_loss"]]
    best = min(losses)
    return prediction | {
        "measured": measured,
        "error": measured and abs(prediction["predicted"] / measured - 1),
        "best_fitted_loss": best,
        "baseline_error": measured and abs(best / measured - 1),
    }
