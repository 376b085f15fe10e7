"""Sums over a batch whose bits do not depend on how many devices share it.

Floating-point addition is not associative, so a sum over devices depends on how many there are.
Here the rows are always cut into VIRTUAL_SHARDS parts, each part's gradient is computed by itself,
and the parts are added in one fixed binary tree: its lower levels on a device, its upper levels by
exchanges between neighbours. A device holds the whole gradients of its 8 / data parts until they
are added, and then the whole sum: that memory, and an exchange of it, are the cost.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from lm.collectives import axis_index, axis_size, whole_bits
from lm.layout import DATA
from lm.model.spec import Table
from lm.objective import Batch

VIRTUAL_SHARDS = 8


def gradients(part_of: Callable, table: Table, params: Any, batch: Batch, scale, key):
    """Returns (scaled loss sums, their gradients, those gradients' norm) over all devices' rows.

    part_of(params, rows, scale, key) gives the Loss and gradients of some rows. Parameters and
    gradients are this device's shards.
    """
    n_local = VIRTUAL_SHARDS // axis_size(DATA)
    whole = jax.tree.map(whole_bits, params, table)

    def of_shard(inputs):
        i, rows = inputs
        shard_key = None if key is None else jax.random.fold_in(key, axis_index(DATA) * n_local + i)
        return part_of(whole, rows, scale, shard_key)

    cut = lambda x: x.reshape(n_local, -1, *x.shape[1:])
    # One after another: computed side by side, their products would be of other shapes.
    parts = lax.map(of_shard, (jnp.arange(n_local), jax.tree.map(cut, batch)))
    loss, grads = jax.tree.map(_tree_sum, parts)
    norm = optax.tree.norm(grads)
    own = jax.tree.map(_own_part, grads, params, table)
    return jax.tree.map(_same, loss), own, _same(norm)


def _tree_sum(x: jax.Array) -> jax.Array:
    """Returns the sum over the leading axis and over devices, always bracketed alike."""
    while x.shape[0] > 1:
        x = x[0::2] + x[1::2]
    x, distance, n = x[0], 1, axis_size(DATA)
    while distance < n:
        x = x + lax.ppermute(x, DATA, [(i, i ^ distance) for i in range(n)])
        distance *= 2
    return x


def _same(x: jax.Array) -> jax.Array:
    """Returns x typed as the same on every device, which it is."""
    return lax.pmax(x, DATA) if axis_size(DATA) > 1 else x


def _own_part(g: jax.Array, p: jax.Array, row) -> jax.Array:
    dim = row.sharded_dim
    if dim is None or g.shape[dim] == p.shape[dim]:
        return _same(g)
    return lax.dynamic_slice_in_dim(g, axis_index(DATA) * p.shape[dim], p.shape[dim], dim)
