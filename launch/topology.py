"""Machines that are not here: devices that can only be compiled for, by the machine's name.

A name is a chip and a shape, `v5e:4x4` or `v5p:4x4x4`; `2xv5e:4x4` is two such slices joined by the
data-centre network. GPUs are a chip and their number in one box: `h100:8`, `4xh100:8`. libtpu or
JAX's CUDA plugin brings the compiler; neither needs the hardware.
"""

import importlib.util
import os
import re
from dataclasses import dataclass, replace
from typing import Any

from launch.gpu_target import target_config
from lm import chips
from lm.errors import BadInput, installed_by

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
    def compiler(self) -> str:
        """The Python distribution that brings the compiler."""
        return "libtpu" if self.chip.ring else "jax-cuda13-plugin"

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
    found = re.fullmatch(r"(?:([1-9]\d*)x)?([a-z][a-z0-9_]*):([1-9]\d*(?:x[1-9]\d*)*)", name)
    example = "a chip and a shape are meant, such as v5e:4x4, v5p:4x4x4, 2xv5e:16x16 or h100:8"
    if not found:
        raise BadInput(f"--topology={name} names no machine: {example}")
    chip = chips.named(found.group(2))
    if chip is None:
        names = ", ".join(c.name for c in chips.CHIPS)
        raise BadInput(f"--topology={name}: the chip is one of {names}; {example}")
    shape = tuple(int(n) for n in found.group(3).split("x"))
    if not chip.ring and len(shape) > 1:
        raise BadInput(f"--topology={name}: GPUs have no grid, give their number: {chip.name}:8")
    return chip, shape, int(found.group(1) or 1)


def require_compiler(name: str) -> None:
    """Raises BadInput where the compiler for the named machine is not installed."""
    chip, shape, slices = read_name(name)
    compiler = Machine(name, chip, shape, slices, []).compiler
    if importlib.util.find_spec(compiler.replace("-", "_")) is None:
        raise BadInput(
            f"--topology={name} needs a compiler that is not installed: "
            f"{installed_by('tpu' if chip.ring else 'cuda')} (Linux on x86-64; no accelerator is "
            "needed)"
        )


def machine(name: str) -> Machine:
    """Returns the named machine; raises BadInput where there is none such or no compiler for it.

    Loads the compiler into this process and sets its environment variables where they are not set.
    """
    require_compiler(name)
    chip, shape, slices = read_name(name)
    found = Machine(name, chip, shape, slices, [])
    for key, value in OFFLINE.items():
        os.environ.setdefault(key, value)
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    options: dict[str, Any] = dict(chip.options)
    if not chip.ring:
        options |= {"target_config": target_config(chip), "topology": f"{slices}x1x{shape[0]}"}
    else:
        # Unless told, libtpu takes a slice for a grid without rings and replaces gathers by sums.
        options["wrap"] = (rings(chip, shape) + (False,) * 3)[:3]
        options |= {"num_slices": slices} if slices > 1 else {}
    inside = f"{chip.name}:{'x'.join(map(str, shape))}"
    try:
        description = topologies.get_topology_desc(
            inside, platform="tpu" if chip.ring else "cuda", **options
        )
    except JaxRuntimeError as e:
        said = str(e).splitlines()[0].split(": ", 1)[-1].rstrip(".")
        raise BadInput(f"--topology={name} is refused by {found.compiler}: {said}") from e
    return replace(found, devices=list(description.devices))
