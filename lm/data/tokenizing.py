"""From documents to a folder of token files, on every core, in the order of the text.

Pieces of text go in blocks of about a megabyte to worker processes and come back in order. A shard
(a file of each split) ends with the first block that fills it, so where a run was interrupted is a
place in the inputs, and going on from there writes the same files to the bit.
"""

import collections
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm import platform
from lm.data import duplicates
from lm.data import tokenizer as tokenizers
from lm.data.inputs import Inputs, Piece, Place, held_out_by, text_digest
from lm.data.token_folder import (
    Index,
    documents_name,
    file_dtype,
    signatures_name,
    write_index,
    write_shard,
)
from lm.data.tokenizer import Tokenizer, document_ids, encode_all
from lm.errors import CannotFinish
from lm.progress import Progress

BLOCK = 2**20  # characters of text a worker takes at a time
LIBRARY_THREADS = "TOKENIZERS_PARALLELISM"
AHEAD = 4  # blocks a worker that are read before they are needed


class Settings(NamedTuple):
    held_out: float  # share of the documents; of plain text, the inputs decide
    shard_bytes: int  # of text
    workers: int
    near_duplicates: bool = False  # whether documents are signed (duplicates.py)


class Encoded(NamedTuple):
    """A block's tokens, and of each piece how many, its bytes of text and 8 bytes of digest."""

    tokens: np.ndarray
    counts: list[int]
    n_bytes: list[int]
    digests: list[bytes]
    signatures: list[np.ndarray]  # of each piece; empty where none are wanted


class _Split:
    """One split of the shard that is being filled."""

    def __init__(self, number: int, open_document: list[Any] | None):
        self.number = number  # of its next file
        self.tokens: list[np.ndarray] = []
        self.n_tokens = 0
        self.documents: list[tuple[int, int, int]] = []
        self.signatures: list[np.ndarray] = []
        n_bytes, digest, signature = open_document or (0, "", None)
        self._open_bytes, self._open_digest = n_bytes, bytes.fromhex(digest)
        self._open_signature = duplicates.EMPTY
        if signature is not None:
            self._open_signature = np.array(signature, np.uint32)

    def add(
        self,
        tokens: np.ndarray,
        n_bytes: int,
        digest: bytes,
        signature: np.ndarray | None,
        ends: bool,
    ) -> None:
        self.tokens.append(tokens)
        self.n_tokens += len(tokens)
        self._open_bytes += n_bytes
        joined = self._open_digest + digest  # of a document in one piece: that piece's
        self._open_digest = digest if not self._open_digest else text_digest(joined)
        if signature is not None:
            self._open_signature = np.minimum(self._open_signature, signature)
        if ends:
            if signature is not None:
                self.signatures.append(self._open_signature)
            number = int.from_bytes(self._open_digest, "little")
            self.documents.append((self.n_tokens, self._open_bytes, number))
            self._open_bytes, self._open_digest = 0, b""
            self._open_signature = duplicates.EMPTY

    @property
    def open_document(self) -> list[Any]:
        return [self._open_bytes, self._open_digest.hex(), self._open_signature.tolist()]


