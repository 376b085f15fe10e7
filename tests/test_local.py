"""Several processes train what one trains: same losses, one set of files, stopped and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.configs import tiny
from lm.config import freeze
from lm.train.run import train

ROOT = Path(__file__).parents[1]
TIMING = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")
STEPS, TOLERANCE = 30, 2e-5


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A corpus of a few epochs, with two and a half batches to evaluate on."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    rng = np.random.default_rng(0)
    words = ["".join(chr(c) for c in rng.integers(97, 123, rng.integers(2, 9))) for _ in range(50)]
    path.write_text(" ".join(words[i] for i in rng.zipf(1.3, 2000) % 50))
    return path


@pytest.fixture(scope="module")
def changes(text) -> dict:
    return {
        "data.source": "files",
        "data.path": str(text),
        "data.validation_fraction": 0.06,
        "train.steps": STEPS,
        "checkpoint.every": 10,
        "eval.every": 20,
    }


def command(changes: dict, workdir: Path, n_processes: int = 2, n_devices: int = 2) -> list[str]:
    return [
        sys.executable, "-m", "launch.local",
        f"--processes={n_processes}", f"--devices={n_devices}", "--",
        "experiments.train", "--config=experiments/configs/tiny.py", f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in changes.items()),
    ]  # fmt: skip


def start(*args, **kwargs) -> subprocess.Popen:
    pipe = subprocess.PIPE
    env = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiles the sooner
    return subprocess.Popen(
        command(*args, **kwargs), cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=env
    )


def run(*args, **kwargs) -> tuple[int, str, str]:
    process = start(*args, **kwargs)
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def outcome(workdir: Path) -> tuple[list[dict], dict]:
    drop = lambda row: {k: v for k, v in row.items() if k not in TIMING}
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [drop(r) for r in rows], drop(json.loads((workdir / "result.json").read_text()))


def said_once(stderr: str, *words: str) -> None:
    """One process said it in one line, and nothing else went wrong."""
    lines = [line for line in stderr.splitlines() if words[0] in line]
    assert len(lines) == 1 and all(word in lines[0] for word in words), stderr
    assert "Traceback" not in stderr


@pytest.fixture(scope="module")
def alone(changes, tmp_path_factory):
    """What one process with one device makes of it."""
    file = tiny.get_config()
    for key, value in changes.items():
        group, field = key.split(".")
        file[group][field] = value
    workdir = tmp_path_factory.mktemp("alone") / "run"
    train(freeze(file), workdir)
    return outcome(workdir)


def alike(got: tuple[list[dict], dict], want: tuple[list[dict], dict]) -> None:
    (rows, result), (want_rows, want_result) = got, want
    assert [r["step"] for r in rows] == [r["step"] for r in want_rows]
    for row, want_row in zip(rows, want_rows, strict=True):
        for name in want_row.keys() - {"grad_norm", "clip"}:
            assert row[name] == pytest.approx(want_row[name], rel=TOLERANCE), (row, want_row)
    for name in want_result.keys() - {"run_id", "status"}:
        assert result[name] == pytest.approx(want_result[name], rel=TOLERANCE), name


@pytest.fixture(scope="module")
def by_data(changes, tmp_path_factory):
    """A run of two processes, uninterrupted, with rows over all devices and parameters too."""
    workdir = tmp_path_factory.mktemp("together") / "run"
    code, stdout, stderr = run(changes | {"mesh.data": 4}, workdir)
    assert code == 0, stderr
    said_once(stderr, "fully sharded between CPUs", "mesh.fully_sharded=false")
    return workdir, stdout


def test_two_processes_train_what_one_trains(by_data, alone):
    alike(outcome(by_data[0]), alone)


def test_one_process_writes_and_speaks(by_data):
    workdir, stdout = by_data
    # The collectives' library greets on stdout as well.
    (line,) = [line for line in stdout.splitlines() if "eval_loss" in line]
    assert line.startswith("[0] ") and json.loads(line[4:])["status"] == "finished"
    devices = json.loads((workdir / "config.json").read_text())["provenance"]["devices"]
    assert devices["count"] == 4 and devices["processes"] == 2


def test_a_pipeline_over_processes(changes, alone, tmp_path):
    mesh = {"mesh.data": 2, "mesh.pipe": 2, "pipeline.microbatches": 4}
    code, _, stderr = run(changes | mesh, tmp_path / "run")
    assert code == 0, stderr
    alike(outcome(tmp_path / "run"), alone)


@pytest.mark.bench
def test_four_processes(changes, alone, tmp_path):
    mesh = {"mesh.data": 2, "mesh.model": 2}
    code, _, stderr = run(changes | mesh, tmp_path / "run", n_processes=4, n_devices=1)
    assert code == 0, stderr
    alike(outcome(tmp_path / "run"), alone)


def last_step(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["step"] if whole else 0


def wait_for(step: int, workdir: Path, process: subprocess.Popen) -> None:
    while last_step(workdir) < step:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def workers(launcher: subprocess.Popen) -> list[int]:
    """Process ids of a launcher's children, in their order."""
    pids = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    place = lambda pid: Path(f"/proc/{pid}/environ").read_bytes().split(b"JAX_PROCESS_ID=")[1][:1]
    return sorted(map(int, pids), key=place)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children")
def test_killed_then_stopped_then_done_as_if_never_interrupted(changes, by_data, tmp_path):
    workdir, mesh = tmp_path / "run", {"mesh.data": 4}
    process = start(changes | mesh, workdir)
    wait_for(12, workdir, process)
    pids = workers(process)
    os.kill(pids[1], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    process = start(changes | mesh, workdir)
    written = (workdir / "metrics.jsonl").stat().st_mtime_ns
    while (workdir / "metrics.jsonl").stat().st_mtime_ns == written:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    os.kill(workers(process)[1], signal.SIGUSR1)  # one process is told: all stop
    _, stderr = process.communicate()
    assert process.returncode == 75, stderr
    said_once(stderr, "run again to go on", "[0] train: SIGTERM")
    stopped = json.loads((workdir / "result.json").read_text())
    assert stopped["status"] == "stopped" and 10 <= stopped["steps"] < STEPS
    code, _, stderr = run(changes | mesh, workdir)
    assert code == 0 and f"going on from step {stopped['steps']}" in stderr, stderr
    assert outcome(workdir) == outcome(by_data[0])
    code, stdout, stderr = run(changes | mesh, workdir)
    assert code == 0 and len(stdout.splitlines()) == 1
    said_once(stderr, "is finished")


@pytest.mark.parametrize(
    "change, code, words",
    [
        ({"mesh.data": 3}, 2, ["mesh.data 3", "there are 4"]),
        ({"optim.learning_rate": "1e30"}, 3, ["the loss is", "lower optim.learning_rate"]),
    ],
)
def test_what_goes_wrong_is_told_once(changes, tmp_path, change, code, words):
    got, stdout, stderr = run(changes | {"mesh.data": 4} | change, tmp_path / "run")
    assert got == code and "eval_loss" not in stdout, stderr
    said_once(stderr, *words)


def test_a_command_that_is_not_made_for_several_processes_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "launch.local", "--", "experiments.sweep"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "not made for several processes" in done.stderr and "Traceback" not in done.stderr


def test_a_process_does_not_wait_for_ever_for_the_others(tmp_path):
    env = os.environ | {
        "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "ISOFLOP_JOIN_SECONDS": "1",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:9",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", "--config=experiments/configs/tiny.py"],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, (done.returncode, done.stderr)
    said_once(done.stderr, "did not meet within 1 seconds")
