"""What a step can do besides: z-loss, soft-cap, average, norms by layer; alike on every layout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_layouts import MODELS, batch, config
from test_step import Run, trees_close

from lm.config import LogConfig, MeshConfig, PipelineConfig, TrainConfig
from lm.train.step import make_evaluate

OPTIONS = dict(z_loss=0.01, ema_decay=0.5, spike=50.0, spike_window=1, on_nonfinite="skip")


def run(mesh: MeshConfig, name: str = "gqa", pipeline=None, accumulate: int = 1) -> Run:
    c = config(mesh, "sgd", pipeline=pipeline, n_layers=4, logit_softcap=2.0, **MODELS[name])
    optim = dataclasses.replace(c.optim, **OPTIONS)
    train = TrainConfig(c.train.batch_size, accumulate, steps=10)
    c = dataclasses.replace(c, optim=optim, log=LogConfig(layer_norms=True), train=train)
    return Run(c, [batch(i, True) for i in range(3)])


@pytest.fixture(scope="module")
def one_device():
    return run(MeshConfig()).steps(2)


LAYOUTS = [
    (MeshConfig(2, 2, 2), PipelineConfig("1f1b", 2, 1, False), 1),
    pytest.param(MeshConfig(4, 2), None, 2, marks=pytest.mark.layouts),
    pytest.param(
        MeshConfig(2, 1, 2), PipelineConfig("interleaved", 4, 2), 1, marks=pytest.mark.layouts
    ),
    pytest.param(
        MeshConfig(1, 2, 4), PipelineConfig("zero_bubble", 4, 1), 1, marks=pytest.mark.layouts
    ),
]


@pytest.mark.parametrize("mesh, pipeline, accumulate", LAYOUTS)
def test_options_are_alike_on_every_layout(one_device, mesh, pipeline, accumulate):
    state, metrics = run(mesh, pipeline=pipeline, accumulate=accumulate).steps(2)
    want_state, want = one_device
    for got, expected in zip(metrics, want, strict=True):
        assert got == pytest.approx(expected, rel=2e-5)
    shaped = lambda got, want: np.asarray(got).reshape(np.shape(want))
    trees_close(jax.tree.map(shaped, state, want_state), want_state, 2e-5)


def test_the_numbers_of_a_row_are_those_of_the_definition(one_device):
    _, (first, _) = one_device
    r = run(MeshConfig())
    params, rows, m = r.initial().params, r.batches[0], r.model
    hidden = m.hidden(params, rows.inputs, rows.segments, rows.positions)
    logits = m.logits(params, hidden)
    assert float(jnp.abs(logits).max()) <= 2.0
    lse = np.asarray(jax.nn.logsumexp(logits, -1))
    mean = lambda x: float((x * rows.weights).sum() / rows.weights.sum())
    hit = np.take_along_axis(np.asarray(logits), rows.targets[..., None], 2)[..., 0]
    assert first["loss"] == pytest.approx(mean(lse - hit), rel=1e-5)  # without the z-loss
    assert first["z_loss"] == pytest.approx(0.01 * mean(lse**2), rel=1e-5)
    nats = make_evaluate(m, r.c, r.layout)(params, rows)
    assert float(nats) / rows.weights.sum() == pytest.approx(first["loss"], rel=1e-6)
    # Outputs of the layers, one by one.
    x = m.embed(params, rows.inputs, rows.positions)
    context = m.context(rows.inputs, rows.segments, rows.positions)
    for i in range(4):
        x = m.layer(jax.tree.map(lambda w, i=i: w[i], params["blocks"]), x, context)
        rms = float(jnp.sqrt(jnp.square(x).mean()))
        assert first[f"activation_rms/layer_{i}"] == pytest.approx(rms, rel=1e-5)
    of_all = [v**2 for k, v in first.items() if k.startswith("grad_norm/")]
    assert len(of_all) == 4 + len(params) - 1
    assert first["grad_norm"] ** 2 == pytest.approx(sum(of_all), rel=1e-5)
