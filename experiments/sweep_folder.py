"""What lies in a sweep's folder, read for figures and reports; parts may be missing.

runs.csv, law.json, bootstrap.csv, validation.json, isoflop/, plan.json, prediction.json,
held_out.csv, sweep.json and the work folder of each run under runs/.
"""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from lm.errors import BadInput
from lm.laws import kinds
from lm.laws.evidence import gather
from lm.laws.figures.curves import LearningCurve
from lm.laws.figures.gallery import Material
from lm.laws.law_file import FRONTIER
from lm.laws.runs import load
from lm.laws.stored import damaged, lines, read, samples

# What plan.json holds besides, where it was asked about serving or about repeated text.
PLANNED = {"served_tokens": ("flops_training", "flops_serving"), "unique_tokens": ("epochs",)}


def table(path: Path) -> Any:
    """Returns a table as a DataFrame, None where there is no file or no row."""
    frame = load(path) if path.is_file() else None
    return None if frame is None or not len(frame) else frame


def material(law: Path, runs: Any) -> Material:
    """Returns the law with its table of runs (a path or a DataFrame) and all that lies beside it.

    Raises BadInput where the law is missing or does not belong to the table.
    """
    content = read(law, kinds.LAW)
    if content is None:
        raise BadInput(f"there is no {law}: fit a law with experiments.fit")
    folder = law.parent
    return Material(
        gather(content, runs, folder / "bootstrap.csv"),
        learning_curves(folder),
        plan(folder),
        read(folder / "prediction.json", kinds.PREDICTION),
        samples(folder / "isoflop" / "bootstrap.csv", FRONTIER),
    )


def plan(folder: Path) -> dict[str, Any] | None:
    """Returns plan.json, None where there is none."""
    found = read(folder / "plan.json", kinds.PLAN)
    for name, needed in PLANNED.items():
        lacking = [key for key in needed if found and name in found and key not in found]
        if lacking:
            why = f"it has {name} and lacks {lacking[0]}"
            raise damaged(folder / "plan.json", why, kinds.PLAN.remedy)
    return found


def ablation(folder: Path) -> dict[str, Any] | None:
    """Returns ablation.json, None where there is none."""
    path = folder / "ablation.json"
    found = read(path, kinds.ABLATION)
    if found and found["baseline"] not in [v["variant"] for v in found["variants"]]:
        why = f"the baseline {found['baseline']!r} is none of its variants"
        raise damaged(path, why, kinds.ABLATION.remedy)
    return found


def run_folders(folder: Path) -> list[Path]:
    """Returns the work folders of the sweep's runs, the held-out one too: those that sweep.json
    lists, since runs of an earlier sweep may lie beside them; all of them where it lists none."""
    found = sorted(p for p in folder.glob("runs/*") if p.is_dir())
    sweep = read(folder / "sweep.json", kinds.SWEEP) or {}
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
        result = read(path.with_name("result.json"), kinds.RESULT)
        if result is None:
            continue
        n, tokens, flops = (result[k] for k in ("n_params", "n_tokens", "flops"))
        rows = _logged(path)
        if not (tokens > 0 and flops > 0 and rows):
            continue  # it diverged before a step was logged
        curves.append(
            LearningCurve(
                path.parent.name,
                float(n),
                np.array([r["n_tokens"] for r in rows], np.float64) * (flops / tokens),
                np.array([r["loss"] for r in rows], np.float64),
            )
        )
    return curves


def _logged(path: Path) -> list[dict[str, Any]]:
    """The logged training steps; a last line that is still being written is left out."""
    rows = lines(path, kinds.LOGGED, growing=True)
    return [r for r in rows if (r.get("n_tokens") or 0) > 0 and r.get("loss") is not None]


def commands(folder: Path) -> list[tuple[str, str]]:
    """Returns the commands that made the folder, (what it does, command), in order."""
    found = []
    for name, kind, what in (
        ("sweep.json", kinds.SWEEP, "Train the runs, fit, plan and report:"),
        ("law.json", kinds.LAW, "Fit the law:"),
        ("isoflop/law.json", kinds.LAW, "Fit the IsoFLOP minima:"),
        ("plan.json", kinds.PLAN, "Plan:"),
    ):
        try:
            command = (read(folder / name, kind) or {}).get("command")
        except BadInput:
            if name != "law.json":  # without it there is a page, which says so
                raise
            continue
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
