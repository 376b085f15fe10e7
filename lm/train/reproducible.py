"""Sums over a batch whose bits do not depend on how many devices share it.

Floating-point addition is not associative, so a sum over devices depends on how many there are.
Here the rows are cut into parts, as many on any mesh, each part's gradient is computed by itself,
and the parts are added in one fixed binary tree: its lower levels on a device, its upper levels by
exchanges between neighbours. A device holds the whole gradients of its parts until they are added,
and then the whole sum: that memory, and an exchange of it, are the cost. Updates that are not
elementwise are made whole on every device, of whole weights and optimizer state.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from lm import platform
from lm.collectives import axis_index, axis_size, whole_bits
from lm.config import TrainConfig
from lm.layout import DATA, Layout
from lm.model.spec import Table
from lm.objective import Batch

MOST_PARTS = 8


def parts(t: TrainConfig) -> int:
    """Returns the parts that every batch is cut into: the largest power of two, 8 at most, that
    divides all its sizes. Devices along `data` must divide them."""
    return math.gcd(MOST_PARTS, t.batch_size, *(size for _, size in t.batch_growth))


def told(t: TrainConfig) -> str:
    """Returns on which meshes the bits are the same, in words."""
    n = parts(t)
    fewer = ", ".join(str(2**i) for i in range(n.bit_length() - 1))
    if n == 1:
        return "batches with an odd number of rows go on 1 data device only"
    if fused() or not platform.compiles_as_written():
        return (
            "bits may differ between meshes, since programs here add up and round where XLA likes: "
            f"on x86 each process needs XLA_FLAGS='{' '.join(platform.AS_WRITTEN)}'"
        )
    return f"the same bits on {fewer} or {n} data devices"


def fused() -> bool:
    """Whether XLA makes one instruction, with one rounding, of a product and a sum. Where it does
    differs between meshes."""
    a, c = jnp.full(64, 1 + 2.0**-12), jnp.full(64, 1 + 2.0**-11)
    return bool((jax.jit(lambda a, c: a * a - c)(a, c) != 0).any())  # a^2 = c + 2^-24: half a unit


def gradients(part_of: Callable, n_parts: int, table: Table, params: Any, batch: Batch, scale, key):
    """Returns (scaled loss sums, their gradients, those gradients' norm) over all devices' rows.

    part_of(params, rows, scale, key) gives the Loss and gradients of some rows. Parameters and
    gradients are this device's shards.
    """
    whole = jax.tree.map(whole_bits, params, table)

    def of_part(i, rows):
        return part_of(whole, rows, scale, None if key is None else jax.random.fold_in(key, i))

    loss, grads = _sum_of_parts(of_part, n_parts, batch)
    # In a branch that is always taken, which the compiler cannot know: fused with the sums before
    # it, which differ between layouts, the norm would be added up otherwise.
    zero = lambda g: 0 * jax.tree.leaves(g)[0].ravel()[0]
    norm = lax.cond(scale > 0, optax.tree.norm, zero, grads)
    own = jax.tree.map(_own_part, grads, params, table)
    return jax.tree.map(_same, loss), own, _same(norm)


def loss_sum(loss_of: Callable, n_parts: int, table: Table, params: Any, batch: Batch):
    """Returns the sum over all devices' rows of loss_of(params, rows)."""
    whole = jax.tree.map(whole_bits, params, table)
    return _same(_sum_of_parts(lambda _, rows: loss_of(whole, rows), n_parts, batch))


def everywhere(update: Callable, layout: Layout) -> Callable:
    """Returns an update that each device makes whole, of whole arrays.

    An optimizer that multiplies matrices or averages over rows would do so in other shapes and
    another order on each layout.
    """
    whole = layout.replicated.spec
    return jax.shard_map(update, mesh=layout.mesh, in_specs=whole, out_specs=whole)


def _sum_of_parts(of_part: Callable, n_parts: int, batch: Batch) -> Any:
    """Returns the sum of of_part(number, rows) over the parts of all devices' rows."""
    n_local = n_parts // axis_size(DATA)
    cut = lambda x: x.reshape(n_local, -1, *x.shape[1:])
    numbers = axis_index(DATA) * n_local + jnp.arange(n_local)
    # One after another: computed side by side, their products would be of other shapes.
    found = lax.map(lambda part: of_part(*part), (numbers, jax.tree.map(cut, batch)))
    return jax.tree.map(_tree_sum, found)


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
