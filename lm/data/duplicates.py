"""Documents that repeat others: exactly, by their digests, and nearly, by MinHash.

The similarity of two documents is the Jaccard index of their sets of shingles (5 words in a row,
without case or punctuation). A signature keeps, for each of 128 hash functions, the smallest hash
of a document's shingles; two documents agree in each with a probability equal to their similarity
(Broder 1997). Documents that agree in all 8 of one of 16 bands are compared (Leskovec, Rajaraman
and Ullman, Mining of Massive Datasets, section 3.4), and count as near duplicates where at least
four fifths of their signatures agree.
"""

import re
import zlib
from typing import Any

import numpy as np

WORDS = 5  # of a shingle
BANDS, ROWS = 16, 8
LEAST = 0.8  # share of equal entries of near duplicates
CHUNK = 4096  # shingles hashed at a time
WORD = re.compile(r"\w+")

# Multiply-add hashes modulo 2**64; their upper halves are kept.
_words = np.random.Philox(key=0).random_raw(2 * BANDS * ROWS).astype(np.uint64)
_FACTOR, _TERM = _words[: BANDS * ROWS] | np.uint64(1), _words[BANDS * ROWS :]
_POWERS = np.cumprod(np.full(WORDS, 0x9E3779B97F4A7C15, np.uint64))
EMPTY = np.full(BANDS * ROWS, 2**32 - 1, np.uint32)  # the signature of no shingle


def signature(text: str) -> np.ndarray:
    """The MinHash signature of a text, uint32 [128].

    Of a document in parts it is the elementwise minimum of its parts' (shingles across them are
    missing). A text of fewer than 5 words is one shingle.
    """
    words = [zlib.crc32(w.encode()) for w in WORD.findall(text.lower())]
    if not words:
        return EMPTY
    words += [0] * (WORDS - len(words))
    windows = np.lib.stride_tricks.sliding_window_view(np.array(words, np.uint64), WORDS)
    shingles = np.unique((windows * _POWERS).sum(1, dtype=np.uint64))
    shingles ^= shingles >> np.uint64(31)
    least = EMPTY
    for i in range(0, len(shingles), CHUNK):
        hashes = shingles[i : i + CHUNK, None] * _FACTOR + _TERM
        least = np.minimum(least, (hashes.min(0) >> np.uint64(32)).astype(np.uint32))
    return least


def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The estimated similarity of signatures, in [0, 1], over the last axis."""
    return (a == b).mean(-1)


def report(
    digests: np.ndarray, held_out: np.ndarray, signatures: np.ndarray | None
) -> dict[str, Any]:
    """What repeats among n documents.

    digests uint64 [n], held_out bool [n], signatures uint32 [n, 128] or None. Returns documents,
    exact (documents equal to an earlier one) and, with signatures, near (documents that nearly
    repeat an earlier one and equal none), near_across_splits (held-out documents with a near
    duplicate, or an equal, among the training documents) and largest (sizes of the largest groups).
    """
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    found: dict[str, Any] = {"documents": len(digests), "exact": len(digests) - len(first)}
    if signatures is None:
        return found
    # One document of each set of equal ones stands for all.
    root = _groups(signatures[first])
    near_groups, sizes = np.unique(root, return_counts=True)
    members = np.bincount(root[group], minlength=len(first))
    train = np.bincount(root[group][~held_out], minlength=len(first)) > 0
    found["near"] = len(first) - len(near_groups)
    found["near_across_splits"] = int(train[root[group][held_out]].sum())
    found["largest"] = sorted(members[members > 1].tolist(), reverse=True)[:10]
    return found


def _groups(signatures: np.ndarray) -> np.ndarray:
    """The smallest index of each document's group of near duplicates, int64 [n]."""
    parent = np.arange(len(signatures))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    some = np.flatnonzero((signatures != EMPTY).any(1))
    for band in range(BANDS):
        columns = np.ascontiguousarray(signatures[some, band * ROWS : (band + 1) * ROWS])
        keys = columns.view(np.dtype((np.void, columns.dtype.itemsize * ROWS))).ravel()
        _, key = np.unique(keys, return_inverse=True)
        order = np.argsort(key, kind="stable")
        i, j = some[order[:-1]], some[order[1:]]
        same = key[order[1:]] == key[order[:-1]]
        # Neighbours of a bucket are compared: a chain joins what is alike.
        close = same & (similarity(signatures[i], signatures[j]) >= LEAST)
        for a, b in zip(i[close].tolist(), j[close].tolist(), strict=True):
            a, b = sorted((root(a), root(b)))
            parent[b] = a
    return np.array([root(i) for i in range(len(parent))], np.int64)
