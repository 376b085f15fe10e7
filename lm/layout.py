"""Meshes and shardings: the only file that spells a mesh axis.

Parameters and activations name their dimensions logically; two maps below turn the names into mesh
axes. Fully sharded data parallelism is the difference between the two maps: a parameter's `embed`
dimension lives on `data`, an activation's does not.
"""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lm.config import MeshConfig
from lm.errors import BadInput
from lm.model.spec import ParamSpec

AXES = ("data", "model", "pipe")

PARAMETERS = {"heads": "model", "kv_heads": "model", "ff": "model", "vocab": "model"}
FULLY_SHARDED = {"embed": "data"}
ACTIVATIONS = {"batch": "data"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh with axes data, model, pipe, and whether parameters are sharded over data."""

    mesh: jax.sharding.Mesh
    fully_sharded: bool

    def param(self, name: str, spec: ParamSpec) -> NamedSharding:
        """Returns where a parameter lives; raises BadInput if a dimension does not divide."""
        rules = PARAMETERS | (FULLY_SHARDED if self.fully_sharded else {})
        axes = [rules.get(axis or "") for axis in spec.axes]
        for size, logical, axis in zip(spec.shape, spec.axes, axes, strict=True):
            if axis and size % self.mesh.shape[axis]:
                raise BadInput(
                    f"{name} has {logical} {size}, which mesh.{axis} {self.mesh.shape[axis]} does "
                    "not divide: change one of them, or set mesh.fully_sharded=false"
                )
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    @property
    def batch(self) -> NamedSharding:
        """Rows over data, everything else whole."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def data_size(self) -> int:
        return self.mesh.shape["data"]

    def local_rows(self, n_rows: int) -> slice:
        """Returns which rows of a batch this process holds: the only ones it has to make."""
        indices = self.batch.addressable_devices_indices_map((n_rows,)).values()
        bounds = [index[0].indices(n_rows) for index in indices if index]
        return slice(min(b[0] for b in bounds), max(b[1] for b in bounds))

    def put_batch(self, local: Any) -> Any:
        """Returns this process's rows of a batch as arrays over the whole mesh."""
        if jax.process_count() == 1:  # the same, at half the cost
            return jax.device_put(local, self.batch)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(self.batch, x), local)


def make_layout(mesh: MeshConfig, devices: list[jax.Device] | None = None) -> Layout:
    """Returns the layout over `devices` (all of them by default), one axis filled in where -1."""
    devices = jax.devices() if devices is None else devices
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
    return Layout(
        jax.make_mesh(
            tuple(sizes), AXES, devices=devices[:needed], axis_types=(AxisType.Auto,) * 3
        ),
        mesh.fully_sharded,
    )


def shard(x: jax.Array, *names: str | None) -> jax.Array:
    """Returns x placed by its dimensions' logical names on the mesh of the context, if any."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    assert len(names) == x.ndim, f"{len(names)} names for {x.ndim} dimensions"
    spec = PartitionSpec(*(ACTIVATIONS.get(name or "") for name in names))
    return jax.lax.with_sharding_constraint(x, spec)
