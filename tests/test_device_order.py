"""Places of a mesh: every device once, busy axes along rings, one axis across slices."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

from launch.paper import on_paper
from lm.config import MeshConfig
from lm.device_order import arrange, n_slices, slice_of, slow_axis
from lm.errors import BadInput
from lm.layout import BY_TRAFFIC, make_layout

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def sizes(data, model, pipe):
    return {"data": data, "model": model, "pipe": pipe}


def devices_of(name):
    from launch.topology import machine

    return machine(name).devices


def cpu(n, per_slice=None, platform="cpu"):
    return [
        SimpleNamespace(id=i, platform=platform, slice_index=i // per_slice if per_slice else None)
        for i in range(n)
    ]


def test_devices_without_a_torus_keep_their_order_along_the_axes_that_talk():
    got = np.vectorize(lambda d: d.id)(arrange(cpu(24)[::-1], sizes(3, 2, 4), BY_TRAFFIC))
    data, model, pipe = np.indices((3, 2, 4))
    assert (got == 6 * pipe + 2 * data + model).all()


def test_gpus_of_one_box_stay_together():
    shuffled = cpu(16, per_slice=8, platform="gpu")[::-1]
    got = arrange(shuffled, sizes(2, 4, 2), BY_TRAFFIC)  # pipe crosses boxes
    boxes = np.vectorize(slice_of)(got)
    assert (boxes[:, :, 0] == 0).all() and (boxes[:, :, 1] == 1).all()
    got = arrange(shuffled, sizes(4, 4, 1), BY_TRAFFIC)  # nothing but data can
    assert (np.vectorize(slice_of)(got)[:, :, 0].T == [0, 0, 1, 1]).all()
    compile_only = SimpleNamespace(id=3, platform="gpu", slice_index=0, coords=[1, 0, 3])
    assert slice_of(compile_only) == 1


def test_the_slow_axis_is_the_pipeline_where_it_divides():
    assert slow_axis(sizes(8, 2, 4), 2, BY_TRAFFIC) == "pipe"
    assert slow_axis(sizes(8, 2, 3), 2, BY_TRAFFIC) == "data"
    assert slow_axis(sizes(8, 2, 3), 1, BY_TRAFFIC) is None
    with pytest.raises(BadInput, match="2 slices: neither mesh.pipe 3 nor mesh.data 5"):
        slow_axis(sizes(5, 2, 3), 2, BY_TRAFFIC)
    layout = make_layout(MeshConfig(-1, 4, 2), on_paper("2xv5e:4x4").devices)
    told = "mesh: data 4, model 4, pipe 2 over 32 tpu devices; pipe lies across 2 slices"
    assert layout.told() == told


def test_devices_without_rings_keep_their_order_and_it_is_said(capsys):
    devices = on_paper("v5e:2x2").devices
    assert arrange(devices, sizes(4, 1, 1), BY_TRAFFIC).shape == (4, 1, 1)
    assert not capsys.readouterr().err
    got = arrange(devices[:3], sizes(3, 1, 1), BY_TRAFFIC)
    assert [d.id for d in got.flat] == [0, 1, 2]
    assert "no rings could be laid" in capsys.readouterr().err


@needs_libtpu
@pytest.mark.parametrize(
    "name, mesh",
    [
        ("v5p:4x4x4", sizes(16, 4, 1)),
        ("v5p:4x4x4", sizes(4, 4, 4)),
        ("v5e:16x16", sizes(64, 4, 1)),
        ("v5p:8x8x8", sizes(64, 2, 4)),
        ("tpu7x:2x2x1", sizes(2, 2, 2)),
    ],
)
def test_every_device_has_a_place_and_model_groups_lie_in_a_row(name, mesh):
    devices = devices_of(name)
    got = arrange(devices, mesh, BY_TRAFFIC)
    assert got.shape == tuple(mesh.values())
    assert {d.id for d in got.flat} == {d.id for d in devices}
    for group in np.moveaxis(got, 1, -1).reshape(-1, mesh["model"]):
        places = np.array([[*d.coords, d.core_on_chip] for d in group])
        assert ((places != places[0]).any(0)).sum() == 1  # one row of chips, or one chip's cores
        assert np.ptp(places, 0).max() == mesh["model"] - 1  # and neighbours in it


@needs_libtpu
def test_slices_lie_along_one_axis():
    devices = devices_of("2xv5e:4x4")
    assert n_slices(devices) == 2
    along_pipe = np.vectorize(slice_of)(arrange(devices, sizes(4, 4, 2), BY_TRAFFIC))
    assert (along_pipe[:, :, 0] == 0).all() and (along_pipe[:, :, 1] == 1).all()
    along_data = np.vectorize(slice_of)(arrange(devices, sizes(8, 4, 1), BY_TRAFFIC))
    assert (along_data[:4] == along_data[0, 0, 0]).all()
    assert (along_data[4:] == 1 - along_data[0, 0, 0]).all()
