"""Token ids as stored: the smallest unsigned type that holds a vocabulary, never wrapping."""

import numpy as np

from lm.errors import BadInput


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds every id below vocab_size."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise BadInput(f"a vocabulary of {vocab_size} is larger than 32-bit ids can tell apart")


def as_tokens(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """`ids` in the vocabulary's type. An id outside the vocabulary raises: it never wraps."""
    ids = np.asarray(ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise BadInput(
            f"token id {bad} is outside the vocabulary of {vocab_size}: the tokens were made "
            "with another tokenizer"
        )
    return ids.astype(token_dtype(vocab_size), copy=False)
