"""Runs that share a trunk: the bits of runs of their own, at the cost of one trunk and decays."""

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pytest

from lm import budget, progress
from lm.config import CheckpointConfig, Config, EvalConfig, LogConfig, default_config, freeze
from lm.errors import BadInput
from lm.sweep import pool, table
from lm.sweep.points import make_points
from lm.train import loop, memory, trunk
from lm.train.checkpoint import Checkpoints, restore_params
from lm.train.run import train
from lm.train.workdir import run_id

TIMES = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")
PEAK = 1e9  # FLOP/s


def config(steps: int, **changes) -> Config:
    c = default_config()
    c.data.source, c.data.markov_symbols, c.data.markov_validation_tokens = "markov", 32, 128
    m = c.model
    m.d_model, m.n_layers, m.n_heads, m.max_length, m.d_ff = 8, 1, 1, 16, 16
    c.train.batch_size, c.train.steps = 4, steps
    o = c.optim
    o.schedule, o.warmup_steps, o.decay_fraction, o.keep_trunk = "wsd", 2, 0.25, True
    c.log.every, c.eval.every, c.checkpoint.every = 1, 4, None
    for key, value in changes.items():
        o[key] = value
    return freeze(c)


def files(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    keep = lambda row: {k: v for k, v in row.items() if k not in TIMES}
    return list(map(keep, rows)), keep(result)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trunk") / "short"
    with pytest.MonkeyPatch.context() as patch:  # as on a chip whose peak is known
        patch.setattr(loop, "peak_flops", lambda kind, dtype: {"float32": PEAK}[dtype])
        train(config(8), folder)
    return folder


def test_files_have_the_fields_that_others_read(short):
    read = lambda name: json.loads((short / name).read_text())
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    logged, evaluated = ([r for r in rows if name in r] for name in ("loss", "eval_loss"))
    assert [r["step"] for r in logged] == list(range(1, 9))
    assert [r["step"] for r in evaluated] == [4, 8]
    assert logged[0].keys() >= {
        "step", "n_tokens", "loss", "lr", "grad_norm", "tokens_per_second", "mfu", "seconds",
    }  # fmt: skip
    assert evaluated[0].keys() == {"step", "eval_loss", "eval_bits_per_byte"}
    result, saved = read("result.json"), read("config.json")
    assert result.keys() == {
        "run_id", "n_params", "n_params_non_embedding", "n_tokens", "flops",
        "flops_full_attention", "flops_6nd", "train_loss", "eval_loss", "eval_bits_per_byte",
        "steps", "seconds", "tokens_per_second", "mfu", "peak_memory_bytes", "status",
    }  # fmt: skip
    assert (result["status"], result["steps"], result["n_tokens"]) == ("finished", 8, 8 * 4 * 16)
    assert result["train_loss"] == logged[-1]["loss"]  # the last twentieth: one step
    assert result["eval_loss"] == evaluated[-1]["eval_loss"]
    assert result["eval_bits_per_byte"] is None  # symbols are no text
    facts = saved.pop("provenance")
    assert result["run_id"] == run_id(freeze(saved)) and len(facts["corpus_sha256"]) == 64
    assert {"versions", "git"} <= facts.keys() and facts["versions"]["jax"] == jax.__version__


def test_mfu_is_the_models_flops_a_second_over_the_peak(short):
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    rows = [*(r for r in rows if "loss" in r), json.loads((short / "result.json").read_text())]
    flops = budget.flops_per_token(dataclasses.replace(config(8).model, vocab_size=32), 16)
    assert len(rows) == 9
    for row in rows:
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * flops / PEAK)


