"""A sweep from its config file to the report, at the smallest size that fits a law."""

import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from absl import flags, logging
from absl.testing import flagsaver
from fresh_command import fresh

from experiments import cli
from lm import platform
from lm.config import default_config, freeze
from lm.errors import BadInput, Diverged
from lm.laws.forms import LAWS
from lm.laws.runs import read_runs
from lm.sweep import answer, pool
from lm.train import memory

ROOT = Path(__file__).parents[1]

SWEEP = """
from lm.config import default_config

def get_config():
    config = default_config()
    config.data.source = "markov"
    config.data.markov_symbols = 32
    config.data.markov_validation_tokens = 2048
    config.model.max_length = 32
    config.model.n_heads = 1
    config.model.d_head = 8
    config.train.batch_size = 8
    config.train.flops = 1e8
    config.optim.learning_rate = 1e-2
    config.checkpoint.every = None
    return config

def point(flops, d):
    return {"train.flops": flops, "model.d_model": d, "model.n_layers": 1}

def get_sweep():
    return [point(f, d) for f in (1e8, 2e8) for d in (8, 16, 32)]

def get_held_out():
    return point(7e8, 24)
"""


# Compiling is nearly all of the time here.
ENV = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}


def sweep(config: Path, workdir: Path, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "experiments.sweep", f"--config={config}", f"--workdir={workdir}",
         *more],
        cwd=ROOT, capture_output=True, text=True, env=ENV,
    )  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.py"
    path.write_text(SWEEP)
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    workdir = tmp_path_factory.mktemp("sweep") / "run"
    done = sweep(config, workdir)
    assert done.returncode == 0, done.stderr
    return workdir, done


def rows(workdir: Path) -> list[dict[str, str]]:
    with open(workdir / "runs.csv") as f:
        return list(csv.DictReader(f))


def test_dry_run_lists_and_writes_nothing(config, tmp_path):
    done = sweep(config, tmp_path / "none", "--dry_run")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "none").exists()
    assert done.stdout.count("1e08-n") == 3 and "6 runs to fit" in done.stdout
    assert "(held out)" in done.stdout


def test_table_has_a_row_a_run_with_counts_and_swept_fields(finished):
    from lm import budget
    from lm.config import freeze

    workdir, _ = finished
    table = rows(workdir)
    assert len(table) == 6
    head = ["run_id", "group", "n_params", "n_params_non_embedding", "n_tokens", "flops",
            "flops_6nd", "loss", "train_loss", "seed", "status",
            "train.flops", "model.d_model", "model.n_layers"]  # fmt: skip
    assert list(table[0]) == head
    for row in table:
        folder = workdir / "runs" / row["run_id"]
        result = json.loads((folder / "result.json").read_text())
        saved = json.loads((folder / "config.json").read_text())
        saved.pop("provenance")
        c = freeze(saved)
        assert float(row["loss"]) == result["eval_loss"]
        assert int(row["n_params"]) == result["n_params"] == budget.n_params(c.model)
        assert c.model.d_model == int(row["model.d_model"])
        asked = float(row["train.flops"])
        assert asked <= float(row["flops"]) <= asked + 8 * 32 * budget.flops_per_token(c.model, 32)


def test_answer_is_complete(finished):
    workdir, done = finished
    law = json.loads((workdir / "law.json").read_text())
    plan = json.loads((workdir / "plan.json").read_text())
    prediction = json.loads((workdir / "prediction.json").read_text())
    validation = json.loads((workdir / "validation.json").read_text())
    assert law["law"] == validation["chosen"] and law["n_runs"] == 6
    low, high = prediction["interval_80"]
    law_low, law_high = prediction["law_interval_80"]
    assert high - low > law_high - law_low > 0  # one run scatters around the law
    assert {p.name for p in (workdir / "laws").iterdir()} == set(answer.CANDIDATES)
    assert plan["flops"]["value"] == 10 * 2e8
    assert plan["convention"] == "exact"
    held_out = json.loads((workdir / "runs" / prediction["run_id"] / "result.json").read_text())
    assert prediction["measured"] == held_out["eval_loss"]
    assert prediction["times_largest_fitted"] > 3
    assert prediction["run_id"] not in {r["run_id"] for r in rows(workdir)}
    assert (workdir / "report.html").stat().st_size > 10_000
    assert "measured:" in done.stdout


