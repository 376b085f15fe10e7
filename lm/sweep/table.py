"""The table of runs: runs.csv, one row a run, from the result files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm import budget
from lm.errors import BadInput, CannotSave
from lm.sweep.points import Point
from lm.train.standing import read_result
from lm.whole_file import replacing

COLUMNS = ("run_id", "group", "n_params", "n_params_non_embedding", "n_tokens", "flops",
           "flops_6nd", "loss", "train_loss", "seed", "status")  # fmt: skip


def result_of(point: Point, runs: Path) -> dict[str, Any] | None:
    """Returns a run's result.json, None while it has none that counts."""
    try:
        result = read_result(runs / point.run_id / "result.json")
    except BadInput:  # where it is there, the training of this run says what is wrong with it
        return None
    return None if result["status"] == "stopped" else result


def row(point: Point, result: dict[str, Any]) -> dict[str, Any]:
    """Returns one row: the counts and the loss of a run, then every field the sweep sets."""
    m = point.config.model
    return {
        "run_id": point.run_id,
        "group": point.group,
        "n_params": budget.n_params(m),
        "n_params_non_embedding": budget.n_params_non_embedding(m),
        "n_tokens": result["n_tokens"],
        "flops": result["flops"],
        "flops_6nd": result["flops_6nd"],
        "loss": result["eval_loss"],
        "train_loss": result["train_loss"],
        "seed": point.config.seed,
        "status": result["status"],
        **point.swept,
    }


def write(points: Sequence[Point], runs: Path, path: Path) -> None:
    """Writes the rows of every run that has ended, in the order of the points, in one piece."""
    swept = dict.fromkeys(n for p in points for n in p.swept if n not in COLUMNS)
    results = [(p, result_of(p, runs)) for p in points]
    try:
        with replacing(path) as temporary, open(temporary, "w", newline="") as f:
            table = csv.DictWriter(f, [*COLUMNS, *swept], lineterminator="\n")
            table.writeheader()
            table.writerows(row(p, r) for p, r in results if r is not None)
    except OSError as e:
        raise CannotSave(f"cannot write {path}: {e.strerror}") from e
