"""Every layout trains the same model: loss, gradients, next losses and state equal one device's."""

import dataclasses
import math
import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from test_model import V, tiny
from test_step import Run, trees_close

from launch.hlo import parse
from lm import platform
from lm.collectives import varying
from lm.config import (
    CheckpointConfig,
    Config,
    MeshConfig,
    OptimConfig,
    PipelineConfig,
    PrecisionConfig,
    TrainConfig,
    freeze,
    to_dict,
)
from lm.data.dataset import Batch
from lm.errors import BadInput
from lm.layout import PIPE
from lm.model.spec import flatten
from lm.pipeline import spmd
from lm.pipeline.program import CODES, make_program
from lm.pipeline.schedule import check
from lm.pipeline.schedules import make_schedule
from lm.train import explain, reproducible, setup
from lm.train import state as train_state
from lm.train.checkpoint import Checkpoints
from lm.train.state import param_specs
from lm.train.step import jit_step, make_evaluate

ROWS, T = 16, 8


def config(
    mesh: MeshConfig,
    optimizer: str = "adamw",
    compute: str = "float32",
    pipeline: PipelineConfig | None = None,
    **model,
) -> Config:
    m = dict(
        n_layers=2, n_heads=4, scan_layers=True, n_kv_heads=4, d_model=16, d_ff=16, vocab_multiple=8
    )
    return Config(
        tiny(**(m | dict(max_length=T, scan_layers=True) | model)),
        train=TrainConfig(batch_size=ROWS, steps=10),
        mesh=mesh,
        pipeline=pipeline or PipelineConfig(),
        optim=OptimConfig(optimizer=optimizer, weight_decay=0.01),
        precision=PrecisionConfig(compute=compute),
    )


def batch(seed: int, packed: bool) -> Batch:
    """Rows of unequal valid tokens, some without any; packed rows hold two documents."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (ROWS, T + 1), np.int32)
    lengths = rng.integers(0, T + 1, ROWS)
    lengths[3::5] = 0
    weights = (np.arange(T) < lengths[:, None]).astype(np.float32)
    segments = positions = None
    if packed:
        first = rng.integers(1, T, (ROWS, 1))
        segments = (np.arange(T) >= first).astype(np.int32)
        positions = np.where(segments, np.arange(T) - first, np.arange(T)).astype(np.int32)
    return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), weights, segments, positions)


MODELS = {
    "tied": {},
    "untied": dict(tie_embeddings=False),
    "gqa": dict(n_kv_heads=2),
    "mqa_bias": dict(
        n_kv_heads=1, use_bias=True, ffn="gelu", norm="layernorm", qk_norm=True, ngram_order=2
    ),
    "learned_post": dict(position="learned", norm_position="post", ngram_order=3, ngram_rows=64),
    "scan_remat": dict(scan_layers=True, remat=True, tie_embeddings=False),
}


class Found(NamedTuple):
    loss: float
    gradients: Any  # of the first batch, clipped: SGD's momentum after one step
    losses: list[float]  # of four AdamW steps
    state: Any  # after two steps of SGD with momentum


class Reference:
    """What one device computes, once a model."""

    def __init__(self):
        self.known = {}

    def __call__(self, name: str, packed: bool, **more) -> Found:
        key = (name, packed, *more.items())
        if key not in self.known:
            self.known[key] = everything(MeshConfig(), name, packed, **more)
        return self.known[key]


def everything(mesh: MeshConfig, name: str, packed: bool, **more) -> Found:
    """What production code computes on a mesh."""
    batches = [batch(i, packed) for i in range(4)]
    run = Run(config(mesh, **(MODELS[name] | more)), batches, or_else="sgd")
    last, metrics = run.steps(4)
    declared = train_state.abstract(run.model.table, run.tx, run.layout)
    for x, d in zip(jax.tree.leaves(last), jax.tree.leaves(declared), strict=True):
        assert (x.shape, x.dtype) == (d.shape, d.dtype)
        assert x.sharding.is_equivalent_to(d.sharding, x.ndim)
    (first, state), sgd_metrics = run.or_else(2)
    losses = [m["loss"] for m in metrics]
    assert losses[0] == sgd_metrics[0]["loss"]
    return Found(losses[0], first.opt, losses, state)


@pytest.fixture(scope="module")
def one_device():
    return Reference()


CASES = [
    # data, model, fully sharded, model, packed
    (8, 1, True, "mqa_bias", True),
    (1, 8, False, "gqa", False),
    (1, 4, False, "tied", True),
    (2, 4, True, "mqa_bias", False),
    (4, 2, True, "scan_remat", True),
    (2, 2, True, "learned_post", False),
    (2, 2, False, "untied", True),
]


def alike(got, want):
    """Both trees, with the layers' two axes of an interleaved pipeline as one."""
    return jax.tree.map(lambda g, w: np.asarray(g).reshape(w.shape), got, want), want


