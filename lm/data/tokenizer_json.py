"""Hugging Face tokenizers: a tokenizer.json read through the `tokenizers` library, or trained.

The file does not say which of its special tokens begin and end a document; tokenizer_config.json
or special_tokens_map.json beside it do, as bos_token and eos_token. Where neither is there, the
tokenizer has none of the two.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.data.token_ids import as_tokens
from lm.errors import BadInput, installed_by
from lm.json_text import loads
from lm.whole_file import replacing

NAME = "tokenizer.json"
SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
END_OF_TEXT = "<|endoftext|>"  # what a tokenizer trained here ends documents with
MIN_VOCABULARY = 256 + 1  # bytes and the end of a text
MAX_VOCABULARY = 2**24  # the library takes memory for as many before it reads a word


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer.json, and the names of the tokens that begin and end a document."""

    text: str  # the file's JSON, without spaces, keys in the file's order
    bos_token: str | None = None
    eos_token: str | None = None

    def __post_init__(self):
        for field in ("bos_token", "eos_token"):
            token = getattr(self, field)
            if token is not None and self._library.token_to_id(token) is None:
                raise BadInput(
                    f"the tokenizer has no token {token!r}, which is its {field}: correct "
                    f"{SIDE_FILES[0]} beside it"
                )

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "kind": "tokenizer_json",
            "text": self.text,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }

    @functools.cached_property
    def _library(self):
        return _library_of(self.text)

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: a vocabulary may have gaps."""
        return max(self._library.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def bos(self) -> int | None:
        return None if self.bos_token is None else self._library.token_to_id(self.bos_token)

    @property
    def eos(self) -> int | None:
        return None if self.eos_token is None else self._library.token_to_id(self.eos_token)

    def encode(self, text: bytes) -> np.ndarray:
        ids = self._library.encode(text.decode(), add_special_tokens=False).ids
        return as_tokens(np.array(ids, np.int64), self.vocab_size)

    def encode_all(self, texts: list[bytes]) -> list[np.ndarray]:
        """The ids of each text, as `encode` gives them, on all cores unless the library is told
        otherwise (TOKENIZERS_PARALLELISM)."""
        decoded = [text.decode() for text in texts]
        encodings = self._library.encode_batch_fast(decoded, add_special_tokens=False)
        size = self.vocab_size
        return [as_tokens(np.array(e.ids, np.int64), size) for e in encodings]

    def decode(self, ids: np.ndarray) -> bytes:
        """The text; exact to the byte where the tokenizer works on bytes, else as the library
        writes it (a piece of a character becomes U+FFFD)."""
        ids = as_tokens(ids, self.vocab_size)
        pieces = self._bytes_of_id
        if pieces is None:
            return self._library.decode(ids.tolist(), skip_special_tokens=False).encode()
        return b"".join(pieces.get(i, b"") for i in ids.tolist())

    @functools.cached_property
    def _bytes_of_id(self) -> dict[int, bytes] | None:
        """The bytes of each token of a byte-level tokenizer; None for others."""
        if (json.loads(self.text).get("decoder") or {}).get("type") != "ByteLevel":
            return None
        added = {i: t.content.encode() for i, t in self._library.get_added_tokens_decoder().items()}
        byte = _byte_of_character()
        plain = {
            i: bytes(byte[c] for c in token)
            for token, i in self._library.get_vocab(with_added_tokens=False).items()
            if i not in added
        }
        return plain | added


def is_path(name: str) -> bool:
    """Whether data.tokenizer names a file or folder rather than a kind."""
    return name.endswith(".json") or "/" in name or (Path(name) / NAME).exists()


def load(name: str) -> TokenizerJson:
    """The tokenizer of a tokenizer.json, or of the folder that holds one.

    Raises BadInput for what is not there or not such a file.
    """
    path = Path(name).expanduser()
    path = path / NAME if path.is_dir() else path
    try:
        text = json.dumps(loads(path.read_text()), ensure_ascii=False, separators=(",", ":"))
    except OSError as e:
        raise BadInput(f"cannot read the tokenizer {path} ({e.strerror}): check the path") from e
    except ValueError as e:
        raise BadInput(f"the tokenizer {path} is not JSON ({e}): restore the file") from e
    try:
        return TokenizerJson(text, **_named_tokens(path.parent))
    except BadInput as e:
        raise BadInput(f"{path}: {e}") from e


def _named_tokens(folder: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {"bos_token": None, "eos_token": None}
    for name in SIDE_FILES:
        if not (folder / name).exists():
            continue
        try:
            content = loads((folder / name).read_text())
            if not isinstance(content, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError) as e:
            raise BadInput(f"cannot read {folder / name} ({e}): restore or remove it") from e
        for field in found:
            value = content.get(field)
            value = value.get("content") if isinstance(value, dict) else value
            if value is not None and not isinstance(value, str):
                raise BadInput(
                    f"{folder / name} has {field} {value!r}: the text of a token is meant"
                )
            found[field] = found[field] or value
    return found


def save(tokenizer: TokenizerJson, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, as `load` and other libraries read them."""
    names = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    # The tokenizer last: where it is there, its names are.
    for name, text in ((SIDE_FILES[0], json.dumps(names)), (NAME, tokenizer.text)):
        with replacing(folder / name) as temporary:
            temporary.write_text(text + "\n")


