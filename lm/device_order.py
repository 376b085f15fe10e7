"""Which device takes which place of a mesh: neighbours on the mesh are joined by fast links.

Tensor parallelism talks most, data parallelism next, a pipeline least: axes get physical rings in
that order. Machines of several slices (fast inside, a slow network between) lay one axis across
the slices: `pipe` where its size allows, since a pipeline sends least, otherwise `data`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lm import progress
from lm.errors import BadInput

BY_TRAFFIC = ("pipe", "data", "model")  # the least first


def slice_of(device: Any) -> int:
    """Returns the number of a device's slice: a TPU's torus, or the GPUs behind one switch."""
    if getattr(device, "slice_index", None):
        return device.slice_index
    coords = list(getattr(device, "coords", None) or [])
    return coords[0] if device.platform == "gpu" and len(coords) == 3 else 0


def n_slices(devices: Sequence[Any]) -> int:
    """Returns how many slices the devices belong to; 1 where there is no such thing."""
    return len({slice_of(d) for d in devices})


def slow_axis(sizes: Mapping[str, int], slices: int) -> str | None:
    """Returns the mesh axis that crosses the slow network, None with one slice.

    Raises BadInput where no axis is a multiple of the number of slices.
    """
    if slices == 1:
        return None
    for axis in ("pipe", "data"):
        if sizes[axis] % slices == 0:
            return axis
    raise BadInput(
        f"{slices} slices: neither mesh.pipe {sizes['pipe']} nor mesh.data {sizes['data']} is a "
        f"multiple of {slices}, and one of them has to cross the network between slices"
    )


def arrange(devices: Sequence[Any], sizes: Mapping[str, int]) -> np.ndarray:
    """Returns the devices as an array of the mesh's shape, axes in the order of `sizes`."""
    ordered = np.array(sorted(devices, key=lambda d: (slice_of(d), d.id)))
    if devices[0].platform != "tpu" or len(devices) == 1:
        return _outermost(ordered, sizes, slow_axis(sizes, n_slices(devices)))
    from jax.experimental import mesh_utils

    slices = n_slices(devices)
    slow = slow_axis(sizes, slices)
    inside = [sizes[axis] // (slices if axis == slow else 1) for axis in BY_TRAFFIC]
    across = [slices if axis == slow else 1 for axis in BY_TRAFFIC]
    try:
        if slow is None:
            array = mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
        else:
            array = mesh_utils.create_hybrid_device_mesh(
                inside, across, devices, allow_split_physical_axes=True
            )
    # No way to lay rings: any order is as good. JAX asserts that the devices fill a box.
    except (ValueError, NotImplementedError, AssertionError):
        progress.say(
            "no rings could be laid for this mesh on these devices: exchanges may be slower"
        )
        return _outermost(ordered, sizes, slow)
    return array.transpose([BY_TRAFFIC.index(axis) for axis in sizes])


def _outermost(ordered: np.ndarray, sizes: Mapping[str, int], slow: str | None) -> np.ndarray:
    """Returns devices in their order, with the axis that crosses slices changing last, then those
    that send least: where slices are not known, axes that talk stay within a process."""
    axes = sorted(BY_TRAFFIC, key=lambda axis: axis != slow)
    array = ordered.reshape([sizes[axis] for axis in axes])
    return array.transpose([axes.index(axis) for axis in sizes])