def test_law_that_predicts_the_largest_budget_best_is_chosen(tmp_path):
    """On tables made from each law, noise-free, that law wins and predicts exactly."""
    for name in answer.CANDIDATES:
        params = {
            "chinchilla": {"E": 1.7, "A": 400.0, "B": 410.0, "alpha": 0.34, "beta": 0.28},
            "kaplan_nd": {"N_c": 7e4, "D_c": 2.6e6, "alpha_N": 0.25, "alpha_D": 0.3},
        }[name]
        flops = np.repeat([1e15, 1e16, 1e17], 5)
        n = np.tile([0.3, 0.6, 1.0, 2.0, 4.0], 3) * (flops / 6) ** 0.5 / 5
        x = {"n": n, "d": flops / 6 / n}
        folder = tmp_path / name
        folder.mkdir()
        pd.DataFrame(
            {"n_params": n, "n_tokens": x["d"], "flops": flops, "status": "finished",
             "loss": LAWS[name].predict(params, x)}
        ).to_csv(folder / "runs.csv", index=False)  # fmt: skip
        known = answer.fit(folder)
        validation = json.loads((folder / "validation.json").read_text())
        assert validation["chosen"] == name == known.law
        assert validation["largest_budget_error"][name] < 1e-6
        other = next(law for law in answer.CANDIDATES if law != name)
        assert validation["largest_budget_error"][other] > 1e-4


def test_the_largest_budget_is_that_of_the_groups_or_of_flops():
    flops = np.array([1e8, 1e8, 2.5e8, 2e8, 2.45e8])  # a small batch's run overshoots by little
    frame = pd.DataFrame({"n_params": [1e3, 2e3, 1e3, 2e3, 3e3], "n_tokens": 1e5, "loss": 2.0,
                          "flops": flops})  # fmt: skip

    def of(group):
        return answer.largest_budget(read_runs(frame.assign(group=group), LAWS["chinchilla"]))

    assert of([1e8, 1e8, 2e8, 2e8, 2e8]).tolist() == [False, False, True, True, True]
    assert of([f"r00{i}" for i in range(5)]).tolist() == [False, False, True, False, True]


def test_workers_have_equal_shares_and_share_no_accelerator(monkeypatch):
    assert pool.shares([0, 1, 2, 3], 2) == [[0, 2], [1, 3]]
    assert pool.shares([4, 5, 6], 2) == [[4], [5]]
    assert pool.shares([4, 5], 3) == [[4], [5], [4]]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert pool.default_workers() == len(pool.cores())
    monkeypatch.delenv("JAX_PLATFORMS")
    assert pool.default_workers() == 1


