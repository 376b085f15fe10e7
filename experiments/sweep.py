"""Trains every point of a sweep, fits the law, plans the next run and writes the report.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/ladder

A sweep is a config file with get_sweep(), a list of {dotted field: value}. --dry_run prints the
points without training. Running the same command again trains only what is missing or unfinished.
The folder gets:

  sweep.json                this command and its runs
  runs/<run_id>/            a work folder of experiments.train each
  runs.csv                  a row a run
  laws/<law>/               law.json and bootstrap.csv of each candidate, where there are runs
                            enough to fit them
  validation.json           how well each predicts the largest budget from the others
  law.json, bootstrap.csv   the candidate that does it best
  isoflop/                  the parabolas' answer, where budgets have minima
  plan.json                 the best run of 10 times the largest budget, where the law has one
  prediction.json, held_out.csv   a run that was predicted first, where the file names one
  report.html, figures/     all of it to read

What an earlier sweep left there of these and this one does not make is removed; its runs stay.

A file with get_ablation(), a dict of variants (name -> {dotted field: value}, the first is the
baseline) and seeds, trains each variant with each seed instead. It gets no law but ablation.json
and a table: means, standard errors and differences paired by seed. See
experiments/configs/ablations.

A file with get_held_out(), one such dict, names a larger run: its loss is predicted from the fitted
law first, then it is trained, and prediction.json holds both. That record stays when the command
is run again with more points: it says what was known before.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli, config_source
from lm import budget
from lm.errors import BadInput, Diverged
from lm.progress import say

_WORKDIR = flags.DEFINE_string("workdir", None, "the sweep's folder; made if it is not there")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the points, their FLOPs and stop")
_WORKERS = flags.DEFINE_integer(
    "workers",
    None,
    "runs trained side by side; none: one a core, or one in all where there is an accelerator",
    lower_bound=1,
    upper_bound=1024,
)


def main() -> None:
    source = config_source.from_flags()
    if not source.points:
        raise BadInput(
            f"{source.path} has neither get_sweep() nor get_ablation(): add one, or train it with "
            "experiments.train"
        )
    if not _WORKDIR.value and not _DRY_RUN.value:
        raise BadInput("no work folder given: add --workdir=runs/NAME")
    from lm.sweep import answer, pool, table
    from lm.sweep.points import make_points
    from lm.train.workdir import make_folder, write_json

    wanted = [*source.points, *([] if source.held_out is None else [source.held_out])]
    configs = [(p, source.config(p)) for p in wanted]
    points = make_points(configs, groups=source.groups)
    held_out = None if source.held_out is None else points.pop()
    why_no_law = "" if source.groups else answer.why_no_law(points, held_out)
    what = "runs" if source.groups or why_no_law else "runs to fit"
    _print_points(points, held_out, what, why_no_law)
    if _DRY_RUN.value:
        return
    workdir = Path(_WORKDIR.value or "")
    runs, csv = workdir / "runs", workdir / "runs.csv"
    pool.check([*points, *([held_out] if held_out else [])], runs)
    make_folder(runs)
    command = shlex.join(["python", "-m", "experiments.sweep", *sys.argv[1:]])
    listed = {"runs": [p.run_id for p in points], "held_out": held_out and held_out.run_id}
    write_json(workdir / "sweep.json", {"command": command, **listed})
    table.write(points, runs, csv)
    collect = lambda _: table.write(points, runs, csv)
    pool.train_all(points, runs, _WORKERS.value or pool.default_workers(), collect, "sweep")
    collect(None)
    answer.clear(workdir, held_out)
    ended = [table.result_of(p, runs) or {} for p in points]
    if all(result.get("status") == "diverged" for result in ended):
        raise Diverged(f"all {len(points)} runs diverged: lower optim.learning_rate ({csv})")
    if source.groups:
        return _compare(points, workdir)
    try:
        if why_no_law:
            raise BadInput(why_no_law)
        known = answer.fit(workdir)
    except BadInput as e:  # the runs are trained and their table is an answer too
        untrained = "; the held-out run cannot be predicted and is not trained" if held_out else ""
        say(f"no law: {e}{untrained}")
        return _finish(None, None, workdir)
    prediction = _predicted(known, held_out, points, workdir) if held_out else None
    try:
        plan = answer.plan(known, points, workdir)
    except BadInput as e:  # a law without an optimum is an answer too: the report shows why
        say(f"no plan: {e}")
        plan = None
    _finish(plan, prediction, workdir)


def _predicted(known: Any, held_out: Any, points: list[Any], workdir: Path) -> dict[str, Any]:
    """Predicts the held-out run, trains it, and returns what prediction.json then holds."""
    from lm.sweep import answer, pool, table
    from lm.train.workdir import write_json

    runs = workdir / "runs"
    prediction = answer.predict(known, held_out, points, workdir)
    if table.result_of(held_out, runs) is None:
        say(f"before training: {_said(prediction)}")
        write_json(workdir / "prediction.json", prediction)
    else:  # what was said before its loss was known counts, not what the law says now
        prediction = answer.recorded(workdir, held_out) or prediction | {"after_training": True}
    pool.train_all([held_out], runs, 1, lambda _: None, "held-out run")
    prediction = answer.check(prediction, held_out, points, runs)
    write_json(workdir / "prediction.json", prediction)
    table.write([held_out], runs, workdir / "held_out.csv")
    return prediction


def _compare(points: list[Any], workdir: Path) -> None:
    from experiments.report_file import write as write_report
    from lm.sweep import ablation
    from lm.train.workdir import write_json

    found = ablation.compare(points, workdir / "runs")
    write_json(workdir / "ablation.json", found)
    print(ablation.text(found))
    print(f"Wrote {write_report(workdir)}.")


def _said(p: dict[str, Any]) -> str:
    interval = p["interval_80"]
    sure = f" (80 % interval {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    return (
        f"{p['n_params']:,} parameters on {p['n_tokens']:,} tokens "
        f"({p['times_largest_fitted']:.1f} times the largest fitted FLOPs) will reach a loss of "
        f"{p['predicted']:.4f}{sure}"
    )


def _print_points(points: list[Any], held_out: Any, what: str, why_no_law: str) -> None:
    print(f"{'run_id':34} {'n_params':>10} {'n_tokens':>14} {'steps':>8} {'flops':>10}")
    for p in [*points, *([held_out] if held_out else [])]:
        h = p.horizon
        note = "  (held out)" if p is held_out else ""
        size = budget.n_params(p.config.model)
        print(f"{p.run_id:34} {size:10,} {h.n_tokens:14,} {h.steps:8,} {h.flops:10.3g}{note}")
    total = sum(p.horizon.flops for p in [*points, *([held_out] if held_out else [])])
    print(f"{len(points)} {what}, {total:.3g} FLOPs in all", flush=True)
    if why_no_law:
        print(f"No law will come of them: {why_no_law}.", flush=True)
    from lm.sweep.pool import shared_flops

    shared = shared_flops(points)
    if shared:
        print(f"{shared:.3g} FLOPs of them are trained once: the trunks of {len(points)} runs")


def _finish(plan: dict[str, Any] | None, prediction: dict[str, Any] | None, workdir: Path) -> None:
    from experiments.report_file import write as write_report
    from lm.laws.plan_text import plan_text
    from lm.train.workdir import write_json

    if plan:
        write_json(workdir / "plan.json", plan)
        print(plan_text(plan))
    if prediction:
        when = "after" if prediction.get("after_training") else "before"
        print(f"predicted {when} training: {_said(prediction)}")
    if prediction and prediction["measured"]:
        print(
            f"measured: {prediction['measured']:.4f}, error {prediction['error']:.2%}; repeating "
            f"the best fitted loss would have erred by {prediction['baseline_error']:.2%}"
        )
    elif prediction:
        print("measured: nothing, the run diverged")
    print(f"Wrote {write_report(workdir)}.")


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
