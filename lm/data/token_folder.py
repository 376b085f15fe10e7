"""A folder of token files: what experiments.tokenize writes and data.source=tokens reads.

    tokens.json                  what is here, and where an unfinished run goes on
    train-00000.bin ...          token ids one after another, little-endian, uint16 or uint32
    train-00000.documents.npy    uint64 [n, 3]: where each document ends in this file, its bytes of
                                 text, and 64 bits of its digest
    train-00000.minhash.npy      uint32 [n, 128]: their signatures, if near duplicates are counted
    validation-00000.bin ...
    tokenizer.json               where the tokenizer is such a file

Files are numbered in the order of the text; a document may go on from one file to the next. Every
file is whole: it is written under another name and then renamed, and counts once tokens.json names
it.
"""

import contextlib
import hashlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lm.data import tokenizer as tokenizers
from lm.data import tokenizer_json
from lm.data.tokenizer import Tokenizer, fingerprint
from lm.errors import BadInput
from lm.json_text import loads
from lm.whole_file import replacing, unwritable

INDEX = "tokens.json"
SPLITS = ("train", "validation")
FORMAT = 1


def file_dtype(vocab_size: int) -> np.dtype:
    """uint16 up to 65,536 tokens, else uint32: the types other programs expect in such files."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass
class Shard:
    """One file of a split."""

    name: str
    n_tokens: int
    n_documents: int
    n_bytes: int  # of the text of the documents that end here
    sha256: str


@dataclass
class Index:
    """tokens.json."""

    vocab_size: int
    tokenizer: str  # its fingerprint
    spec: dict[str, Any] | None  # None: tokenizer.json beside this file
    settings: dict[str, Any]  # what, with the tokenizer, says which tokens come out
    splits: dict[str, list[Shard]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    finished: bool = False
    # Where an unfinished run goes on: the place in the inputs, and of each split the bytes, the
    # digest and the signature of the document that is not at its end.
    after: list[Any] = field(default_factory=list)
    open: dict[str, list[Any]] = field(default_factory=dict)
    seconds: float = 0.0  # spent, over all runs
    duplicates: dict[str, Any] | None = None

    @property
    def sha256(self) -> str:
        """Of the tokens, their order and the tokenizer."""
        names = [[s.sha256 for s in self.splits[split]] for split in SPLITS]
        return hashlib.sha256(json.dumps([self.tokenizer, names]).encode()).hexdigest()

    def total(self, split: str, what: str) -> int:
        return sum(getattr(shard, what) for shard in self.splits[split])


def new(folder: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> Index:
    """Makes a folder for this tokenizer's tokens: its index, nothing read yet.

    Raises BadInput where another tokenizer is in the folder: its files are left alone.
    """
    spec: dict[str, Any] | None = tokenizer.spec
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(tokenizer, tokenizer_json.TokenizerJson):
            _keep(tokenizer, folder)
            spec = None
    except OSError as e:
        raise unwritable(folder, e, "choose another --out") from e
    index = Index(tokenizer.vocab_size, fingerprint(tokenizer), spec, settings)
    write_index(folder, index)
    return index


class Begun:
    """Remembers what a folder held, to take away what was written there since."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._missing = [p for p in (folder, *folder.parents) if not p.exists()]
        self._before = set(folder.iterdir()) if folder.is_dir() else set()

    def undo(self) -> None:
        """Removes the files of tokens that were not there, and the folders made for them."""
        names = (
            INDEX,
            tokenizer_json.NAME,
            tokenizer_json.SIDE_FILES[0],
            *(f"{s}-*" for s in SPLITS),
        )
        for path in {path for name in names for path in self._folder.glob(name)} - self._before:
            path.unlink()
        for folder in self._missing:
            with contextlib.suppress(OSError):  # it holds what somebody else has put there
                folder.rmdir()


def _keep(tokenizer: tokenizer_json.TokenizerJson, folder: Path) -> None:
    path = folder / tokenizer_json.NAME
    if not path.exists():
        tokenizer_json.save(tokenizer, folder)
    elif fingerprint(tokenizer_json.load(str(folder))) != fingerprint(tokenizer):
        raise BadInput(f"{path} is another tokenizer than these tokens': choose another --out")


def write_index(folder: Path, index: Index) -> None:
    content = {"format": FORMAT, "n_tokens": {s: index.total(s, "n_tokens") for s in SPLITS}}
    content |= vars(index) | {
        "splits": {split: [vars(s) for s in shards] for split, shards in index.splits.items()}
    }
    write(folder / INDEX, (json.dumps(content, indent=1) + "\n").encode())


def read_index(folder: Path) -> Index:
    """Returns tokens.json; raises BadInput where it is not one."""
    path = folder / INDEX
    try:
        content = loads(path.read_text())
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        content.pop("n_tokens")
        splits = {s: [Shard(**shard) for shard in content["splits"][s]] for s in SPLITS}
        return Index(**content | {"splits": splits})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadInput(
            f"{path} cannot be read as the index of token files ({e}): make the folder again with "
            "experiments.tokenize"
        ) from e


def tokenizer_of(folder: Path, index: Index) -> Tokenizer:
    """Returns the tokenizer that made the tokens; raises BadInput where it was changed since."""
    if index.spec is not None:
        tokenizer = tokenizers.from_spec(index.spec)
    else:
        tokenizer = tokenizer_json.load(str(folder / tokenizer_json.NAME))
    refuse_other(folder, index, tokenizer)
    return tokenizer


def refuse_other(folder: Path, index: Index, tokenizer: Tokenizer) -> None:
    """Raises BadInput unless `tokenizer` is the one that made the folder's tokens."""
    ours = fingerprint(tokenizer)
    if ours != index.tokenizer:
        raise BadInput(
            f"the tokens in {folder} were made with another tokenizer (fingerprint "
            f"{index.tokenizer[:12]}, this one has {ours[:12]}): use that one, or make the tokens "
            "again in another folder"
        )


def write_shard(
    folder: Path,
    split: str,
    number: int,
    tokens: np.ndarray,
    documents: np.ndarray,
    signatures: np.ndarray | None,
) -> Shard:
    """Writes a file of a split, its documents [n, 3] and, if wanted, their signatures [n, 128]."""
    name = f"{split}-{number:05d}.bin"
    data = tokens.tobytes()
    write(folder / name, data)
    write(folder / documents_name(name), _npy(documents))
    if signatures is not None:
        write(folder / signatures_name(name), _npy(signatures))
    n_bytes = int(documents[:, 1].sum())
    return Shard(name, len(tokens), len(documents), n_bytes, hashlib.sha256(data).hexdigest())


def documents_name(name: str) -> str:
    return name.removesuffix(".bin") + ".documents.npy"


def signatures_name(name: str) -> str:
    return name.removesuffix(".bin") + ".minhash.npy"


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write(path: Path, data: bytes) -> None:
    """Writes a file in one piece: whole, or as it was before. Raises as lm/whole_file.py does."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as e:
        raise unwritable(path, e, "choose another --out") from e
