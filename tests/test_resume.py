"""A run killed at any moment and started again ends as one that was never killed, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from forked_commands import Ended, ForkedCommand
from forked_runs import ForkedRuns

ROOT = Path(__file__).parents[1]
TIMING = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")
STEPS = 240


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A corpus of about 75 steps an epoch."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    rng = np.random.default_rng(0)
    words = ["".join(chr(c) for c in rng.integers(97, 123, rng.integers(2, 9))) for _ in range(50)]
    path.write_text(" ".join(words[i] for i in rng.zipf(1.3, 4000) % 50))
    return path


def command(text: Path, workdir: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "experiments.train", "--config=experiments/configs/tiny.py",
        f"--workdir={workdir}", "--config.data.source=files", f"--config.data.path={text}",
        f"--config.train.steps={STEPS}", "--config.checkpoint.every=30", "--config.eval.every=50",
        "--config.model.dropout=0.1", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def train():
    with ForkedCommand("train") as command:
        yield command


@pytest.fixture(scope="module")
def run(text, train):
    """Trains in a work folder, to the end of the command; returns how it ended."""
    return lambda workdir, *more, **kw: train(*command(text, workdir, *more)[3:], **kw)


def last_step(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["step"] if whole else 0


def written(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    return path.stat().st_mtime_ns if path.exists() else 0


def kill_at(text: Path, workdir: Path, step: int | None, delay: float) -> bool:
    """Starts the run and kills it `delay` seconds after `step` was logged (None: after the start).

    Returns whether it was still running.
    """
    before = written(workdir)
    process = subprocess.Popen(
        command(text, workdir), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    # A start writes the metrics anew, so rows of the run before do not count as reached.
    going = lambda: written(workdir) != before and last_step(workdir) >= (step or 0)
    while step is not None and process.poll() is None and not going():
        assert time.monotonic() < deadline, f"step {step} was never reached"
        time.sleep(0.002)
    time.sleep(delay)
    alive = process.poll() is None
    process.kill()
    process.wait()
    return alive


def outcome(workdir: Path) -> dict:
    """All that must be the same: metrics, result and the final state, timing left out."""
    import orbax.checkpoint as ocp

    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((workdir / "result.json").read_text())
    drop = lambda row: {k: v for k, v in row.items() if k not in TIMING}
    path = workdir.absolute() / "checkpoints" / str(result["steps"]) / "state"
    with ocp.StandardCheckpointer() as reader:
        state = reader.restore(path)
    import jax

    leaves = {
        jax.tree_util.keystr(k): np.asarray(v).tobytes()
        for k, v in jax.tree_util.tree_leaves_with_path(state)
    }
    return {"rows": [drop(r) for r in rows], "result": drop(result), "state": leaves}


@pytest.fixture(scope="module")
def uninterrupted(run, tmp_path_factory) -> dict:
    workdir = tmp_path_factory.mktemp("whole") / "run"
    done = run(workdir)
    assert done.code == 0, done.stderr
    return outcome(workdir)


def check_whole(workdir: Path) -> None:
    """A file under its final name is whole; what a kill cut off is hidden and ends in .tmp."""
    for path in workdir.glob("[!.]*.json"):
        json.loads(path.read_text())


def check_kills(text, run, workdir: Path, uninterrupted: dict, n_kills: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    # Steps to be killed after, growing; the first two in a row come before anything new is saved
    # (two consecutive resumes from one checkpoint), and 75 steps are an epoch.
    targets = sorted(rng.sample(range(31, STEPS - 5), n_kills - 1))
    targets[0] = max(31, min(targets[0], 80))
    plan = [None, *targets]
    killed = 0
    for step in plan:
        delay = rng.uniform(0.1, 4.0) if step is None else rng.uniform(0.0, 0.05)
        killed += kill_at(text, workdir, step, delay)
        check_whole(workdir)
    assert killed >= n_kills - 1, "kills came after the end: nothing was tested"
    done = run(workdir)
    assert done.code == 0, done.stderr
    assert not list(workdir.rglob(".*.tmp")), "what kills left half-written stays"
    got = outcome(workdir)
    assert [r["step"] for r in got["rows"]] == [r["step"] for r in uninterrupted["rows"]]
    assert got["rows"] == uninterrupted["rows"]
    assert got["result"] == uninterrupted["result"]
    assert got["state"].keys() == uninterrupted["state"].keys()
    assert got["state"] == uninterrupted["state"]


def test_killed_run_ends_bit_identical(text, run, tmp_path, uninterrupted):
    check_kills(text, run, tmp_path / "run", uninterrupted, n_kills=3, seed=0)


class Killer:
    """Runs that are killed at planned moments, one after another, in one work folder."""

    def __init__(self, runs: ForkedRuns, flags: list[str], workdir: Path, rng: random.Random):
        self.runs, self.flags, self.workdir, self.rng = runs, flags, workdir, rng
        self.in_save = 0

    def until(self, due) -> bool:
        """Starts, waits until due() and a little longer, kills. Returns whether it still ran."""
        before = written(self.workdir)
        pid = self.runs.start(*self.flags)
        # A start writes the metrics anew, so rows of the run before do not count.
        while not (written(self.workdir) != before and due()):
            if self.runs.ended(pid, wait=False) is not None:
                return False
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0, 0.02))
        killed = self.kill(pid)
        self.in_save += killed and any(self.saving())
        return killed

    def while_starting(self) -> bool:
        pid = self.runs.start(*self.flags)
        time.sleep(self.rng.uniform(0, 2))
        return self.kill(pid)

    def kill(self, pid: int) -> bool:
        os.kill(pid, signal.SIGKILL)
        killed = self.runs.ended(pid) == -signal.SIGKILL
        check_whole(self.workdir)
        return killed

    def saving(self) -> list[Path]:
        return list((self.workdir / "checkpoints").glob(".saving-*"))


@pytest.mark.bench
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_kills_end_bit_identical(text, tmp_path):
    seed = int(os.environ.get("KILL_SEED", time.time()))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    n_kills, in_start, in_save = 100, 8, 40
    # Growing steps to be killed at, so that each run gets further; an epoch is 75 steps.
    targets = sorted(rng.choices(range(2, STEPS - 4), k=n_kills - in_start))
    saves = set(rng.sample(range(len(targets)), in_save))
    starts = rng.choices(range(len(targets)), k=in_start)
    flags = lambda name: [*command(text, tmp_path / name)[3:], "--config.checkpoint.every=5"]
    killed = 0
    with ForkedRuns(tmp_path / "log") as runs:
        assert runs.ended(runs.start(*flags("whole"))) == 0, (tmp_path / "log").read_text()
        workdir = tmp_path / "run"
        killer = Killer(runs, flags("run"), workdir, rng)
        for i, target in enumerate(targets):
            for _ in range(starts.count(i)):
                killed += killer.while_starting()
            there = lambda target=target: last_step(workdir) >= target
            saving = lambda there=there: there() and any(killer.saving())
            killed += killer.until(saving if i in saves else there)
        assert runs.ended(runs.start(*flags("run"))) == 0, (tmp_path / "log").read_text()
    epochs = {target * 8 * 32 // (75 * 8 * 32) for target in targets}
    print(f"{killed} kills, {killer.in_save} inside a save, in epochs {sorted(epochs)}")
    assert killed >= n_kills - 2 and killer.in_save >= 10 and len(epochs) >= 3
    assert outcome(workdir) == outcome(tmp_path / "whole")
    assert not list(workdir.rglob(".*.tmp")), "what kills left half-written stays"


def test_the_corpus_has_epochs_to_cross(uninterrupted):
    assert uninterrupted["result"]["n_tokens"] == STEPS * 8 * 32
    steps = [r["step"] for r in uninterrupted["rows"] if "eval_loss" in r]
    assert steps == [50, 100, 150, 200, STEPS]


def test_sigterm_saves_and_the_next_start_goes_on(text, run, tmp_path, uninterrupted):
    workdir = tmp_path / "run"
    process = subprocess.Popen(
        command(text, workdir), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    while last_step(workdir) < 40:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 75, stderr
    assert json.loads((workdir / "result.json").read_text())["status"] == "stopped"
    stopped_at = max(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())
    assert stopped_at >= 40 and stopped_at % 30 != 0
    done = run(workdir)
    assert done.code == 0
    got = outcome(workdir)
    rate = next(r["lr"] for r in got["rows"] if r["step"] == stopped_at + 1)
    assert f"going on from step {stopped_at}, learning rate {rate:.4g}" in done.stderr
    assert got["state"] == uninterrupted["state"] and got["result"] == uninterrupted["result"]


def test_finished_run_says_so(run, train, tmp_path):
    workdir = tmp_path / "run"
    small = ("--config.train.steps=3",)
    assert run(workdir, *small).code == 0
    before = {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()}
    again = run(workdir, *small)
    assert again.code == 0 and "finished" in again.stderr
    assert {p: p.stat().st_mtime_ns for p in workdir.rglob("*") if p.is_file()} == before
    repeated = train(f"--config={workdir / 'config.json'}", f"--workdir={tmp_path / 'again'}")
    assert repeated.code == 0, repeated.stderr
    assert outcome(tmp_path / "again") == outcome(workdir)


def refused(done: Ended, *words: str) -> None:
    assert done.code == 2, (done.code, done.stderr)
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in sentence, sentence


def test_mistakes_in_the_work_folder_are_told(run, tmp_path):
    workdir = tmp_path / "run"
    small = ("--config.train.steps=3", "--config.checkpoint.every=1")
    assert run(workdir, *small).code == 0
    refused(run(workdir, *small, "--config.optim.learning_rate=0.5"),
            "optim.learning_rate is 0.003 there and 0.5 now")  # fmt: skip
    (workdir / "result.json").unlink()
    for state in (workdir / "checkpoints").glob("*/state"):
        for path in state.rglob("*"):
            if path.is_file():
                path.write_bytes(b"damaged")
    refused(run(workdir, *small), "no checkpoint in", "can be read")
    other = tmp_path / "taken"
    other.write_text("a file")
    refused(run(other, *small), str(other))


def test_damaged_newest_checkpoint_is_left_out(run, tmp_path):
    workdir = tmp_path / "run"
    small = ("--config.train.steps=6", "--config.checkpoint.every=2")
    assert run(workdir, *small).code == 0
    whole = outcome(workdir)
    (workdir / "result.json").unlink()
    for path in (workdir / "checkpoints" / "6" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = run(workdir, *small)
    assert again.code == 0, again.stderr
    assert "step 6" in again.stderr and "going on from step 4" in again.stderr
    assert outcome(workdir) == whole


def test_full_disk_stops_with_a_sentence_and_keeps_the_last_checkpoint(run, tmp_path):
    workdir = tmp_path / "run"
    small = ("--config.train.steps=6", "--config.checkpoint.every=2", "--config.model.d_model=128")
    assert run(workdir, *small[:1], "--config.checkpoint.every=2", small[2]).code == 0
    whole = outcome(workdir)
    stopped = tmp_path / "limited"
    limit = 1 << 16  # above every file but the parameters', however Orbax divides these
    sizes = [p.stat().st_size for p in (workdir / "checkpoints").rglob("*") if p.is_file()]
    assert max(sizes) > 4 * limit

    done = run(stopped, *small, largest=limit)
    assert done.code == 1, (done.code, done.stderr)
    assert "Traceback" not in done.stderr
    assert "cannot save step 2" in done.stderr.strip().splitlines()[-1]
    assert not list((stopped / "checkpoints").glob("*tmp*"))
    assert run(stopped, *small).code == 0
    assert outcome(stopped) == whole