def equal_to_one_device(got: Found, want: Found):
    assert got.loss == pytest.approx(want.loss, rel=2e-6)
    trees_close(*alike(got.gradients, want.gradients), 2e-5)
    assert got.losses == pytest.approx(want.losses, rel=2e-5)
    trees_close(*alike(got.state, want.state), 2e-5)


@pytest.mark.parametrize("data, model, fully_sharded, name, packed", CASES)
def test_tensor_and_data_parallel(one_device, data, model, fully_sharded, name, packed):
    mesh = MeshConfig(data, model, 1, fully_sharded)
    m = {"n_heads": 8, "n_kv_heads": 2} if model == 8 else {}
    equal_to_one_device(everything(mesh, name, packed, **m), one_device(name, packed, **m))


PIPELINES = [
    # data, model, pipe, fully sharded, model, packed, schedule, micro-batches, repeats, recompute
    (1, 1, 4, False, "untied", False, "gpipe", 8, 1, True),
    (1, 1, 4, False, "tied", True, "1f1b", 8, 1, True),
    (2, 2, 2, True, "gqa", True, "1f1b", 2, 1, False),
    (2, 1, 4, True, "tied", False, "zero_bubble", 8, 1, True),
    (1, 2, 4, False, "mqa_bias", True, "zero_bubble", 4, 1, False),
    (2, 2, 2, True, "untied", False, "interleaved", 4, 2, True),
    (2, 1, 2, True, "learned_post", True, "interleaved", 4, 2, False),
]


@pytest.mark.parametrize(
    "data, model, pipe, fully_sharded, name, packed, schedule, m, repeats, recompute", PIPELINES
)
def test_pipelines(
    one_device, data, model, pipe, fully_sharded, name, packed, schedule, m, repeats, recompute
):
    mesh = MeshConfig(data, model, pipe, fully_sharded)
    pipeline = PipelineConfig(schedule, m, repeats, recompute)
    got = everything(mesh, name, packed, pipeline=pipeline, n_layers=4)
    equal_to_one_device(got, one_device(name, packed, n_layers=4))


MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 2, 2), (2, 1, 4), (1, 2, 4)]
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)]


@pytest.mark.layouts
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("schedule, repeats", SCHEDULES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["tied", "untied", "gqa"])
@pytest.mark.parametrize("fully_sharded", [False, True])
@pytest.mark.parametrize("mesh", MESHES)
def test_every_layout(one_device, mesh, fully_sharded, name, packed, schedule, repeats, recompute):
    pipeline = PipelineConfig(schedule, 4, repeats, recompute)
    if mesh[2] == 1:
        if (schedule, recompute) != ("gpipe", True):
            pytest.skip("no pipeline: the schedule makes no difference")
        pipeline = PipelineConfig()
    more: dict = {"n_layers": 8}
    if mesh[1] == 8:
        more |= {"n_heads": 8, "n_kv_heads": 2 if name == "gqa" else 8}
    got = everything(MeshConfig(*mesh, fully_sharded), name, packed, pipeline=pipeline, **more)
    equal_to_one_device(got, one_device(name, packed, **more))


