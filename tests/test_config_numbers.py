"""Numbers that no run can mean: refused with one sentence, before anything is on disk."""

import re
import types

import pytest
from test_config import changed
from test_trunk import config

from experiments import cli
from lm import budget
from lm.config import Config, default_config, freeze, to_dict
from lm.errors import BadInput, CannotSave
from lm.evaluate import batch_size
from lm.train import memory
from lm.train.run import train

GIB = 2**30


def numbers(kind: type) -> list[str]:
    """The fields that may hold a number of a kind, as group_field."""
    groups = {k: v for k, v in to_dict(Config()).items() if isinstance(v, dict)}
    hints = {g: type(getattr(Config(), g)).__annotations__ for g in groups}
    return [f"{g}_{f}" for g in groups for f in groups[g] if kind.__name__ in str(hints[g][f])]


def refused(fields: dict, sentence: str) -> None:
    with pytest.raises(BadInput) as e:
        freeze(changed(**fields))
    said = str(e.value)
    assert re.search(sentence, said) and "\n" not in said and len(said) < 250, said


@pytest.mark.parametrize(
    "value, sentence",
    [
        (float("nan"), "is nan: it must be finite"),
        (float("inf"), "is inf: it must be finite"),
        (float("-inf"), "is -inf: it must be finite"),
        (1e300, r"is 1e\+300: it must be finite, 3.403e\+38 at most"),
        (10**400, "is inf: it must be finite"),
        (1e-300, "is 1e-300: it must be 0 or 1.175e-38 at least"),
    ],
)
def test_every_float_is_one_of_float32(value, sentence):
    fields = numbers(float)
    assert len(fields) > 25 and "model_swish_c" in fields
    for field in fields:
        refused({field: value}, f"^{field.replace('_', '.', 1)} {sentence}")


def test_every_whole_number_is_one_that_devices_count_with():
    fields = numbers(int)
    assert len(fields) > 35 and "optim_staleness" in fields
    for field in fields:
        name = field.replace("_", ".", 1)
        for value in (1e30, 2**60, 10**400, 10**5000):
            refused({field: value}, f"^{name} is [^ ]*.*: it must be at most [0-9,]+$")
    refused({"seed": 2**60}, "^seed is 1,152,921,504,606,846,976: it must be at most 9,007,")
    refused({"train_batch_growth": [[1000, 10**400]]}, "train.batch_growth is larger than 1e20")
    refused({"data_mixture": [["a", float("inf")]]}, "data.mixture is inf")
    c = freeze(changed(train_steps=None, train_n_tokens=2e12, seed=2**53, optim_clip_norm=3e38))
    assert (c.train.n_tokens, c.seed) == (2 * 10**12, 2**53)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"model_n_layers": 100_000}, "n_layers 100000 would be compiled .*scan_layers=true"),
        ({"data_workers": 100_000}, "data.workers is 100,000: it must be at most 1,024"),
        ({"data_markov_order": 1000}, "data.markov_order is 1,000: it must be at most 16"),
        ({"pipeline_schedule": "interleaved", "pipeline_repeats": 3}, "4 is not divisible by"),
    ],
    ids=str,
)
def test_what_would_never_end_is_refused(fields, sentence):
    refused(fields, sentence)


@pytest.mark.parametrize(
    "name, value", [("flops", 1e38), ("n_tokens", 2**53), ("tokens_per_param", 1e38)]
)
def test_a_budget_of_more_steps_than_are_counted_is_refused(name, value):
    c = default_config()
    c.model.vocab_size, c.train.batch_size = 256, 1
    c.train[name] = value
    with pytest.raises(
        BadInput, match=rf"^train.{name} .* makes .* steps .* at most 2,147,483,647"
    ):
        budget.horizon(freeze(c))


