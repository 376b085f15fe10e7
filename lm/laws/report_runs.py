"""The report's table of runs: every row, what the law says of it, and why it was left out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lm.laws import report_page as p
from lm.laws.evidence import Evidence

# Column -> (heading, form); no form is text.
COLUMNS: dict[str, tuple[str, Callable[[Any], str] | None]] = {
    "run_id": ("run", None),
    "group": ("group", None),
    "status": ("status", None),
    "n_params": ("N", p.count),
    "n_tokens": ("D", p.count),
    "flops": ("FLOPs", p.power),
    "loss": ("loss", p.nats),
    "train_loss": ("train loss", p.nats),
}
HELD_OUT = "held out: predicted before it was trained"
HIDDEN = ("n_params_non_embedding", "flops_6nd", "train.flops")
RATIO = {"n_params", "n_tokens"}


def runs_table(frame: Any, held_out: Any = None, e: Evidence | None = None) -> str:
    """A row for each run of the two DataFrames, sortable; with evidence, the law's loss too."""
    import pandas as pd

    outside = held_out if held_out is not None else frame.iloc[:0]
    present = [str(name) for name in frame.columns]
    standard = [name for name in COLUMNS if name in present]
    varied = [
        name for name in present
        if name not in (*COLUMNS, *HIDDEN) and frame[name].astype(str).nunique() > 1
    ]  # fmt: skip
    predicted, reasons = _by_row(e)
    reasons |= {len(frame) + 1 + i: HELD_OUT for i in range(len(outside))}
    everything = pd.concat([frame, outside], ignore_index=True) if len(outside) else frame
    heads = [
        *((COLUMNS[name][0], "left" if COLUMNS[name][1] is None else "") for name in standard),
        *([("D / N", "")] if RATIO <= set(present) else []),
        *([("law's loss", ""), ("residual", "")] if predicted else []),
        *((name, "") for name in varied), *([("left out because", "left")] if reasons else []),
    ]  # fmt: skip
    rows = []
    for number, (_, row) in enumerate(everything.iterrows(), 1):
        cells = [
            _cell(row[name], p.power) if name == "group" and _finite(row[name])
            else _cell(row[name], COLUMNS[name][1]) for name in standard
        ]  # fmt: skip
        if set(present) >= RATIO:
            cells.append(_cell(_ratio(row), p.count))
        if predicted:
            law = predicted.get(number)
            measured = row.get("loss")
            gap = None if law is None or not _finite(measured) else float(measured) / law - 1
            cells.append(_cell(law, p.nats))
            shown = "&ndash;" if gap is None else f"{100 * gap:+.2f} %"
            cells.append((shown, "" if gap is None else gap, ""))
        cells += [_cell(row[name], p.digits) for name in varied]
        reason = reasons.get(number, "")
        if reasons:
            cells.append((p.text(reason), reason, "left"))
        rows.append(("out" if reason else "", cells))
    return (
        f'<p class="soft">{len(everything)} runs; N parameters, D training tokens, losses in nats '
        "per token; click a heading to sort.</p>"
        + p.table(heads, rows, sort=True)
    )  # fmt: skip


def _by_row(e: Evidence | None) -> tuple[dict[int, float], dict[int, str]]:
    """Row number -> the law's loss, and row number -> why it was left out."""
    if e is None:
        return {}, {}
    reasons = {int(x["row"]): str(x["reason"]) for x in e.content.get("excluded") or []}
    if not e.params:
        return {}, reasons
    return dict(zip(map(int, e.used), map(float, e.predicted), strict=True)), reasons


def _ratio(row: Any) -> float | None:
    n, d = row["n_params"], row["n_tokens"]
    return float(d) / float(n) if _finite(n) and _finite(d) and float(n) else None


def _finite(x: Any) -> bool:
    return isinstance(x, int | float | np.number) and math.isfinite(float(x))


def _cell(value: Any, form: Callable[[Any], str] | None) -> p.Cell:
    if form is not None and _finite(value):
        return form(float(value)), float(value), ""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "&ndash;", "", ""
    return p.text(value), None, "left" if form is None else ""
