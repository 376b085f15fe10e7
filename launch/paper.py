"""Machines on paper: devices that have a place in a machine and nothing else, made by no compiler.

Enough to lay out a mesh and to count what crosses it, for any number of chips in no time. A machine
that can be compiled for comes from launch/topology.py.
"""

import itertools
import math
from dataclasses import dataclass

from launch.topology import Machine, read_name
from lm.chips import Chip

SLICE_MOST = {4: (16, 16), 6: (16, 16, 16)}  # by links: the largest slice of a torus drawn here
BOX = 8  # GPUs behind one switch


@dataclass(frozen=True)
class Drawn:
    """A device on paper, with the attributes that jax's have and lm/device_order.py reads."""

    id: int
    platform: str
    device_kind: str
    coords: tuple[int, ...]  # of its chip; of a GPU (box, 0, number in the box)
    core_on_chip: int
    slice_index: int
    process_index: int = 0


def on_paper(name: str) -> Machine:
    """Returns the named machine, without a compiler; raises BadInput for what is no name."""
    chip, shape, slices = read_name(name)
    platform = "tpu" if chip.ring else "gpu"
    drawn: list[Drawn] = []
    places = [tuple(reversed(p)) for p in itertools.product(*map(range, reversed(shape)))]
    for slice_, place, core in itertools.product(range(slices), places, range(chip.devices)):
        coords = (*place, 0, 0)[:3] if chip.ring else (slice_, 0, *place)
        drawn.append(Drawn(len(drawn), platform, chip.kinds[0], coords, core, slice_))
    return Machine(name, chip, shape, slices, drawn)


def topology_of(chip: Chip, n_chips: int) -> str | None:
    """Returns the name of the roundest machine of so many chips, None where there is none.

    A torus's sides are powers of two as alike as they can be, up to the largest slice; what is more
    comes in several slices. GPUs come in boxes.
    """
    if n_chips & (n_chips - 1):
        return None
    if not chip.ring:
        boxes = max(n_chips // BOX, 1)
        return f"{'' if boxes == 1 else f'{boxes}x'}{chip.name}:{n_chips // boxes}"
    most = SLICE_MOST[chip.links]
    slices = max(n_chips // math.prod(most), 1)
    doublings = (n_chips // slices).bit_length() - 1
    # The last sides are the longer ones: 4x4x8.
    sides = [2 ** ((doublings + i) // len(most)) for i in range(len(most))]
    shape = "x".join(map(str, sides))
    return f"{'' if slices == 1 else f'{slices}x'}{chip.name}:{shape}"
