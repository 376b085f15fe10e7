"""One optimizer step: the same on any layout, and what clipping, decay and schedules promise."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
from either_optimizer import either
from jax.sharding import PartitionSpec as P
from test_model import V, close, tiny

from lm.collectives import axis_index, reduced, varying
from lm.config import (
    Config,
    MeshConfig,
    OptimConfig,
    PipelineConfig,
    PrecisionConfig,
    TrainConfig,
)
from lm.data.dataset import Batch
from lm.layout import DATA, make_layout
from lm.layout import MODEL as MODEL_AXIS
from lm.model import transformer
from lm.model.spec import flatten
from lm.optim.build import build as build_optimizer
from lm.train import state as train_state
from lm.train.step import (
    clip_factor,
    growth_factor,
    jit_step,
    make_gradients,
    make_step,
    own_key,
)

ROWS, T = 64, 6
MODEL = tiny(n_layers=1, n_heads=2, n_kv_heads=1, d_ff=16, vocab_multiple=8, max_length=8)


def config(mesh: MeshConfig, accumulate: int = 1, model=MODEL, **optim) -> Config:
    train = TrainConfig(batch_size=ROWS, accumulate=accumulate, steps=10)
    return Config(model, train=train, mesh=mesh, optim=OptimConfig(**optim))


def batch(seed: int) -> Batch:
    """Rows of unequal valid tokens; whole micro-batches and whole shards are masked."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (ROWS, T + 1), np.int32)
    lengths = rng.integers(0, T + 1, ROWS)
    lengths[5::8] = 0  # a micro-batch of 8
    lengths[8:16] = 0  # a device of 8
    weights = (np.arange(T) < lengths[:, None]).astype(np.float32)
    return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), weights)


class Run:
    """A config's model, layout and first state. or_else: an optimizer that steps can be made with
    too, in the same compiled step."""

    def __init__(self, c: Config, batches: list[Batch] | None = None, or_else: str | None = None):
        self.c, self.layout = c, make_layout(c.mesh)
        self.batches = batches or [batch(i) for i in range(4)]
        self.model = transformer.build(
            c.model,
            c.precision.compute,
            c.precision.reduce,
            c.pipeline.repeats,
            c.precision.matmul,
        )
        built = lambda o: build_optimizer(o, self.model.table, c.precision)
        self.tx = built(c.optim)
        if or_else:
            self.tx = either(self.tx, built(dataclasses.replace(c.optim, optimizer=or_else)))
        self.where = train_state.shardings(self.model.table, self.tx, self.layout)

    def initial(self):
        return train_state.initial(self.model.table, self.tx, self.layout, self.c.seed)

    @functools.cached_property
    def step(self):
        return jit_step(self.c, self.model, self.tx, 10, self.layout)

    def gradients(self):
        """(mean loss, gradients, valid tokens) of the first batch, compiled for the layout."""
        compute = jax.jit(
            make_gradients(self.model, self.c, self.layout),
            in_shardings=(self.where.params, self.layout.batch),
        )
        with jax.set_mesh(self.layout.mesh):
            return jax.block_until_ready(compute(self.initial().params, self.batches[0]))[:3]

    def steps(self, n: int):
        """(last state, metrics of each step)."""
        states, metrics = self.states(n)
        return states[-1], metrics

    def or_else(self, n: int):
        """states(n) of the other optimizer, with its own state alone."""
        first = self.initial()
        second = jax.device_put(jnp.bool_(True), self.layout.replicated)
        states, metrics = self.states(n, first._replace(opt=first.opt._replace(second=second)))
        return [s._replace(opt=s.opt.states[1]) for s in states], metrics

    def states(self, n: int, state=None):
        """(host copies of every state but the last, and that; metrics of each step)."""
        state = self.initial() if state is None else state
        states, metrics = [], []
        with jax.set_mesh(self.layout.mesh):
            for i in range(n):
                state, found = jax.block_until_ready(self.step(state, self.batches[i]))
                metrics.append({k: float(v) for k, v in found.items()})
                states.append(state if i + 1 == n else jax.device_get(state))
        return states, metrics


def trees_close(got, want, relative_to_max):
    jax.tree.map(lambda a, b: close(a, b, relative_to_max), got, want)


# Every data axis with every accumulation; half of them again, fully sharded or not, in the full
# product that `make test-layouts` runs.
LAYOUTS = [
    pytest.param(
        data,
        accumulate,
        fully_sharded,
        marks=[] if fully_sharded == (data * accumulate in (2, 8, 64)) else pytest.mark.layouts,
    )
    for data in (1, 2, 4, 8)
    for accumulate in (1, 2, 4, 8)
    for fully_sharded in (False, True)
    if data * accumulate > 1
]


@pytest.fixture(scope="module")
def one_device():
    return Run(config(MeshConfig())).gradients()


