"""Token embedding, learned positions and the head: the parameters that know the vocabulary."""

import jax
import jax.numpy as jnp

from lm.collectives import axis_index, axis_size, scatter_time
from lm.config import ModelConfig
from lm.layout import MODEL
from lm.model.spec import ParamSpec, Table


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


def look_up(embedding_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
    """Returns float32 [B, T, D]: each token's row. Its gradient adds up in float32.

    With the vocabulary split over `model`, each device gives the rows it has and the sum over
    devices is scattered over time.
    """
    rows_VD = embedding_VD.astype(jnp.float32)
    if axis_size(MODEL) == 1:
        return rows_VD[tokens_BT]
    n_rows = rows_VD.shape[0]
    own_BT = tokens_BT - axis_index(MODEL) * n_rows
    here = (own_BT >= 0) & (own_BT < n_rows)
    x_BTD = jnp.where(here[..., None], rows_VD[jnp.where(here, own_BT, 0)], 0)
    return scatter_time(x_BTD)