def tokenize(
    folder: Path, index: Index, inputs: Inputs, tokenizer: Tokenizer, settings: Settings
) -> None:
    """Reads what is left of `inputs` into token files, and finishes the index.

    Raises BadInput for an input that cannot be read and CannotSave for a folder that cannot be
    written; either way the shards before are whole, and running again goes on after them.
    """
    start = Place(*index.after) if index.after else Place()
    dtype = file_dtype(tokenizer.vocab_size)
    open_split = lambda name: _Split(len(index.splits[name]), index.open.get(name))
    progress, total = None, max(inputs.size, 1)
    started, earlier = time.monotonic(), index.seconds
    session_bytes = shard_bytes = 0
    splits = {name: open_split(name) for name in index.splits}
    try:
        for block, encoded in _encoded(_blocks(inputs.pieces(start)), tokenizer, settings):
            first = 0
            signatures = list[Any](encoded.signatures) or [None] * len(block)
            rows = zip(
                block,
                encoded.counts,
                encoded.n_bytes,
                encoded.digests,
                signatures,
                strict=True,
            )
            for piece, count, n_bytes, digest, signature in rows:
                tokens = encoded.tokens[first : first + count]
                first += count
                held_out = piece.held_out
                if held_out is None:
                    held_out = held_out_by(digest, settings.held_out)
                split = splits["validation" if held_out else "train"]
                split.add(tokens, n_bytes, digest, signature, piece.ends)
            shard_bytes += sum(encoded.n_bytes)
            session_bytes += sum(encoded.n_bytes)
            seconds = time.monotonic() - started
            if progress is None:
                progress = Progress("tokenizing", 100, 100 * block[0].read // total, unit="%")
            rate = (
                f"{session_bytes / 1e6:,.0f} MB of text, {session_bytes / 1e6 / seconds:.1f} MB/s"
            )
            progress.update(100 * block[-1].read // total, rate)
            if shard_bytes >= settings.shard_bytes:
                index.seconds = earlier + seconds
                _write_files(folder, index, splits, dtype, settings.near_duplicates)
                index.after = list(block[-1].after)
                write_index(folder, index)
                splits = {name: open_split(name) for name in index.splits}
                shard_bytes = 0
    finally:
        if progress:
            progress.close()
    index.seconds = earlier + time.monotonic() - started
    _write_files(folder, index, splits, dtype, settings.near_duplicates)
    index.after = []
    index.duplicates = _duplicates(folder, index, settings.near_duplicates)
    index.finished = True
    write_index(folder, index)


def _duplicates(folder: Path, index: Index, near: bool) -> dict[str, Any]:
    shards = [(name == "validation", s) for name in index.splits for s in index.splits[name]]
    columns = [np.load(folder / documents_name(s.name))[:, 2] for _, s in shards]
    held_out = [np.full(s.n_documents, is_held_out) for is_held_out, s in shards]
    signed = [np.load(folder / signatures_name(s.name)) for _, s in shards if near]
    return duplicates.report(
        np.concatenate([np.zeros(0, np.uint64), *columns]),
        np.concatenate([np.zeros(0, bool), *held_out]),
        np.concatenate([np.zeros((0, len(duplicates.EMPTY)), np.uint32), *signed])
        if near
        else None,
    )


def _write_files(
    folder: Path, index: Index, splits: dict[str, _Split], dtype: np.dtype, near: bool
) -> None:
    """Writes the files of a shard and enters them in the index; they count once that is written."""
    for name, split in splits.items():
        if split.n_tokens:
            tokens = np.concatenate(split.tokens).astype(dtype)
            documents = np.array(split.documents, np.uint64).reshape(-1, 3)
            signatures = np.array(split.signatures, np.uint32).reshape(-1, len(duplicates.EMPTY))
            args = (tokens, documents, signatures if near else None)
            index.splits[name].append(write_shard(folder, name, split.number, *args))
        index.open[name] = split.open_document


def _blocks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    block: list[Piece] = []
    size = 0
    for piece in pieces:
        block.append(piece)
        size += len(piece.text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _encoded(
    blocks: Iterator[list[Piece]], tokenizer: Tokenizer, settings: Settings
) -> Iterator[tuple[list[Piece], Encoded]]:
    """Blocks with their tokens, in order."""
    workers, sign = settings.workers, settings.near_duplicates
    if workers == 1:
        os.environ[LIBRARY_THREADS] = "false"
        for block in blocks:
            yield block, _encode(tokenizer, _to_encode(block), sign)
        return
    context = multiprocessing.get_context("spawn")  # threads of the libraries do not survive fork
    with ProcessPoolExecutor(workers, context, _start_worker, (tokenizer.spec, sign)) as pool:
        waiting: collections.deque[tuple[list[Piece], Future]] = collections.deque()
        try:
            for block in blocks:
                with platform.deaf_children():  # the first blocks start the workers
                    waiting.append((block, pool.submit(_work, _to_encode(block))))
                if len(waiting) >= AHEAD * workers:
                    block, future = waiting.popleft()
                    yield block, future.result()
            while waiting:
                block, future = waiting.popleft()
                yield block, future.result()
        except BrokenProcessPool as e:
            raise CannotFinish(
                "a worker process died, perhaps for want of memory: run the same command again to "
                "go on, with fewer --workers"
            ) from e
        finally:
            pool.shutdown(cancel_futures=True)


def _to_encode(block: list[Piece]) -> list[tuple[str, bool, bool]]:
    return [(piece.text, piece.begins, piece.ends) for piece in block]


def _encode(tokenizer: Tokenizer, block: list[tuple[str, bool, bool]], sign: bool) -> Encoded:
    texts = [text.encode() for text, _, _ in block]
    parts = [
        document_ids(tokenizer, ids, begins, ends)
        for ids, (_, begins, ends) in zip(encode_all(tokenizer, texts), block, strict=True)
    ]
    counts, n_bytes = [len(p) for p in parts], [len(text) for text in texts]
    digests = [text_digest(text) for text in texts]
    signatures = [duplicates.signature(text) for text, _, _ in block] if sign else []
    return Encoded(np.concatenate(parts), counts, n_bytes, digests, signatures)


_worker: tuple[Tokenizer, bool]


def _start_worker(spec: dict[str, Any], sign: bool) -> None:
    global _worker
    os.environ[LIBRARY_THREADS] = "false"  # one thread a process, a process a core
    _worker = tokenizers.from_spec(spec), sign
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed leaves nobody behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(block: list[tuple[str, bool, bool]]) -> Encoded:
    tokenizer, sign = _worker
    return _encode(tokenizer, block, sign)
