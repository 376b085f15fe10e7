"""Causal attention: multi-head, grouped-query (Ainslie et al. 2023), multi-query (Shazeer 2019).

Every way of computing it has the signature attend(q_BTNH, k_BSKH, v_BSKH, segments_BT) -> BTNH with
N = G K query heads. Scores, softmax and sums are float32; a query sees keys up to its own position
and, when segments are given, only those of its own segment.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from lm.collectives import axis_index, axis_size
from lm.config import ModelConfig
from lm.layout import MODEL
from lm.model import fused
from lm.model.linear import linear
from lm.model.spec import ParamSpec, Table
from lm.precision import wide

MASKED = -1e9  # finite: a masked score gives exp(...) = 0 and never NaN
MIN_BLOCK, MAX_BLOCKS = 64, 16  # query rows a block; more rows once there would be more blocks
SCOPE = "attend"  # jax.named_scope of scores, softmax and weighted values: launch.compile counts it

Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None], jax.Array]


def table(m: ModelConfig, out_std: float) -> Table:
    """Returns the rows of one attention layer; out_std is the deviation of the residual output."""
    d, n, k, h = m.d_model, m.n_heads, m.kv_heads, m.head_dim
    rows = {
        "query": ParamSpec((d, n, h), ("embed", "heads", None), std=m.init_std),
        "key": ParamSpec((d, k, h), ("embed", "kv_heads", None), std=m.init_std),
        "value": ParamSpec((d, k, h), ("embed", "kv_heads", None), std=m.init_std),
        "out": ParamSpec((n, h, d), ("heads", None, "embed"), std=out_std, n_in=2),
    }
    if m.use_bias:
        rows["query_bias"] = ParamSpec((n, h), ("heads", None))
        rows["key_bias"] = ParamSpec((k, h), ("kv_heads", None))
        rows["value_bias"] = ParamSpec((k, h), ("kv_heads", None))
        rows["out_bias"] = ParamSpec((d,), ("embed",))
    if m.qk_norm:
        rows["query_norm"] = ParamSpec((h,), (None,), fill=1.0)
        rows["key_norm"] = ParamSpec((h,), (None,), fill=1.0)
    return rows


def project_qkv(
    m: ModelConfig, p: Mapping[str, jax.Array], x_BTD: jax.Array, product: str = "compute"
) -> tuple[jax.Array, ...]:
    """Returns (q_BTNH, k_BTKH, v_BTKH) before positions: this model device's heads."""

    def projected(name: str) -> jax.Array:
        w, bias = p[name], p.get(f"{name}_bias")
        if name != "query":
            w, bias = _own_heads(m, w, 1), bias if bias is None else _own_heads(m, bias, 0)
        return linear(x_BTD, w, bias, product=product)

    k, v = projected("key"), projected("value")
    return projected("query"), k, v


