"""Who talks to whom in a collective, as mesh axes.

A partition of a compiled program is a place of the mesh: partition i is `mesh.devices.flat[i]`.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Groups:
    """Sets of partitions that exchange data: rows [n_groups, size], or pairs of a permute."""

    members: np.ndarray  # int [n_groups, size]; of pairs [n_pairs, 2], source and target
    pairs: bool = False

    @property
    def size(self) -> int:
        """How many partitions take part in one exchange: 2 for the pairs of a permute."""
        return self.members.shape[1]

    def axes(self, mesh: Mapping[str, int]) -> str:
        """Returns the mesh axes along which members of a group differ, joined by a plus sign.

        `data+model` is one exchange over both. '' where every group has one member.
        """
        places = np.stack(np.unravel_index(self.members, tuple(mesh.values())))  # [axis, group, i]
        differs = (places != places[:, :, :1]).any((1, 2))
        return "+".join(name for name, yes in zip(mesh, differs, strict=True) if yes)

    def crossing(self, slices: Sequence[int]) -> int:
        """Returns over how many slices (machines joined by the slow network) a group reaches."""
        if len(set(slices)) == 1:
            return 1
        of_member = np.asarray(slices)[self.members]
        return max(len(set(row)) for row in of_member.tolist())


def parse_groups(text: str, n_partitions: int) -> Groups | None:
    """Returns the groups that an instruction's attributes state, or None where they do not.

    Four spellings: lists {{0,1},{2,3}}, a reshaped count [2,4]<=[8] or [2,4]<=[4,2]T(1,0), a mesh
    with the axes to talk along, and a permute's source and target pairs.
    """
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
    if pairs:
        return Groups(_lists(pairs.group(1)), pairs=True)
    listed = re.search(r"replica_groups=\{((?:\{[\d,]+\},?)*)\}", text)
    if listed:  # no lists at all: everyone in one group
        members = _lists(listed.group(1)) if listed.group(1) else np.arange(n_partitions)[None]
        return Groups(members) if members.dtype == int else None
    counted = re.search(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", text)
    if counted:
        return Groups(_counted(counted.group(1)))
    meshed = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}",
                       text)  # fmt: skip
    if meshed:
        return _meshed(*meshed.groups())
    return None


def _lists(text: str) -> np.ndarray:
    rows = [[int(i) for i in row.split(",")] for row in re.findall(r"\{([\d,]+)\}", text)]
    return np.array(rows) if len({len(row) for row in rows}) == 1 else np.array(rows, dtype=object)


def _numbers(text: str) -> list[int]:
    return [int(i) for i in text.split(",")]


def _counted(text: str) -> np.ndarray:
    found = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert found, text
    shape, source = _numbers(found.group(1)), _numbers(found.group(2))
    count = np.arange(math.prod(source)).reshape(source)
    if found.group(3):
        count = count.transpose(_numbers(found.group(3)))
    return count.reshape(shape)


def _meshed(axes: str, ids: str | None, along: str) -> Groups | None:
    """'a'=2,'b'=8 and {'b':(2)4}: along the part of b of size 4 that has 2 blocks before it."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    count = np.arange(math.prod(sizes.values()))
    if ids is not None:
        try:
            count = (_counted(ids) if "<=" in ids else np.array(_numbers(ids))).reshape(-1)
        except (AssertionError, ValueError):
            return None
    parts = [  # of an axis: the block that moves lies between these two strides
        (name, int(before or 1), int(before or 1) * (int(size) if size else sizes[name]))
        for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", along)
    ]
    shape: list[int] = []
    moving: list[int] = []
    for name, size in sizes.items():
        spans = [(low, high) for axis, low, high in parts if axis == name]
        cuts = sorted({1, size, *(cut for span in spans for cut in span)})
        for low, high in itertools.pairwise(cuts):
            if any(start <= low and high <= end for start, end in spans):
                moving.append(len(shape))
            shape.append(high // low)
    still = [i for i in range(len(shape)) if i not in moving]
    cut = count.reshape(shape).transpose(still + moving)
    return Groups(cut.reshape(-1, math.prod(shape[i] for i in moving)))