@pytest.mark.parametrize(
    "changes, processes, fits",
    [
        ({"model_d_model": 2**17}, 1, False),  # weights
        ({"model_vocab_multiple": 2**30}, 1, False),
        ({"model_vocab_size": 2**30}, 1, False),
        ({"model_n_layers": 2**20, "model_scan_layers": True}, 1, False),
        ({"optim_staleness": 10_000}, 1, False),
        ({"train_batch_size": 2**30}, 1, False),  # rows
        ({"train_batch_size": 2**30, "train_accumulate": 2**30}, 1, False),
        ({"train_batch_growth": [[10**6, 2**26]]}, 1, False),
        ({"model_max_length": 2**30, "data_length": 32}, 1, False),  # tables of positions
        ({"model_d_model": 4096}, 1, False),
        ({"model_d_model": 4096}, 2, True),
        ({"model_d_model": 4096, "optim_optimizer": "adafactor"}, 1, True),
        ({}, 1, True),
    ],
    ids=str,
)
def test_what_does_not_fit_this_machine_is_refused_with_the_numbers(
    changes, processes, fits, monkeypatch
):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: 12 * GIB)
    c = freeze(changed(**{"model_vocab_size": 32} | changes))
    if fits:
        return memory.check(c, processes)
    with pytest.raises(BadInput, match="^this machine has 12 GiB of memory, and .*: ask for a sm"):
        memory.check(c, processes)


def test_memory_that_is_not_known_refuses_nothing_and_rows_of_an_evaluation_count(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: None)
    memory.check(freeze(changed(model_d_model=2**20)))
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: GIB)
    memory.check(freeze(changed()), eval_rows=100)
    with pytest.raises(BadInput, match="what 100,000 sequences bring to a layer 12.21 GiB"):
        memory.check(freeze(changed()), eval_rows=100_000)
    parts = {"pipeline_microbatches": 100, "mesh_pipe": 2}
    memory.check(freeze(changed(**parts)), eval_rows=100_000)
    with pytest.raises(BadInput, match="what 100,000 sequences bring"):
        memory.check(freeze(changed(**parts | {"mesh_pipe": 1})), eval_rows=100_000)


@pytest.mark.parametrize(
    "group, field, value, sentence",
    [
        ("train", "batch_size", 2**31 - 1, "memory"),
        ("train", "flops", 1e30, "steps"),
        ("model", "d_model", 2**31 - 8, "memory"),
        ("model", "max_length", 2**31 - 1, "memory"),
        ("optim", "staleness", 8, "optim.staleness 8 with 8 steps: no gradient"),
        ("mesh", "data", 10**9, "1000000000 devices and there are 8"),
        ("checkpoint", "start_from", "nowhere", "start_from nowhere holds no checkpoint"),
    ],
)
def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch, group, field, value, sentence):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: 16 * GIB)
    values = to_dict(config(8))
    values["train"]["steps"] = None if field == "flops" else 8
    values[group][field] = value
    with pytest.raises(BadInput, match=sentence):
        train(freeze(values), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def starting_from(folder) -> Config:
    values = to_dict(config(8))
    values["checkpoint"]["start_from"] = str(folder)
    return freeze(values)


def test_a_trunk_that_is_not_there_is_told(tmp_path):
    for c in (config(8), starting_from("nowhere")):  # which a branch does not look at
        with pytest.raises(BadInput, match="nope holds no run to branch from: give a shorter run"):
            train(c, tmp_path / "run", tmp_path / "nope")
    assert not list(tmp_path.iterdir())


def test_only_a_file_of_the_work_folder_is_told_as_one_that_cannot_be_written(tmp_path):
    too_long = "x" * 300
    with pytest.raises(BadInput, match=f"^File name too long: .*{too_long}.* choose another path"):
        with cli._one_sentence():
            train(starting_from(tmp_path / too_long), tmp_path / "run")
    assert not list(tmp_path.iterdir())
    (tmp_path / "run" / "config.json").mkdir(parents=True)
    (tmp_path / "run" / "result.json").symlink_to(too_long)
    with pytest.raises(CannotSave, match="^cannot write in .*File name too long .*result.json"):
        train(config(8), tmp_path / "run")


def test_an_evaluation_takes_no_more_sequences_than_there_are():
    sets = [types.SimpleNamespace(n_validation_sequences=n, parts={}) for n in (30, 50)]
    mixed = types.SimpleNamespace(n_validation_sequences=80, parts=dict(enumerate(sets)))
    rows = lambda asked, data: batch_size(freeze(changed(eval_batch_size=asked)), data)
    assert [rows(n, sets[0]) for n in (8, 30, 31, 10**9, None)] == [8, 30, 30, 30, 16]
    assert [rows(n, mixed) for n in (31, 70)] == [31, 50]
