"""The order of an epoch: a permutation keyed by seed and epoch, computed element by element.

It is grain's index shuffle, the one behind `grain.MapDataset.shuffle`, called without the data
set around it (7 microseconds a row instead of 23). grain adds seed and epoch, so that seed 1
repeats seed 0 one epoch earlier; here a digest of the pair is the key. It has 32
bits: two orders hardly ever meet.
"""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from lm.data.dataset import Batch, Rows
from lm.errors import BadInput

MAX_LENGTH = 2**32 - 1  # grain's indices have 32 bits
# Below so many elements grain searches long for each (2 ms for one of ten): whole orders are kept.
SHORT = 1024


@functools.lru_cache(maxsize=64)
def epoch_key(seed: int | str, epoch: int) -> int:
    """A 32-bit key that depends on both numbers; hash() would not do, it is salted."""
    digest = hashlib.blake2b(f"order/{seed}/{epoch}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def shuffled(numbers: np.ndarray, length: int, seed: int | str) -> np.ndarray:
    """The element (0 .. length - 1) at each global number, int64; epoch e is numbers // length.

    Each epoch holds every element once. The cost does not depend on how large a number is.
    """
    if length > MAX_LENGTH:
        raise BadInput(
            f"{length} sequences an epoch are more than the shuffle's {MAX_LENGTH}: "
            "raise data.length or give less text"
        )
    element = _kept if length <= SHORT else _element
    return np.fromiter(
        (element(n % length, length, epoch_key(seed, n // length)) for n in numbers.tolist()),
        np.int64,
        len(numbers),
    )


def _element(i: int, length: int, key: int) -> int:
    # Imported at the first batch: grain takes 0.6 s of CPU, and the first batch can be made in
    # the background while the step compiles.
    from grain.experimental import index_shuffle

    return index_shuffle(i, length - 1, key, 4)


def _kept(i: int, length: int, key: int) -> int:
    return _order(length, key)[i]


@functools.lru_cache(maxsize=64)
def _order(length: int, key: int) -> list[int]:
    return [_element(i, length, key) for i in range(length)]


@dataclass(frozen=True)
class Shuffled(Rows):
    """The first n rows of some, epoch after epoch, each epoch in an order of its own."""

    ordered: Rows
    n: int
    seed: int | str  # or a name

    def rows(self, numbers: np.ndarray) -> Batch:
        return self.ordered.rows(shuffled(numbers, self.n, self.seed))
