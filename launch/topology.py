"""Machines that are not here: the devices of a named TPU slice, or several, for the compiler only.

A name is a chip and a shape, `v5e:4x4` or `v5p:4x4x4`; `2xv5e:4x4` is two such slices joined by the
data-centre network. libtpu brings the compiler and needs no TPU.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any

from lm import chips
from lm.errors import BadInput

# Keeps libtpu from asking the cloud what machine this is, and from claiming a TPU for itself.
OFFLINE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


@dataclass(frozen=True)
class Machine:
    """A machine as the compiler sees it: its devices can be compiled for and do nothing else."""

    name: str
    chip: chips.Chip
    shape: tuple[int, ...]  # of one slice, in chips
    n_slices: int
    devices: list[Any]

    @property
    def devices_per_chip(self) -> int:
        """Cores that are devices of their own: the chip's peaks and links are shared by them."""
        return len({getattr(d, "core_on_chip", 0) for d in self.devices})

    @property
    def n_chips(self) -> int:
        return len(self.devices) // self.devices_per_chip

    def is_ring(self, dim: int) -> bool:
        """Whether a physical dimension of a slice closes into a ring."""
        return rings(self.chip, self.shape)[dim]


def rings(chip: chips.Chip, shape: tuple[int, ...]) -> tuple[bool, ...]:
    """Returns which dimensions of a slice close into rings."""
    closed = tuple(size % chip.ring == 0 for size in shape)
    if chip.links == 6:  # cubes are joined by optical switches: all dimensions or none
        return (len(shape) == 3 and all(closed),) * len(shape)
    return closed


def read_name(name: str) -> tuple[chips.Chip, tuple[int, ...], int]:
    """Returns (chip, shape of a slice, number of slices); raises BadInput for what is no name."""
    found = re.fullmatch(r"(?:(\d+)x)?([a-z][a-z0-9_]*):(\d+(?:x\d+)*)", name)
    names = ", ".join(chip.name for chip in chips.CHIPS if chip.ring)
    example = "a chip and a shape in chips is meant, such as v5e:4x4, v5p:4x4x4 or 2xv5e:16x16"
    if not found:
        raise BadInput(f"--topology={name} names no machine: {example}")
    chip = chips.named(found.group(2))
    if chip is None or not chip.ring:
        raise BadInput(f"--topology={name}: the chip is one of {names}; {example}")
    shape = tuple(int(n) for n in found.group(3).split("x"))
    return chip, shape, int(found.group(1) or 1)


def machine(name: str) -> Machine:
    """Returns the named machine; raises BadInput where there is none such.

    Loads libtpu into this process and sets its environment variables where they are not set.
    """
    chip, shape, slices = read_name(name)
    if importlib.util.find_spec("libtpu") is None:
        raise BadInput(
            f"--topology={name} needs the TPU compiler, which is not installed: "
            "pip install libtpu (Linux on x86-64; no TPU is needed)"
        )
    for key, value in OFFLINE.items():
        os.environ.setdefault(key, value)
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    options: dict[str, Any] = dict(chip.options)
    # Unless told, libtpu takes a slice for a grid without rings and replaces gathers by sums.
    options["wrap"] = (rings(chip, shape) + (False,) * 3)[:3]
    if slices > 1:
        options["num_slices"] = slices
    try:
        description = topologies.get_topology_desc(
            f"{chip.name}:{'x'.join(map(str, shape))}", platform="tpu", **options
        )
    except JaxRuntimeError as e:
        said = str(e).splitlines()[0].split(": ", 1)[-1].rstrip(".")
        raise BadInput(f"--topology={name} is refused by the TPU compiler: {said}") from e
    return Machine(name, chip, shape, slices, list(description.devices))
