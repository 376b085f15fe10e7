"""Token embedding, learned positions and the head: the parameters that know the vocabulary."""

import jax
import jax.numpy as jnp
from jax import lax

from lm.collectives import axis_index, axis_size, scatter_time, whole
from lm.config import ModelConfig
from lm.layout import DATA, MODEL
from lm.model.spec import ParamSpec, Table
from lm.precision import wide


def table(m: ModelConfig) -> Table:
    """Returns the rows of the embedding, of learned positions and of an untied head."""
    d, v = m.d_model, m.padded_vocab
    padding = m.vocab_size if m.vocab_size != v else None
    vocab = ParamSpec((v, d), ("vocab", "embed"), std=m.init_std, zero_rows_from=padding)
    rows: Table = {"embedding": vocab}
    if m.position == "learned":
        rows["positions"] = ParamSpec((m.max_length, d), ("position", "embed"), std=m.init_std)
    if not m.tie_embeddings:
        rows["head"] = vocab
    return rows


def look_up(p: jax.Array, row: ParamSpec, tokens_BT: jax.Array, compute: str, reduce: str):
    """Returns [B, T, D]: each token's row of the embedding. Its gradient adds up in float32.

    With the vocabulary split over `model`, each device gives the rows it has and the sum over
    devices is scattered over time. With the width split over `data`, what is smaller crosses
    devices: the table, or every device's columns of the rows that each asks for.
    """
    split = row.shape[1] != p.shape[1]
    if split and tokens_BT.size > p.shape[0]:
        p, split = whole(p, row, compute, reduce), False
    ids = lax.all_gather(tokens_BT, DATA) if split else tokens_BT
    x = _own_rows(p.astype(wide(compute)), ids)
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