def test_counters_inside_the_branches_equal_the_table():
    c = config(MeshConfig(pipe=4), n_layers=4)
    run = Run(c, [batch(0, False)])
    for name, m, repeats in (("gpipe", 8, 1), ("zero_bubble", 4, 1)):
        schedule = make_schedule(name, 4, m, repeats)
        check(schedule)
        compute = spmd.loss_and_gradients(run.model, make_program(schedule), True)
        counts = run.layout.on_devices(
            lambda p, b, compute=compute: varying(compute(varying(p), b, 1.0)[2])[None],
            (param_specs(run.model.table, run.layout), run.layout.batch.spec),
            jax.P(PIPE),
        )
        with jax.set_mesh(run.layout.mesh):
            found = np.asarray(jax.jit(counts)(run.initial().params, run.batches[0]))
        for stage in range(4):
            done = Counter(w.what for w in schedule.works if w.stage == stage)
            for what, code in CODES.items():
                assert found[stage, code] == done[what]


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(n_layers=30), "model.n_layers 30 is not divisible by mesh.pipe 4"),
        (dict(pipeline=PipelineConfig(microbatches=3)), "train.batch_size 16 is not divisible by"),
        (dict(pipeline=PipelineConfig("gpipe", 4, 2)), "pipeline.repeats 2 with"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_with_both_numbers(change, words):
    c = config(MeshConfig(pipe=4), **({"n_layers": 4} | change))
    with pytest.raises(BadInput, match=re.escape(words)):
        setup.build(freeze(to_dict(c)), None)


@pytest.mark.parametrize(
    "mesh, train, words",
    [
        (MeshConfig(2, pipe=-1), dict(accumulate=2), "train.accumulate 2 with mesh.pipe 4"),
        (MeshConfig(4, pipe=-1), dict(reproducible=True), "mesh.pipe 2, mesh.model 1 and"),
        (MeshConfig(4, model=-1), dict(reproducible=True), "mesh.pipe 1, mesh.model 2 and"),
        (
            MeshConfig(3),
            dict(reproducible=True, batch_size=12, batch_growth=((1000, 24),)),
            "12, 24 rows (train.batch_size, train.batch_growth) into 4 equal parts, and mesh",
        ),
    ],
)
def test_rules_of_the_axes_hold_on_the_devices_that_are_there(mesh, train, words):
    c = config(mesh, n_layers=4)
    c = dataclasses.replace(c, train=dataclasses.replace(c.train, **train))
    with pytest.raises(BadInput, match=re.escape(words)):
        setup.build(freeze(to_dict(c)), None)


def test_fewer_micro_batches_than_stages(one_device):
    pipeline = PipelineConfig("1f1b", 2)
    got = everything(MeshConfig(pipe=4), "tied", False, pipeline=pipeline, n_layers=4)
    equal_to_one_device(got, one_device("tied", False, n_layers=4))


def test_bfloat16_is_as_near_to_float32_on_every_layout(one_device):
    def gradients(mesh, compute, **more):
        return everything(mesh, "gqa", True, n_layers=4, compute=compute, **more).gradients

    exact = one_device("gqa", True, n_layers=4).gradients
    far = lambda g: max(
        np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max()
        for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(exact), strict=True)
    )
    alone = far(gradients(MeshConfig(), "bfloat16"))
    pipeline = PipelineConfig("1f1b", 4)
    assert 1e-4 < far(gradients(MeshConfig(2, 2, 2), "bfloat16", pipeline=pipeline)) < 1.5 * alone


def test_a_checkpoint_restores_the_same_bits_on_another_mesh(tmp_path):
    eight = Run(config(MeshConfig(8), n_layers=4))
    state, _ = eight.steps(2)
    saved = Checkpoints(tmp_path, CheckpointConfig())
    saved.save(state, {})
    saved.close()
    for mesh in (MeshConfig(2, 2, 2), MeshConfig()):
        run = Run(config(mesh, n_layers=4, pipeline=PipelineConfig(microbatches=2)))
        abstract = train_state.abstract(run.model.table, run.tx, run.layout)
        found, _ = Checkpoints(tmp_path, CheckpointConfig(), read_only=True).restore(abstract)
        jax.tree.map(np.testing.assert_array_equal, found, state)
        with jax.set_mesh(run.layout.mesh):
            step = jit_step(run.c, run.model, run.tx, 10, run.layout)
            after, metrics = jax.block_until_ready(step(found, run.batches[2]))
        assert int(after.step) == 3 and np.isfinite(metrics["loss"])


@pytest.mark.parametrize(
    "batch_size, growth, words",
    [
        (16, (), "on 1, 2, 4 or 8 data"),
        (48, ((1000, 60),), "on 1, 2 or 4 data"),
        (6, (), "on 1 or 2 data"),
        (16, ((1000, 17),), "odd number of rows"),
    ],
)
def test_how_many_devices_give_the_same_bits_is_told(monkeypatch, batch_size, growth, words):
    monkeypatch.setenv("XLA_FLAGS", " ".join(platform.AS_WRITTEN))
    assert words in reproducible.told(TrainConfig(batch_size=batch_size, batch_growth=growth))


def test_that_xla_adds_up_in_its_own_order_is_told(monkeypatch):
    for flags in ("", *platform.AS_WRITTEN):
        monkeypatch.setenv("XLA_FLAGS", flags)
        whole = flags == " ".join(platform.AS_WRITTEN)  # one flag is all where none is x86's own
        assert ("bits may differ" in reproducible.told(TrainConfig(batch_size=16))) != whole


