"""A corpus: documents read once, split into training and validation, with a digest."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lm.errors import BadInput


@dataclass(frozen=True)
class Document:
    name: str  # the path below the corpus's root, with forward slashes
    text: bytes  # valid UTF-8, as it lies on disk


@dataclass(frozen=True)
class Corpus:
    """Both splits in order. Documents are UTF-8, and none is empty."""

    train: list[Document]
    validation: list[Document]
    sha256: str


def digest(documents: Iterable[Document]) -> str:
    """SHA-256 of names and bytes in order, each with its length, so that boundaries count."""
    sha = hashlib.sha256()
    for document in documents:
        name = os.fsencode(document.name)
        sha.update(b"%d %d " % (len(name), len(document.text)) + name)
        sha.update(document.text)
    return sha.hexdigest()


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def read(path: Path) -> bytes:
    """The bytes of a file, or a plain error."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise BadInput(f"cannot read {path} ({e.strerror}): check who may read it") from e
