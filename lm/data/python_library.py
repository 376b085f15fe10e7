"""The text of the Python standard library: real text that every interpreter brings along.

About 11 MB of code and prose in 600 files, read where the running interpreter keeps them.
"""

import hashlib
import os
import sysconfig
from pathlib import Path

from lm.data.corpus import Corpus, Document, digest, is_utf8, read
from lm.errors import BadInput

# Test folders, what pip installed, and what is written for one machine when Python is built.
SKIPPED_FOLDERS = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")
SKIPPED_PREFIXES = ("config-", "_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustom")

VALIDATION_BYTES = 256 * 1024
# Larger files stay in training, so that no single one is most of the validation split (one
# generated file of help topics has 800 KB).
LARGEST_HELD_OUT = 64 * 1024


def load(root: Path | None = None) -> Corpus:
    """The library's UTF-8 files by relative path; at least 256 KiB of them held out.

    The held-out files are those whose paths have the smallest SHA-256, so machines and versions
    nearly agree on them. Raises BadInput where the interpreter has no library files on disk.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    documents = [Document(name, read(root / name)) for name in sorted(_names(root))]
    documents = [d for d in documents if d.text and is_utf8(d.text)]
    held_out: set[str] = set()
    size = 0
    for document in sorted(documents, key=_place):
        if size >= VALIDATION_BYTES:
            break
        if len(document.text) <= LARGEST_HELD_OUT:
            held_out.add(document.name)
            size += len(document.text)
    if size < VALIDATION_BYTES or len(held_out) == len(documents):
        raise BadInput(
            f"this Python's standard library is not on disk as text (looked in {root}, found "
            f"{len(documents)} files); use data.source=files with data.path=GLOB"
        )
    return Corpus(
        train=[d for d in documents if d.name not in held_out],
        validation=[d for d in documents if d.name in held_out],
        sha256=digest(documents),
    )


def _place(document: Document) -> bytes:
    return hashlib.sha256(document.name.encode()).digest()


def _names(root: Path):
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not _for_one_machine(f)]
        below = Path(folder).relative_to(root).as_posix()
        for name in files:
            if name.endswith(".py") and not _for_one_machine(name):
                yield name if below == "." else f"{below}/{name}"


def _for_one_machine(name: str) -> bool:
    return name.startswith(SKIPPED_PREFIXES)
