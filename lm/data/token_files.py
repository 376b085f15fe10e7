"""Token files, memory-mapped: a folder of experiments.tokenize, or .bin and .npy of any origin."""

import glob
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lm.config import DataConfig
from lm.data import remote, token_folder
from lm.data import tokenizer as tokenizers
from lm.data.files import no_match
from lm.data.split import Joined, Split
from lm.data.token_folder import INDEX, file_dtype
from lm.data.token_ids import token_dtype
from lm.data.tokenizer import Tokenizer
from lm.errors import BadInput

CHUNK = 2**26  # bytes of a file digested at a time


class Tokens(NamedTuple):
    """Both splits, opened."""

    train: Split
    held_out: Split
    tokenizer: Tokenizer
    sha256: str


def load(
    path: str | None, tokenizer_name: str, fraction: float, validation_path: str | None
) -> Tokens:
    """The tokens at data.path.

    A folder says its tokenizer and its held-out documents itself, and a data.tokenizer that is a
    file must be that one. Files of other origin are read with data.tokenizer, and their last
    `fraction` is held out, or what validation_path names. Raises BadInput where they do not fit.
    """
    if not path:
        raise BadInput(
            "data.source=tokens needs data.path: a folder written by experiments.tokenize, or a "
            "glob of .bin or .npy files"
        )
    path = _here(path)
    if os.path.isdir(path):
        if validation_path:
            raise BadInput(
                f"data.validation_path with the token folder {path}: the folder holds its own "
                "held-out documents, leave it none"
            )
        return _folder(Path(path), tokenizer_name)
    return _loose(path, tokenizer_name, fraction, validation_path)


def are_tokens(path: str) -> bool:
    """Whether a path of a mixture names token files rather than text."""
    if path.endswith((".bin", ".npy")):
        return True
    return remote.is_folder(path) if remote.is_remote(path) else os.path.isdir(_here(path))


def _here(path: str) -> str:
    """The path on this machine; of remote globs, the path itself."""
    if remote.is_remote(path):
        return str(remote.folder(path)) if remote.is_folder(path) else path
    return os.path.expanduser(path)


def _folder(folder: Path, tokenizer_name: str) -> Tokens:
    if not (folder / INDEX).exists():
        raise BadInput(
            f"the folder {folder} has no {INDEX}: give one that experiments.tokenize wrote, or a "
            f"glob of token files, such as '{folder}/*.bin'"
        )
    index = token_folder.read_index(folder)
    if not index.finished:
        raise BadInput(
            f"the token files in {folder} are not finished: run experiments.tokenize again with "
            "the same flags"
        )
    tokenizer = token_folder.tokenizer_of(folder, index)
    if tokenizer_name not in tokenizers.TOKENIZERS:
        token_folder.refuse_other(folder, index, tokenizers.make(tokenizer_name, ()))
    elif tokenizer_name not in (DataConfig().tokenizer, tokenizer.spec["kind"]):
        raise BadInput(
            f"data.tokenizer={tokenizer_name} with the token folder {folder}, whose tokens were "
            "made with another: leave data.tokenizer out, the folder says its own"
        )
    train, held_out = (_split(folder, index, split) for split in token_folder.SPLITS)
    return Tokens(train, held_out, tokenizer, index.sha256)


def _split(folder: Path, index: token_folder.Index, split: str) -> Split:
    parts, ends, first = [], [], 0
    for shard in index.splits[split]:
        parts.append(_mapped(folder / shard.name, index.vocab_size, shard.n_tokens))
        documents = _documents(folder / token_folder.documents_name(shard.name))
        ends.append(documents[:, 0].astype(np.int64) + first)
        first += shard.n_tokens
    joined = Joined(parts, index.vocab_size, str(folder))
    empty = np.zeros(0, np.int64)
    return Split(joined, np.concatenate([empty, *ends]), index.total(split, "n_bytes"))


def _documents(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError) as e:
        raise BadInput(f"cannot read {path} ({e}): make the folder again") from e


