"""What lies in a sweep's folder, read for figures and reports; parts may be missing.

runs.csv, law.json, bootstrap.csv, validation.json, isoflop/, plan.json, prediction.json,
held_out.csv, sweep.json and the work folder of each run under runs/.
"""

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws.evidence import gather
from lm.laws.figures.curves import LearningCurve
from lm.laws.figures.gallery import Material
from lm.laws.runs import load


def json_object(path: Path) -> dict[str, Any] | None:
    """Returns a JSON object, None where there is no file; BadInput where it is something else."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as e:
        raise BadInput(f"{path} cannot be read as a JSON object ({e}): restore or remove it") from e
    return value


def table(path: Path) -> Any:
    """Returns a table as a DataFrame, None where there is no file or no row."""
    frame = load(path) if path.is_file() else None
    return None if frame is None or not len(frame) else frame


def material(law: Path, runs: Any) -> Material:
    """Returns the law with its table of runs (a path or a DataFrame) and all that lies beside it.

    Raises BadInput where the law is missing or does not belong to the table.
    """
    content = json_object(law)
    if content is None:
        raise BadInput(f"there is no {law}: fit a law with experiments.fit")
    if not isinstance(content.get("params"), dict) or "law" not in content:
        raise BadInput(f"{law} is not a law.json: fit a law with experiments.fit")
    folder = law.parent
    samples = folder / "bootstrap.csv"
    evidence = gather(content, runs, samples if samples.is_file() else None)
    minima = table(folder / "isoflop" / "bootstrap.csv")
    return Material(
        evidence,
        learning_curves(folder),
        json_object(folder / "plan.json"),
        json_object(folder / "prediction.json"),
        None if minima is None else {str(k): v.to_numpy(np.float64) for k, v in minima.items()},
    )


def run_folders(folder: Path) -> list[Path]:
    """Returns the work folders of the sweep's runs, the held-out one too: those that sweep.json
    lists, since runs of an earlier sweep may lie beside them; all of them where it lists none."""
    found = sorted(p for p in folder.glob("runs/*") if p.is_dir())
    sweep = json_object(folder / "sweep.json") or {}
    if not sweep.get("runs"):
        return found
    listed = {*sweep["runs"], sweep.get("held_out")}
    return [p for p in found if p.name in listed]


def learning_curves(folder: Path) -> list[LearningCurve]:
    """Returns the curve of every run of the sweep whose folder holds result.json and
    metrics.jsonl."""
    curves = []
    for run in run_folders(folder):
        path = run / "metrics.jsonl"
        if not path.is_file():
            continue
        result = json_object(path.with_name("result.json"))
        if result is None:
            continue
        n, tokens, flops = (result.get(k) for k in ("n_params", "n_tokens", "flops"))
        if not (n and tokens and flops):
            continue
        rows = _logged(path)
        curves.append(
            LearningCurve(
                path.parent.name,
                float(n),
                np.array([r["n_tokens"] for r in rows], np.float64) * (flops / tokens),
                np.array([r["loss"] for r in rows], np.float64),
            )
        )
    return curves


def _logged(path: Path) -> list[Mapping[str, Any]]:
    """The logged training steps; a last line that is still being written is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("n_tokens") and row.get("loss") is not None and math.isfinite(row["loss"]):
            rows.append(row)
    return rows


def commands(folder: Path) -> list[tuple[str, str]]:
    """Returns the commands that made the folder, (what it does, command), in order."""
    found = []
    for name, what in (
        ("sweep.json", "Train the runs, fit, plan and report:"),
        ("law.json", "Fit the law:"),
        ("isoflop/law.json", "Fit the IsoFLOP minima:"),
        ("plan.json", "Plan:"),
    ):
        try:
            command = (json_object(folder / name) or {}).get("command")
        except BadInput:
            continue  # whoever needs the file says so
        if command:
            found.append((what, str(command)))
    saved = (run / "config.json" for run in run_folders(folder))
    first = next((path for path in saved if path.is_file()), None)
    if first is not None:
        found.append((
            "Train one run again, from its saved config:",
            _line("train", config=first, workdir="runs/again"),
        ))  # fmt: skip
    if (folder / "runs.csv").is_file() and (folder / "law.json").is_file():
        found.append((
            "Draw the figures:",
            _line("figures", runs=folder / "runs.csv", law=folder / "law.json",
                  out=folder / "figures"),
        ))  # fmt: skip
    found.append(("Write this page:", _line("report", workdir=folder)))
    return found


def _line(entry: str, **flags: Any) -> str:
    given = (f"--{name}={value}" for name, value in flags.items())
    return shlex.join(["python", "-m", f"experiments.{entry}", *given])