def _own_heads(m: ModelConfig, w: jax.Array, dim: int) -> jax.Array:
    """Returns the key-value heads of this device's queries, from all where devices outnumber them.

    Each device's gradient is what its own queries add; the sum over devices counts each once.
    """
    size = axis_size(MODEL)
    if size == 1 or m.kv_heads % size == 0:
        return w
    return jax.lax.dynamic_slice_in_dim(w, axis_index(MODEL) * m.kv_heads // size, 1, dim)


def project_out(
    p: Mapping[str, jax.Array], y_BTNH: jax.Array, product: str = "compute"
) -> jax.Array:
    """Returns the attention output [B, T, D] of these heads, before the bias."""
    return linear(y_BTNH, p["out"], n_in=2, product=product)


def plain(q_BTNH, k_BSKH, v_BSKH, segments_BT=None) -> jax.Array:
    """The definition: softmax(q k' / sqrt(H)) v with all scores written out."""
    t = q_BTNH.shape[1]
    mask = np.tril(np.ones((t, t), bool))[None]
    if segments_BT is not None:
        mask = mask & (segments_BT[:, :, None] == segments_BT[:, None, :])
    return _softmax_attention(q_BTNH, k_BSKH, v_BSKH, mask)


def cached(q_BTNH, k_BSKH, v_BSKH, start) -> jax.Array:
    """Attention of T new positions beginning at `start` over a cache of S keys."""
    t, s = q_BTNH.shape[1], k_BSKH.shape[1]
    mask = jnp.arange(s)[None, :] <= start + jnp.arange(t)[:, None]
    return _softmax_attention(q_BTNH, k_BSKH, v_BSKH, mask[None])


def _softmax_attention(q_BTNH, k_BSKH, v_BSKH, mask_BTS) -> jax.Array:
    b, t, n, h = q_BTNH.shape
    k = k_BSKH.shape[2]
    q_BTKGH = (q_BTNH * h**-0.5).reshape(b, t, k, n // k, h)
    scores = jnp.einsum(
        "BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=wide(q_BTNH.dtype)
    )
    weights = jax.nn.softmax(jnp.where(mask_BTS[:, None, None], scores, MASKED), -1)
    y = jnp.einsum("BKGTS,BSKH->BTKGH", weights.astype(v_BSKH.dtype), v_BSKH)
    return y.reshape(b, t, n, h)


def blocked(q_BTNH, k_BSKH, v_BSKH, segments_BT=None) -> jax.Array:
    """The same by blocks of query rows that skip the keys after them, with a written-out gradient.

    Half the work of `plain` and no second softmax in the backward pass: it keeps exp(scores) and
    the row sums. Measured fastest on CPUs, where no fused kernel exists.
    """
    b, t, n, h = q_BTNH.shape
    k = k_BSKH.shape[2]
    # Heads of one group share their keys: their queries are rows of one product.
    q = (q_BTNH * h**-0.5).reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    y = _blocked(q, k_BSKH.transpose(0, 2, 1, 3), v_BSKH.transpose(0, 2, 1, 3), segments_BT)
    return y.transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


# Products over batch dimensions (B, K): rows x width with keys x width, rows x keys with keys x
# width, and both summed over rows.
_ROWS_KEYS = (((3,), (3,)), ((0, 1), (0, 1)))
_KEYS_WIDTH = (((3,), (2,)), ((0, 1), (0, 1)))
_OVER_ROWS = (((2,), (2,)), ((0, 1), (0, 1)))


def _blocks(t: int) -> list[tuple[int, int]]:
    size = max(MIN_BLOCK, -(-t // MAX_BLOCKS))
    return [(i, min(i + size, t)) for i in range(0, t, size)]


def share_computed(name: str, t: int) -> float:
    """Returns which part of the T x T scores a way of computing attention forms.

    Of kernels the causal half: they also form what a block on the diagonal has above it.
    """
    if name == "blocked":
        return sum((j - i) * j for i, j in _blocks(t)) / t**2
    return 1.0 if name == "plain" else 0.5


def _rows(x_BKGTH: jax.Array, i: int, j: int) -> jax.Array:
    b, k, g, _, h = x_BKGTH.shape
    return x_BKGTH[:, :, :, i:j].reshape(b, k, g * (j - i), h)


def _block_mask(i: int, j: int, groups: int, segments_BT: jax.Array | None):
    causal = np.arange(i, j)[:, None] >= np.arange(j)[None, :]
    if segments_BT is None:
        return np.tile(causal, (groups, 1))
    same = segments_BT[:, i:j, None] == segments_BT[:, None, :j]
    return jnp.tile(causal & same, (1, groups, 1))[:, None]


@jax.custom_vjp
def _blocked(q_BKGTH, k_BKSH, v_BKSH, segments_BT):
    return _blocked_fwd(q_BKGTH, k_BKSH, v_BKSH, segments_BT)[0]


def _blocked_fwd(q_BKGTH, k_BKSH, v_BKSH, segments_BT):
    b, k, g, t, h = q_BKGTH.shape
    dtype, f32 = q_BKGTH.dtype, wide(q_BKGTH.dtype)
    outs, exps, inverse_sums = [], [], []
    for i, j in _blocks(t):
        scores = jax.lax.dot_general(
            _rows(q_BKGTH, i, j), k_BKSH[:, :, :j], _ROWS_KEYS, preferred_element_type=f32
        )
        scores = jnp.where(_block_mask(i, j, g, segments_BT), scores, MASKED)
        e = jnp.exp(scores - scores.max(-1, keepdims=True))
        z = 1.0 / e.sum(-1, keepdims=True)
        e = e.astype(dtype)
        y = jax.lax.dot_general(e, v_BKSH[:, :, :j], _KEYS_WIDTH, preferred_element_type=f32)
        outs.append((y * z).astype(dtype))
        exps.append(e)
        inverse_sums.append(z)
    y = jnp.concatenate([o.reshape(b, k, g, -1, h) for o in outs], 3)
    return y, (q_BKGTH, k_BKSH, v_BKSH, segments_BT, exps, inverse_sums, outs)


def _blocked_bwd(saved, dy_BKGTH):
    q, k, v, _, exps, inverse_sums, outs = saved
    b, kv, g, t, h = q.shape
    f32 = wide(q.dtype)
    dq, dk, dv = [], jnp.zeros(k.shape, f32), jnp.zeros(v.shape, f32)
    for n, (i, j) in enumerate(_blocks(t)):
        dy = (_rows(dy_BKGTH, i, j) * inverse_sums[n]).astype(q.dtype)
        # d scores = weights (dw - sum over keys of weights dw); the sum is dy . y.
        dot = (dy.astype(f32) * outs[n].astype(f32)).sum(-1, keepdims=True)
        dw = jax.lax.dot_general(dy, v[:, :, :j], _ROWS_KEYS, preferred_element_type=f32)
        ds = (exps[n].astype(f32) * (dw - dot)).astype(q.dtype)
        dq.append(jax.lax.dot_general(ds, k[:, :, :j], _KEYS_WIDTH).reshape(b, kv, g, j - i, h))
        rows = _rows(q, i, j)
        dk = dk.at[:, :, :j].add(
            jax.lax.dot_general(ds, rows, _OVER_ROWS, preferred_element_type=f32)
        )
        dv = dv.at[:, :, :j].add(
            jax.lax.dot_general(exps[n], dy, _OVER_ROWS, preferred_element_type=f32)
        )
    return jnp.concatenate(dq, 3), dk.astype(k.dtype), dv.astype(v.dtype), None


_blocked.defvjp(_blocked_fwd, _blocked_bwd)

ATTENTION: Mapping[str, Attend] = {
    "blocked": blocked,
    "plain": plain,
    "splash": fused.splash,
    "cudnn": fused.cudnn,
}
