"""A sweep's folder as experiments.sweep leaves it, made from a known law without training.

Three budgets of five sizes, a fourth budget whose sizes all lie above its optimum, a run that
diverged, a run held out, and learning curves.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from lm.laws.law_file import read_law
from lm.laws.plan import Question, make_plan
from lm.laws.request import Request, fit_table
from lm.laws.result import write_law
from lm.laws.shape import default_family

TRUE = {"E": 1.05, "A": 95.0, "B": 1400.0, "alpha": 0.46, "beta": 0.47}
BUDGETS = (1e11, 4e11, 1.6e12)
RATIO = 1.2  # flops / (6 N D) at 30 thousand parameters; falls slowly with N
HOSTILE = "<img src=x onerror=alert(1)>\"&'."


def loss(n, d):
    return TRUE["E"] + TRUE["A"] * n ** -TRUE["alpha"] + TRUE["B"] * d ** -TRUE["beta"]


def ratio(n):
    return RATIO * (n / 3e4) ** -0.05


def rows():
    """The table of runs, one dict a run."""
    rng = np.random.default_rng(1)
    made = []
    factors = {c: (0.3, 0.55, 1.0, 1.9, 3.6) for c in BUDGETS} | {6.4e12: (2.5, 4.0, 7.0)}
    for flops, sizes in factors.items():
        for k, factor in enumerate(sizes):
            n = round(0.023 * flops**0.5 * factor)
            d = round(flops / (6 * n * ratio(n)))
            made.append({
                "run_id": f"c{flops:.0e}-s{k}", "group": f"{flops:.1e}", "n_params": n,
                "n_params_non_embedding": n, "n_tokens": d, "flops": 6 * n * d * ratio(n),
                "flops_6nd": 6 * n * d, "loss": loss(n, d) * np.exp(0.004 * rng.normal()),
                "train_loss": loss(n, d), "seed": 0, "status": "finished",
                "model.d_model": 8 * (k + 1), "train.flops": flops,
            })  # fmt: skip
    lost = made[-1] | {"run_id": HOSTILE, "loss": float("nan"), "status": "diverged"}
    return [*made[:4], lost, *made[4:]]


def make(folder: Path, bootstrap: int = 60) -> Path:
    """Writes the folder and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = rows()
    finished = [row for row in table if row["status"] == "finished"]
    pd.DataFrame(table).to_csv(folder / "runs.csv", index=False)
    for row in finished:
        run = folder / "runs" / row["run_id"]
        run.mkdir(parents=True)
        tokens = np.linspace(0.02, 1, 40) * row["n_tokens"]
        lines = [
            {"step": i + 1, "n_tokens": int(t), "loss": min(5.5, loss(row["n_params"], t))}
            for i, t in enumerate(tokens)
        ]
        lines.append({"step": 40, "eval_loss": row["loss"], "eval_bits_per_byte": None})
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{not whole")
        (run / "result.json").write_text(json.dumps(row))
        (run / "config.json").write_text("{}")
    for law, out in (("chinchilla", folder), ("isoflop", folder / "isoflop")):
        content, samples = fit_table(
            Request(runs=folder / "runs.csv", law=law, bootstrap=bootstrap)
        )
        content["command"] = f"python -m experiments.fit --law={law} --where='a < b'"
        write_law(out, content, samples)
    known = read_law(str(folder))
    plan = make_plan(known, Question(flops=6.4e13), default_family(), "6nd", "python plan & go")
    (folder / "plan.json").write_text(json.dumps(plan))
    n, d = 3e5, 1e7
    held = {
        "run_id": "held-out-run", "flops": 6 * n * d * ratio(n), "n_params": n, "n_tokens": d,
        "predicted": loss(n, d) * 1.01, "interval_80": [loss(n, d) * 0.98, loss(n, d) * 1.04],
        "measured": loss(n, d), "error": 0.01, "baseline_error": 0.3,
        "best_fitted_loss": min(r["loss"] for r in finished),
    }  # fmt: skip
    (folder / "prediction.json").write_text(json.dumps(held))
    pd.DataFrame([table[0] | {"run_id": "held-out-run"}]).to_csv(
        folder / "held_out.csv", index=False
    )
    (folder / "sweep.json").write_text(json.dumps({"command": "python -m experiments.sweep --x"}))
    return folder
