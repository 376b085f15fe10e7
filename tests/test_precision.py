"""Number formats: float8 and the loss scale of float16 against NumPy, float64 against a twin."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
from test_model import close
from test_step import MODEL, Run, batch, config

from lm.config import MeshConfig, PrecisionConfig
from lm.precision import float8_product
from lm.train.step import jit_step, make_evaluate


def rounded(x, mantissa: int, smallest: int, largest: float):
    """x in a float of so many mantissa bits, ties to even; 2^smallest the least normal number."""
    _, exponent = np.frexp(x)
    unit = 2.0 ** (np.maximum(exponent - 1, smallest) - mantissa)
    y = np.round(x / unit) * unit
    assert np.abs(y).max() <= largest
    return y


def scaled(x, room: int, *kind):
    """x rounded in units of the power of two under which it stays below 2^room."""
    unit = 2.0 ** (np.frexp(np.abs(x).max())[1] - room)
    return rounded(np.asarray(x, np.float64) / unit, *kind) * unit


E4M3, E5M2 = (8, 3, -6, 448.0), (15, 2, -14, 57344.0)


@pytest.mark.parametrize("size", [1e-20, 1.0, 3e9])
def test_float8_products_and_their_gradients_equal_a_numpy_twin(size):
    rng = np.random.default_rng(0)
    # Over nine orders of magnitude, so that some values fall among the subnormal ones and to 0.
    draw = lambda *shape: np.float32(rng.normal(size=shape) * 10.0 ** rng.uniform(-9, 0, shape))
    x, w, g = draw(32, 48) * np.float32(size), draw(48, 16), draw(32, 16)
    y, vjp = jax.vjp(float8_product, jnp.asarray(x), jnp.asarray(w))
    dx, dw = vjp(jnp.asarray(g))
    qx, qw, qg = scaled(x, *E4M3), scaled(w, *E4M3), scaled(g, *E5M2)
    assert (qx == 0).any() and len(np.unique(np.abs(qx / x)[qx != 0].round(4))) > 50
    close(y, qx @ qw, 1e-6)
    close(dx, qg @ qw.T, 1e-6)
    close(dw, qx.T @ qg, 1e-6)
    in_bfloat16 = jnp.bfloat16(x) @ jnp.bfloat16(w)
    error = lambda got: np.abs(got - x.astype(np.float64) @ w).max()
    assert error(np.asarray(y, np.float64)) > 3 * error(np.asarray(in_bfloat16))


def test_float8_of_zeros_and_of_what_is_not_finite():
    w = jnp.ones((4, 4))
    assert not np.asarray(float8_product(jnp.zeros((4, 4)), w)).any()
    assert np.isnan(np.asarray(float8_product(jnp.full((4, 4), jnp.inf), w))).all()


def run(compute: str, mesh: MeshConfig | None = None, model=MODEL, **precision) -> Run:
    c = config(mesh or MeshConfig(), model=model)
    p = PrecisionConfig(compute, **precision)
    return Run(dataclasses.replace(c, precision=p))


def distance(got, want) -> float:
    """The largest difference over the largest value, of the worst leaf."""
    far = lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max()
    return max(jax.tree.leaves(jax.tree.map(far, got, want)))


def test_each_precision_has_the_gradients_of_float32_as_near_as_its_mantissa():
    _, exact, _ = run("float32").gradients()
    half = distance(run("float16").gradients()[1], exact)
    brain = distance(run("bfloat16").gradients()[1], exact)
    eighth = distance(run("bfloat16", matmul="float8").gradients()[1], exact)
    assert 1e-5 < half < brain < eighth < 0.5 and half < 0.01


def test_a_float8_step_multiplies_float8_and_keeps_float32_weights():
    r = run("bfloat16", matmul="float8")
    step = jit_step(r.c, r.model, r.tx, 10, r.layout)
    text = step.lower(r.initial(), batch(0)).as_text()
    dots = [line for line in text.splitlines() if "dot_general" in line]
    both = lambda a, b: any(f"x{a}>" in d.split(":")[-1] and f"x{b}>" in d for d in dots)
    assert both("f8E4M3FN", "f8E4M3FN") and both("f8E4M3FN", "f8E5M2")
    state, _ = r.steps(1)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}


def test_an_overflow_in_float16_is_skipped_halves_the_scale_and_training_goes_on():
    r = run("float16", loss_scale=2.0**24, loss_scale_steps=3)
    step, before = jit_step(r.c, r.model, r.tx, 10, r.layout), r.initial()
    state, seen = r.initial(), []
    for i in range(12):
        state, metrics = step(state, batch(i % 4))
        seen.append({k: float(v) for k, v in metrics.items()})
        count = int(state.opt[0].count)
        assert count == sum(not m["skipped"] for m in seen) and int(state.step) == i + 1
        if count == 0:
            jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
        after = float(state.guard.scale)
        if seen[-1]["skipped"]:
            assert not np.isfinite(seen[-1]["grad_norm"]) and after == seen[-1]["loss_scale"] / 2
        else:
            assert np.isfinite(seen[-1]["grad_norm"])
            assert after in (seen[-1]["loss_scale"], 2 * seen[-1]["loss_scale"])
    assert seen[0]["skipped"] == 1 and seen[0]["loss_scale"] == 2.0**24
    scales = [m["loss_scale"] for m in seen]
    assert any(b == 2 * a for a, b in zip(scales, scales[1:], strict=False))  # after 3 good steps
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert seen[-1]["loss"] < seen[0]["loss"]


def test_float64_equals_the_float64_twin():
    try:
        r = run("float64")
        jax.config.update("jax_enable_x64", True)
        loss, grads, _ = r.gradients()
        params, first = r.initial().params, batch(0)
        total = numpy_model.loss(MODEL, params, first.inputs, first.targets, first.weights)
        assert loss.dtype == jnp.float64
        # The number of valid tokens, and 1 / it, are float32.
        assert float(loss) == pytest.approx(total / first.weights.sum(), rel=1e-7)
        summed = jax.jit(make_evaluate(r.model, r.c, r.layout))(params, first)
        assert float(summed) == pytest.approx(total, rel=1e-13)
        assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.layouts
@pytest.mark.parametrize("compute, more", [("bfloat16", {"matmul": "float8"}), ("float16", {})])
@pytest.mark.parametrize("mesh", [(2, 2), (1, 2), (4, 1)])
def test_layouts_are_as_near_to_float32_as_one_device(mesh, compute, more):
    _, exact, _ = run("float32").gradients()
    alone = distance(run(compute, **more).gradients()[1], exact)
    assert distance(run(compute, MeshConfig(*mesh), **more).gradients()[1], exact) < 1.5 * alone
