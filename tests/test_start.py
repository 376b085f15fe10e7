"""What a run may begin from, and what of its settings may change when it goes on."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.configs import tiny
from lm.config import CheckpointConfig, Config, MeshConfig, freeze, to_dict
from lm.errors import BadInput
from lm.layout import make_layout
from lm.model import transformer
from lm.optim.build import build as build_optimizer
from lm.train import changes, state, workdir
from lm.train.checkpoint import Checkpoints
from lm.train.leaves import by_path
from lm.train.start import check, started
from lm.train.state import TrainState
from lm.train.steps import STATE

FACTS = {"corpus_sha256": "0" * 64, "tokenizer": {"name": "bytes"}}
LAYOUT = make_layout(MeshConfig())


def config(**model) -> Config:
    c = freeze(tiny.get_config())
    return dataclasses.replace(c, model=dataclasses.replace(c.model, vocab_size=256, **model))


def first(c: Config, seed: int) -> TrainState:
    table = transformer.table(c.model, c.pipeline.repeats)
    return state.initial(table, build_optimizer(c.optim, table), LAYOUT, seed)


@pytest.fixture(scope="module")
def old() -> TrainState:
    return first(config(), seed=1)._replace(step=jnp.int32(40))


def trained(folder: Path, saved: TrainState) -> str:
    workdir.claim(folder, config(), FACTS)
    checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig())
    checkpoints.save(saved, {})
    checkpoints.close()
    return str(folder)


def test_a_run_begins_with_the_parameters_of_another(old, tmp_path, capsys):
    begun = started(first(config(), 2), CheckpointConfig(start_from=trained(tmp_path, old)), LAYOUT)
    jax.tree.map(np.testing.assert_array_equal, begun.params, old.params)
    assert int(begun.step) == 0 and "those of step 40" in capsys.readouterr().err


def test_a_model_that_has_grown_takes_what_fits_only_when_asked(old, tmp_path):
    folder = trained(tmp_path, old)
    fresh = first(config(n_layers=3, d_ff=96, use_bias=True), seed=2)
    with pytest.raises(BadInput, match="bias is missing there.*start_grown=true"):
        started(fresh, CheckpointConfig(start_from=folder), LAYOUT)
    grown = started(fresh, CheckpointConfig(start_from=folder, start_grown=True), LAYOUT)
    new, before, olds = by_path(grown.params), by_path(fresh.params), by_path(old.params)
    larger = 0
    for path, x in new.items():
        want = np.array(before[path])
        if path in olds:
            want[tuple(slice(n) for n in olds[path].shape)] = olds[path]
            larger += x.shape != olds[path].shape
        np.testing.assert_array_equal(x, want, err_msg=path)
    assert larger > 3 and new.keys() > olds.keys()
    smaller = first(config(d_ff=40), seed=2)
    with pytest.raises(BadInput, match=r"there and .* here"):
        started(smaller, CheckpointConfig(start_from=folder, start_grown=True), LAYOUT)


def test_ngrams_that_are_hashed_otherwise_would_find_the_rows_of_others(tmp_path):
    few = dict(ngram_order=2, ngram_rows=8)
    workdir.claim(tmp_path / "old", config(**few), FACTS)
    (tmp_path / "old/checkpoints/1").mkdir(parents=True)
    (tmp_path / "old/checkpoints/1/progress.json").write_text("{}")
    grown = CheckpointConfig(start_from=str(tmp_path / "old"), start_grown=True)

    def begun(**model) -> None:
        check(dataclasses.replace(config(**model), checkpoint=grown), tmp_path / "new")

    for name, n in (("ngram_rows", 16), ("ngram_order", 3)):
        with pytest.raises(BadInput, match=f"{name} is {few[name]} in .* and {n} here"):
            begun(**few | {name: n})
    begun(**few)
    begun(ngram_rows=16)


def test_another_dtype_is_taken_only_when_asked(old, tmp_path):
    half = old._replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), old.params))
    folder = trained(tmp_path, half)
    with pytest.raises(BadInput, match="is bfloat16 there and float32 here.*start_cast=true"):
        started(first(config(), 2), CheckpointConfig(start_from=folder), LAYOUT)
    c = CheckpointConfig(start_from=folder, start_cast=True)
    begun = started(first(config(), 2), c, LAYOUT)
    rounded = jax.tree.map(lambda x: x.astype(jnp.float32), half.params)
    jax.tree.map(np.testing.assert_array_equal, begun.params, rounded)
    assert {x.dtype for x in jax.tree.leaves(begun.params)} == {jnp.dtype("float32")}


def changed(c: Config, key: str, value) -> Config:
    group, field = key.split(".")
    new = dataclasses.replace(getattr(c, group), **{field: value})
    return dataclasses.replace(c, **{group: new})


def test_settings_that_decide_no_result_may_change_and_are_told(tmp_path, capsys):
    workdir.claim(tmp_path, config(), FACTS)
    made = workdir.saved_run_id(tmp_path)
    assert made == workdir.run_id(config())
    workdir.claim(tmp_path, changed(config(), "log.every", 7), FACTS)
    assert "going on with log.every 7 instead of 1\n" in capsys.readouterr().err
    workdir.claim(tmp_path, changed(config(), "mesh.data", 2), FACTS)
    assert "mesh.data 2 instead of 1 (results agree to rounding" in capsys.readouterr().err
    step = tmp_path / "checkpoints" / "40"
    (step / STATE).mkdir(parents=True)
    for value in (3, 3, 1, 1):  # of which two are as the start before
        workdir.claim(tmp_path, changed(config(), "log.every", value), FACTS)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved[workdir.PROVENANCE]["changes"] == [
        {"from_step": 0, "log.every": 7},
        {"from_step": 0, "mesh.data": 2},
        {"from_step": 40, "log.every": 3},
        {"from_step": 40},  # as it was made
    ]
    assert workdir.saved_run_id(tmp_path) == made  # it is the same run
    for key, value in {"optim.learning_rate": 0.5, "checkpoint.start_from": "x"}.items():
        with pytest.raises(BadInput, match=f"{key} is .* there and {value!r} now"):
            workdir.claim(tmp_path, changed(config(), key, value), FACTS)


def test_every_setting_of_model_data_and_optimizer_is_fixed_but_those_named():
    groups = {k: v for k, v in to_dict(Config()).items() if k != "seed"}
    free = {f"{g}.{f}" for g in groups for f in groups[g] if changes.may_change(f"{g}.{f}")}
    fixed = ("model", "data", "train", "optim", "precision")
    named = {"model.attention", "model.scan_layers", "model.remat", "train.accumulate"}
    assert {f for f in free if f.split(".")[0] in fixed} == named
    assert free >= {"log.every", "checkpoint.keep", "eval.every", "mesh.model"}
    assert not changes.may_change("seed") and not changes.may_change("checkpoint.start_from")
