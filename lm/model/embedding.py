"""Token and n-gram embedding, learned positions and the head: what knows the vocabulary."""

import jax
import jax.numpy as jnp
from jax import lax

from lm.collectives import axis_index, axis_size, scatter_time, whole
from lm.config import ModelConfig
from lm.layout import DATA, MODEL
from lm.model.spec import ParamSpec, Table
from lm.precision import wide


def table(m: ModelConfig) -> Table:
    """Returns the rows of the embeddings, of learned positions and of an untied head."""
    d, v = m.d_model, m.padded_vocab
    padding = m.vocab_size if m.vocab_size != v else None
    vocab = ParamSpec((v, d), ("vocab", "embed"), std=m.init_std, zero_rows_from=padding)
    rows: Table = {"embedding": vocab}
    if m.position == "learned":
        rows["positions"] = ParamSpec((m.max_length, d), ("position", "embed"), std=m.init_std)
    if m.ngram_order > 1:  # zeros: a matrix like the others, which adds nothing at first
        rows["ngrams"] = ParamSpec((m.ngram_rows, d), ("vocab", "embed"), std=0.0)
    if not m.tie_embeddings:
        rows["head"] = vocab
    return rows


def ngram_ids(m: ModelConfig, tokens_BT, positions_BT=None, before_BC=None) -> jax.Array:
    """Returns [B, T, ngram_order - 1]: the rows of the 2-gram, 3-gram, ... that end in each token.

    Each is a hash of the last tokens of the document (N-Grammer, Roy et al. 2022; over-encoding,
    Huang et al. 2025, arXiv 2501.16975); where fewer stand before, a mark takes their places.
    before_BC: tokens in front of the given ones; positions_BT then says how many of them count.
    """
    text_BS = tokens_BT if before_BC is None else jnp.concatenate([before_BC, tokens_BT], 1)
    n, n_before = tokens_BT.shape[1], text_BS.shape[1] - tokens_BT.shape[1]
    place = jnp.arange(n) if positions_BT is None else positions_BT
    ids, hashed = [], tokens_BT.astype(jnp.uint32)
    for back in range(1, m.ngram_order):
        moved = jnp.pad(text_BS, ((0, 0), (back, 0)))[:, n_before : n_before + n]
        earlier = jnp.where(place >= back, moved + 1, 0)
        hashed = _mixed(hashed) + earlier.astype(jnp.uint32)
        ids.append((_mixed(hashed) % m.ngram_rows).astype(jnp.int32))
    return jnp.stack(ids, -1)


def _mixed(x: jax.Array) -> jax.Array:
    """MurmurHash3's final mixing of 32 bits: every bit of x changes half of the result's."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def look_up(p: jax.Array, row: ParamSpec, ids_BT: jax.Array, compute: str, reduce: str):
    """Returns [B, T, D] of ids [B, T] or [B, T, n]: their rows, or the sums of n rows.

    The gradient adds up in float32. With the vocabulary split over `model`, each device gives the
    rows it has and the sum over devices is scattered over time. With the width split over `data`,
    what is smaller crosses devices: the table, or every device's columns of what each token finds.
    """
    split, n_tokens = row.shape[1] != p.shape[1], ids_BT.shape[0] * ids_BT.shape[1]
    if split and n_tokens > p.shape[0]:
        p, split = whole(p, row, compute, reduce), False
    ids = lax.all_gather(ids_BT, DATA) if split else ids_BT
    x = _own_rows(p.astype(wide(compute)), ids)
    if ids_BT.ndim > 2:
        x = x.sum(-2)
    if split:
        x = lax.all_to_all(x.astype(compute), DATA, 0, x.ndim - 1, tiled=True)[0]
    return scatter_time(x)


def _own_rows(rows_VD: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns [..., D]: the ids' rows, zeros where another device of `model` has them."""
    if axis_size(MODEL) == 1:
        return rows_VD[ids]
    own = ids - axis_index(MODEL) * rows_VD.shape[0]
    here = (own >= 0) & (own < rows_VD.shape[0])
    return jnp.where(here[..., None], rows_VD[jnp.where(here, own, 0)], 0)
