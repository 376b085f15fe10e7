"""Which device takes which place of a mesh: neighbours on the mesh are joined by fast links.

`by_traffic` are the mesh's axes, the one that sends least first: physical rings are given out from
its end. Machines of several slices (fast inside, a slow network between) lay one axis across them:
the first whose size allows it, and never the last, which talks all the time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lm import progress
from lm.errors import BadInput


def slice_of(device: Any) -> int:
    """Returns the number of a device's slice: a TPU's torus, or the GPUs behind one switch."""
    if getattr(device, "slice_index", None):
        return device.slice_index
    coords = list(getattr(device, "coords", None) or [])
    return coords[0] if device.platform == "gpu" and len(coords) == 3 else 0


def n_slices(devices: Sequence[Any]) -> int:
    """Returns how many slices the devices belong to; 1 where there is no such thing."""
    return len({slice_of(d) for d in devices})


def slow_axis(sizes: Mapping[str, int], slices: int, by_traffic: Sequence[str]) -> str | None:
    """Returns the mesh axis that crosses the slow network, None with one slice.

    Raises BadInput where no axis is a multiple of the number of slices.
    """
    if slices == 1:
        return None
    *able, _ = by_traffic
    for axis in able:
        if sizes[axis] % slices == 0:
            return axis
    neither = " nor ".join(f"mesh.{axis} {sizes[axis]}" for axis in able)
    raise BadInput(
        f"{slices} slices: neither {neither} is a multiple of {slices}, and one of them has to "
        "cross the network between slices"
    )


def arrange(
    devices: Sequence[Any], sizes: Mapping[str, int], by_traffic: Sequence[str]
) -> np.ndarray:
    """Returns the devices as an array of the mesh's shape, axes in the order of `sizes`."""
    slices = n_slices(devices)
    slow = slow_axis(sizes, slices, by_traffic)
    ordered = np.array(sorted(devices, key=lambda d: (slice_of(d), d.id)))
    if devices[0].platform != "tpu" or len(devices) == 1:
        return _outermost(ordered, sizes, slow, by_traffic)
    from jax.experimental import mesh_utils

    inside = [sizes[axis] // (slices if axis == slow else 1) for axis in by_traffic]
    across = [slices if axis == slow else 1 for axis in by_traffic]
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
        return _outermost(ordered, sizes, slow, by_traffic)
    return array.transpose([by_traffic.index(axis) for axis in sizes])


def _outermost(
    ordered: np.ndarray, sizes: Mapping[str, int], slow: str | None, by_traffic: Sequence[str]
) -> np.ndarray:
    """Returns devices in their order, with the axis that crosses slices changing last, then those
    that send least: where slices are not known, axes that talk stay within a process."""
    axes = sorted(by_traffic, key=lambda axis: axis != slow)
    array = ordered.reshape([sizes[axis] for axis in axes])
    return array.transpose([axes.index(axis) for axis in sizes])
