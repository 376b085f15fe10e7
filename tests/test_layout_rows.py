"""Which rows of a batch a process makes: those that its own devices hold, in their order."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from lm import group
from lm.config import MeshConfig
from lm.errors import BadInput
from lm.layout import AXES, Layout, make_layout


@dataclass(frozen=True)
class Process:
    """What a device knows of the process that asks."""

    number: int
    platform: str = "tpu"

    def process_index(self) -> int:
        return self.number


@dataclass(frozen=True)
class Device:
    """A device of some process, as jax's are."""

    id: int
    process_index: int
    client: Process
    platform: str = "tpu"
    device_kind: str = "TPU v5"


def in_squares(asking: int, data: int, model: int) -> Layout:
    """16 chips in a square of 4 x 4, processes of 2 x 2, seen by one of the processes."""
    host = lambda i: i % 4 // 2 + 2 * (i // 8)
    chips = np.array([Device(i, host(i), Process(asking)) for i in range(16)], object)
    mesh = Mesh(chips.reshape(data, model, 1), AXES, axis_types=(AxisType.Auto,) * 3)
    return Layout(mesh, True)


@pytest.mark.parametrize("data, model", [(16, 1), (8, 2), (4, 4)])
def test_a_process_makes_the_rows_of_its_devices_and_no_others(data, model):
    for asking in range(4):
        layout = in_squares(asking, data, model)
        hosts = [{d.process_index for d in part.flat} for part in layout.mesh.devices]
        share = 32 // data
        want = [row for row in range(32) if asking in hosts[row // share]]
        assert layout.local_rows(32).tolist() == want
    assert len(want) == 32 // (4 if model < 4 else 2)  # two hosts share each row of four chips


def test_processes_that_have_not_joined_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(BadInput, match="4 processes share these devices and this one knows of 1"):
        make_layout(MeshConfig(8))
    monkeypatch.setattr(group, "size", lambda: 4)
    assert make_layout(MeshConfig(8)).data_size == 8
