"""The report's table of an ablation: every variant beside the baseline."""

from collections.abc import Mapping
from typing import Any

from lm.laws import report_page as p


def variants_table(found: Mapping[str, Any]) -> str:
    """A row a variant, sortable: loss, and the difference to the baseline paired by seed."""
    heads = [
        ("variant", "left"), ("N", ""), ("seeds", ""), ("loss", ""), ("std. error", ""),
        (f"less {found['baseline']}", ""), ("std. error", ""), ("95 % interval", ""),
    ]  # fmt: skip
    rows = []
    for v in found["variants"]:
        d = v["difference"] or {}
        rows.append(("", [
            (p.text(v["variant"]), v["variant"], "left"),
            (p.count(v["n_params"]), v["n_params"], ""),
            (str(v["n"]), v["n"], ""), (p.nats(v["mean"]), v["mean"], ""),
            (_signed(v["stderr"], ""), v["stderr"], ""),
            (_signed(d.get("mean"), "+"), d.get("mean"), ""),
            (_signed(d.get("stderr"), ""), d.get("stderr"), ""),
            (_interval(d.get("interval_95")), None, ""),
        ]))  # fmt: skip
    lost = [f"{run} diverged and is left out." for run in found["diverged"]]
    return (
        p.table(heads, rows, sort=True)
        + '<p class="soft">Loss in nats per token, mean over seeds. A difference is taken within '
        "each seed, whose runs read the same data in the same order.</p>" + p.notes(lost)
    )


def _signed(x: Any, sign: str) -> str:
    return "&ndash;" if x is None else f"{x:{sign}.4f}"


def _interval(ends: Any) -> str:
    return "&ndash;" if not ends else f"{ends[0]:+.4f} to {ends[1]:+.4f}"
