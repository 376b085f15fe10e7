"""The decoder-only transformer. The one file that knows the module API (Flax NNX).

Modules hold parameters and say how they combine. `build` splits them once into a static graph and
the table of a plain nested dict; everything outside handles that dict and pure functions of it.
Layers are stacked: each block parameter has a leading layer axis, scanned over or unrolled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import config as flax_config
from flax import nnx

from lm.config import ModelConfig
from lm.layout import shard
from lm.model import attention, ffn, norm, position
from lm.model.spec import ParamSpec, Table

flax_config.update("flax_always_shard_variable", False)  # shardings are pinned where jit is called

Params = dict[str, Any]


class Rope(NamedTuple):
    cos: jax.Array  # float32 [T, H/2] or [B, T, H/2]
    sin: jax.Array


def table(m: ModelConfig) -> Table:
    """Returns the rows of every parameter, nested like the parameters themselves."""
    d, v = m.d_model, m.padded_vocab
    padding = m.vocab_size if m.vocab_size != v else None
    vocab = ParamSpec((v, d), ("vocab", "embed"), std=m.init_std, zero_rows_from=padding)
    rows: Table = {"embedding": vocab}
    if m.position == "learned":
        rows["positions"] = ParamSpec((m.max_length, d), ("position", "embed"), std=m.init_std)
    if not m.tie_embeddings:
        rows["head"] = vocab
    out_std = m.init_std / (2 * m.n_layers) ** 0.5  # GPT-2's: keeps the residual sum's size
    block: Table = {
        "attention": attention.table(m, out_std),
        "attention_norm": norm.table(m),
        "ffn": ffn.table(m, out_std),
        "ffn_norm": norm.table(m),
    }
    rows["blocks"] = {
        part: {name: row.stacked(m.n_layers) for name, row in group.items()}
        for part, group in block.items()
    }
    if m.norm_position == "pre":
        rows["final_norm"] = norm.table(m)
    return rows


class Group(nnx.Module):
    """Parameters of one part of the model, named as in its table."""

    def __init__(self, rows: Table):
        for name, row in rows.items():
            setattr(self, name, _declare(row))

    def values(self) -> dict[str, jax.Array]:
        return {k: v[...] for k, v in vars(self).items() if isinstance(v, nnx.Param)}


class Norm(Group):
    def __init__(self, m: ModelConfig, rows: Table):
        super().__init__(rows)
        self.kind, self.eps = m.norm, m.norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        p = self.values()
        return norm.normalize(self.kind, x, p["scale"], p.get("bias"), self.eps)


class Block(nnx.Module):
    """Attention and FFN, each a residual branch with its norm before or after."""

    def __init__(self, m: ModelConfig, rows: Table):
        self.m = m
        self.attention, self.ffn = Group(rows["attention"]), Group(rows["ffn"])
        self.attention_norm = Norm(m, rows["attention_norm"])
        self.ffn_norm = Norm(m, rows["ffn_norm"])

    def __call__(self, x_BTD: jax.Array, rope: Rope | None, attend: Callable, drop: Callable):
        """Returns (x_BTD, aux) where attend(q, k, v) returned (attention output, aux)."""
        m, p = self.m, self.attention.values()
        h = self.attention_norm(x_BTD) if m.norm_position == "pre" else x_BTD
        q, k, v = attention.project_qkv(p, h)
        if m.qk_norm:
            q = norm.normalize("rmsnorm", q, p["query_norm"], None, m.norm_eps)
            k = norm.normalize("rmsnorm", k, p["key_norm"], None, m.norm_eps)
        if rope is not None:
            q, k = position.rotate(q, *rope), position.rotate(k, *rope)
        y_BTNH, aux = attend(q, k, v)
        x_BTD = self._add(x_BTD, drop(attention.project_out(p, y_BTNH), 0), self.attention_norm)
        h = self.ffn_norm(x_BTD) if m.norm_position == "pre" else x_BTD
        y_BTD = ffn.feed_forward(m, self.ffn.values(), h)
        return self._add(x_BTD, drop(y_BTD, 1), self.ffn_norm), aux

    def _add(self, x_BTD: jax.Array, branch_BTD: jax.Array, normalize: Norm) -> jax.Array:
        x_BTD = shard(x_BTD + branch_BTD, "batch", "time", "embed")
        return x_BTD if self.m.norm_position == "pre" else normalize(x_BTD)


class Transformer(nnx.Module):
    """Embedding, stacked blocks, final norm (pre-norm only), head (the embedding when tied)."""

    def __init__(self, m: ModelConfig, compute: str):
        rows = table(m)
        self.m, self.compute = m, compute
        self.embedding = _declare(rows["embedding"])
        if m.position == "learned":
            self.positions = _declare(rows["positions"])
        if not m.tie_embeddings:
            self.head = _declare(rows["head"])
        self.blocks = Block(m, rows["blocks"])
        if m.norm_position == "pre":
            self.final_norm = Norm(m, rows["final_norm"])

    def hidden(self, tokens_BT, segments_BT=None, positions_BT=None, dropout_key=None):
        m, attend = self.m, attention.ATTENTION[self.m.attention]
        graph, stacked = self._split_blocks()

        def layer(x_BTD: jax.Array, block_params: Params, key: jax.Array | None) -> jax.Array:
            block = nnx.merge(graph, block_params)
            masked = lambda q, k, v: (attend(q, k, v, segments_BT), None)
            return block(x_BTD, rope, masked, _dropout(m.dropout, key))[0]

        if m.remat:
            layer = jax.checkpoint(layer)
        x_BTD, rope = self._embed(tokens_BT, positions_BT)
        keys = None
        if dropout_key is not None and m.dropout > 0:
            keys = jax.random.split(dropout_key, m.n_layers + 1)
            x_BTD = _dropout(m.dropout, keys[-1])(x_BTD, 0)
        if m.scan_layers:
            xs = (stacked, None if keys is None else keys[:-1])
            x_BTD, _ = jax.lax.scan(lambda x, a: (layer(x, *a), None), x_BTD, xs)
        else:
            for i, block_params in enumerate(_unstack(stacked, m.n_layers)):
                x_BTD = layer(x_BTD, block_params, None if keys is None else keys[i])
        return self._final(x_BTD)

    def extend(self, tokens_BT, cache, start):
        graph, stacked = self._split_blocks()
        positions = jnp.broadcast_to(start + jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)

        def layer(x_BTD, inputs):
            block_params, k_cache, v_cache = inputs

            def attend(q, k, v):
                keys = jax.lax.dynamic_update_slice_in_dim(k_cache, k, start, 1)
                values = jax.lax.dynamic_update_slice_in_dim(v_cache, v, start, 1)
                return attention.cached(q, keys, values, start), (keys, values)

            return nnx.merge(graph, block_params)(x_BTD, rope, attend, _dropout(0.0, None))

        x_BTD, rope = self._embed(tokens_BT, positions)
        xs = (stacked, cache["key"], cache["value"])
        x_BTD, (keys, values) = jax.lax.scan(layer, x_BTD, xs)
        return self._final(x_BTD), {"key": keys, "value": values}

    def _split_blocks(self) -> tuple[nnx.GraphDef, Params]:
        graph, stacked = nnx.split(self.blocks)
        return graph, nnx.to_pure_dict(stacked)

    def _embed(self, tokens_BT, positions_BT) -> tuple[jax.Array, Rope | None]:
        m = self.m

        def rows(values) -> jax.Array:
            values = jnp.asarray(values)
            return values[: tokens_BT.shape[1]] if positions_BT is None else values[positions_BT]

        x_BTD = self.embedding[...][tokens_BT]
        if m.position == "learned":
            x_BTD = x_BTD + rows(self.positions[...])
        elif m.position == "sinusoidal":
            # Scaled as in Vaswani et al. 2017, section 3.4, or positions would drown the tokens.
            x_BTD = x_BTD * m.d_model**0.5 + rows(position.sinusoidal_table(m))
        rope = None
        if m.position == "rope":
            rope = Rope(*(rows(t) for t in position.rope_table(m)))
        return shard(x_BTD.astype(self.compute), "batch", "time", "embed"), rope

    def _final(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD) if self.m.norm_position == "pre" else x_BTD


@dataclass(frozen=True)
class Model:
    """The static half of a transformer: every method is a pure function of the parameter dict."""

    config: ModelConfig
    compute: str  # dtype of activations, and of weights inside products
    table: Table
    graph: nnx.GraphDef

    def hidden(
        self,
        params: Params,
        tokens_BT: jax.Array,
        segments_BT: jax.Array | None = None,
        positions_BT: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the normalised last hidden state [B, T, D] in the compute dtype.

        Packed rows give segments (a document number a token) and positions (restarting at 0).
        Dropout acts on embeddings and residual branches, and only when a key is given.
        """
        transformer = nnx.merge(self.graph, params)
        return transformer.hidden(tokens_BT, segments_BT, positions_BT, dropout_key)

    def extend(self, params: Params, tokens_BT: jax.Array, cache: Params, start: jax.Array):
        """Returns (hidden state [B, T, D], cache) after T more tokens at position `start`.

        cache is what `new_cache` returned, filled up to `start`; the caller sees to it that
        start + T is at most its length.
        """
        return nnx.merge(self.graph, params).extend(tokens_BT, cache, start)

    def new_cache(self, batch: int, length: int) -> Params:
        """Returns an empty key-value cache: [L, B, length, K, H] each, in the compute dtype."""
        m = self.config
        shape = (m.n_layers, batch, length, m.kv_heads, m.head_dim)
        return {name: jnp.zeros(shape, self.compute) for name in ("key", "value")}

    def head(self, params: Params) -> jax.Array:
        """Returns the output matrix [V, D], float32, V padded."""
        return params["embedding" if self.config.tie_embeddings else "head"]

    def logits(self, params: Params, hidden_BTD: jax.Array) -> jax.Array:
        """Returns float32 logits [B, T, V], V unpadded."""
        head = self.head(params)[: self.config.vocab_size].astype(hidden_BTD.dtype)
        return jnp.einsum("BTD,VD->BTV", hidden_BTD, head, preferred_element_type=jnp.float32)


def build(m: ModelConfig, compute: str) -> Model:
    """Returns the model: its parameter table and its pure functions."""
    assert m.vocab_size is not None, "the tokenizer's vocabulary is filled in before the model"
    graph, _ = nnx.split(Transformer(m, compute))
    return Model(m, compute, table(m), graph)


def _declare(row: ParamSpec) -> nnx.Param:
    return nnx.Param(jax.ShapeDtypeStruct(row.shape, jnp.float32))


def _unstack(blocks: Params, n: int) -> list[Params]:
    """Returns the parameters of each layer. lax.split, whose gradient is one concatenation."""
    leaves, treedef = jax.tree.flatten(blocks)
    split = [[part[0] for part in jax.lax.split(leaf, (1,) * n, 0)] for leaf in leaves]
    return [jax.tree.unflatten(treedef, layer) for layer in zip(*split, strict=True)]


def _dropout(rate: float, key: jax.Array | None) -> Callable[[jax.Array, int], jax.Array]:
    """Returns drop(x, i), which zeroes a share of x and scales the rest to keep its mean."""
    if key is None or rate == 0.0:
        return lambda x, i: x

    def drop(x: jax.Array, i: int) -> jax.Array:
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 1 - rate, x.shape)
        return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)

    return drop
