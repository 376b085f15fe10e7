"""Several data sets as one, by weight: which source a sequence is of follows from its number.

Every BLOCK consecutive sequences hold each source as often as its weight says, to the nearest
sequence, in an order of the block's own. So the mixture is even over short stretches too, any
sequence is found at once, and each source goes through its own epochs.
"""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm.data import tokenizer as tokenizers
from lm.data.dataset import Batch, Dataset, Rows
from lm.errors import BadInput
from lm.progress import say

BLOCK = 1000


@functools.lru_cache(maxsize=8)
def _order(seed: int, block: int) -> np.ndarray:
    """A permutation of a block's places, from seed and block alone, on any machine."""
    key = hashlib.blake2b(f"mixture/{seed}/{block}".encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(BLOCK)
    return np.argsort(words, kind="stable")


@dataclass(frozen=True)
class Mixed(Rows):
    """Rows of several sources without end; counts[s] of every block are of source s."""

    sources: list[Rows]
    counts: np.ndarray  # int64, their sum is BLOCK
    seed: int

    def source_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the source of each sequence, its number there)."""
        ends = np.cumsum(self.counts)
        block = numbers // BLOCK
        place = np.empty(len(numbers), np.int64)
        for b in np.unique(block).tolist():
            place[block == b] = _order(self.seed, b)[numbers[block == b] % BLOCK]
        source = np.searchsorted(ends, place, "right")
        first = (ends - self.counts)[source]
        return source, block * self.counts[source] + place - first

    def rows(self, numbers: np.ndarray) -> Batch:
        source, own = self.source_of(numbers)
        return _gathered([(r, source == s, own) for s, r in enumerate(self.sources)])


def epochs(mixed: Dataset, n_sequences: int) -> dict[str, float]:
    """How often the first n_sequences of a mixture go through each source, by name."""
    assert isinstance(mixed.train, Mixed)
    drawn = n_sequences * mixed.train.counts / BLOCK
    sizes = [part.n_train_sequences or 1 for part in mixed.parts.values()]
    return dict(zip(mixed.parts, (drawn / sizes).tolist(), strict=True))


@dataclass(frozen=True)
class Chained(Rows):
    """The rows of several sources one after another; those past the last have weight zero."""

    sources: list[Rows]
    counts: list[int]

    def rows(self, numbers: np.ndarray) -> Batch:
        ends = np.cumsum(self.counts)
        last = len(ends) - 1
        source = np.minimum(np.searchsorted(ends, numbers, "right"), last)
        own = numbers - (ends - self.counts)[source]
        return _gathered([(r, source == s, own) for s, r in enumerate(self.sources)])


def _gathered(parts: list[tuple[Rows, np.ndarray, np.ndarray]]) -> Batch:
    """One batch of rows from several sources: (source, where its rows stand, their numbers)."""
    made = [(here, rows.rows(own[here])) for rows, here, own in parts if here.any()]
    if not made:
        rows, _, own = parts[0]
        return rows.rows(own)

    def joined(arrays: tuple[np.ndarray | None, ...]) -> np.ndarray | None:
        first = arrays[0]
        if first is None:
            return None
        out = np.empty((len(made[0][0]), *first.shape[1:]), first.dtype)
        for (here, _), array in zip(made, arrays, strict=True):
            out[here] = array
        return out

    fields = zip(*(batch for _, batch in made), strict=True)
    return Batch(*map(joined, fields))  # type: ignore[arg-type]


def mix(weights: dict[str, float], make: Callable[[str, int | str], Dataset], seed: int) -> Dataset:
    """The data sets make(path, seed of its order) mixed by the weights of their paths.

    The validation split is all of theirs; `parts` keeps them apart, for losses by source. Raises
    BadInput where their tokenizers differ or a weight is too small for a block.
    """
    counts = _counts(weights)
    names = _names(list(weights))
    sets = {name: make(path, f"{seed}/{path}") for name, path in names.items()}
    first = next(iter(sets.values()))
    for name, ds in sets.items():
        if tokenizers.fingerprint(ds.tokenizer) != tokenizers.fingerprint(first.tokenizer):
            raise BadInput(
                f"data.mixture: {name} and {next(iter(sets))} have other tokenizers: make their "
                "tokens with one tokenizer"
            )
    for (name, ds), count in zip(sets.items(), counts, strict=True):
        say(
            f"mixture: {100 * count / BLOCK:.1f} % of the sequences from {name}, "
            f"{ds.n_train_sequences:,} an epoch"
        )
    parts = list(sets.values())
    n_bytes = [ds.validation_bytes for ds in parts]
    return Dataset(
        vocab_size=first.vocab_size,
        tokenizer=first.tokenizer,
        sha256=_digest(parts, counts),
        n_train_tokens=None,
        n_train_sequences=None,
        n_validation_sequences=sum(ds.n_validation_sequences for ds in parts),
        n_validation_tokens=sum(ds.n_validation_tokens for ds in parts),
        validation_bytes=None if None in n_bytes else sum(n for n in n_bytes if n is not None),
        entropy_rate=None,
        train=Mixed([ds.train for ds in parts], counts, seed),
        held_out=Chained(
            [ds.held_out for ds in parts], [ds.n_validation_sequences for ds in parts]
        ),
        parts=sets,
    )


def check(mixture: tuple) -> dict[str, float]:
    """The weights by path of data.mixture; raises BadInput for entries that cannot be meant."""
    for entry in mixture:
        pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        if not pair or not isinstance(entry[1], int | float) or not 0 < entry[1] < float("inf"):
            raise BadInput(
                f"data.mixture holds {entry!r}: each entry is a pair (path, weight), the weight "
                "greater than 0"
            )
    if len({path for path, _ in mixture}) < max(len(mixture), 2):
        raise BadInput("data.mixture needs two or more different paths")
    return dict(mixture)


def _counts(weights: dict[str, float]) -> np.ndarray:
    """How many of BLOCK sequences are of each source: largest remainders."""
    exact = np.array(list(weights.values()), float) * BLOCK / sum(weights.values())
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: BLOCK - counts.sum()]] += 1
    for path, count in zip(weights, counts.tolist(), strict=True):
        if count == 0:
            raise BadInput(
                f"data.mixture: the weight of {path} is less than one sequence in {BLOCK}: raise "
                "it or leave the source out"
            )
    return counts


def _names(paths: list[str]) -> dict[str, str]:
    """Short names: the last part of each path where these differ, else the whole paths."""
    last = [p.rstrip("/").rsplit("/", 1)[-1] for p in paths]
    return dict(zip(last if len(set(last)) == len(paths) else paths, paths, strict=True))


def _digest(parts: list[Dataset], counts: np.ndarray) -> str:
    text = repr([[ds.sha256 for ds in parts], counts.tolist()])
    return hashlib.sha256(text.encode()).hexdigest()
