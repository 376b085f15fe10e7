"""Every layout trains the same model: loss, gradients, next losses and state equal one device's."""

import jax
import numpy as np
import pytest
from test_model import V, tiny
from test_step import Run, trees_close

from lm.config import (
    Config,
    MeshConfig,
    OptimConfig,
    PipelineConfig,
    PrecisionConfig,
    TrainConfig,
)
from lm.data.dataset import Batch

ROWS, T = 16, 8


def config(
    mesh: MeshConfig,
    optimizer: str = "adamw",
    compute: str = "float32",
    pipeline: PipelineConfig | None = None,
    **model,
) -> Config:
    m = dict(n_layers=2, n_heads=4, n_kv_heads=4, d_model=16, d_ff=16, vocab_multiple=8)
    return Config(
        tiny(**(m | dict(max_length=T) | model)),
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
    "mqa_bias": dict(n_kv_heads=1, use_bias=True, ffn="gelu", norm="layernorm", qk_norm=True),
    "learned_post": dict(position="learned", norm_position="post"),
    "scan_remat": dict(scan_layers=True, remat=True, tie_embeddings=False),
}


class Reference:
    """What one device computes, once a model."""

    def __init__(self):
        self.known = {}

    def __call__(self, name: str, packed: bool):
        if (name, packed) not in self.known:
            self.known[name, packed] = everything(MeshConfig(), name, packed)
        return self.known[name, packed]


def everything(mesh: MeshConfig, name: str, packed: bool, **more):
    """(loss and gradients of the first batch, losses of three AdamW steps, state after two SGD
    steps with momentum), of production code on a mesh."""
    batches = [batch(i, packed) for i in range(4)]
    adamw = Run(config(mesh, **(MODELS[name] | more)), batches)
    _, metrics = adamw.steps(4)
    sgd, _ = Run(config(mesh, "sgd", **(MODELS[name] | more)), batches).steps(2)
    return adamw.gradients(), [m["loss"] for m in metrics], sgd


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


def equal_to_one_device(got, want, run: Run | None = None):
    (loss, gradients, n_valid), losses, state = got
    (want_loss, want_gradients, want_valid), want_losses, want_state = want
    assert float(loss) == pytest.approx(float(want_loss), rel=2e-6)
    assert float(n_valid) == float(want_valid)
    trees_close(*alike(gradients, want_gradients), 2e-5)
    assert losses == pytest.approx(want_losses, rel=2e-5)
    trees_close(*alike(state, want_state), 2e-5)


@pytest.mark.parametrize("data, model, fully_sharded, name, packed", CASES)
def test_tensor_and_data_parallel(one_device, data, model, fully_sharded, name, packed):
    mesh = MeshConfig(data, model, 1, fully_sharded)
    m = {"n_heads": 8, "n_kv_heads": 2} if model == 8 else {}
    if m:
        want = everything(MeshConfig(), name, packed, **m)
    else:
        want = one_device(name, packed)
    equal_to_one_device(everything(mesh, name, packed, **m), want)


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
    more = {"n_layers": 4}
    want = everything(MeshConfig(), name, packed, **more)
    equal_to_one_device(everything(mesh, name, packed, pipeline=pipeline, **more), want)
