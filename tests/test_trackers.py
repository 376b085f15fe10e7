"""TensorBoard and Weights & Biases get the rows of metrics.jsonl; steps can be profiled."""

import builtins
import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.configs import tiny
from lm.config import Config, LogConfig, freeze, to_dict
from lm.errors import BadInput
from lm.train.goodput import NAME as GOODPUT
from lm.train.memory import NAME as MEMORY
from lm.train.trackers import TensorBoard, WeightsAndBiases, check, scalars

ROOT = Path(__file__).parents[1]


def config(text: Path, **log) -> Config:
    file = tiny.get_config()
    file.data.source, file.data.path, file.data.length = "files", str(text), 8
    file.model.d_model, file.model.n_layers, file.train.steps = 16, 1, 12
    file.checkpoint.every, file.eval.every = 5, 6
    for name, value in log.items():
        file.log[name] = value
    return freeze(file)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    (folder / "text.txt").write_text("a text that is long enough to be cut " * 40)
    c = config(folder / "text.txt", tensorboard=True, profile_from=4, profile_steps=2)
    (folder / "config.json").write_text(json.dumps(to_dict(c)))
    # In a process of its own: a profile looks into every compiler that others have loaded here.
    train = [sys.executable, "-m", "experiments.train", f"--config={folder / 'config.json'}"]
    done = subprocess.run(
        [*train, f"--workdir={folder / 'run'}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def rows(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def tracked(workdir: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    events = event_accumulator.EventAccumulator(str(workdir / "tensorboard"), {"tensors": 0})
    events.Reload()
    found = [(tag, e.step, e.tensor_proto) for tag in events.Tags()["tensors"]
             for e in events.Tensors(tag)]  # fmt: skip
    values = {(tag, step): tensor_util.make_ndarray(x).item() for tag, step, x in found}
    assert len(values) == len(found), "a step is there twice"
    return values


def expected(workdir: Path) -> dict[tuple[str, int], float]:
    return {(k, r["step"]): v for r in rows(workdir) for k, v in scalars(r).items()}


def test_tensorboard_has_the_rows_of_metrics_and_no_more(run):
    want = expected(run)
    assert tracked(run) == {k: pytest.approx(v, rel=1e-6) for k, v in want.items()}
    assert {name for name, _ in want} >= {"loss", "lr", "grad_norm", "eval_loss"}


def test_a_restart_goes_on_in_the_same_tensorboard_run(run, tmp_path):
    kept = "".join(json.dumps(r) + "\n" for r in rows(run) if r["step"] <= 5)
    (tmp_path / "metrics.jsonl").write_text(kept)
    first = TensorBoard(tmp_path)
    for step in (6, 7):
        first.write({"step": step, "loss": -1.0})  # of steps that a kill throws away
    first.close()
    (tmp_path / "tensorboard" / "notes").write_text("a person's")
    again = TensorBoard(tmp_path)
    for row in (r for r in rows(run) if r["step"] > 5):
        again.write(row)
    again.close()
    assert tracked(tmp_path) == tracked(run)
    assert (tmp_path / "tensorboard" / "notes").exists()


def test_weights_and_biases_keeps_one_run(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # to its makers, over the net
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    c = dataclasses.replace(config(tmp_path / "x"), log=LogConfig(wandb="laws"))
    ids = []
    for part in (slice(0, 6), slice(6, None)):
        tracker = WeightsAndBiases(c, tmp_path)
        ids.append(tracker._run.id)
        for row in rows(run)[part]:
            tracker.write(row)
        tracker.close()
    assert ids[0] == ids[1] == json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 2  # `wandb sync` joins them
    assert capsys.readouterr().out == ""
    tracker = WeightsAndBiases(c, tmp_path)
    tracker._run.finish()  # as where its service ends: what is written now is an error
    capsys.readouterr()
    for row in rows(run)[:2]:
        tracker.write(row)
    tracker.close()
    assert capsys.readouterr().err.count("gets no more rows of this run") == 1


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_told_first(package, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=rf"log.{package} needs .*pip install -e '.\[{package}"):
        check(LogConfig(tensorboard=True) if package == "tensorboard" else LogConfig(wandb="x"))


def test_chosen_steps_are_profiled_as_perfetto_and_tensorboard_read_it(run):
    (trace,) = (run / "profile").rglob("*.trace.json.gz")
    assert list(trace.parent.glob("*.xplane.pb"))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert len(events) > 20 and {"ph", "pid"} <= events[0].keys()


def test_memory_is_told_by_part(run):
    held = json.loads((run / MEMORY).read_text())["bytes_on_a_device"]
    n = json.loads((run / "result.json").read_text())["n_params"]
    assert 4 * n <= held["parameters"] < 4.1 * n + 4096  # and padding rows
    assert 2 * held["parameters"] <= held["optimizer"] < 2.1 * held["parameters"]
    assert held["temporaries"] > 0 and held["rows"] > 0 and held["average"] == 0


def test_a_run_says_where_its_time_went_and_does_not_wait_for_data(run):
    found = json.loads((run / GOODPUT).read_text())
    result = json.loads((run / "result.json").read_text())
    assert sum(found["seconds"].values()) >= result["seconds"] * 0.99
    assert found["seconds"]["lost"] == 0 and found["seconds"]["saving"] > 0
    assert 0 <= found["data_share_of_steps"] < 0.9  # of a dozen tiny steps
