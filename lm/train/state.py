"""The train state: what a step changes and a checkpoint keeps, and its first value on a mesh."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.tree_util import DictKey

from lm.layout import Layout
from lm.model.spec import ParamSpec, Table, each, flatten
from lm.optim.build import Optimizer


class TrainState(NamedTuple):
    """float32 master weights and optimizer state. step counts completed optimizer steps, also those
    whose update was left out."""

    step: Any  # int32
    params: Any
    opt: Any
    average: Any = ()  # moving average of params, optim.ema_decay
    guard: Any = ()  # lm.optim.guard.GuardState, where steps may be left out


def evaluated(state: TrainState) -> Any:
    """Returns the weights to evaluate and to use: the average where there is one."""
    return state.average or state.params


def shardings(table: Table, tx: Optimizer, layout: Layout) -> TrainState:
    """Returns the sharding of every leaf: an optimizer's moment lives where its parameter does."""
    rows = flatten(table)

    def of_moment(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        # optax keeps the parameters' tree inside its own: the last dict keys name the parameter.
        keys = itertools.takewhile(lambda k: isinstance(k, DictKey), reversed(path))
        name = "/".join(reversed([str(k.key) for k in keys]))
        row = rows.get(name)
        same = row is not None and row.shape == leaf.shape
        return layout.param(name, row) if same and row else layout.replicated

    params = each(table, layout.param)
    opt = jax.tree_util.tree_map_with_path(of_moment, jax.eval_shape(tx.init, shapes(table)))
    average = params if tx.ema_decay else ()
    guard = jax.tree.map(lambda _: layout.replicated, _guard(tx))
    return TrainState(layout.replicated, params, opt, average, guard)


def _guard(tx: Optimizer) -> Any:
    return tx.guard.init() if tx.guard else ()


def param_specs(table: Table, layout: Layout) -> Any:
    """Returns the partition spec of every parameter."""
    return each(table, layout.spec)


def shapes(table: Table) -> Any:
    """Returns the parameters as shapes and dtypes only."""
    return each(table, lambda _, row: jax.ShapeDtypeStruct(row.shape, jnp.float32))


def abstract(table: Table, tx: Optimizer, layout: Layout) -> TrainState:
    """Returns the state as shapes, dtypes and shardings: what to restore into, or compile for."""
    params = shapes(table)
    plain = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32),
        params,
        jax.eval_shape(tx.init, params),
        params if tx.ema_decay else (),
        jax.eval_shape(lambda: _guard(tx)),
    )
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        plain,
        shardings(table, tx, layout),
    )


def initial(table: Table, tx: Optimizer, layout: Layout, seed: int):
    """Returns the first TrainState. Parameters come from the host, shard by shard, so that they are
    identical on any mesh."""
    where = shardings(table, tx, layout)

    def place(name: str, row: ParamSpec) -> jax.Array:
        return jax.make_array_from_callback(
            row.shape, layout.param(name, row), lambda index: row.initial(seed, name, index or ())
        )

    params = each(table, place)
    opt = jax.jit(tx.init, out_shardings=where.opt)(params)
    average = jax.tree.map(jnp.copy, params) if tx.ema_decay else ()  # both are donated
    guard = jax.device_put(_guard(tx), layout.replicated)
    step = jax.device_put(jnp.int32(0), layout.replicated)
    return TrainState(step, params, opt, average, guard)