def without_text(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer's spec with the digest of its JSON, which is long, in the JSON's place."""
    if "text" not in spec:
        return spec
    rest = {name: value for name, value in spec.items() if name != "text"}
    return rest | {"sha256": hashlib.sha256(spec["text"].encode()).hexdigest()}


def with_text(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Undoes `without_text` with the tokenizer.json in a folder; BadInput if it was changed."""
    if "sha256" not in spec:
        return spec
    text = load(str(folder / NAME)).text
    whole = {name: value for name, value in spec.items() if name != "sha256"} | {"text": text}
    if without_text(whole) != spec:
        raise BadInput(f"{folder / NAME} was changed since it was written there: restore it")
    return whole


def check_vocabulary(vocab_size: int) -> None:
    """Raises BadInput for a size that no BPE trained here can have."""
    if vocab_size < MIN_VOCABULARY:
        raise BadInput(
            f"a vocabulary of {vocab_size} is too small for a byte-level BPE: {MIN_VOCABULARY} "
            "are taken by the bytes and the end of a text"
        )
    if vocab_size > MAX_VOCABULARY:
        raise BadInput(
            f"a vocabulary of {vocab_size:,} is larger than {MAX_VOCABULARY:,}, the most that is "
            "trained here: ask for a smaller one"
        )


def train_bpe(texts: Iterable[str], vocab_size: int) -> TokenizerJson:
    """A byte-level BPE of `vocab_size` tokens, the first of them the end of a text.

    Byte-pair encoding on bytes (Sennrich et al. 2016; Radford et al. 2019), words cut as GPT-2
    cuts them. Uses all cores. Raises BadInput where the text does not hold so many different pairs.
    """
    check_vocabulary(vocab_size)
    library = _import()
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_batches(texts), trainer)
    got = bpe.get_vocab_size()
    if got < vocab_size:
        raise BadInput(
            f"the text gives a vocabulary of {got} tokens at most, fewer than {vocab_size}: give "
            "more text or ask for a smaller vocabulary"
        )
    text = json.dumps(json.loads(bpe.to_str()), ensure_ascii=False, separators=(",", ":"))
    return TokenizerJson(text, eos_token=END_OF_TEXT)


def sample(texts: Iterable[str], n_bytes: float) -> Iterator[str]:
    """The first texts, up to about so many bytes."""
    for text in texts:
        if n_bytes <= 0:
            return
        yield text
        n_bytes -= len(text.encode())


def _batches(texts: Iterable[str], size: int = 256) -> Iterator[list[str]]:
    batch = []
    for text in texts:
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    yield batch


def _import():
    try:
        import tokenizers
    except ImportError:
        raise BadInput(
            f"a tokenizer.json needs the tokenizers library: {installed_by('tokenizers')}"
        ) from None
    return tokenizers


@functools.lru_cache(maxsize=4)
def _library_of(text: str):
    library = _import()
    try:
        return library.Tokenizer.from_str(text)
    except Exception as e:  # the library raises nothing narrower
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        raise BadInput(
            f"this is not a tokenizer that the tokenizers library reads ({e}; SHA-256 {digest}): "
            "check the file"
        ) from e


def _byte_of_character() -> dict[str, int]:
    """GPT-2's writing of bytes as visible characters: itself where visible, else from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}
