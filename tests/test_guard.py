"""Which steps count, by a rule that NumPy repeats; what the run says and when it ends."""

import dataclasses

import jax
import numpy as np
import pytest
from test_step import Run, batch, config

from lm.config import MeshConfig, OptimConfig, PrecisionConfig
from lm.errors import Diverged
from lm.optim.guard import KEPT, NOT_FINITE, SPIKE, make_guard
from lm.train import skipped
from lm.train.standing import STEPS_ABOVE_FIRST, Standing
from lm.train.step import jit_step


def test_spikes_are_judged_by_the_mean_and_deviation_of_the_steps_that_counted():
    # So few deviations that some values lie a little above the limit and some a little below.
    o = OptimConfig(spike=2.0, spike_window=8, on_nonfinite="skip")
    guard = make_guard(o, PrecisionConfig())
    judge, state = jax.jit(guard.judge), guard.init()
    rng = np.random.default_rng(0)
    losses, norms = rng.normal(3, 0.1, 40), rng.normal(1, 0.1, 40)
    losses[20], norms[25], losses[30], norms[31] = 4.0, 2.0, np.nan, np.inf
    losses[3] = 9.0  # too early to be called a spike
    kept, spikes = [], 0
    for loss, norm in zip(losses.astype(np.float32), norms.astype(np.float32), strict=True):
        verdict, state = judge(state, loss, norm)
        want = KEPT
        if not (np.isfinite(loss) and np.isfinite(norm)):
            want = NOT_FINITE
        elif len(kept) >= 8:
            window = np.float64(kept[-8:])
            limits = window.mean(0) + 2 * window.std(0)
            want = SPIKE if loss > limits[0] or norm > limits[1] else KEPT
        assert int(verdict) == want
        spikes += want == SPIKE
        kept += [(loss, norm)] if want == KEPT else []
    assert 5 < spikes < 20 and int(state.counted) == len(kept) == 38 - spikes


def test_without_a_rule_every_step_counts():
    assert make_guard(OptimConfig(), PrecisionConfig("bfloat16")) is None


def test_a_step_that_is_not_finite_leaves_everything_but_the_step_number():
    c = config(MeshConfig())
    o = dataclasses.replace(c.optim, on_nonfinite="skip", ema_decay=0.5)
    r = Run(dataclasses.replace(c, optim=o))
    step, state = jit_step(r.c, r.model, r.tx, 10, r.layout), r.initial()
    good = batch(0)
    bad = good._replace(weights=good.weights.copy())
    bad.weights[0, 0] = np.inf
    state, metrics = step(state, good)
    assert int(metrics["skipped"]) == KEPT
    before = jax.device_get(state)
    state, metrics = step(state, bad)
    assert int(metrics["skipped"]) == NOT_FINITE
    after = jax.device_get(state)
    assert (int(before.step), int(after.step)) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, after[1:], before[1:])
    state, metrics = step(state, good)
    assert int(metrics["skipped"]) == KEPT and int(state.opt[0].count) == 2


def values(verdict: int, loss: float = 2.0, norm: float = 1.0) -> dict[str, float]:
    return {"loss": loss, "grad_norm": norm, "skipped": float(verdict)}


def test_what_the_run_does_about_it(capsys):
    o, s = OptimConfig(skip_limit=3, spike=5.0), Standing()
    skipped.check(o, 1, {"loss": 2.0, "grad_norm": 1.0}, s)
    assert capsys.readouterr().err == ""
    skipped.check(o, 2, values(NOT_FINITE, norm=float("inf")) | {"loss_scale": 8.0}, s)
    said = capsys.readouterr().err
    assert "skipped: the loss is 2 and the gradient norm inf at step 2" in said
    assert "the loss scale was 8" in said and s.left_out == 1
    skipped.check(o, 3, values(SPIKE, 9.0), s)
    assert "more than 5 deviations above its mean over 128 steps" in capsys.readouterr().err
    with pytest.raises(Diverged, match="3 steps in a row were left out"):
        skipped.check(o, 4, values(SPIKE, 9.0), s)
    skipped.check(o, 5, values(KEPT), s)
    assert s.left_out == 0
    with pytest.raises(Diverged, match="optim.on_spike is stop"):
        skipped.check(dataclasses.replace(o, on_spike="stop"), 6, values(SPIKE, 9.0), s)
    for wrong in (dict(loss=float("nan")), dict(norm=float("inf"))):
        with pytest.raises(Diverged, match="at step 7: lower optim.learning_rate"):
            skipped.check(o, 7, values(KEPT, **wrong), s)


def test_a_run_diverges_against_the_first_step_that_counted():
    s = Standing()  # its first step was left out, its loss not a number
    for step, loss in enumerate([2.0, 2.0, *[3.0] * (STEPS_ABOVE_FIRST - 1)], 2):
        s.compare(step, loss)
    assert s.first_loss == 2.0
    with pytest.raises(Diverged, match="above the first step's 2.0000 for 100 steps"):
        s.compare(step + 1, 3.0)
