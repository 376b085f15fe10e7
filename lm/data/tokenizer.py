"""Tokenizers: text as UTF-8 bytes to token ids and back. One entry in TOKENIZERS each.

A tokenizer's `spec` is plain data that rebuilds it (`from_spec`), saved beside checkpoints; its
`fingerprint` says whether two are the same. A name that is a path is a Hugging Face
tokenizer.json (tokenizer_json.py).
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np

from lm.data import tokenizer_json
from lm.data.token_ids import as_tokens
from lm.errors import BadInput


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def spec(self) -> dict[str, Any]: ...

    @property
    def bos(self) -> int | None:
        """The id that begins every document, if this tokenizer has one."""
        ...

    @property
    def eos(self) -> int | None:
        """The id that ends every document, if this tokenizer has one."""
        ...

    def encode(self, text: bytes) -> np.ndarray:
        """Ids, shape [n], in the smallest unsigned type that holds the vocabulary.

        Of the text alone: neither bos nor eos is added.
        """
        ...

    def decode(self, ids: np.ndarray) -> bytes: ...


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 of the spec: equal for equal tokenizers, on any machine."""
    return hashlib.sha256(json.dumps(tokenizer.spec, sort_keys=True).encode()).hexdigest()


def from_spec(spec: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `spec` came from."""
    kinds = {
        "bytes": Bytes,
        "characters": Characters,
        "symbols": Symbols,
        "tokenizer_json": tokenizer_json.TokenizerJson,
    }
    fields = dict(spec)
    return kinds[fields.pop("kind")](**fields)


def make(name: str, texts: Iterable[bytes], setting: str = "data.tokenizer") -> Tokenizer:
    """The tokenizer that a setting names: an entry of TOKENIZERS, or a tokenizer.json.

    `texts` are read only where the tokenizer is made from them. Raises BadInput for a name that is
    neither, with the nearest.
    """
    if name in TOKENIZERS:
        return TOKENIZERS[name](texts)
    if tokenizer_json.is_path(name):
        return tokenizer_json.load(name)
    near = get_close_matches(name, TOKENIZERS, 1, 0)[0]
    raise BadInput(
        f"{setting} {name!r} is not one of {', '.join(TOKENIZERS)}, nor the path of a "
        f"tokenizer.json; did you mean {near!r}?"
    )


def encode_all(tokenizer: Tokenizer, texts: list[bytes]) -> list[np.ndarray]:
    """The ids of each text, as `encode` gives them: at once where the tokenizer can do that."""
    at_once = getattr(tokenizer, "encode_all", None)
    return at_once(texts) if at_once else [tokenizer.encode(text) for text in texts]


def document_ids(tokenizer: Tokenizer, ids: np.ndarray, begins: bool, ends: bool) -> np.ndarray:
    """`ids` with what the tokenizer puts where a document begins and ends.

    A tokenizer whose bos and eos are one token gets it once between documents, at the end.
    """
    before = [tokenizer.bos] if begins and tokenizer.bos not in (None, tokenizer.eos) else []
    after = [tokenizer.eos] if ends and tokenizer.eos is not None else []
    if not before and not after:
        return ids
    return np.concatenate([np.array(part, ids.dtype) for part in (before, ids, after)])


@dataclass(frozen=True)
class Bytes:
    """Every byte is a token."""

    vocab_size = 256
    spec = {"kind": "bytes"}
    bos = None
    eos = None

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, ids: np.ndarray) -> bytes:
        return as_tokens(ids, 256).tobytes()


@dataclass(frozen=True)
class Characters:
    """Every character of a given alphabet (sorted by code point) is a token."""

    characters: str
    bos = None  # no annotation: not fields
    eos = None

    def __post_init__(self):
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise BadInput("a character tokenizer needs distinct characters in sorted order")

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    @property
    def spec(self) -> dict[str, Any]:
        return {"kind": "characters", "characters": self.characters}

    def encode(self, text: bytes) -> np.ndarray:
        codes = _code_points(text)
        known = _code_points(self.characters.encode())
        # One entry a code point beats a search: 0.01 s for a million characters.
        table = np.full(int(known[-1]) + 1, -1, np.int32)
        table[known] = np.arange(len(known))
        ids = table[np.minimum(codes, known[-1])]
        unknown = (codes > known[-1]) | (ids < 0)
        if unknown.any():
            raise BadInput(
                f"character {chr(codes[unknown][0])!r} is not among the {len(known)} characters "
                "of this tokenizer; leave it out, or set data.tokenizer=bytes"
            )
        return as_tokens(ids, len(known))

    def decode(self, ids: np.ndarray) -> bytes:
        known = _code_points(self.characters.encode())
        return known[as_tokens(ids, len(known))].tobytes().decode("utf-32-le").encode()


@dataclass(frozen=True)
class Symbols:
    """The ids themselves, written as decimal numbers with spaces between."""

    vocab_size: int
    bos = None
    eos = None

    @property
    def spec(self) -> dict[str, Any]:
        return {"kind": "symbols", "vocab_size": self.vocab_size}

    def encode(self, text: bytes) -> np.ndarray:
        try:
            ids = np.array([int(word) for word in text.split()], np.int64)
        except ValueError:
            raise BadInput(
                f"this data has numbers for tokens: write numbers below {self.vocab_size} with "
                f"spaces between, not {text[:40]!r}"
            ) from None
        return as_tokens(ids, self.vocab_size)

    def decode(self, ids: np.ndarray) -> bytes:
        return " ".join(map(str, as_tokens(ids, self.vocab_size).tolist())).encode()


def _code_points(text: bytes) -> np.ndarray:
    return np.frombuffer(text.decode().encode("utf-32-le"), "<u4")


def _characters_of(texts: Iterable[bytes]) -> Characters:
    seen: set[str] = set()
    for text in texts:
        seen.update(map(chr, np.unique(_code_points(text)).tolist()))
    return Characters("".join(sorted(seen)))


# By the name in data.tokenizer: made from the texts of a corpus, all of them.
TOKENIZERS: dict[str, Callable[[Iterable[bytes]], Tokenizer]] = {
    "bytes": lambda texts: Bytes(),
    "characters": _characters_of,
}
