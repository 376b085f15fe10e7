"""Fit a scaling law to a table of runs, with honest intervals.

The table is a .csv, .parquet or .jsonl file with one row a run; --n, --d, --loss, --flops name its
columns. Writes DIR/law.json (parameters, standard errors, intervals, every excluded row with its
reason) and DIR/bootstrap.csv (one row a resampled refit), which experiments.plan reads.

  python -m experiments.fit --runs=runs/demo/runs.csv --law=chinchilla --out=runs/demo
  python -m experiments.fit --runs=table.csv --law=isoflop --out=fits/isoflop
  python -m experiments.fit --runs=curve.csv --law=bnsl --x=dataset_size --out=fits/bnsl \\
      --where="split == 'fit'" --objective=squared_log1p

Methods: parametric fits the surface; isoflop fits a parabola to each FLOP budget and a power law
through the minima; envelope takes the lowest loss of many learning curves at each FLOP count.
Every status but "converged" comes with a warning that says what the table does not hold.
"""

import shlex
import sys

from absl import flags

from experiments import cli
from lm.errors import BadInput
from lm.laws.fit_text import fit_text
from lm.laws.forms import LAWS
from lm.laws.request import METHODS, Request, check, fit_table
from lm.laws.result import write_law
from lm.progress import Progress

RUNS = flags.DEFINE_string("runs", None, "the table of runs: .csv, .parquet or .jsonl")
_ONE_LINE_EACH = "\n".join(f"      {name:<21} {law.source}" for name, law in LAWS.items())
LAW = flags.DEFINE_string(
    "law", "chinchilla",
    f"a method (isoflop, envelope), or the law's name:\n{_ONE_LINE_EACH}\n     ",
)  # fmt: skip
OUT = flags.DEFINE_string("out", None, "the folder for law.json and bootstrap.csv")
METHOD = flags.DEFINE_enum("method", None, METHODS, "default: as --law says, else parametric")
OBJECTIVE = flags.DEFINE_string(
    "objective",
    "huber",
    "huber, squared_log, squared, squared_log1p, absolute or asymmetric",
)
DELTA = flags.DEFINE_float("delta", 1e-3, "width of the quadratic part of the Huber objective")
TAU = flags.DEFINE_float("tau", 0.5, "asymmetric: below 0.5 leans towards the lowest losses")
WHERE = flags.DEFINE_string("where", None, "keep rows where this holds: \"group == 'a' and n > 1\"")
BOOTSTRAP = flags.DEFINE_integer("bootstrap", 1000, "how many resampled tables to refit")
CLUSTER = flags.DEFINE_string("cluster", None, "resample whole clusters: the run of a checkpoint")
STRATA = flags.DEFINE_string("strata", None, "resample within: the configuration of several seeds")
SEED = flags.DEFINE_integer("seed", 0, "seed of the resampling")
FIX = flags.DEFINE_multi_string("fix", [], "hold a parameter: --fix=E=1.69")
TIE = flags.DEFINE_multi_string("tie", [], "make two parameters equal: --tie=beta=alpha")
BOUND = flags.DEFINE_multi_string("bound", [], "keep a parameter within: --bound=E=0:2")
BREAKS = flags.DEFINE_integer("breaks", 1, "bnsl: how many breaks")
CURVE = flags.DEFINE_enum("curve", "parabola", ["parabola", "akima"], "isoflop: through a budget")
WEIGHTS = flags.DEFINE_string("weights", None, "column of row weights")
COLUMN_FLAGS = {
    role: flags.DEFINE_string(role, None, f"column of {what}")
    for role, what in (
        ("n", "parameters (default n_params)"),
        ("d", "training tokens (default n_tokens)"),
        ("loss", "the final loss (default loss)"),
        ("flops", "training FLOPs (default flops)"),
        ("x", "the input of a law with one"),
        ("unique", "unique tokens (default unique_tokens)"),
        ("accuracy", "accuracy (default accuracy)"),
    )
}
PROFILE = flags.DEFINE_bool("profile", True, "profile intervals, which find flat directions")
ABOVE = flags.DEFINE_float("above", None, "also fit below so many FLOPs and predict the runs above")
TEST = flags.DEFINE_string("test", None, "also test a published law's constants by name")
LEAVE_OUT = flags.DEFINE_string("leave_out", None, "also leave out each value of a column in turn")
COMPARE = flags.DEFINE_list("compare", [], "also rank the law and these others out of sample")
DROP_OUTLIERS = flags.DEFINE_bool(
    "drop_outliers", False, "fit without the flagged outliers (both answers are always written)"
)


def main() -> int | None:
    request = Request(
        runs=RUNS.value,
        law=LAW.value,
        method=METHOD.value,
        objective=OBJECTIVE.value,
        delta=DELTA.value,
        tau=TAU.value,
        where=WHERE.value,
        bootstrap=BOOTSTRAP.value,
        cluster=CLUSTER.value,
        strata=STRATA.value,
        seed=SEED.value,
        fix=tuple(FIX.value),
        tie=tuple(TIE.value),
        bound=tuple(BOUND.value),
        breaks=BREAKS.value,
        curve=CURVE.value,
        weights=WEIGHTS.value,
        columns={r: f.value for r, f in COLUMN_FLAGS.items() if f.value is not None},
        profile=PROFILE.value,
        above=ABOVE.value,
        test=TEST.value,
        leave_out=LEAVE_OUT.value,
        compare=tuple(COMPARE.value),
        drop_outliers=DROP_OUTLIERS.value,
    )
    check(request)
    if not RUNS.value:
        raise BadInput("no table given: add --runs=FILE (.csv, .parquet or .jsonl)")
    if not OUT.value:
        raise BadInput("no folder given: add --out=DIR for law.json")
    progress = Progress("bootstrap", request.bootstrap, unit="refit")
    try:
        content, samples = fit_table(request, progress.update)
    finally:
        progress.close()
    content["command"] = shlex.join(["python", "-m", "experiments.fit", *sys.argv[1:]])
    path = write_law(OUT.value, content, samples)
    print(fit_text(content))
    print(f"Wrote {path}.")
    return None


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
