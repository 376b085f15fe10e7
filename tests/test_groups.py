"""Groups of devices in a program's text: every spelling that XLA has for them is read."""

import numpy as np
import pytest

from launch.groups import parse_groups


def spellings(sizes, along):
    """The groups of a mesh along some axes, written in every way that XLA writes them."""
    n = int(np.prod(sizes))
    moving = [a for a in range(len(sizes)) if a in along]
    still = [a for a in range(len(sizes)) if a not in along]
    order = still + moving
    members = np.arange(n).reshape(sizes).transpose(order)
    members = members.reshape(-1, int(np.prod([sizes[a] for a in moving])))
    lists = ",".join("{" + ",".join(map(str, row)) + "}" for row in members)
    dims, shape = ",".join(map(str, sizes)), ",".join(map(str, members.shape))
    axes = ",".join(f"'a{i}'={size}" for i, size in enumerate(sizes))
    named = ",".join(f"'a{i}'" for i in moving)
    halves = ",".join(f"'a{i}':(1)2,'a{i}':(2){sizes[i] // 2}" for i in moving)
    yield members, f"replica_groups={{{lists}}}, use_global_device_ids=true"
    yield members, f"replica_groups=[{shape}]<=[{dims}]T({','.join(map(str, order))}), x=1"
    yield members, f"channel_id=1, replica_groups=mesh[{axes}] {{{named}}}, x=1"
    if all(sizes[i] % 2 == 0 for i in moving):
        yield members, f"replica_groups=mesh[{axes}] {{{halves}}}, x=1"


@pytest.mark.parametrize("sizes, along", [((4, 2), (0,)), ((4, 2), (1,)), ((2, 4, 6), (0, 2))])
def test_all_spellings_of_groups_are_read(sizes, along):
    found = list(spellings(sizes, along))
    assert len(found) == 4
    for members, text in found:
        groups = parse_groups(text, int(np.prod(sizes)))
        assert {frozenset(row) for row in groups.members.tolist()} == {
            frozenset(row) for row in members.tolist()
        }, text
        mesh = {f"a{i}": size for i, size in enumerate(sizes)}
        assert groups.axes(mesh) == "+".join(f"a{i}" for i in along)
        assert groups.size == members.shape[1]


def test_groups_along_part_of_an_axis():
    rows = lambda text: parse_groups(f"replica_groups={text}, x=1", 8).members.tolist()
    assert rows("mesh['a'=8] {'a':(2)4}") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert rows("mesh['a'=8] {'a':(1)2}") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert rows("mesh['a'=8], device_ids=([8]<=[2,4]T(1,0)) {'a':(4)2}")[0] == [0, 4]


def test_groups_know_how_many_slices_they_reach():
    groups = parse_groups("replica_groups={{0,4},{1,5},{2,6},{3,7}}, x=1", 8)
    assert groups.crossing([0] * 4 + [1] * 4) == 2
    assert groups.crossing([0, 1, 0, 1] * 2) == 1
    assert parse_groups("source_target_pairs={{0,1},{1,0}}", 8).crossing([0] * 8) == 1
    assert parse_groups("replica_groups={}, x=1", 8).size == 8
    assert parse_groups("dimensions={0}", 8) is None