# Muon's matrices are tall, wide and square; of 12 rows a step makes 4 parts.
@pytest.mark.parametrize(
    "optimizer, rows, layouts",
    [
        ("adamw", ROWS, ((2, True), (8, False))),
        ("muon", 12, ((4, True),)),
        ("adafactor", ROWS, ((2, True),)),
    ],
)
def test_reproducible_sums_have_the_same_bits_on_any_number_of_devices(optimizer, rows, layouts):
    def trained(data, fully_sharded):
        mesh = MeshConfig(data, fully_sharded=fully_sharded)
        sizes = dict(d_model=64, d_ff=48, n_kv_heads=1, use_bias=True)
        c = config(mesh, optimizer, **sizes)
        train = dataclasses.replace(c.train, reproducible=True, batch_size=rows)
        cut = lambda b: jax.tree.map(lambda x: x[:rows], b)
        batches = [cut(batch(i, True)) for i in range(4)]
        run = Run(dataclasses.replace(c, train=train), batches)
        state, metrics = run.steps(4)
        assert min(m["clip"] for m in metrics) < 1
        with jax.set_mesh(run.layout.mesh):
            evaluated = jax.jit(make_evaluate(run.model, run.c, run.layout))
            return jax.device_get(state), metrics, float(evaluated(state.params, batches[0]))

    state, metrics, evaluated = trained(1, True)
    for data, fully_sharded in layouts:
        got, got_metrics, got_evaluated = trained(data, fully_sharded)
        assert got_metrics == metrics and got_evaluated == evaluated
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32)),
            got,
            state,
        )


def test_the_explained_layout_adds_up():
    c = config(MeshConfig(2, 2, 2), n_layers=4, n_kv_heads=1)
    run = setup.build(freeze(to_dict(c)), None)
    state = train_state.initial(run.model.table, run.tx, run.layout, 0)
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state.params))
    told = explain.text(run)
    rows = flatten(run.model.table)
    assert sum(explain.bytes_per_device(run.layout, n, r) for n, r in rows.items()) == held
    assert all(name in told for name in rows) and f"{held / 1024:.4g} KiB on each device" in told
    assert "layers over pipe, embed over data, ff over model" in told
    # Of the one key-value head both model devices have all: 2 x 16 x 4 values, not half of them.
    values = (16 * 16 + 16 * 16 + 3 * 16 * 16) // 2 + 2 * 16 * 4
    gathered = f"weights gathered, {4 * values / 1024:.4g} KiB, and again in the backward"
    for words in (gathered, "gathered twice and scattered twice", "after every 2 layers"):
        assert words in told
    assert not explain.large_replicated(run)
    wide = config(MeshConfig(2, fully_sharded=False), d_model=1024, d_ff=2048, n_heads=8)
    assert "head" not in explain.large_replicated(setup.build(freeze(to_dict(wide)), None))
    assert "blocks/ffn/up" in explain.large_replicated(setup.build(freeze(to_dict(wide)), None))


def compiled_step(schedule: str, m: int, repeats: int = 1):
    """A step with m micro-batches of one row of 64 tokens, on 4 stages."""
    pipeline = PipelineConfig(schedule, m, repeats)
    model = dict(n_layers=8, d_model=64, d_ff=128, max_length=64)
    c = config(MeshConfig(pipe=4), pipeline=pipeline, **model)
    c = dataclasses.replace(c, train=dataclasses.replace(c.train, batch_size=m))
    run = Run(c)
    state = train_state.abstract(run.model.table, run.tx, run.layout)
    of = lambda kind: jax.ShapeDtypeStruct((m, 64), kind, sharding=run.layout.batch)
    step = jit_step(c, run.model, run.tx, 10, run.layout)
    with jax.set_mesh(run.layout.mesh):
        return step.lower(state, Batch(of("int32"), of("int32"), of("float32"))).compile()


def test_1f1b_memory_does_not_grow_with_micro_batches_and_no_tick_copies_what_it_keeps():
    temporary = lambda compiled: compiled.memory_analysis().temp_size_in_bytes
    few, many = compiled_step("1f1b", 8), compiled_step("1f1b", 64)
    assert temporary(many) == pytest.approx(temporary(few), rel=0.02)
    assert temporary(compiled_step("gpipe", 64)) > 3 * temporary(many)
    program = parse(few.as_text())
    stash = make_program(make_schedule("1f1b", 4, 8)).stash_size * 2 * 64 * 64  # of 2 layers
    gradients = 2 * 64 * 128  # of the FFN's up
    inside = [c for name, c in program.computations.items() if name != program.entry]
    copied = [math.prod(s.dims) for c in inside for i in c if i.opcode == "copy" for s in i.shapes]
    assert not {stash, gradients}.intersection(copied)