def test_a_branch_ends_with_the_bits_of_a_run_of_its_own(short, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    train(config(16), tmp_path / "own")
    said = capsys.readouterr().err
    assert "1 of 8 devices are used: set mesh.data=-1 for all" in said
    assert "own: step 16 of 16, loss" in said and "evaluating: batch 2 of 2, 0 s left" in said
    # Matrices and the embedding: 32 x 8, 4 x 8 x 8 and 3 x 8 x 16; not the three norms.
    assert "weight decay 0.1 on 896 of 920 values" in said and "mesh:" not in said
    train(config(16), tmp_path / "branch", short)
    assert "starts from step 6 of" in capsys.readouterr().err
    assert files(tmp_path / "branch") == files(tmp_path / "own")
    assert json.loads((tmp_path / "own" / "result.json").read_text())["mfu"] is None  # not a CPU's
    own, branch = (restore_params(tmp_path / name)[1] for name in ("own", "branch"))
    jax.tree.map(np.testing.assert_array_equal, branch, own)
    # The branch left a trunk of its own.
    assert (tmp_path / "branch" / "trunk" / "12").is_dir()


def test_a_branch_of_the_same_length_keeps_the_trunk_too(short, tmp_path):
    train(config(8), tmp_path / "branch", short)
    assert files(tmp_path / "branch") == files(short)
    assert (tmp_path / "branch" / "trunk" / "6").is_dir()


def test_a_kill_between_a_steps_checkpoint_and_its_trunk_loses_neither(
    short, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    saved, save = [], Checkpoints.save

    def second_is_cut(self, state, progress):
        saved.append(int(state.step))
        if saved.count(6) == 2:
            raise Killed
        save(self, state, progress)

    c = config(8)
    c = dataclasses.replace(c, checkpoint=CheckpointConfig(every=2))
    with monkeypatch.context() as m, pytest.raises(Killed):
        m.setattr(Checkpoints, "save", second_is_cut)
        train(c, tmp_path / "run")
    train(c, tmp_path / "run")
    assert files(tmp_path / "run")[0] == files(short)[0]
    assert (tmp_path / "run" / "trunk" / "6").is_dir()


@pytest.mark.parametrize(
    "c, words",
    [
        (config(16, b1=0.8), "optim.b1 is 0.9 there and 0.8 now"),
        (config(7), "kept at step 6 and this run leaves it at 5"),
        (dataclasses.replace(config(16), seed=1), "seed is 0 there and 1 now"),
        (dataclasses.replace(config(16), eval=EvalConfig()), "eval.every"),
        (dataclasses.replace(config(16), log=LogConfig(2)), "log.every"),
    ],
)
def test_another_runs_trunk_is_refused_and_nothing_is_written(short, tmp_path, c, words):
    with pytest.raises(BadInput, match=f"is no trunk of this run: .*{words}"):
        train(c, tmp_path / "branch", short)
    assert not (tmp_path / "branch").exists()


def test_a_trunk_needs_the_schedule_that_has_one():
    with pytest.raises(BadInput, match="only wsd has a trunk"):
        config(8, schedule="cosine")


@pytest.mark.bench
def test_four_branches_give_four_rows_at_the_cost_of_one_trunk_and_its_decays(tmp_path):
    points = make_points([({"train.steps": n}, config(n)) for n in (20, 8, 16, 12)])
    runs = tmp_path / "runs"
    runs.mkdir()
    pool.train_all(points, runs, 2, lambda _: None, "branches")
    table.write(points, runs, tmp_path / "runs.csv")
    rows = pd.read_csv(tmp_path / "runs.csv")
    assert list(rows["n_tokens"]) == [n * 4 * 16 for n in (20, 8, 16, 12)]
    assert rows["loss"].notna().all() and rows["loss"].nunique() == 4
    (line,) = pool.chains(points)
    trained, seconds = (
        0,
        lambda p: [
            json.loads(row)["seconds"]
            for row in (runs / p.run_id / "metrics.jsonl").read_text().splitlines()
            if "seconds" in row
        ],
    )
    for before, p in zip([None, *line], line, strict=False):
        start = trunk.end(before.config) if before else 0
        # Rows of the trunk are its own, with the seconds that it took for them.
        assert before is None or seconds(p)[:start] == seconds(before)[:start]
        trained += p.config.train.steps - start
        pool.train_all([p], tmp_path / "own", 1, lambda _: None, "its own")
        assert files(runs / p.run_id) == files(tmp_path / "own" / p.run_id)
    assert trained == 15 + (2 + 3 + 4 + 5)  # the longest trunk, and every decay
    per_step = points[0].horizon.flops / 20
    assert pool.shared_flops(points) == pytest.approx((56 - trained) * per_step)


def test_a_sweep_chains_what_shares_a_trunk():
    configs = [config(n) for n in (16, 8)] + [config(n, b1=0.8) for n in (8, 12)]
    configs += [config(8, keep_trunk=False), config(12, keep_trunk=False)]
    points = make_points([({}, c) for c in configs])
    lines = [[p.config.train.steps for p in line] for line in pool.chains(points)]
    assert lines == [[8, 16], [8, 12], [8], [12]]


def test_a_run_that_has_ended_needs_no_memory(short, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: 1)
    assert train(config(8), short)["status"] == "finished"
    with pytest.raises(BadInput, match="^this machine has"):
        train(config(8), tmp_path / "new")
