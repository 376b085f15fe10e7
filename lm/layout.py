"""Meshes and shardings: the only file, beside the config's fields, that spells a mesh axis.

Parameters name their dimensions logically; PARAMETERS turns the names into mesh axes. Rows of a
batch live on `data`, layers on `pipe`, heads, FFN columns and vocabulary on `model`, and under
fully sharded training the width of every matrix on `data`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lm import group
from lm.config import MeshConfig
from lm.device_order import arrange, n_slices, slow_axis
from lm.errors import BadInput
from lm.model.spec import ParamSpec

AXES = DATA, MODEL, PIPE = ("data", "model", "pipe")
# The least first: a pipeline sends activations once a stage, tensor parallelism in every layer.
BY_TRAFFIC = (PIPE, DATA, MODEL)

PARAMETERS = {"heads": MODEL, "kv_heads": MODEL, "ff": MODEL, "vocab": MODEL, "layers": PIPE}
REMEDIES = {
    "embed": ", or set mesh.fully_sharded=false",
    "vocab": ", or pad the vocabulary with model.vocab_multiple, n-grams with model.ngram_rows",
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh with axes data, model, pipe, and whether parameters are sharded over data."""

    mesh: Mesh
    fully_sharded: bool

    def spec(self, name: str, row: ParamSpec) -> PartitionSpec:
        """Returns the mesh axis of each dimension of a parameter; raises BadInput if one does not
        divide. Key-value heads fewer than the model axis are on every model device."""
        sizes = self.mesh.shape
        axes: list[str | None] = []
        for i, (size, logical) in enumerate(zip(row.shape, row.axes, strict=True)):
            axis = PARAMETERS.get(logical or "")
            if logical == "kv_heads" and size < sizes[MODEL] and sizes[MODEL] % size == 0:
                axis = None
            if self.fully_sharded and i == row.sharded_dim:
                axis = DATA
            if axis and size % sizes[axis]:
                raise BadInput(
                    f"{name} has {logical} {size}, which mesh.{axis} {sizes[axis]} does not "
                    f"divide: change one of them{REMEDIES.get(logical or '', '')}"
                )
            axes.append(axis if axis and sizes[axis] > 1 else None)
        return PartitionSpec(*axes)

    def param(self, name: str, row: ParamSpec) -> NamedSharding:
        """Returns where a parameter lives."""
        return NamedSharding(self.mesh, self.spec(name, row))

    @property
    def batch(self) -> NamedSharding:
        """Rows over data, everything else whole."""
        return NamedSharding(self.mesh, PartitionSpec(DATA if self.data_size > 1 else None))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def data_size(self) -> int:
        return self.mesh.shape[DATA]

    @property
    def simulated(self) -> bool:
        """Whether several devices are one CPU's."""
        return self.mesh.size > 1 and self.platform == "cpu"

    @property
    def over_sockets(self) -> bool:
        """Whether the devices are CPUs of several processes: a sum starts some 4 ms late."""
        processes = {device.process_index for device in self.mesh.devices.flat}
        return self.platform == "cpu" and len(processes) > 1

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.mesh.devices.flat[0].platform

    @property
    def model_size(self) -> int:
        return self.mesh.shape[MODEL]

    @property
    def stages(self) -> int:
        return self.mesh.shape[PIPE]

    @property
    def slow_axis(self) -> str | None:
        """The axis that crosses slices; None with one slice."""
        return slow_axis(self.mesh.shape, n_slices(list(self.mesh.devices.flat)), BY_TRAFFIC)

    def told(self) -> str:
        """Returns every axis, the devices, and which axis crosses slices, in words."""
        sizes, devices = self.mesh.shape, list(self.mesh.devices.flat)
        slices = n_slices(devices)
        slow = f"; {self.slow_axis} lies across {slices} slices" if slices > 1 else ""
        axes = ", ".join(f"{axis} {n}" for axis, n in sizes.items())
        return f"mesh: {axes} over {len(devices)} {self.platform} devices{slow}"

    def on_devices(self, f: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Returns f run by every device on its own parts; f itself where there is one device."""
        if self.mesh.size == 1:
            return f
        return jax.shard_map(f, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)

    def local_rows(self, n_rows: int) -> np.ndarray:
        """Returns the numbers, rising, of the rows of a batch that this process holds: the only
        ones it has to make. They need not be neighbours: a host's chips may lie in a square."""
        parts = self.batch.addressable_devices_indices_map((n_rows,)).values()
        return np.unique(np.concatenate([np.arange(n_rows)[part[0]] for part in parts if part]))

    def put_batch(self, local: Any) -> Any:
        """Returns this process's rows of a batch as arrays over the whole mesh."""
        if jax.process_count() == 1:  # the same, at half the cost
            return jax.device_put(local, self.batch)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.batch, x), local)


def make_layout(mesh: MeshConfig, devices: list[jax.Device] | None = None) -> Layout:
    """Returns the layout over `devices` (all of them by default), one axis filled in where -1.

    Raises BadInput where the devices do not make the mesh, and where they belong to processes that
    have not joined each other: each would take itself for the one that writes the files.
    """
    if devices is None:
        devices = jax.devices()
        if jax.process_count() != group.size():
            raise BadInput(
                f"{jax.process_count()} processes share these devices and this one knows of "
                f"{group.size()}: set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
                "JAX_PROCESS_ID in each of them"
            )
    sizes = [getattr(mesh, axis) for axis in AXES]
    known = math.prod(s for s in sizes if s != -1)
    spelled = ", ".join(f"mesh.{a} {s}" for a, s in zip(AXES, sizes, strict=True))
    if -1 in sizes:
        if len(devices) % known:
            raise BadInput(
                f"{spelled}: {len(devices)} devices are not divisible by {known}: change one axis"
            )
        sizes[sizes.index(-1)] = len(devices) // known
    needed = math.prod(sizes)
    if needed > len(devices) or (needed < len(devices) and jax.process_count() > 1):
        raise BadInput(
            f"{spelled} need {needed} devices and there are {len(devices)}: change one axis, "
            "or set one of them to -1"
        )
    places = arrange(devices[:needed], dict(zip(AXES, sizes, strict=True)), BY_TRAFFIC)
    return Layout(Mesh(places, AXES, axis_types=(AxisType.Auto,) * 3), mesh.fully_sharded)
