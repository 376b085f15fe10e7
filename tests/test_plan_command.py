"""python -m experiments.plan: the printed numbers, the file, the exit codes, the time to start."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm.config import Config, ModelConfig, to_dict

ROOT = Path(__file__).parents[1]
FIT = {"law": "chinchilla", "params": {"E": 1.2, "A": 20.0, "B": 200.0, "alpha": 0.3, "beta": 0.35},
       "n_runs": 40}  # fmt: skip


def run(*args, out=None):
    command = [sys.executable, "-m", "experiments.plan", *args]
    if out is not None:
        command.append(f"--out={out}")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_gopher_is_evaluated_and_written(tmp_path):
    done = run("--law=chinchilla_2022", "--n=280e9", "--d=300e9", out=tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "1.9933" in done.stdout and "30.3e9" in done.stdout and "1.9357" in done.stdout
    plan = json.loads((tmp_path / "new" / "plan.json").read_text())
    assert round(plan["loss"]["value"], 3) == 1.993
    assert "--n=280e9" in plan["command"]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["plan.json"]


def test_a_law_fitted_by_a_sweep_is_planned_with_exact_counts_of_its_shapes(tmp_path):
    (tmp_path / "law.json").write_text(json.dumps(FIT))
    rows = "\n".join(f"1.2,{19 + i / 25},200,.3,.35" for i in range(50))
    (tmp_path / "bootstrap.csv").write_text(f"E,A,B,alpha,beta\n{rows}\n")
    for width in (32, 64):
        folder = tmp_path / "runs" / f"w{width}"
        folder.mkdir(parents=True)
        model = ModelConfig(vocab_size=256, d_model=width, n_layers=2, n_heads=4, max_length=64)
        config = to_dict(Config(model=model)) | {"provenance": {"versions": {}}}
        config["train"]["steps"] = 10
        (folder / "config.json").write_text(json.dumps(config))
    asked = (f"--law={tmp_path}/law.json", "--flops=1e15", "--half_width=0.01")
    done = run(*asked, out=tmp_path / "a")
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "a" / "plan.json").read_text())
    assert plan["convention"] == "exact"
    assert plan["shape"]["vocab_size"] == 256 and plan["shape"]["length"] == 64
    assert plan["shape"]["flops"] == pytest.approx(1e15, rel=1e-6)
    assert any("w64" in w for w in plan["warnings"])
    assert plan["n"]["interval_80"][0] < plan["n"]["value"] < plan["n"]["interval_95"][1]
    assert plan["runs_needed"]["runs"] > 0 and "80 % interval" in done.stdout

    plain = run(*asked, "--convention=6nd", out=tmp_path / "b")
    assert plain.returncode == 0, plain.stderr
    other = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert other["convention"] == "6nd"
    assert 6 * other["n"]["value"] * other["d"]["value"] == pytest.approx(1e15)


@pytest.mark.parametrize(("args", "says"), [
    (["--law=chinchila_2022", "--flops=1e20"], "did you mean chinchilla_2022?"),
    (["--law=chinchilla_2022", "--flops=1e20", "--loss=2"], "two questions"),
    (["--law=chinchilla_2022", "--loss=1.2"], "lowest loss"),
    (["--law=nowhere/law.json", "--flops=1e20"], "there is no nowhere/law.json"),
    (["--flops=1e20"], "no law given"),
    (["--law=chinchilla_2022", "--flops=many"], "--flops=many"),
    (["--law=chinchilla_2022", "--flops=1e20", "--half_width=0.1"], "--budgets="),
    (["--law=chinchilla_2022", "--flops=1e20", "--config=experiments/configs/tiny.py"],
     "add --config.model.vocab_size=256"),
    (["--law=chinchilla_2022", "--flops=1e20", "--config.model.d_model=64"], "no config given"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(args, says, tmp_path):
    done = run(*args, out=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout
    assert not list(tmp_path.iterdir())


def test_nothing_heavy_is_imported_and_the_folder_may_be_unwritable(tmp_path):
    heavy = "{'jax', 'flax', 'scipy', 'pandas', 'matplotlib', 'ml_collections', 'orbax'}"
    code = f"import sys, experiments.plan; print(sorted({heavy} & set(sys.modules)))"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
    assert time.perf_counter() - start < 20  # a hang, not a benchmark
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    refused = run("--law=chinchilla_2022", "--flops=1e20", out=blocked / "x")
    assert refused.returncode == 2 and "cannot be written" in refused.stderr


def test_what_the_fit_writes_is_what_the_plan_reads(tmp_path):
    import numpy as np
    import pandas as pd

    from lm.laws.law_file import read_law
    from lm.laws.request import Request, fit_table
    from lm.laws.result import write_law

    rng = np.random.default_rng(0)
    n, d = np.exp(rng.uniform(np.log(1e7), np.log(1e9), 60)), 10 ** rng.uniform(8.5, 10.5, 60)
    loss = 1.8 + 480 / n**0.35 + 2100 / d**0.37
    table = pd.DataFrame(
        {
            "n_params_non_embedding": n,
            "n_tokens": d,
            "loss": loss * np.exp(rng.normal(0, 0.002, 60)),
        }
    )
    columns = {"n": "n_params_non_embedding"}
    content, samples = fit_table(Request(table, bootstrap=40, columns=columns))
    write_law(tmp_path, content, samples)
    known = read_law(str(tmp_path))
    assert known.params == content["params"] and known.n_runs == 60
    assert known.n_counts == "n_params_non_embedding"
    assert known.largest_flops == pytest.approx(6 * (n * d).max())
    assert known.samples is not None and samples is not None
    for name, values in samples.params.items():
        np.testing.assert_array_equal(known.samples[name], values)
