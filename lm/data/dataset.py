"""A data set is two seekable streams of rows: training and validation.

A training position is one number, the global count of sequences drawn since the start, over all
epochs and hosts. Every row follows from its number alone, so resuming is starting at a number,
and a host that makes rows 4 to 7 of a batch makes what any other host would have made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from lm.data.tokenizer import Tokenizer


class Batch(NamedTuple):
    """Rows of tokens, shape [B, T] each. Predict targets[b, t] from inputs[b, : t + 1]."""

    inputs: np.ndarray  # int32
    targets: np.ndarray  # int32
    weights: np.ndarray  # float32: 1 where the target counts, 0 where it is padding
    segments: np.ndarray | None = None  # int32, the document of each input; None: one document
    positions: np.ndarray | None = None  # int32, within the document; None: 0 .. T - 1


Part = slice | np.ndarray  # which rows of a batch, by their places in it
ALL = slice(None)


def dtypes(packing: str) -> Batch:
    """The type of each array of a training batch under a data.packing, None where there is none."""
    whole = "int32" if packing == "best_fit" else None
    return Batch("int32", "int32", "float32", whole, whole)  # type: ignore[arg-type]


class Rows(Protocol):
    """Rows by number. Training rows never end; held-out ones past the last have weight zero."""

    def rows(self, numbers: np.ndarray) -> Batch: ...


@dataclass(frozen=True)
class Validation(Sequence[Batch]):
    """Batches of one shape that hold every validation target once; the rest has weight zero."""

    held_out: Rows
    n_sequences: int
    batch_size: int
    part: Part

    def __len__(self) -> int:
        return -(-self.n_sequences // self.batch_size)

    def __iter__(self):
        # Written out: a sequence's own iteration takes an IndexError of the rows for its end.
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        first = (i % len(self)) * self.batch_size
        return self.held_out.rows(np.arange(first, first + self.batch_size)[self.part])


@dataclass(frozen=True)
class Dataset:
    """What a run reads. Build one with `lm.data.build.build`."""

    vocab_size: int
    tokenizer: Tokenizer
    sha256: str  # of the corpus as read, or of the table that makes it
    n_train_tokens: int | None  # None: without end, no epochs
    n_train_sequences: int | None  # in one epoch; the tail shorter than a row is not used
    n_validation_sequences: int
    n_validation_tokens: int  # targets with weight one
    validation_bytes: int | None  # of those targets as text; None: they are not text
    entropy_rate: float | None  # nats per token, the least possible loss; None: not known
    train: Rows
    held_out: Rows
    parts: Mapping[str, "Dataset"] = field(default_factory=dict)  # of a mixture, by name

    def batch(self, start: int, count: int, rows: Part = ALL) -> Batch:
        """The training sequences numbered start .. start + count - 1, over epoch boundaries.

        `rows` picks some of them, numbered from 0 within the batch: a host makes only its own.
        """
        return self.train.rows(np.arange(start, start + count)[rows])

    def validation(self, batch_size: int, rows: Part = ALL) -> Validation:
        """The validation split in windows that share no target; `rows` as in `batch`.

        Every host gets the same number of batches, all of one shape.
        """
        return Validation(self.held_out, self.n_validation_sequences, batch_size, rows)
