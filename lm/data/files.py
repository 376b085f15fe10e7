"""Text files that a glob names, in the order of their names; the end of the text is held out."""

import glob
import math
import os
from fractions import Fraction
from pathlib import Path

from lm.data.corpus import Corpus, Document, digest, is_utf8, read
from lm.errors import BadInput


def load(path: str | None, validation_fraction: float) -> Corpus:
    """All matching files one after another, split by characters.

    With n characters and a validation_fraction of 0.1, the first floor(0.9 n) are for training
    and the others for validation. Raises BadInput where nothing matches, or a file is not UTF-8.
    """
    if not path:
        raise BadInput("data.source=files needs data.path, a glob of text files")
    documents = [_document(p, root) for root, p in _matches(path)]
    lengths = [_n_characters(d.text) for d in documents]
    # Exact: 1 - 0.9 in binary is a little less than a tenth.
    left = math.floor(sum(lengths) * (1 - Fraction(str(validation_fraction))))
    train, validation = [], []
    for document, length in zip(documents, lengths, strict=True):
        head, tail = _cut(document, max(0, min(left, length)), length)
        left -= length
        train += [head] if head.text else []
        validation += [tail] if tail.text else []
    return Corpus(train, validation, digest(documents))


def _matches(path: str) -> list[tuple[Path, Path]]:
    """(root, file) pairs; names below the root do not change when the corpus moves."""
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        example = os.path.join(path, "**", "*.txt")
        raise BadInput(f"data.path {path} is a folder; write a glob, such as '{example}'")
    if os.path.isfile(path):
        return [(Path(path).parent, Path(path))]
    found = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
    if not found:
        raise BadInput(f"data.path {path} matches no file; check the path")
    root = Path(os.path.commonpath([os.path.dirname(p) for p in found]) or ".")
    return [(root, Path(p)) for p in found]


def _document(path: Path, root: Path) -> Document:
    text = read(path)
    if text and not is_utf8(text):
        raise BadInput(f"{path} is not UTF-8 text; convert it, or leave it out of data.path")
    return Document(path.relative_to(root).as_posix(), text)


def _n_characters(text: bytes) -> int:
    return len(text) if text.isascii() else len(text.decode())


def _cut(document: Document, n: int, length: int) -> tuple[Document, Document]:
    """The first n of `length` characters, and the rest."""
    if n < length and not document.text.isascii():
        n = len(document.text.decode()[:n].encode())
    elif n == length:
        n = len(document.text)
    return Document(document.name, document.text[:n]), Document(document.name, document.text[n:])
