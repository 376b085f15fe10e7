"""Rows cut from one array of tokens: row i predicts tokens i T + 1 .. (i + 1) T.

Neighbouring rows share one token, the last target of one being the first input of the next, so
every token but the very first is a target exactly once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lm.data.dataset import Batch, Rows


@dataclass(frozen=True)
class Windows(Rows):
    """Rows of `length` targets in order; what lies past the end of `tokens` has weight zero."""

    tokens: Any  # [n], unsigned: an array, or a Joined of several
    length: int

    def rows(self, numbers: np.ndarray) -> Batch:
        """The rows with these numbers, shape [len(numbers), length]."""
        n_targets = len(self.tokens) - 1
        index_BT = numbers[:, None] * self.length + np.arange(self.length)
        if numbers.size and (int(numbers.max()) + 1) * self.length > n_targets:
            weights_BT = (index_BT < n_targets).astype(np.float32)
            index_BT = np.minimum(index_BT, n_targets - 1)
        else:
            weights_BT = np.ones(index_BT.shape, np.float32)
        inputs_BT = self.tokens[index_BT].astype(np.int32)
        return Batch(inputs_BT, self.tokens[index_BT + 1].astype(np.int32), weights_BT)