def test_the_loss_is_the_twins_mean_over_valid_tokens(one_device):
    first = batch(0)
    params = Run(config(MeshConfig())).initial().params
    total = numpy_model.loss(MODEL, params, first.inputs, first.targets, first.weights)
    loss, gradients, n_valid = one_device
    assert n_valid == first.weights.sum() > 0
    assert float(loss) == pytest.approx(total / first.weights.sum(), rel=1e-6)
    assert all(np.asarray(g).any() for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("data, accumulate, fully_sharded", LAYOUTS)
def test_gradients_equal_one_devices(one_device, data, accumulate, fully_sharded):
    run = Run(config(MeshConfig(data=data, fully_sharded=fully_sharded), accumulate))
    loss, gradients, n_valid = run.gradients()
    want_loss, want, want_valid = one_device
    assert float(loss) == pytest.approx(float(want_loss), rel=1e-6)
    assert float(n_valid) == float(want_valid)
    trees_close(gradients, want, 3e-6)
    row = flatten(run.model.table)["blocks/ffn/up"]
    up = gradients["blocks"]["ffn"]["up"]
    assert up.sharding.is_equivalent_to(run.layout.param("up", row), up.ndim)
    assert up.addressable_shards[0].data.size == up.size // (data if fully_sharded else 1)


STEPPED = [(8, 1, True), (2, 4, True), (4, 2, False)]


@pytest.fixture(scope="module")
def stepped():
    run = Run(config(MeshConfig()), or_else="sgd")
    return run.steps(4)[1], run.or_else(2)[0][-1]


@pytest.mark.parametrize("data, accumulate, fully_sharded", STEPPED)
def test_next_losses_and_state_equal_one_devices(stepped, data, accumulate, fully_sharded):
    want_metrics, want_state = stepped
    mesh = MeshConfig(data=data, fully_sharded=fully_sharded)
    run = Run(config(mesh, accumulate), or_else="sgd")
    state, metrics = run.steps(4)
    for got, want in zip(metrics, want_metrics, strict=True):
        assert got == pytest.approx(want, rel=1e-5)
    count = state.opt.states[0][0].count
    assert int(state.step) == int(count) == 4  # once a step, not a micro-batch
    declared = train_state.abstract(run.model.table, run.tx, run.layout)
    for x, d in zip(jax.tree.leaves(state), jax.tree.leaves(declared), strict=True):
        assert (x.shape, x.dtype) == (d.shape, d.dtype)
        assert x.sharding.is_equivalent_to(d.sharding, x.ndim)
    trees_close(run.or_else(2)[0][-1], want_state, 5e-6)


def test_two_optimizers_in_one_step_are_those_of_a_step_each(stepped):
    metrics, state = stepped
    trees_close(Run(config(MeshConfig(), optimizer="sgd")).steps(2)[0], state, 1e-6)
    alone = [m["loss"] for m in Run(config(MeshConfig())).steps(2)[1]]
    assert alone == pytest.approx([m["loss"] for m in metrics[:2]], rel=1e-6)


def test_matrix_optimizers_steps_equal_one_devices():
    two, one = (Run(config(MeshConfig(n), optimizer="muon"), or_else="adafactor") for n in (2, 1))
    for found, wanted in ((two.states(2), one.states(2)), (two.or_else(2), one.or_else(2))):
        for got, want in zip(found[1], wanted[1], strict=True):
            assert got == pytest.approx(want, rel=1e-5)


def test_bytes_per_device_fall_with_the_devices():
    def bytes_on_first(data, fully_sharded):
        run = Run(config(MeshConfig(data=data, fully_sharded=fully_sharded)))
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(run.initial()))

    whole = bytes_on_first(1, True)
    rows = flatten(Run(config(MeshConfig())).model.table).values()
    norms = 3 * sum(4 * math.prod(row.shape) for row in rows if row.std is None)
    kept = norms + 2 * 4  # everywhere: norms with their moments, the step and Adam's count
    for data in (2, 4, 8):
        assert bytes_on_first(data, False) == whole
        assert bytes_on_first(data, True) - kept == (whole - kept) // data


def test_a_batch_without_valid_tokens_changes_nothing():
    run = Run(config(MeshConfig(), weight_decay=0.0, optimizer="sgd"))
    state, before = run.initial(), run.initial()
    empty = batch(0)._replace(weights=np.zeros((ROWS, T), np.float32))
    state, metrics = jit_step(run.c, run.model, run.tx, 10, run.layout)(state, empty)
    assert (metrics["loss"], metrics["grad_norm"], metrics["clip"]) == (0, 0, 1)
    jax.tree.map(np.testing.assert_array_equal, state.params, before.params)


