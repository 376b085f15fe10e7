"""From two splits of tokens to rows: one stretch after another, or documents packed."""

from typing import NamedTuple

import numpy as np

from lm.config import DataConfig
from lm.data import packing
from lm.data.dataset import Dataset, Rows
from lm.data.shuffle import Shuffled
from lm.data.split import Split
from lm.data.tokenizer import Tokenizer
from lm.data.windows import Windows
from lm.errors import BadInput
from lm.progress import say


class RowSettings(NamedTuple):
    """How tokens are cut into training rows."""

    length: int  # targets a row
    seed: int | str = 0  # of their order
    packing: str = "concatenate"
    packing_block: int = 65_536


def settings(data: DataConfig, length: int, seed: int | str) -> RowSettings:
    return RowSettings(length, seed, data.packing, data.packing_block)


def from_splits(
    train: Split, held_out: Split, tokenizer: Tokenizer, sha256: str, rows: RowSettings
) -> Dataset:
    """Rows of two splits of tokens."""
    cut = _packed if rows.packing == "best_fit" else _windows
    training, validation = cut(train, rows, "training"), cut(held_out, rows, "validation")
    if rows.packing == "best_fit":
        _say_padding(training, train, rows)
    held_out_bytes = held_out.n_bytes
    if held_out_bytes is not None:
        held_out_bytes -= _bytes_of(held_out.tokens[validation.given], tokenizer)
    return Dataset(
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer,
        sha256=sha256,
        n_train_tokens=len(train.tokens),
        n_train_sequences=training.n_full,
        n_validation_sequences=validation.n,
        n_validation_tokens=validation.n_targets,
        validation_bytes=held_out_bytes,
        entropy_rate=None,
        train=Shuffled(training.rows, training.n_full, rows.seed),
        held_out=validation.rows,
    )


class _Cut(NamedTuple):
    """A split cut into rows."""

    rows: Rows
    n: int
    n_full: int  # rows that training uses: all but a tail that is shorter than the others
    n_targets: int
    given: np.ndarray  # where the tokens are that are given and never predicted


def _windows(part: Split, rows: RowSettings, name: str) -> _Cut:
    n = len(part.tokens) - 1
    if n < rows.length:
        raise BadInput(
            f"the {name} split has {n + 1} tokens, fewer than the {rows.length + 1} of one "
            f"sequence (data.length {rows.length}, and one more to predict); give more text or a "
            "shorter data.length"
        )
    windows = Windows(part.tokens, rows.length)
    return _Cut(windows, -(-n // rows.length), n // rows.length, n, np.zeros(1, np.int64))


def _packed(part: Split, rows: RowSettings, name: str) -> _Cut:
    plan = packing.plan(part, rows.length, rows.packing_block)
    if not plan.n_rows:
        raise BadInput(
            f"the {name} split has {len(part.ends)} documents and none with two tokens or more, so "
            "there is nothing to predict: give more text"
        )
    packed = packing.Packed(part, plan, rows.length)
    sizes = np.diff(part.ends, prepend=0)
    return _Cut(packed, plan.n_rows, plan.n_rows, plan.n_targets, part.starts()[sizes > 0])


def _say_padding(training: _Cut, train: Split, rows: RowSettings) -> None:
    padding = 1 - training.n_targets / (training.n * rows.length)
    say(
        f"packing: {len(train.ends):,} documents in {training.n:,} rows of {rows.length}, "
        f"{100 * padding:.2f} % padding"
    )


def _bytes_of(ids: np.ndarray, tokenizer: Tokenizer) -> int:
    """Bytes of text that tokens stand for, each on its own; bos stands for none."""
    known, counts = np.unique(ids, return_counts=True)
    sizes = [
        0 if i == tokenizer.bos else len(tokenizer.decode(known[[k]])) for k, i in enumerate(known)
    ]
    return int(np.dot(sizes, counts))
