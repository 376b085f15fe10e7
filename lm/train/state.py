"""The train state: what a step changes and a checkpoint keeps, and its first value on a mesh."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lm.layout import Layout
from lm.model.spec import ParamSpec, Table


class TrainState(NamedTuple):
    """float32 master weights and optimizer state. step counts completed optimizer steps."""

    step: Any  # int32
    params: Any
    opt: Any


def shardings(table: Table, tx: optax.GradientTransformation, layout: Layout) -> TrainState:
    """Returns the sharding of every leaf: an optimizer's moment lives where its parameter does."""
    params = _named(table, lambda name, row: layout.param(name, row))
    opt = optax.tree.map_params(
        tx,
        lambda _, sharding: sharding,
        jax.eval_shape(tx.init, shapes(table)),
        params,
        transform_non_params=lambda _: layout.replicated,
    )
    return TrainState(layout.replicated, params, opt)


def shapes(table: Table) -> Any:
    """Returns the parameters as shapes and dtypes only."""
    return _named(table, lambda _, row: jax.ShapeDtypeStruct(row.shape, jnp.float32))


def abstract(table: Table, tx: optax.GradientTransformation, layout: Layout) -> TrainState:
    """Returns the state as shapes, dtypes and shardings: what to restore into, or compile for."""
    params = shapes(table)
    plain = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(tx.init, params))
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        plain,
        shardings(table, tx, layout),
    )


def initial(table: Table, tx: optax.GradientTransformation, layout: Layout, seed: int):
    """Returns the first TrainState. Parameters come from the host, shard by shard, so that they are
    identical on any mesh."""
    where = shardings(table, tx, layout)

    def place(name: str, row: ParamSpec) -> jax.Array:
        return jax.make_array_from_callback(
            row.shape, layout.param(name, row), lambda index: row.initial(seed, name, index or ())
        )

    params = _named(table, place)
    opt = jax.jit(tx.init, out_shardings=where.opt)(params)
    return TrainState(jax.device_put(jnp.int32(0), layout.replicated), params, opt)


def _named(table: Table, make) -> Any:
    def walk(rows: Table, prefix: str) -> Any:
        return {
            k: make(prefix + k, v) if isinstance(v, ParamSpec) else walk(v, f"{prefix}{k}/")
            for k, v in rows.items()
        }

    return walk(table, "")