def test_gradients_summed_as_one_array_have_the_same_bits():
    layout = make_layout(MeshConfig(data=2, model=2, pipe=2))
    rng = np.random.default_rng(0)
    specs = {"a": P(), "b": P(None, MODEL_AXIS), "c": P("pipe"), "d": P(), "whole": P()}
    grads = {
        name: rng.normal(size=(2, 4) if name in "bc" else (5,)).astype(np.float32) for name in specs
    }
    grads["d"] = grads["d"].reshape(5, 1)

    def summed(as_one: bool):
        def own(tree):  # of each device its own, but one that is the same on all
            place = sum((i + 2) * axis_index(a) for i, a in enumerate(layout.mesh.axis_names))
            mine = jax.tree.map(lambda g: g * (1 + jnp.float32(place)), varying(tree))
            return reduced(mine | {"whole": tree["whole"]}, specs, "bfloat16", as_one)

        return jax.jit(layout.on_devices(own, (specs,), specs))

    with jax.set_mesh(layout.mesh):
        jax.tree.map(np.testing.assert_array_equal, summed(True)(grads), summed(False)(grads))
        texts = [summed(as_one).lower(grads).as_text() for as_one in (True, False)]
    assert [text.count("stablehlo.all_reduce") for text in texts] == [3, 4]
    assert not layout.over_sockets


def test_clip_factor():
    clip = lambda norm, limit: float(clip_factor(jnp.float32(norm), limit))
    assert clip(0.0, 1.0) == clip(0.5, 1.0) == clip(1.0, 1.0) == clip(9.0, None) == 1.0
    assert clip(4.0, 1.0) == 0.25
    assert clip(8.0, 2.0) == 0.25


def test_clipping_uses_the_logged_float32_norm(one_device):
    # Plain gradient descent, so that the change of the parameters is lr x clip x gradient.
    o = OptimConfig("sgd", 0.5, "constant", warmup_fraction=0, b1=0, weight_decay=0, clip_norm=0.01)
    run = Run(dataclasses.replace(config(MeshConfig()), optim=o))
    before = run.initial().params
    state, (metrics,) = run.steps(1)
    flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]).astype(float)
    norm = np.linalg.norm(flat(one_device[1]))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-6) and norm > 0.01
    assert metrics["clip"] == pytest.approx(0.01 / norm, rel=1e-6)
    change = flat(before) - flat(state.params)
    close(change, 0.5 * 0.01 / norm * flat(one_device[1]), 1e-4)


def test_bfloat16_compute_leaves_state_and_metrics_in_float32():
    c = dataclasses.replace(config(MeshConfig(), 2), precision=PrecisionConfig("bfloat16"))
    run = Run(c)
    step = make_step(c, run.model, run.tx, 10, run.layout)
    state, metrics = jax.eval_shape(step, run.initial(), batch(0))
    dtypes = {x.dtype for x in jax.tree.leaves((state.params, metrics))}
    assert dtypes == {jnp.dtype("float32")}
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(lambda x: x.dtype, run.initial())
    batches = [batch(0).inputs, None, None]
    assert jax.eval_shape(run.model.hidden, state.params, *batches).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "mesh, pipeline",
    [
        (MeshConfig(2, 2), PipelineConfig()),
        pytest.param(MeshConfig(2, 2, 2), PipelineConfig("1f1b", 1), marks=pytest.mark.layouts),
    ],
)
def test_dropout_differs_between_devices(mesh, pipeline):
    model = dataclasses.replace(MODEL, dropout=0.5, n_layers=mesh.pipe, n_kv_heads=2)
    c = Config(model, train=TrainConfig(2, steps=1), mesh=mesh, pipeline=pipeline)
    r = Run(c)
    rows = Batch(*(np.broadcast_to(x[7:8], (2, T)) for x in batch(0)[:3]))
    compute = jax.jit(make_gradients(r.model, c, r.layout))
    params, key = r.initial().params, jax.random.key(0)

    def loss(of: int) -> float:  # of one device's row alone: the rows are equal
        weights = np.zeros((2, T), np.float32)
        weights[of] = 1
        with jax.set_mesh(r.layout.mesh):
            return float(compute(params, rows._replace(weights=weights), key).loss)

    assert loss(0) == loss(0) != loss(1)
    names = (DATA, MODEL_AXIS)
    bits = lambda key: jax.random.key_data(own_key(key))[None]
    keys = r.layout.on_devices(bits, P(), P(names))(key)
    assert len(np.unique(keys, axis=0)) == 4


def test_dropout_differs_by_step_and_repeats_with_the_state():
    model = dataclasses.replace(MODEL, dropout=0.5)
    run = Run(config(MeshConfig(), 2, model, learning_rate=1e-12))
    step = jit_step(run.c, run.model, run.tx, 10, run.layout)
    state, first = step(run.initial(), batch(0))
    _, second = step(state, batch(0))
    _, again = step(run.initial(), batch(0))
    assert float(first["loss"]) == float(again["loss"])
    assert abs(float(first["loss"]) - float(second["loss"])) > 1e-4


def test_a_grown_batch_multiplies_the_rate_by_the_stated_rule():
    for rule, factor in (("sqrt", 2.0), ("linear", 4.0), ("constant", 1.0)):
        c = config(MeshConfig())
        c = dataclasses.replace(c, train=dataclasses.replace(c.train, batch_growth_lr=rule))
        assert growth_factor(c, 4 * ROWS) == factor and growth_factor(c, ROWS) == 1.0