def _mapped(path: Path, vocab_size: int, n_tokens: int | None = None) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            ids = np.load(path, mmap_mode="r")
        else:
            dtype = file_dtype(vocab_size)
            size = path.stat().st_size
            if size % dtype.itemsize:
                raise ValueError(f"{size} bytes are not whole ids of {dtype.itemsize} bytes")
            ids = np.memmap(path, dtype, "r") if size else np.zeros(0, dtype)
    except (OSError, ValueError) as e:
        raise BadInput(f"cannot read the token file {path} ({e}): restore it") from e
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        raise BadInput(
            f"the token file {path} holds {ids.dtype} of shape {ids.shape}: one row of whole "
            "numbers is meant"
        )
    if ids.dtype.kind == "i":
        if ids.size and int(ids.min()) < 0:
            raise BadInput(f"the token file {path} holds the token id {int(ids.min())}, below 0")
    if n_tokens is not None and len(ids) != n_tokens:
        raise BadInput(
            f"the token file {path} holds {len(ids)} tokens and its index says {n_tokens}: make "
            "the folder again with experiments.tokenize"
        )
    return np.asarray(ids)


def _loose(path: str, tokenizer_name: str, fraction: float, validation_path: str | None) -> Tokens:
    """Files that know neither documents nor their tokenizer."""
    if tokenizer_name == "characters":
        raise BadInput(
            "data.tokenizer=characters is made from text, and token files have none: name the "
            "tokenizer.json they were made with, or bytes"
        )
    tokenizer = tokenizers.make(tokenizer_name, ())
    size = tokenizer.vocab_size
    paths = _matches(path, "data.path")
    train = [_mapped(p, size) for p in paths]
    if validation_path:
        there = _matches(os.path.expanduser(validation_path), "data.validation_path")
        held_out = [_mapped(p, size) for p in there]
    else:
        n_train = sum(map(len, train))
        n_train -= int(n_train * fraction)
        train, held_out = _cut(train, n_train)
    sha = hashlib.sha256(tokenizers.fingerprint(tokenizer).encode())
    for part in (*train, *held_out):
        sha.update(b"%d " % len(part))
        for first in range(0, len(part), CHUNK):
            sha.update(np.ascontiguousarray(part[first : first + CHUNK]).view(np.uint8).data)
    name = f"one of the files {path}"

    def split(parts: list[np.ndarray]) -> Split:
        joined = Joined(_one_type(parts, token_dtype(size)), size, name)
        return Split(joined, np.array([len(joined)], np.int64), None)

    return Tokens(split(train), split(held_out), tokenizer, sha.hexdigest())


def _one_type(parts: list[np.ndarray], narrowest: np.dtype) -> list[np.ndarray]:
    """Parts of one type, if need be by a copy: never narrower than an id that is there."""
    types = {p.dtype for p in parts}
    widest = np.result_type(narrowest, *types)
    return parts if len(types) == 1 else [p.astype(widest) for p in parts]


def _matches(path: str, setting: str) -> list[Path]:
    if remote.is_remote(path):
        found = remote.files(path)
    else:
        found = sorted(Path(p) for p in glob.glob(path, recursive=True) if os.path.isfile(p))
        found = found or ([Path(path)] if os.path.isfile(path) else [])
    if not found and remote.is_remote(path):
        raise BadInput(f"{setting} {path} matches no file; check the address")
    if not found:
        raise no_match(setting, path)
    wrong = [p for p in found if p.suffix not in (".bin", ".npy")]
    if wrong:
        raise BadInput(f"{wrong[0]} is not a .bin or .npy file of token ids: correct {setting}")
    return found


def _cut(parts: list[np.ndarray], n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The first n ids, and the rest."""
    head, tail = [], []
    for part in parts:
        k = max(0, min(n, len(part)))
        head += [part[:k]] if k else []
        tail += [part[k:]] if k < len(part) else []
        n -= len(part)
    return head, tail
