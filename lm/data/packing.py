"""Documents packed into rows: best fit, in a plan that says of every row what it holds.

A row has T places, each an input and its target. A document of n tokens fills n - 1 of them, so
that no target lies in another document than its input. What is longer than T is cut: full rows of
its own, and a rest. Rests are packed within a block of documents by best-fit decreasing (longest
first, each into the row with the least room that is enough; Ding et al. 2024, "Fewer Truncations
Improve Language Modeling"). A block's rows depend on its documents alone, and the plan is an index:
any row is made from its number, without those before it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lm.data.dataset import Batch, Rows
from lm.data.split import Split


class Plan(NamedTuple):
    """Pieces of documents, row after row: row r holds pieces rows[r] .. rows[r + 1] - 1."""

    rows: np.ndarray  # int64 [n_rows + 1]
    first: np.ndarray  # int64 [n_pieces], the place of the first input among the tokens
    n: np.ndarray  # int32 [n_pieces], targets

    @property
    def n_rows(self) -> int:
        return len(self.rows) - 1

    @property
    def n_targets(self) -> int:
        return int(self.n.sum(dtype=np.int64))

    def padding(self, length: int) -> float:
        """The share of places that hold no target."""
        return 1 - self.n_targets / max(self.n_rows * length, 1)


def plan(split: Split, length: int, block: int) -> Plan:
    """Plans rows of `length` targets for a split's documents, `block` documents at a time."""
    starts, sizes = split.starts(), np.diff(split.ends, prepend=0) - 1
    none = np.zeros(0, np.int64)
    blocks = [(np.zeros(1, np.int64), none, none)]
    for at in range(0, len(sizes), block):
        blocks.append(_block(starts[at : at + block], sizes[at : at + block], length))
    counts, first, n = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Plan(np.cumsum(counts), first, n.astype(np.int32))


def _block(starts: np.ndarray, sizes: np.ndarray, length: int):
    """(pieces of each row, first input and targets of each piece), of a block's rows."""
    sizes = np.maximum(sizes, 0)  # an empty document
    n_full = sizes // length
    document = np.repeat(np.arange(len(sizes)), n_full)
    number = np.arange(len(document)) - np.repeat(np.cumsum(n_full) - n_full, n_full)
    full = starts[document] + number * length
    rest = sizes - n_full * length
    bins = _best_fit(rest, length)
    order = np.fromiter((d for documents in bins for d in documents), np.int64)
    counts = np.concatenate([np.ones(len(full), np.int64), np.array([*map(len, bins)], np.int64)])
    first = np.concatenate([full, (starts + n_full * length)[order]])
    return counts, first, np.concatenate([np.full(len(full), length), rest[order]])


def _best_fit(sizes: np.ndarray, room: int) -> list[list[int]]:
    """Indices of the positive sizes in bins of `room`, longest first, each where it fits best."""
    order = np.argsort(-sizes, kind="stable")
    bins: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(room + 1)]  # bins by the room left in them
    rooms = 0  # bit r: some bin has r left
    for i, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if size == 0:
            break
        enough = rooms >> size
        if enough:
            left = size + (enough & -enough).bit_length() - 1
            b = with_room[left].pop()
            if not with_room[left]:
                rooms ^= 1 << left
            bins[b].append(i)
        else:
            left, b = room, len(bins)
            bins.append([i])
        left -= size
        if left:
            with_room[left].append(b)
            rooms |= 1 << left
    return bins


@dataclass(frozen=True)
class Packed(Rows):
    """The rows of a plan in order; those past the last have weight zero.

    Segments number a row's pieces from 1, and positions restart with each; places without a target
    are segment 0.
    """

    split: Split
    plan: Plan
    length: int

    def rows(self, numbers: np.ndarray) -> Batch:
        """The rows with these numbers, shape [len(numbers), length]."""
        p = self.plan
        inside = np.minimum(numbers, p.n_rows)
        start = p.rows[inside]
        count = p.rows[np.minimum(inside + 1, p.n_rows)] - start
        row = np.repeat(np.arange(len(numbers)), count)
        ordinal = _counting(count)
        piece = start[row] + ordinal
        n = p.n[piece].astype(np.int64)
        before = np.cumsum(n) - n  # places filled so far: in all rows, then in the piece's own
        # A row past the last has no piece: what is appended stands for the first of none.
        before -= np.repeat(np.append(before, 0)[np.cumsum(count) - count], count)
        position = _counting(n)
        at = np.repeat(row * self.length + before, n) + position
        source = np.repeat(p.first[piece], n) + position

        def placed(values, dtype=np.int32) -> np.ndarray:
            flat = np.zeros(len(numbers) * self.length, dtype)
            flat[at] = values
            return flat.reshape(len(numbers), self.length)

        return Batch(
            placed(self.split.tokens[source]),
            placed(self.split.tokens[source + 1]),
            placed(1, np.float32),
            placed(np.repeat(ordinal + 1, n)),
            placed(position),
        )


def _counting(counts: np.ndarray) -> np.ndarray:
    """0 .. counts[0] - 1, then 0 .. counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
