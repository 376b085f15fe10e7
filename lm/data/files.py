"""Files that a glob names, in the order of their names, read whole into memory.

Of text, the end is held out; of files that hold documents, a share of the documents.
"""

import glob
import math
import os
from fractions import Fraction
from pathlib import Path

from lm.data import inputs, remote
from lm.data.corpus import Corpus, Document, digest, is_utf8, read
from lm.data.token_folder import INDEX
from lm.errors import BadInput


def load(
    path: str | None,
    validation_fraction: float,
    text_field: str = "text",
    separator: str | None = None,
) -> Corpus:
    """All matching files one after another.

    Text is split by characters: of n with a validation_fraction of 0.1, the first floor(0.9 n) are
    for training and the others for validation. JSONL, Parquet and text with a separator are split
    by documents, chosen by their text, so that equal ones stay together. Raises BadInput where
    nothing matches, or a file is not what its name says.
    """
    if not path:
        raise BadInput("data.source=files needs data.path, a glob of text, JSONL or Parquet files")
    paths = [p for _, p in matches(path)]
    if separator or any(inputs.has_documents(p) or p.suffix in inputs.COMPRESSED for p in paths):
        return from_inputs(
            inputs.Files(paths, text_field, separator, validation_fraction), validation_fraction
        )
    documents = [_document(p, root) for root, p in matches(path)]
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


def from_inputs(source: inputs.Inputs, validation_fraction: float) -> Corpus:
    """All documents of some inputs, in memory."""
    splits: tuple[list[Document], list[Document]] = ([], [])
    everything: list[Document] = []
    parts: list[str] = []
    for piece in source.pieces(inputs.Place()):
        parts.append(piece.text)
        if piece.ends:
            document = Document(str(len(everything)), "".join(parts).encode())
            held_out = piece.held_out
            if held_out is None:
                held_out = inputs.held_out_by(
                    inputs.text_digest(document.text), validation_fraction
                )
            splits[held_out].append(document)
            everything.append(document)
            parts = []
    return Corpus(*splits, digest(everything))


def matches(path: str, name: str = "data.path") -> list[tuple[Path, Path]]:
    """The files that a glob names, in order, as (root, file) pairs; `name` is the setting's.

    Names below the root do not change when the corpus moves.
    """
    if remote.is_remote(path):
        found = [str(p) for p in remote.files(path)]
        if not found:
            raise BadInput(f"{name} {path} matches no file; check the address")
        root = Path(os.path.commonpath([os.path.dirname(p) for p in found]))
        return [(root, Path(p)) for p in found]
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, INDEX)):
            raise BadInput(f"{name} {path} is a folder of token files: set data.source=tokens")
        example = os.path.join(path, "**", "*.txt")
        raise BadInput(f"{name} {path} is a folder; write a glob, such as '{example}'")
    if os.path.isfile(path):
        return [(Path(path).parent, Path(path))]
    found = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
    if not found:
        raise no_match(name, path)
    root = Path(os.path.commonpath([os.path.dirname(p) for p in found]) or ".")
    return [(root, Path(p)) for p in found]


def no_match(name: str, path: str) -> BadInput:
    """Returns the error for a path or glob of this machine that names no file."""
    folder = os.path.dirname(path)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    folder = os.path.abspath(folder)
    there = "" if os.path.isdir(folder) else ", which is not there"
    return BadInput(f"{name} {path} matches no file (looked in {folder}{there}); check the path")


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
