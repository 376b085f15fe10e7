"""From the table of runs to the answer: law, prediction of a run not yet trained, plan."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm.budget import n_params
from lm.errors import BadInput
from lm.laws import kinds
from lm.laws.bootstrap import Samples
from lm.laws.forms import LAWS
from lm.laws.isoflop import budgets, group_members
from lm.laws.law_file import KnownLaw, read_law
from lm.laws.plan import Question, make_plan
from lm.laws.prediction import predict as predict_runs
from lm.laws.request import Request, fit_table
from lm.laws.result import write_law
from lm.laws.runs import Runs, read_runs
from lm.laws.shape import Family
from lm.laws.stored import read
from lm.laws.validate import Holdout, predict_above
from lm.progress import say
from lm.sweep.points import Point
from lm.sweep.table import result_of
from lm.train.workdir import write_json

TIMES_LARGEST = 10  # the plan's budget, in units of the largest group's
NEAR = 1.05  # FLOPs of one budget differ by less: a run ends with a whole step
# Laws of N and D: two powers and a floor that add up, and two limits that multiply, without a
# floor, which is what losses far above theirs look like.
CANDIDATES = ("chinchilla", "kaplan_nd")
PREDICTION = "prediction.json"
# What `fit`, a plan and a comparison leave in the folder; a law's two files in each of its folders.
MADE = (
    "validation.json", "plan.json", "held_out.csv", "ablation.json",
    *(f"{folder}/{name}" for folder in (".", "isoflop", *(f"laws/{law}" for law in CANDIDATES))
      for name in ("law.json", "bootstrap.csv")),
)  # fmt: skip


def why_no_law(points: Sequence[Point], held_out: Point | None) -> str:
    """Returns why these runs cannot give a law, before they are trained; empty where they can."""
    needed = max(len(LAWS[law].names) for law in CANDIDATES) + 1
    if held_out is None and len({n_params(p.config.model) for p in points}) == 1:
        return "no law of N and D where every run has the same size; runs.csv has their losses"
    if len(points) < needed:
        return f"a law needs {needed} runs or more, and there are {len(points)}"
    return ""


def clear(workdir: Path, held_out: Point | None) -> None:
    """Removes what the analysis of other runs left in the folder, and nothing that it did not make.

    The recorded prediction of this held-out run stays: nobody can make it again.
    """
    gone = list(MADE) if recorded(workdir, held_out) else [*MADE, PREDICTION]
    for name in gone:
        (workdir / name).unlink(missing_ok=True)


def recorded(workdir: Path, held_out: Point | None) -> dict[str, Any] | None:
    """Returns what the folder says was predicted of this run, None where it says nothing."""
    try:
        prediction = read(workdir / PREDICTION, kinds.PREDICTION)
    except BadInput:
        return None  # made again
    same = prediction and held_out and prediction.get("run_id") == held_out.run_id
    return prediction if same else None


def fit(workdir: Path) -> KnownLaw:
    """Fits runs.csv by every law of CANDIDATES and writes law.json, the one that validated best.

    The rule, fixed before the answer is known: each law is fitted without the largest budget and
    predicts its runs; the smallest mean relative error wins. All candidates stay in laws/, the
    errors in validation.json, and the parabolas' answer in isoflop/ where the budgets have any.
    Raises BadInput where the table is too small for one of them.
    """
    try:
        _write(_fit(workdir, "isoflop"), workdir, "isoflop", workdir / "isoflop")
    except BadInput as e:
        say(f"no answer from IsoFLOP parabolas: {e}")
    held = {law: largest_predicted(workdir, law) for law in CANDIDATES}
    errors = {law: h.mean_relative_error if h else math.inf for law, h in held.items()}
    best = min(errors, key=lambda law: errors[law])
    fitted = {law: _fit(workdir, law) for law in CANDIDATES}
    for law in CANDIDATES:
        _write(fitted[law], workdir, law, workdir / "laws" / law)
    finite = {law: error if error < math.inf else None for law, error in errors.items()}
    count = next((int(h.held.size) for h in held.values() if h), 0)
    write_json(
        workdir / "validation.json",
        {"chosen": best, "largest_budget_error": finite, "largest_budget_runs": count},
    )
    for law, error in errors.items():
        if error < math.inf:
            those = f"the {count} runs" if count > 1 else "the run"
            say(f"{law}: predicts {those} of the largest budget within {error:.2%}")
        else:
            say(f"{law}: too few runs below the largest budget to validate; {best} is used")
    return read_law(str(_write(fitted[best], workdir, best, workdir)))


def largest_predicted(workdir: Path, law: str) -> Holdout | None:
    """Returns how a fit to the other runs predicts those of the largest budget; None where the
    others are too few to tell the candidates apart."""
    runs = read_runs(str(workdir / "runs.csv"), LAWS[law])
    largest = largest_budget(runs)
    if np.sum(~largest) <= max(len(LAWS[name].names) for name in CANDIDATES):
        return None
    return predict_above(LAWS[law], runs.x, runs.y, largest.astype(float), 0.5)


def largest_budget(runs: Runs) -> np.ndarray:
    """Returns which runs (n,) are of the largest budget: the group of most FLOPs, as parabolas see
    it. Where groups are single runs, as with budgets in tokens or steps, those NEAR the most."""
    flops, members = budgets(runs), group_members(runs)[-1][1]
    if members.size > 1:
        return np.isin(np.arange(flops.size), members)
    return flops >= flops.max() / NEAR


def _fit(workdir: Path, law: str) -> tuple[dict[str, Any], Samples | None]:
    return fit_table(Request(runs=str(workdir / "runs.csv"), law=law))


def _write(
    fitted: tuple[dict[str, Any], Samples | None], workdir: Path, law: str, out: Path
) -> Path:
    content, samples = fitted
    command = _command("fit", runs=workdir / "runs.csv", law=law, out=out)
    return write_law(out, content | {"command": command}, samples)


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


def predict(known: KnownLaw, point: Point, points: list[Point], workdir: Path) -> dict[str, Any]:
    """Returns what the law says of a run before it is trained: its loss with two 80 % intervals.

    interval_80 is of the run: the law's uncertainty with the scatter that single runs have around
    it; law_interval_80 is of the law alone. None where the law has no samples.
    """
    h = point.horizon
    n, d = float(n_params(point.config.model)), float(h.n_tokens)
    law = LAWS[known.law]
    runs = read_runs(str(workdir / "runs.csv"), law)
    found = predict_runs(
        law, known.params, known.samples, runs.x, runs.y, {"n": [n], "d": [d]}, (10.0, 90.0)
    )
    ends = lambda q: None if q is None else [float(v) for v in q[0]]
    return {
        "run_id": point.run_id,
        "flops": h.flops,
        "times_largest_fitted": h.flops / max(p.horizon.flops for p in points),
        "n_params": int(n),
        "n_tokens": h.n_tokens,
        "predicted": float(found.loss[0]),
        "interval_80": ends(found.run_quantiles),
        "law_interval_80": ends(found.law_quantiles),
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
