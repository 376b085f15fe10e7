"""The table of runs: read from any source, checked row by row, every exclusion with its reason.

Imports pandas only inside the functions that read a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lm.errors import BadInput, installed_by
from lm.laws.law import Law
from lm.laws.stored import ANYTHING, Kind, csv_rows, lines

Array = np.ndarray

# Column of each role unless the user maps another. One-variable laws choose their own "x".
COLUMNS = {
    "n": "n_params",
    "d": "n_tokens",
    "flops": "flops",
    "loss": "loss",
    "accuracy": "accuracy",
    "unique": "unique_tokens",
    "epochs": "epochs",
}
X_CANDIDATES = ("flops", "n", "d")
FAR = 0.25  # flops / (6 N D) further than this from 1 is warned about
REPAIR = "repair the table"
ROW = Kind({...: ANYTHING}, REPAIR, strict=False)  # a line of a .jsonl table
MISSING = {"", "na", "nan", "null", "none", "n/a"}


@dataclass(frozen=True)
class Runs:
    """Usable rows of a table: x[role] and y of shape (n,) in natural units.

    rows (n,) are the rows' numbers in the source, counted from 1 below the header; excluded is a
    list of {"row", "reason"}; labels holds whole columns of the usable rows by name.
    """

    x: dict[str, Array]
    y: Array
    rows: Array
    excluded: list[dict[str, Any]]
    warnings: list[str]
    columns: dict[str, str]
    labels: dict[str, Array] = field(repr=False)

    def __len__(self) -> int:
        return self.y.size

    def take(self, keep: Array, reason: str = "") -> "Runs":
        """The rows where `keep` is true; with a reason, the others are listed as excluded."""
        keep = np.asarray(keep, dtype=bool)
        gone = [{"row": int(r), "reason": reason} for r in self.rows[~keep]] if reason else []
        return Runs(
            {role: v[keep] for role, v in self.x.items()},
            self.y[keep],
            self.rows[keep],
            self.excluded + gone,
            self.warnings,
            self.columns,
            {name: v[keep] for name, v in self.labels.items()},
        )

    def column(self, name: str) -> Array:
        """A whole column of the usable rows."""
        if name not in self.labels:
            raise BadInput(f"column {name!r} is not in the table: it has {', '.join(self.labels)}")
        return self.labels[name]


def read_runs(
    source: Any,
    law: Law,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    extra: tuple[str, ...] = (),
) -> Runs:
    """Runs for a law from a path (.csv, .parquet, .jsonl) or a DataFrame.

    `columns` maps roles (n, d, flops, loss, unique, x, accuracy) to column names; `where` is a
    pandas expression that keeps rows; roles in `extra` are read where present. Rows with a missing
    or infinite number, or a status other than "finished", are excluded with the reason. Raises
    BadInput for a missing column, text in a number, or a number that must be positive and is not.
    """
    frame = load(source)
    where_lost: list[dict[str, Any]] = []
    numbers = np.arange(1, len(frame) + 1)
    if where:
        keep = _filter(frame, where)
        where_lost = [
            {"row": int(r), "reason": f"left out by where: {where}"} for r in numbers[~keep]
        ]
        frame, numbers = frame[keep].reset_index(drop=True), numbers[keep]
    mapping = resolve(law, frame.columns, columns or {})
    target = law.target
    wanted = [role for role in (*law.inputs, target) if role in mapping]
    optional = [r for r in (*extra, "n", "d", "flops") if r in mapping and r not in wanted]
    values = {role: _numbers(frame, mapping[role], numbers) for role in wanted}
    for role in optional:
        # Read for warnings and methods; never a reason to refuse a table.
        try:
            values[role] = _numbers(frame, mapping[role], numbers)
        except BadInput:
            if role in (columns or {}):
                raise
    usable = np.ones(len(frame), dtype=bool)
    excluded = list(where_lost)
    if "status" in frame.columns:
        for i, status in enumerate(frame["status"]):
            if str(status) != "finished":
                usable[i] = False
                excluded.append({"row": int(numbers[i]), "reason": f"status is {status}"})
    for role in wanted:
        bad = usable & ~np.isfinite(values[role])
        for k in np.flatnonzero(bad):
            kind = "missing" if np.isnan(values[role][k]) else "infinite"
            excluded.append({"row": int(numbers[k]), "reason": f"{mapping[role]} is {kind}"})
        usable &= ~bad
        low = usable & ((values[role] < 0) if role == "accuracy" else (values[role] <= 0))
        if low.any():
            first = int(np.flatnonzero(low)[0])
            raise BadInput(
                f"{mapping[role]} is {values[role][first]:g} in row {numbers[first]}, but must be "
                "positive: repair the row or leave it out with --where"
            )
    excluded.sort(key=lambda item: item["row"])
    if not usable.any():
        gone = [f"row {item['row']}, for one: {item['reason']}" for item in excluded]
        raise BadInput(f"no usable row is left: {[*gone, 'the table is empty'][0]}")
    x = {role: v[usable] for role, v in values.items() if role != target}
    labels = {str(c): frame[c].to_numpy()[usable] for c in frame.columns}
    warnings = convention_warnings(x)
    return Runs(x, values[target][usable], numbers[usable], excluded, warnings, mapping, labels)


def load(source: Any) -> Any:
    """A DataFrame from a path or a DataFrame, numbers read to the last digit."""
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source.reset_index(drop=True)
    path = Path(source)
    if not path.is_file():
        raise BadInput(f"{path} is not a file: give a table of runs (.csv, .parquet or .jsonl)")
    kind = path.suffix.lower()
    try:
        if kind == ".csv":
            return _csv(path)
        if kind in (".jsonl", ".ndjson"):
            return pd.DataFrame(lines(path, ROW))
        if kind == ".parquet":
            return pd.read_parquet(path)
    except ImportError as error:
        raise BadInput(f"reading {path} needs pyarrow: {installed_by('parquet')}") from error
    except BadInput:
        raise
    except (ValueError, OSError, KeyError) as error:
        raise BadInput(
            f"{path} cannot be read as {kind[1:]}: {_first_line(error)}; {REPAIR}"
        ) from error
    raise BadInput(f"{path} ends in {kind or 'nothing'}: give .csv, .parquet or .jsonl")


def _csv(path: Path) -> Any:
    """A CSV file with rows as wide as the header: others pandas fills up, or shifts by a column."""
    import pandas as pd

    for _ in csv_rows(path, REPAIR):
        pass
    # Numbers to the last digit: to be asked for before pandas 3.1, always so since.
    old = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
    more = {"float_precision": "round_trip"} if old else {}
    return pd.read_csv(path, index_col=False, **more)


def resolve(law: Law, present: Any, given: Mapping[str, str]) -> dict[str, str]:
    """Column of every role that the table has; BadInput where the law needs one that it lacks."""
    present = [str(c) for c in present]
    for role, name in given.items():
        if name not in present:
            raise BadInput(
                f"column {name!r} (--{role}) is not in the table: it has {_list(present)}"
            )
    mapping = {r: c for r, c in {**COLUMNS, **given}.items() if c in present}
    if "x" in law.inputs and "x" not in mapping:
        chosen = [r for r in X_CANDIDATES if r in given] or [
            r for r in X_CANDIDATES if r in mapping
        ]
        if len(chosen) != 1:
            found = f"finds {', '.join(mapping[r] for r in chosen)}" if chosen else "finds none"
            raise BadInput(f"law {law.name} has one input and {found}: name its column with --x")
        mapping["x"] = mapping[chosen[0]]
    if "loss" in law.inputs and law.target == "accuracy" and "x" in given:
        mapping["loss"] = given["x"]
    for role in (*law.inputs, law.target):
        if role not in mapping:
            name = given.get(role, COLUMNS.get(role, role))
            raise BadInput(
                f"column {name!r} is not in the table, and law {law.name} needs it: "
                f"map another with --{role}=COLUMN (the table has {_list(present)})"
            )
    return mapping


def convention_warnings(x: Mapping[str, Array]) -> list[str]:
    """A warning where flops and 6 N D disagree: other parameter counts or attention, say."""
    if not {"n", "d", "flops"} <= x.keys():
        return []
    with np.errstate(all="ignore"):
        ratio = x["flops"] / (6.0 * x["n"] * x["d"])
    ratio = ratio[np.isfinite(ratio)]
    if not ratio.size or np.all(np.abs(ratio - 1) <= FAR):
        return []
    return [
        f"flops / (6 N D) is {ratio.min():.3g} to {ratio.max():.3g}, "
        f"median {np.median(ratio):.3g}: "
        "flops and n_params follow different conventions (embeddings, head, attention); "
        "plans under 6 N D and under exact flops will differ"
    ]


def _filter(frame: Any, where: str) -> Array:
    try:
        kept = frame.eval(where, engine="python")
        kept = np.broadcast_to(np.asarray(kept), (len(frame),))
    except Exception as error:  # pandas raises many kinds; all of them are the user's expression
        raise BadInput(
            f"where {where!r} cannot be evaluated: {_first_line(error)}; write it as "
            "column == value, joined by 'and' and 'or'"
        ) from error
    if kept.dtype != bool:
        raise BadInput(f"where {where!r} is not a yes or no for each row: write column == value")
    return kept.copy()


def _numbers(frame: Any, column: str, numbers: Array) -> Array:
    """A column as float64; BadInput names the row of a text."""
    values = frame[column]
    try:
        if values.dtype.kind in "fiu":
            return values.to_numpy(dtype=np.float64)
    except (AttributeError, TypeError):
        pass
    out = np.empty(len(values))
    for k, value in enumerate(values):
        if value is None or str(value).strip().lower() in MISSING | {"<na>", "nat"}:
            out[k] = np.nan
            continue
        try:
            out[k] = float(str(value).strip().replace("_", "x"))
        except ValueError:
            raise BadInput(
                f"{column} is {str(value)!r} in row {numbers[k]}, which is not a number: "
                "repair the row"
            ) from None
    return out


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _list(names: list[str]) -> str:
    return ", ".join(names[:12] or ["no columns"]) + (", ..." if len(names) > 12 else "")