def test_stopped_sweep_saves(tmp_path):
    workdir, config = tmp_path / "run", tmp_path / "long.py"
    config.write_text(SWEEP.replace("(1e8, 2e8)", "(3e10, 6e10)"))
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.sweep", f"--config={config}", f"--workdir={workdir}",
         "--config.checkpoint.every=1000000"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENV,
    )  # fmt: skip
    while not any(p.stat().st_size for p in workdir.glob("runs/*/metrics.jsonl")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stderr
    stopped = [json.loads(p.read_text()) for p in workdir.glob("runs/*/result.json")]
    assert any(r["status"] == "stopped" for r in stopped)
    assert all(row["status"] == "finished" for row in rows(workdir))
    newest = max(p.stat().st_mtime for p in workdir.rglob("*"))
    time.sleep(3.0)  # nobody goes on in the background
    assert max(p.stat().st_mtime for p in workdir.rglob("*")) == newest


def test_again_trains_only_what_is_missing(config, finished):
    workdir, _ = finished
    before = {p: p.stat().st_mtime_ns for p in workdir.glob("runs/*/result.json")}
    fitted = {r["run_id"] for r in rows(workdir)}
    missing = sorted(p for p in before if p.parent.name in fitted)[2]
    loss = json.loads(missing.read_text())["eval_loss"]
    saved = lambda: json.loads((missing.parent / "config.json").read_text())["provenance"]
    table, cores = (workdir / "runs.csv").read_text(), saved()["cores"]
    shutil.rmtree(missing.parent)
    said = json.loads((workdir / "prediction.json").read_text()) | {"predicted": 2.5}
    (workdir / "prediction.json").write_text(json.dumps(said))
    (workdir / "ablation.json").write_text("{}")  # of an earlier sweep in this folder
    done = sweep(config, workdir)
    assert done.returncode == 0, done.stderr
    after = {p: p.stat().st_mtime_ns for p in workdir.glob("runs/*/result.json")}
    assert {p for p in after if after[p] != before[p]} == {missing}
    assert json.loads(missing.read_text())["eval_loss"] == loss
    assert saved()["cores"] == cores  # the last run of a sweep has no more of them than the first
    assert (workdir / "runs.csv").read_text() == table
    # What was said before the held-out run ended stays, whatever the law says by now.
    kept = json.loads((workdir / "prediction.json").read_text())
    assert kept["predicted"] == 2.5 and kept["measured"] == said["measured"]
    assert kept["error"] == pytest.approx(abs(2.5 / said["measured"] - 1))
    assert not (workdir / "ablation.json").exists()


def test_runs_too_few_for_a_law_are_tabled_and_nothing_old_is_taken_for_theirs(finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    few = tmp_path / "few.py"
    few.write_text(SWEEP.split("def get_held_out")[0].replace("(1e8, 2e8)", "(1e8,)"))
    done = sweep(few, workdir)
    assert done.returncode == 0, done.stderr
    assert "no law: a law needs 6 runs" in done.stderr and "No law will come" in done.stdout
    assert len(rows(workdir)) == 3
    for name in ("law.json", "bootstrap.csv", "plan.json", "prediction.json", "held_out.csv",
                 "validation.json", "isoflop/law.json", "laws/chinchilla/law.json"):  # fmt: skip
        assert not (workdir / name).exists(), name
    assert "There is no plan.json" in (workdir / "report.html").read_text()
    assert len(list((workdir / "runs").iterdir())) == 7  # runs are not results: they stay


def test_mistakes_are_told(config, tmp_path):
    single = sweep(ROOT / "experiments/configs/tiny.py", tmp_path / "a")
    assert single.returncode == 2 and "get_sweep" in single.stderr
    broken = tmp_path / "broken.py"
    broken.write_text(SWEEP.replace('"model.n_layers": 1', '"model.n_layer": 1'))
    done = sweep(broken, tmp_path / "b")
    assert done.returncode == 2 and "model.n_layers" in done.stderr
    assert not (tmp_path / "b").exists()
    twice = tmp_path / "twice.py"
    twice.write_text(SWEEP.replace("(8, 16, 32)", "(8, 16, 16)"))
    done = sweep(twice, tmp_path / "c")
    assert done.returncode == 2 and "same run" in done.stderr
    twice.write_text(SWEEP.replace("point(7e8, 24)", "point(2e8, 16)"))
    done = sweep(twice, tmp_path / "c")
    assert done.returncode == 2 and "points 4 and 6 of the sweep are the same run" in done.stderr


def test_a_sweep_whose_runs_all_diverge_ends_with_a_sentence(config, tmp_path, monkeypatch):
    def all_diverge(points, runs, *_):
        for p in points:
            (runs / p.run_id).mkdir()
            counts = dict.fromkeys(("n_params", "n_tokens", "flops", "flops_6nd"), 9)
            found = {"status": "diverged", "eval_loss": None, "train_loss": None, **counts}
            (runs / p.run_id / "result.json").write_text(json.dumps(found))

    monkeypatch.setattr(pool, "train_all", all_diverge)
    told = pytest.raises(Diverged, match="^all 6 runs diverged: lower optim")
    with fresh("sweep") as command, flagsaver.flagsaver(), told:
        flags.FLAGS.unparse_flags()
        cli._parse(["sweep", f"--config={config}", f"--workdir={tmp_path}"])
        command.main()
    assert [row["status"] for row in rows(tmp_path)] == ["diverged"] * 6
    assert not (tmp_path / "law.json").exists()


def test_a_point_that_no_memory_holds_is_refused_before_any_is_trained(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: 1)
    told = pytest.raises(BadInput, match="^this machine has .* of memory")
    with fresh("sweep") as command, flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        cli._parse(["sweep", f"--config={config}", f"--workdir={tmp_path}/run"])
        with told:
            command.main()
        flags.FLAGS["dry_run"].parse(True)
        command.main()  # arithmetic alone needs none
    assert not (tmp_path / "run").exists()


def test_a_point_that_was_trained_elsewhere_needs_no_memory(tmp_path, monkeypatch):
    config = default_config()
    config.train.steps = 1
    large = types.SimpleNamespace(run_id="a", config=freeze(config))
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: 2**20)
    with pytest.raises(BadInput, match="^this machine has 1 MiB"):
        pool.check([large], tmp_path)
    (tmp_path / "a").mkdir()
    counts = dict.fromkeys(("n_params", "n_tokens", "flops", "flops_6nd"), 9)
    found = {"status": "finished", "eval_loss": 2.0, "train_loss": 2.0, **counts}
    (tmp_path / "a" / "result.json").write_text(json.dumps(found))
    pool.check([large], tmp_path)


def test_workers_log_no_traceback_of_a_library_and_hear_no_interrupt(capfd, request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    context = multiprocessing.get_context("spawn")
    free = context.Queue()
    free.put(pool.cores())
    with ProcessPoolExecutor(1, context, pool._start_worker, (free,)) as workers:
        with pytest.raises(KeyboardInterrupt), platform.deaf_children():
            blocked = workers.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ())
            signal.raise_signal(signal.SIGINT)  # is not lost, but told at the context's end
        workers.submit(logging.error, "a traceback of a library").result()
        assert blocked.result() == {signal.SIGINT}
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        (worker,) = workers._processes.values()
        os.kill(worker.pid, signal.SIGINT)
        assert workers.submit(os.getpid).result() == worker.pid
        os.kill(worker.pid, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == -signal.SIGTERM
    assert capfd.readouterr().err == ""
