"""One split of a data set as token ids in a row, and where its documents end."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.data.tokenizer import Tokenizer, document_ids, encode_all
from lm.errors import BadInput


class Joined:
    """Arrays of ids as one, read where they lie: memory-mapped files are never loaded whole."""

    def __init__(self, parts: list[np.ndarray], vocab_size: int, name: str):
        self._parts, self._vocab_size, self._name = parts, vocab_size, name
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """The ids at any places, in the places' shape; raises BadInput for one that cannot be."""
        index = np.asarray(index)
        if len(self._parts) == 1:
            ids = self._parts[0][index]
        else:
            part = np.searchsorted(self._starts, index, "right") - 1
            ids = np.empty(index.shape, self._parts[0].dtype if self._parts else np.uint8)
            for p in np.unique(part).tolist():
                here = part == p
                ids[here] = self._parts[p][index[here] - self._starts[p]]
        if ids.size and int(ids.max()) >= self._vocab_size:
            raise BadInput(
                f"{self._name} has the token id {int(ids.max())}, outside the vocabulary of "
                f"{self._vocab_size}: the tokens were made with another tokenizer"
            )
        return ids


@dataclass(frozen=True)
class Split:
    """Tokens, shape [n], indexed by arrays of places; documents end before `ends`."""

    tokens: Any  # np.ndarray or Joined
    ends: np.ndarray  # int64 [n_documents], increasing, the last one is n
    n_bytes: int | None  # of the documents' text; None: not known

    def starts(self) -> np.ndarray:
        """Where documents begin, int64 [n_documents]."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])


def encoded(tokenizer: Tokenizer, documents: list[bytes]) -> Split:
    """The split of documents held in memory."""
    if not documents:
        return Split(np.zeros(0, np.uint8), np.zeros(0, np.int64), 0)
    ids = encode_all(tokenizer, documents)
    parts = [document_ids(tokenizer, part, True, True) for part in ids]
    return Split(
        np.concatenate(parts), np.cumsum([len(p) for p in parts]), sum(map(len, documents))
    )
