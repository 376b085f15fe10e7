"""Trains every point of a sweep, fits the law, plans the next run and writes the report.

    python -m experiments.sweep --config=experiments/configs/ladder_cpu.py --workdir=runs/ladder

A sweep is a config file with get_sweep(), a list of {dotted field: value}. --dry_run prints the
points without training. The folder gets runs.csv (a row a run), runs/<run_id>/ (a work folder of
experiments.train each), law.json, plan.json (at 10 times the largest budget), figures/ and
report.html. Running the same command again trains only what is missing or unfinished.

A file with get_ablation(), a dict of variants (name -> {dotted field: value}, the first is the
baseline) and seeds, trains each variant with each seed instead. It gets no law but ablation.json
and a table: means, standard errors and differences paired by seed. See
experiments/configs/ablations.

A file with get_held_out(), one such dict, names a larger run: its loss is predicted from the fitted
law first, then it is trained, and prediction.json holds both.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli, config_source
from lm import budget
from lm.errors import BadInput
from lm.progress import say

_WORKDIR = flags.DEFINE_string("workdir", None, "the sweep's folder; made if it is not there")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the points, their FLOPs and stop")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "runs trained side by side; none: one a core", lower_bound=1
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

    configs = [(p, source.config(p)) for p in source.points]
    points = make_points(configs, groups=source.groups)
    held_out = None
    if source.held_out:
        held_out = make_points([(source.held_out, source.config(source.held_out))])[0]
    _print_points(points, held_out)
    if _DRY_RUN.value:
        return
    workdir = Path(_WORKDIR.value or "")
    runs, csv = workdir / "runs", workdir / "runs.csv"
    make_folder(runs)
    command = shlex.join(["python", "-m", "experiments.sweep", *sys.argv[1:]])
    write_json(workdir / "sweep.json", {"command": command, "runs": [p.run_id for p in points]})
    table.write(points, runs, csv)
    workers = _WORKERS.value or len(pool.cores())
    collect = lambda _: table.write(points, runs, csv)
    pool.train_all(points, runs, workers, collect, "sweep")
    collect(None)
    if source.groups:
        return _compare(points, workdir)
    if held_out is None and len({budget.n_params(p.config.model) for p in points}) == 1:
        say("no law of N and D: every run has the same size; runs.csv has their losses")
        return _finish(None, None, workdir)
    known = answer.fit(workdir)
    if held_out is not None:
        prediction = answer.predict(known, held_out, points)
        if table.result_of(held_out, runs) is None:
            say(f"before training: {_said(prediction)}")
            write_json(workdir / "prediction.json", prediction)
        pool.train_all([held_out], runs, 1, lambda _: None, "held-out run")
        prediction = answer.check(prediction, held_out, points, runs)
        write_json(workdir / "prediction.json", prediction)
        table.write([held_out], runs, workdir / "held_out.csv")
    try:
        plan = answer.plan(known, points, workdir)
    except BadInput as e:  # a law without an optimum is an answer too: the report shows why
        say(f"no plan: {e}")
        plan = None
    _finish(plan, prediction if held_out else None, workdir)


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


def _print_points(points: list[Any], held_out: Any) -> None:
    print(f"{'run_id':34} {'n_params':>10} {'n_tokens':>14} {'steps':>8} {'flops':>10}")
    for p in [*points, *([held_out] if held_out else [])]:
        h = p.horizon
        note = "  (held out)" if p is held_out else ""
        size = budget.n_params(p.config.model)
        print(f"{p.run_id:34} {size:10,} {h.n_tokens:14,} {h.steps:8,} {h.flops:10.3g}{note}")
    total = sum(p.horizon.flops for p in [*points, *([held_out] if held_out else [])])
    print(f"{len(points)} runs to fit, {total:.3g} FLOPs in all", flush=True)
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
        print(f"predicted before training: {_said(prediction)}")
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
