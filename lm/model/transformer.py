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

from lm.collectives import (
    gather_time,
    gathers_weights,
    kept_beside_weights,
    own_time,
    scatter_time,
    whole,
)
from lm.config import ModelConfig
from lm.model import attention, embedding, ffn, norm, position
from lm.model.probe import PROBE, probed
from lm.model.spec import ParamSpec, Table
from lm.precision import wide

flax_config.update("flax_always_shard_variable", False)  # shardings are pinned where jit is called

Params = dict[str, Any]


class Rope(NamedTuple):
    cos: jax.Array  # float32 (float64 for checks) [T, H/2] or [B, T, H/2]
    sin: jax.Array


class Context(NamedTuple):
    """What every layer of one batch reads beside the activations."""

    rope: Rope | None
    segments_BT: jax.Array | None


def block_table(m: ModelConfig) -> Table:
    """Returns the rows of one layer's parameters."""
    out_std = m.init_std / (2 * m.n_layers) ** 0.5  # GPT-2's: keeps the residual sum's size
    return {
        "attention": attention.table(m, out_std),
        "attention_norm": norm.table(m),
        "ffn": ffn.table(m, out_std),
        "ffn_norm": norm.table(m),
    }


def table(m: ModelConfig, repeats: int = 1) -> Table:
    """Returns the rows of every parameter, nested like the parameters themselves."""
    rows: Table = embedding.table(m)
    rows["blocks"] = {
        part: {name: row.stacked(m.n_layers, repeats) for name, row in group.items()}
        for part, group in block_table(m).items()
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
    """Attention and FFN, each a residual branch with its norm before or after.

    Between the branches a model device holds its part of the time; inside a branch all of the time
    and its own heads or FFN columns (Shoeybi et al. 2019, Korthikanti et al. 2022).
    """

    def __init__(self, m: ModelConfig, rows: Table, product: str):
        self.m, self.product = m, product
        self.attention, self.ffn = Group(rows["attention"]), Group(rows["ffn"])
        self.attention_norm = Norm(m, rows["attention_norm"])
        self.ffn_norm = Norm(m, rows["ffn_norm"])

    def __call__(self, x_BTD: jax.Array, rope: Rope | None, attend: Callable, drop: Callable):
        """Returns (x_BTD, aux) where attend(q, k, v) returned (attention output, aux)."""
        m, p = self.m, self.attention.values()
        h = gather_time(self.attention_norm(x_BTD) if m.norm_position == "pre" else x_BTD)
        q, k, v = attention.project_qkv(m, p, h, self.product)
        if m.qk_norm:
            q = norm.normalize("rmsnorm", q, p["query_norm"], None, m.norm_eps)
            k = norm.normalize("rmsnorm", k, p["key_norm"], None, m.norm_eps)
        if rope is not None:
            q, k = position.rotate(q, *rope), position.rotate(k, *rope)
        with jax.named_scope(attention.SCOPE):
            y_BTNH, aux = attend(q, k, v)
        branch = _branch(attention.project_out(p, y_BTNH, self.product), p.get("out_bias"))
        x_BTD = self._add(x_BTD, drop(branch, 0), self.attention_norm)
        h = gather_time(self.ffn_norm(x_BTD) if m.norm_position == "pre" else x_BTD)
        p = self.ffn.values()
        branch = _branch(ffn.feed_forward(m, p, h, self.product), p.get("down_bias"))
        return self._add(x_BTD, drop(branch, 1), self.ffn_norm), aux

    def _add(self, x_BTD: jax.Array, branch_BTD: jax.Array, normalize: Norm) -> jax.Array:
        x_BTD = x_BTD + branch_BTD
        return x_BTD if self.m.norm_position == "pre" else normalize(x_BTD)


def _branch(partial_BTD: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns a residual branch from its partial sums over `model`; the bias counts once."""
    y_BTD = scatter_time(partial_BTD)
    return y_BTD if bias is None else y_BTD + bias.astype(y_BTD.dtype)


@dataclass(frozen=True)
class Model:
    """The static half of a transformer: every method is a pure function of the parameter dict.

    Inside the step's shard_map parameters and rows are a device's own: activations between layers
    are [B, T / model, D], and each method gathers what it needs where it needs it.
    """

    config: ModelConfig
    compute: str  # dtype of activations, and of weights inside products
    reduce: str  # dtype in which gradients cross devices
    table: Table
    block: nnx.GraphDef  # of one layer
    final_norm: nnx.GraphDef

    def hidden(self, params: Params, tokens_BT: jax.Array, *others, **named) -> jax.Array:
        """Returns the normalised last hidden state [B, T, D]; takes what `body` takes."""
        return self.finish(params, self.body(params, tokens_BT, *others, **named))

    def body(
        self,
        params: Params,
        tokens_BT: jax.Array,
        segments_BT: jax.Array | None = None,
        positions_BT: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the last layer's output [B, T, D] in the compute dtype.

        Packed rows give segments (a document number a token) and positions (restarting at 0).
        Dropout acts on embeddings and residual branches, and only when a key is given.
        """
        m = self.config
        context = self.context(tokens_BT, segments_BT, positions_BT)
        keys = None
        if dropout_key is not None and m.dropout > 0:
            keys = jax.random.split(dropout_key, m.n_layers + 1)
        x_BTD = self.embed(params, tokens_BT, positions_BT, None if keys is None else keys[-1])
        layer = self.saving_layer()
        blocks = self._one_layer_axis(params["blocks"])
        if m.scan_layers:
            xs = (blocks, None if keys is None else keys[:-1])
            return jax.lax.scan(lambda x, a: (layer(a[0], x, context, a[1]), None), x_BTD, xs)[0]
        for i, block_params in enumerate(_unstack(blocks, m.n_layers)):
            x_BTD = layer(block_params, x_BTD, context, None if keys is None else keys[i])
        return x_BTD

    def context(self, tokens_BT, segments_BT=None, positions_BT=None) -> Context:
        """Returns the rotary tables' rows of a batch's positions, and its document numbers."""
        if self.config.position != "rope":
            return Context(None, segments_BT)
        tables = position.rope_table(self.config, wide(self.compute))
        return Context(
            Rope(*(position.rows(t, tokens_BT, positions_BT) for t in tables)), segments_BT
        )

    def embed(
        self, params: Params, tokens_BT, positions_BT=None, dropout_key=None, before_BC=None
    ) -> jax.Array:
        """Returns the first layer's input [B, T, D]; before_BC: tokens in front, for n-grams."""
        m = self.config
        x_BTD = self._look_up(params, "embedding", tokens_BT)
        if m.ngram_order > 1:
            ids = embedding.ngram_ids(m, tokens_BT, positions_BT, before_BC)
            x_BTD = x_BTD + self._look_up(params, "ngrams", ids)
        added = None
        if m.position == "learned":
            added = self._whole(params, "positions").astype(x_BTD.dtype)
        elif m.position == "sinusoidal":
            # Scaled as in Vaswani et al. 2017, section 3.4, or positions would drown the tokens.
            x_BTD, added = x_BTD * m.d_model**0.5, jnp.asarray(position.sinusoidal_table(m))
        if added is not None:
            rows = position.rows(added, tokens_BT, positions_BT)
            x_BTD = x_BTD + own_time(rows, rows.ndim - 2)
        return _dropout(m.dropout, dropout_key)(x_BTD.astype(self.compute), 0)

    def _look_up(self, params: Params, name: str, ids: jax.Array) -> jax.Array:
        args = (params[name], self.table[name], ids, self.compute, self.reduce)
        return embedding.look_up(*args).astype(wide(self.compute))

    def layer(self, block_params: Params, x_BTD, context: Context, dropout_key=None) -> jax.Array:
        """Returns one layer's output [B, T, D] from its parameters, without a layer axis."""
        m = self.config
        attend = attention.ATTENTION[m.attention]
        masked = lambda q, k, v: (attend(q, k, v, context.segments_BT), None)
        named = {k: p for k, p in block_params.items() if k != PROBE}
        block = nnx.merge(self.block, self._whole_block(named))
        x_BTD = block(x_BTD, context.rope, masked, _dropout(m.dropout, dropout_key))[0]
        return probed(x_BTD, block_params[PROBE]) if PROBE in block_params else x_BTD

    def saving_layer(self) -> Callable:
        """Returns `layer` with the config's rule of what the backward pass recomputes.

        Gathered weights are not kept: the backward gathers them again (Rajbhandari et al. 2020).
        """
        if self.config.remat:
            return jax.checkpoint(self.layer)
        if gathers_weights():
            return jax.checkpoint(self.layer, policy=kept_beside_weights)
        return self.layer

    def finish(self, params: Params, x_BTD: jax.Array) -> jax.Array:
        """Returns the last hidden state after the final norm (pre-norm models have one)."""
        if self.config.norm_position == "post":
            return x_BTD
        return nnx.merge(self.final_norm, params["final_norm"])(x_BTD)

    def extend(self, params: Params, tokens_BT: jax.Array, cache: Params, start: jax.Array):
        """Returns (hidden state [B, T, D], cache) after T more tokens at position `start`.

        cache is what `new_cache` returned, filled up to `start`; the caller sees to it that
        start + T is at most its length. On one device.
        """
        positions_BT = jnp.broadcast_to(start + jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
        rope = self.context(tokens_BT, None, positions_BT).rope

        def layer(x_BTD, inputs):
            block_params, k_cache, v_cache = inputs

            def attend(q, k, v):
                keys = jax.lax.dynamic_update_slice_in_dim(k_cache, k, start, 1)
                values = jax.lax.dynamic_update_slice_in_dim(v_cache, v, start, 1)
                return attention.cached(q, keys, values, start), (keys, values)

            block = nnx.merge(self.block, self._whole_block(block_params))
            return block(x_BTD, rope, attend, _dropout(0.0, None))

        before_BC = cache["before"]
        x_BTD = self.embed(params, tokens_BT, positions_BT, None, before_BC)
        xs = (self._one_layer_axis(params["blocks"]), cache["key"], cache["value"])
        x_BTD, (keys, values) = jax.lax.scan(layer, x_BTD, xs)
        read = jnp.concatenate([before_BC, tokens_BT], 1)[:, tokens_BT.shape[1] :]
        return self.finish(params, x_BTD), {"key": keys, "value": values, "before": read}

    def new_cache(self, batch: int, length: int) -> Params:
        """Returns an empty cache: keys and values [L, B, length, K, H] each, in the compute dtype,
        and the last tokens [B, ngram_order - 1]."""
        m = self.config
        shape = (m.n_layers, batch, length, m.kv_heads, m.head_dim)
        cache = {name: jnp.zeros(shape, self.compute) for name in ("key", "value")}
        return cache | {"before": jnp.zeros((batch, m.ngram_order - 1), jnp.int32)}

    def head(self, params: Params) -> jax.Array:
        """Returns the output matrix [V, D] (this model device's rows of it), V padded."""
        return self._whole(params, "embedding" if self.config.tie_embeddings else "head")

    def logits(self, params: Params, hidden_BTD: jax.Array) -> jax.Array:
        """Returns float32 logits [B, T, V], V unpadded. On one device."""
        head = self.head(params)[: self.config.vocab_size].astype(hidden_BTD.dtype)
        logits = jnp.einsum("BTD,VD->BTV", hidden_BTD, head, preferred_element_type=jnp.float32)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @property
    def layer_dims(self) -> int:
        """Leading layer dimensions of the blocks' parameters: 2 for an interleaved pipeline."""
        return jax.tree.leaves(self.table["blocks"], is_leaf=_is_row)[0].matrix_start

    def _one_layer_axis(self, blocks: Params) -> Params:
        dims = self.layer_dims
        return (
            jax.tree.map(lambda w: w.reshape(-1, *w.shape[dims:]), blocks) if dims > 1 else blocks
        )

    def _whole(self, params: Params, name: str) -> jax.Array:
        return whole(params[name], self.table[name], self.compute, self.reduce)

    def _whole_block(self, block_params: Params) -> Params:
        return jax.tree.map(
            lambda p, row: whole(p, row, self.compute, self.reduce),
            block_params,
            block_table(self.config),
        )


def build(
    m: ModelConfig,
    compute: str,
    reduce: str = "float32",
    repeats: int = 1,
    product: str = "compute",
) -> Model:
    """Returns the model: its parameter table and its pure functions. product: of linear maps."""
    assert m.vocab_size is not None, "the tokenizer's vocabulary is filled in before the model"
    block, _ = nnx.split(Block(m, block_table(m), product))
    final_norm, _ = nnx.split(Norm(m, norm.table(m)))
    return Model(m, compute, reduce, table(m, repeats), block, final_norm)


def _is_row(x) -> bool:
    return isinstance(x, ParamSpec)


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
