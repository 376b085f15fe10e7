"""Attention against its definition: by blocks, in kernels, over documents."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_model import T, close, random_batch, random_params, tiny

from lm.model import attention, fused, transformer


@pytest.mark.parametrize(
    "length, kv_heads, packed",
    [(150, 4, False), (150, 2, True), (130, 1, False), (64, 2, False), (1, 4, True)],
)
def test_blocked_attention_and_its_gradient_equal_plain(length, kv_heads, packed):
    rng = np.random.default_rng(length + kv_heads)
    q, k, v, dy = (
        jnp.float32(rng.normal(size=(2, length, n, 6))) for n in (4, kv_heads, kv_heads, 4)
    )
    segments = np.sort(rng.integers(0, 4, (2, length)), -1) if packed else None

    @jax.jit
    def both():
        results = []
        for attend in (attention.blocked, attention.plain):
            y, pull_back = jax.vjp(lambda q, k, v: attend(q, k, v, segments), q, k, v)  # noqa: B023
            results.append((y, *pull_back(dy)))
        return results

    for got, want in zip(*both(), strict=True):
        close(got, want, 5e-6)


def test_many_short_blocks_become_few_long_ones():
    blocks = attention._blocks(4096)
    assert len(blocks) == 16 and blocks[0] == (0, 256) and blocks[-1][1] == 4096
    assert attention._blocks(130) == [(0, 64), (64, 128), (128, 130)]


@pytest.mark.parametrize("attend", ["blocked", "plain"])
@pytest.mark.parametrize("position_name", ["rope", "learned", "sinusoidal", "none"])
def test_a_packed_document_is_the_same_document_alone(position_name, attend):
    m = tiny(position=position_name, attention=attend, n_kv_heads=2)
    model, params = transformer.build(m, "float32"), random_params(m)
    tokens, _, _, segments, positions = random_batch(packed=True)
    packed = model.hidden(params, tokens, segments, positions)
    for row, document in ((0, 1), (1, 0)):  # both of 11 tokens; the first starts anew at 7
        mine = segments[row] == document
        alone = model.hidden(params, tokens[row : row + 1, mine])
        close(packed[row][mine], alone[0], 5e-6)
    together = model.hidden(params, tokens)
    assert np.abs(together[:, -1] - packed[:, -1]).max() > 1e-2


@pytest.mark.parametrize("attend", ["blocked", "plain"])
def test_no_gradient_reaches_back_from_the_future_or_another_document(attend):
    m = tiny(position="learned", attention=attend, n_layers=2)
    model, params = transformer.build(m, "float32"), random_params(m)
    tokens, _, _, segments, _ = random_batch(packed=True)
    at = jnp.arange(T)[None]

    def outputs(table, segments):
        p = params | {"positions": table}
        return model.hidden(p, tokens[:1], segments, at)[0] @ jnp.arange(1.0, 17.0)

    for mask in (None, segments[:1]):
        seen = np.tril(np.ones((T, T), bool))
        if mask is not None:
            seen &= mask[0][:, None] == mask[0][None, :]
        gradient = jax.jit(jax.jacrev(outputs))(params["positions"], mask)  # [T, max_length, D]
        reached = np.abs(gradient).max(-1)[:, :T] > 0
        np.testing.assert_array_equal(reached, seen)


@pytest.mark.parametrize("kv_heads, packed", [(4, True), (2, False)])
def test_the_splash_kernel_equals_the_definition(kv_heads, packed):
    rng = np.random.default_rng(0)
    draw = lambda n: jnp.float32(rng.normal(size=(2, 128, n, 8)))
    q, k, v, by = draw(4), draw(kv_heads), draw(kv_heads), draw(4)
    segments = jnp.asarray((np.arange(128) >= 50)[None].repeat(2, 0).astype(np.int32))
    segments = segments if packed else None

    def run(attend):
        return jax.value_and_grad(lambda *qkv: (attend(*qkv, segments) * by).sum(), (0, 1, 2))

    got = run(functools.partial(fused.splash, interpret=True))(q, k, v)
    want = run(attention.plain)(q, k, v)
    jax.tree.map(lambda a, b: close(a, b, 2e-6), got, want)
