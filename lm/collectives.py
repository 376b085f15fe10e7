"""Collectives of the model and the step, written out: what crosses devices, in which dtype.

The step is one `jax.shard_map` over the whole mesh, so every function here sees a device's own
part. On an axis of one device, or outside the mesh, each returns its argument: the same model code
is the one-device reference. Gradients come from JAX's rules for values that vary over an axis
(`check_vma=True`): the transpose of a gather is a scatter of sums, and nothing is counted twice.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lm.layout import DATA, MODEL
from lm.model.spec import ParamSpec

# What stands between a gathered weight and the product that reads it, by JAX's names: the gather
# (a forward rule's call of a function with a written-out gradient) and changes of shape.
MAKES_WEIGHTS = ("custom_vjp_call", "dynamic_slice", "reshape")


def axis_size(axis: str) -> int:
    """Returns the number of devices along an axis whose parts the caller handles itself."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.manual_axes else 1


def axis_index(axis: str) -> jax.Array | int:
    """Returns this device's place along an axis."""
    return lax.axis_index(axis) if axis_size(axis) > 1 else 0


def _split_axes() -> list[str]:
    mesh = jax.sharding.get_abstract_mesh()
    return [axis for axis in mesh.manual_axes if mesh.shape[axis] > 1]


def _varies_over(x: jax.Array) -> frozenset:
    return jax.typeof(x).manual_axis_type.varying


def varying(tree: Any, *axes: str) -> Any:
    """Returns the same values, typed as differing between the devices of some axes (none given:
    all of them), so that gradients stay each device's own."""
    axes = tuple(axis for axis in _split_axes() if not axes or axis in axes)

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis not in _varies_over(x))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def total(x: jax.Array, *axes: str) -> jax.Array:
    """Returns the sum over the devices of the axes; a part that does not vary counts once."""
    axes = tuple(axis for axis in axes if axis_size(axis) > 1 and axis in _varies_over(x))
    return lax.psum(x, axes) if axes else x


def reduced(gradients: Any, specs: Any, reduce: str, as_one: bool) -> Any:
    """Returns parameters' gradients, each summed over the devices that hold the same part of it.

    as_one: those that cross the same axes are summed as one array, for networks where the start of
    a sum costs more than its bytes.
    """
    narrow = jax.tree.map(lambda g: g.astype(reduce), gradients)
    crosses = lambda g, spec: frozenset(_split_axes()) & _varies_over(g) - frozenset(spec)
    crossed = jax.tree.leaves(jax.tree.map(crosses, narrow, specs))
    summed, tree = jax.tree.flatten(narrow)
    for their in dict.fromkeys(crossed):
        members = [i for i, its in enumerate(crossed) if its == their]
        axes = [a for a in _split_axes() if a in their]  # in one order, on every host
        if axes and as_one:
            flat = total(jnp.concatenate([summed[i].ravel() for i in members]), *axes)
            parts = jnp.split(flat, np.cumsum([summed[i].size for i in members])[:-1])
        else:
            parts = [total(summed[i], *axes) for i in members]
        for i, part in zip(members, parts, strict=True):
            summed[i] = part.reshape(summed[i].shape)
    return jax.tree.map(lambda s, g: s.astype(g.dtype), jax.tree.unflatten(tree, summed), gradients)


def largest(x: jax.Array, axis: str) -> jax.Array:
    """Returns the maximum over the devices of an axis."""
    return lax.pmax(x, axis) if axis_size(axis) > 1 else x


def whole(p: jax.Array, row: ParamSpec, compute: str, reduce: str) -> jax.Array:
    """Returns a parameter whole over `data`: in the compute dtype where it had to be gathered.

    The gradient of a fully sharded parameter is summed over `data` in the reduce dtype, each device
    keeping its shard. Model and pipe shards stay as they are.
    """
    dim = row.sharded_dim
    if dim is None or p.shape[dim] == row.shape[dim]:
        return p
    return _gather(p, dim, compute, reduce)


def whole_bits(p: jax.Array, row: ParamSpec) -> jax.Array:
    """Returns a parameter whole over `data` as it is, in float32; its gradient is not summed."""
    dim = row.sharded_dim
    if dim is None or p.shape[dim] == row.shape[dim]:
        return p
    return lax.all_gather(p, DATA, axis=dim, tiled=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(p: jax.Array, dim: int, compute: str, reduce: str) -> jax.Array:
    return lax.all_gather(p.astype(compute), DATA, axis=dim, tiled=True)


def _gather_fwd(p, dim, compute, reduce):
    # Calls the whole, cast and gather: so a policy can refuse both (kept_beside_weights).
    return _gather(p, dim, compute, reduce), None


def _gather_bwd(dim, compute, reduce, _, g):
    part = lax.psum_scatter(g.astype(reduce), DATA, scatter_dimension=dim, tiled=True)
    return (part.astype(jnp.float32),)


_gather.defvjp(_gather_fwd, _gather_bwd)


def gathers_weights() -> bool:
    """Returns whether weights may be sharded over `data`, and so are gathered to be used."""
    return axis_size(DATA) > 1


def kept_beside_weights(primitive: Any, *_, **__) -> bool:
    """Returns whether a backward pass may keep what a primitive returns: a policy of
    jax.checkpoint under which weights are gathered again, and nothing else is computed again.

    Of float8 products the rounded weights are kept, a byte a value.
    """
    return primitive.name not in MAKES_WEIGHTS


def gather_time(x: jax.Array) -> jax.Array:
    """Returns [B, T, ...] from each model device's [B, T / model, ...]."""
    return lax.all_gather(x, MODEL, axis=1, tiled=True) if axis_size(MODEL) > 1 else x


def scatter_time(x: jax.Array) -> jax.Array:
    """Returns the sum over `model` of [B, T, ...], each device keeping its part of the time."""
    if axis_size(MODEL) == 1:
        return x
    return lax.psum_scatter(x, MODEL, scatter_dimension=1, tiled=True)


def own_time(x: jax.Array, dim: int) -> jax.Array:
    """Returns this model device's part of a dimension that is time."""
    size = axis_size(MODEL)
    if size == 1:
        return x
    part = x.shape[dim] // size
    return lax.dynamic_slice_in_dim(x, axis_index(MODEL) * part, part, dim)
