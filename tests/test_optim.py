"""Optimizers and schedules: what they promise, each optimizer against a float64 twin."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy_optim
import pytest
from test_model import close, tiny
from test_step import Run, batch, config

from lm.config import MeshConfig, OptimConfig, freeze, to_dict
from lm.errors import BadInput
from lm.model import transformer
from lm.model.spec import flatten
from lm.optim import groups, schedules
from lm.optim.build import OPTIMIZERS
from lm.optim.build import build as build_optimizer
from lm.optim.stale import stale
from lm.train import setup
from lm.train.state import evaluated
from lm.train.step import jit_step, make_gradients

# Optimizers

FULL = tiny(position="learned", use_bias=True, qk_norm=True, norm="layernorm", tie_embeddings=False)


def table_and_trees(seed: int = 0):
    rows = transformer.table(FULL)
    rng = np.random.default_rng(seed)
    draw = lambda row: jnp.float32(rng.normal(size=row.shape))
    trees = [jax.tree.map(draw, rows, is_leaf=lambda x: hasattr(x, "axes")) for _ in range(2)]
    return rows, *trees


def by_path(tree) -> dict[str, np.ndarray]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(k.key for k in path): np.asarray(x) for path, x in paths}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_covers_exactly_matrices_and_embeddings(optimizer):
    rows, params, _ = table_and_trees()
    tx = build_optimizer(OptimConfig(optimizer=optimizer, weight_decay=0.3), rows)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates = by_path(jax.jit(lambda p: tx.update(zeros, tx.init(p), p)[0])(params))
    matrices = {f"blocks/attention/{n}" for n in ("query", "key", "value", "out")}
    matrices |= {f"blocks/ffn/{n}" for n in ("up", "gate", "down")}
    matrices |= {"embedding", "head", "positions"}
    assert {name for name, u in updates.items() if u.any()} == matrices
    assert updates.keys() == flatten(rows).keys()
    for name, p in by_path(params).items():
        if name in matrices:
            np.testing.assert_allclose(updates[name], 0.3 * p, rtol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip_update", [None, 0.05])
def test_every_optimizer_equals_its_float64_twin(optimizer, clip_update):
    """With groups of their own rates, paths without decay and clipped updates, four steps."""
    rows, params, _ = table_and_trees()
    o = OptimConfig(
        optimizer=optimizer,
        learning_rate=0.5,
        muon_learning_rate=0.25,
        weight_decay=0.1,
        clip_update=clip_update,
        no_decay=("blocks/attention/*", "head"),
        learning_rate_factors=(("blocks/ffn/up", 3), ("blocks/ffn/*", 0.5)),
    )
    tx = build_optimizer(o, rows)
    update = jax.jit(lambda g, s, p: tx.update(g, s, p))
    twin, state = numpy_optim.Twin(o, flatten(rows)), tx.init(params)
    values = {name: p.astype(np.float64) for name, p in by_path(params).items()}
    for seed in range(4):
        gradients = table_and_trees(10 + seed)[2]
        updates, state = update(gradients, state, params)
        want = twin.updates(by_path(gradients), values)
        for name, got in by_path(updates).items():
            # Newton-Schulz steps amplify small singular values, and their rounding with them.
            close(got, want[name], 2e-4 if twin.rule(name) == "muon" else 3e-6)
        params = jax.tree.map(lambda p, u: p - 0.01 * u, params, updates)
        values = {name: p - 0.01 * want[name] for name, p in values.items()}


def test_the_table_of_groups_covers_every_parameter_and_refuses_idle_patterns():
    rows = transformer.table(FULL)
    o = OptimConfig(
        optimizer="muon", no_decay=("blocks/ffn/*",), learning_rate_factors=(("head", 0.5),)
    )
    found = groups.groups(o, rows)
    assert found.keys() == flatten(rows).keys()
    assert found["head"] == ("adamw", 0.5, True) and found["blocks/ffn/up"] == ("muon", 1.0, False)
    assert found["blocks/ffn/up_bias"] == ("adamw", 1.0, False)
    told = groups.explain(o, rows)
    assert all(any(line.startswith(name) for line in told.splitlines()) for name in found)
    for wrong in (dict(no_decay=("blocks/fnn/*",)), dict(learning_rate_factors=(("heads", 2),))):
        with pytest.raises(BadInput, match="names no parameter: the paths are embedding"):
            build_optimizer(dataclasses.replace(o, **wrong), rows)
    c = to_dict(config(MeshConfig()))
    for wrong in (dict(no_decay=[3]), dict(learning_rate_factors=[["head", -1]])):
        with pytest.raises(BadInput, match="each entry is a pa"):
            freeze(c | {"optim": c["optim"] | wrong})


def test_adamw_equals_a_float64_twin_for_three_steps():
    # Loshchilov and Hutter 2019, algorithm 2, with the clipped gradients that the step saw.
    o = OptimConfig(learning_rate=0.01, clip_norm=0.5, warmup_fraction=0.2, schedule="linear")
    run = Run(dataclasses.replace(config(MeshConfig()), optim=o))
    step = jit_step(run.c, run.model, run.tx, 10, run.layout)
    gradients = jax.jit(make_gradients(run.model, run.c, run.layout))
    state = run.initial()
    p = {k: v.astype(np.float64) for k, v in by_path(state.params).items()}
    m = {k: np.zeros_like(v) for k, v in p.items()}
    v = {k: np.zeros_like(x) for k, x in p.items()}
    decayed = {k: r.decayed for k, r in flatten(run.model.table).items()}
    for t in (1, 2, 3):
        g = {
            k: x.astype(np.float64)
            for k, x in by_path(gradients(state.params, batch(t))[1]).items()
        }
        norm = math.sqrt(sum((x**2).sum() for x in g.values()))
        lr = o.learning_rate * (t / 2 if t <= 2 else 1 - 0.9 * (t - 2) / 8)
        for k in p:
            clipped = g[k] * min(1.0, 0.5 / norm)
            m[k] = o.b1 * m[k] + (1 - o.b1) * clipped
            v[k] = o.b2 * v[k] + (1 - o.b2) * clipped**2
            direction = (m[k] / (1 - o.b1**t)) / (np.sqrt(v[k] / (1 - o.b2**t)) + o.eps)
            p[k] = p[k] - lr * (direction + o.weight_decay * decayed[k] * p[k])
        state, metrics = step(state, batch(t))
        assert float(metrics["lr"]) == pytest.approx(lr, rel=1e-6)
        for k, got in by_path(state.params).items():
            close(got, p[k], 3e-6)


def test_muon_orthogonalises_each_matrix_by_itself_and_adam_moves_the_rest():
    rows, params, gradients = table_and_trees()
    o = OptimConfig(optimizer="muon", weight_decay=0.0, learning_rate=0.5, muon_learning_rate=0.25)
    tx, adam = (
        build_optimizer(o, rows),
        build_optimizer(dataclasses.replace(o, optimizer="adamw"), rows),
    )
    update = jax.jit(lambda g: tx.update(g, tx.init(params), params)[0])
    got = by_path(update(gradients))
    adams = by_path(jax.jit(lambda g: adam.update(g, adam.init(params), params)[0])(gradients))
    hidden = {
        name: row
        for name, row in flatten(rows).items()
        if name.startswith("blocks") and row.decayed
    }
    assert len(hidden) == 7
    for name in got.keys() - hidden.keys():
        np.testing.assert_allclose(got[name], adams[name], rtol=1e-6)
    for name, row in hidden.items():
        n_in = math.prod(row.shape[1 : 1 + row.n_in])
        for layer in got[name]:
            matrix = layer.reshape(n_in, -1)
            scale = 0.5 * math.sqrt(max(1.0, matrix.shape[1] / matrix.shape[0]))
            singular = np.linalg.svd(matrix / scale, compute_uv=False)
            # Five Newton-Schulz steps with Jordan's coefficients end between 0.68 and 1.13.
            assert 0.5 < singular.min() and singular.max() < 1.25
    # Another gradient in the last layer moves the first layer not at all.
    other = jax.tree.map(lambda g: g.at[-1].multiply(-3.0), gradients["blocks"])
    changed = by_path(update(gradients | {"blocks": other}))
    for name in hidden:
        np.testing.assert_allclose(changed[name][0], got[name][0], rtol=1e-5, atol=1e-6)
        assert np.abs(changed[name][1] - got[name][1]).max() > 1e-2


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_stale_gradients_equal_a_float64_twin(optimizer):
    """Of the loss sum (p - a)^2 / 2, whose gradient follows the parameters."""
    rows, params, aims = table_and_trees()
    o = OptimConfig(optimizer=optimizer, weight_decay=0.1, staleness=2)
    tx, twin = build_optimizer(o, rows), numpy_optim.Twin(o, flatten(rows))
    update = jax.jit(lambda g, s, p: tx.update(g, s, p))
    state, values = tx.init(params), {n: p.astype(np.float64) for n, p in by_path(params).items()}
    late = []
    for step in range(7):
        gradients = jax.tree.map(jnp.subtract, params, aims)
        updates, state = update(gradients, state, params)
        params = jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)
        late.append({name: p - by_path(aims)[name] for name, p in values.items()})
        if step >= 2:
            moves = twin.updates(late[step - 2], values)
            values = {name: p - 0.1 * moves[name] for name, p in values.items()}
        for name, got in by_path(params).items():
            close(got, values[name], 3e-6)


def test_no_staleness_is_the_transform_itself():
    tx = build_optimizer(OptimConfig(), transformer.table(FULL))
    assert stale(tx, 0) is tx


def test_the_average_of_the_weights_equals_a_twin_and_is_what_is_evaluated():
    run = Run(config(MeshConfig(), ema_decay=0.3, learning_rate=0.1))
    states, _ = run.states(4)
    average = by_path(run.initial().params)
    assert evaluated(run.initial()).keys() == run.initial().params.keys()
    for step, state in enumerate(states, 1):
        d = min(0.3, (1 + step) / (10 + step))
        now = by_path(state.params)
        average = {name: d * a + (1 - d) * now[name] for name, a in average.items()}
        for name, got in by_path(evaluated(state)).items():
            close(got, average[name], 1e-6)
    plain = Run(config(MeshConfig(), learning_rate=0.1)).states(4)[0]
    assert evaluated(plain[-1]) is plain[-1].params
    jax.tree.map(np.testing.assert_array_equal, plain[-1].params, states[-1].params)


# Schedules


def rates(n: int, **optim) -> np.ndarray:
    """The learning rate of steps 1 .. n, index 0 being step 1."""
    rate = schedules.learning_rate(OptimConfig(learning_rate=2.0, **optim), n)
    return np.asarray(rate(jnp.arange(1, n + 1)), np.float64)


WARM = {"warmup_fraction": 0.1, "final_fraction": 0.25}


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_every_schedule_warms_up_in_equal_strides_to_the_peak(schedule):
    got = rates(50, schedule=schedule, **WARM)
    np.testing.assert_allclose(got[:5], 2.0 * np.arange(1, 6) / 5, rtol=1e-6)
    assert got[4] == 2.0 == got.max()
    assert got[5] < 2.0 or schedule in ("constant", "wsd")


def test_schedules_end_exactly():
    last = lambda schedule: rates(50, schedule=schedule, **WARM)[-1]
    assert last("cosine") == pytest.approx(0.5, rel=1e-6)
    assert last("linear") == pytest.approx(0.5, rel=1e-6)
    assert last("wsd") == pytest.approx(0.5, rel=1e-6)
    assert last("constant") == 2.0
    assert last("rsqrt") == pytest.approx(2.0 * math.sqrt(5 / 50), rel=1e-6)
    assert rates(500, schedule="rsqrt", warmup_fraction=0.01, final_fraction=0.25)[-1] == 0.5
    middle = {"cosine": 28, "linear": 28}  # half way: 5 + 45 / 2 = 27.5, between steps 27 and 28
    for schedule, s in middle.items():
        got = rates(50, schedule=schedule, **WARM)
        assert (got[s - 1] + got[s - 2]) / 2 == pytest.approx(1.25, rel=1e-3)


def test_wsd_holds_the_peak_and_then_falls_in_a_line():
    got = rates(50, schedule="wsd", decay_fraction=0.2, **WARM)
    assert (got[4:40] == 2.0).all()
    np.testing.assert_allclose(got[40:], 2.0 - 1.5 * np.arange(1, 11) / 10, rtol=1e-6)
    assert (rates(50, schedule="wsd", decay_fraction=0.0, **WARM)[4:] == 2.0).all()


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.02, 1.0])
def test_the_shortest_runs_have_finite_rates(schedule, n, warmup):
    got = rates(n, schedule=schedule, warmup_fraction=warmup, decay_fraction=0.0)
    assert np.isfinite(got).all() and (got > 0).all() and got.max() <= 2.0
    assert warmup == 0.0 or got[0] == pytest.approx(2.0 / max(1, math.ceil(warmup * n)))


@pytest.mark.parametrize("n, fraction, steps", [(100, 0.07, 7), (100, 0.14, 14), (1000, 0.001, 1)])
def test_a_fraction_that_makes_whole_steps_is_not_rounded_up_further(n, fraction, steps):
    got = rates(n, schedule="linear", warmup_fraction=fraction)
    assert int(got.argmax()) + 1 == steps  # 0.07 * 100 is 7.000000000000001
    got = rates(n, schedule="wsd", warmup_fraction=0.0, decay_fraction=fraction)
    assert int((got == 2.0).sum()) == n - steps


def test_warm_up_in_steps_is_the_same_for_every_length():
    for n in (20, 50):
        got = rates(n, schedule="wsd", warmup_steps=4, decay_fraction=0.2)
        np.testing.assert_allclose(got[:4], 2.0 * np.arange(1, 5) / 4, rtol=1e-6)
        assert (got[3 : n - n // 5] == 2.0).all() and got[n - n // 5] < 2.0
    assert rates(3, warmup_steps=9, schedule="linear").max() == 2.0


def test_phases_that_do_not_fit_into_the_run_are_refused_with_both_numbers():
    build = lambda **optim: setup.build(config(MeshConfig(), **optim), None)
    with pytest.raises(BadInput, match="optim.warmup_steps 11 with 10 steps: the peak would never"):
        build(warmup_steps=11)
    with pytest.raises(BadInput, match="warmup_steps 9 and .* 0.2 of 10 steps overlap"):
        build(schedule="wsd", warmup_steps=9, decay_fraction=0.2)
    assert build(schedule="wsd", warmup_steps=8, decay_fraction=0.2).horizon.steps == 10
