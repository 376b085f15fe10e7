"""Documents read one after another from files of text, JSONL or Parquet, compressed or not.

A name says the format: .jsonl or .ndjson, .parquet, anything else is UTF-8 text; .gz or .zst after
it, the compression (not of Parquet, which compresses itself). Reading starts at any `Place`, so
work that was interrupted goes on where it stood.

A JSONL line, a Parquet row, and what stands between two separators of a text is a document. A text
file without separators is one document; it is read in pieces of about a megabyte that end, where
they can, with a line whose successor does not begin with white space: there, a word-splitting
tokenizer would have cut anyway.
"""

import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from lm.errors import BadInput, installed_by
from lm.json_text import loads

PIECE = 2**20  # bytes of text without documents of its own
READ = 2**22  # bytes of text with separators read at a time
LINES = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".zst")
ROWS = 1024  # of a Parquet file, read at a time


class Place(NamedTuple):
    """Where reading goes on: in which file, and there at which byte (decompressed) or row."""

    file: int = 0
    item: int = 0
    characters: int = 0  # read so far, in all files
    open: bool = False  # in the middle of a document


class Piece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    begins: bool  # a document
    ends: bool
    held_out: bool | None  # None: where the document belongs follows from its text
    after: Place
    read: int  # of Inputs.size, when this piece had been read


class Inputs(Protocol):
    """What documents are read from."""

    size: int  # of all there is to read, in the unit of Piece.read
    unit: str  # of size: "B" or "row"

    def identity(self) -> list[Any]:
        """Plain data that differs where the documents may: names, sizes, times, settings."""
        ...

    def pieces(self, start: Place) -> Iterator[Piece]: ...


def text_digest(text: bytes) -> bytes:
    """Eight bytes by which a document is known."""
    return hashlib.blake2b(text, digest_size=8).digest()


def held_out_by(digest: bytes, share: float) -> bool:
    """Whether a document is held out: equal documents are, or are not, together."""
    return int.from_bytes(digest, "big") < share * 2**64


class Files:
    """Files in order. Of plain text, held_out_share of the characters, its end, is held out."""

    unit = "B"

    def __init__(
        self,
        paths: list[Path],
        text_field: str = "text",
        separator: str | None = None,
        held_out_share: float = 0.0,
    ):
        self._paths, self._field, self._separator = paths, text_field, separator
        self._sizes = [_size(p) for p in paths]
        self.size = sum(self._sizes)
        self.plain = separator is None and not any(has_documents(p) for p in paths)
        if not self.plain and separator is None and not all(has_documents(p) for p in paths):
            plain = next(p for p in paths if not has_documents(p))
            raise BadInput(
                f"{plain} is text without documents among files of documents: name one kind of "
                "files, or say what separates its documents"
            )
        self._train_characters: int | None = None
        if self.plain and held_out_share > 0:
            n = sum(_n_characters(p) for p in paths)
            self._train_characters = n - _share(n, held_out_share)

    def identity(self) -> list[Any]:
        names = [[str(p), size, os.stat(p).st_mtime_ns] for p, size in self._with_sizes()]
        return [names, self._field, self._separator, self._train_characters]

    def _with_sizes(self):
        return zip(self._paths, self._sizes, strict=True)

    def pieces(self, start: Place) -> Iterator[Piece]:
        before = sum(self._sizes[: start.file])
        place = start
        for number in range(start.file, len(self._paths)):
            path = self._paths[number]
            place = place if number == start.file else Place(number, 0, place.characters)
            for piece in self._pieces_of(path, place):
                place = piece.after
                yield piece._replace(read=before + piece.read)
            before += self._sizes[number]

    def _pieces_of(self, path: Path, place: Place) -> Iterator[Piece]:
        format = _format(path)
        if format == ".parquet":
            return self._rows(path, place)
        if format in LINES:
            return self._lines(path, place)
        return self._separated(path, place) if self._separator else self._plain(path, place)

    def _rows(self, path: Path, place: Place) -> Iterator[Piece]:
        file = _parquet(path, self._field)
        row, total = 0, max(file.metadata.num_rows, 1)
        size = _size(path)
        for group in range(file.num_row_groups):
            n = file.metadata.row_group(group).num_rows
            if row + n <= place.item:
                row += n
                continue
            for batch in file.iter_batches(ROWS, [group], [self._field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if row <= place.item or not text:
                        continue
                    after = place._replace(item=row)
                    yield Piece(text, True, True, None, after, size * row // total)

    def _lines(self, path: Path, place: Place) -> Iterator[Piece]:
        with _Reader(path, place.item) as reader:
            item = place.item
            while line := reader.file.readline():
                item += len(line)
                if line.isspace():
                    continue
                text = self._field_of(path, item, line)
                if text:
                    yield Piece(text, True, True, None, place._replace(item=item), reader.read)

    def _field_of(self, path: Path, end: int, line: bytes) -> str:
        try:
            record = loads(line)
            text = record[self._field]
        except ValueError as e:
            raise BadInput(f"{path} has a line, before byte {end}, that is not JSON: {e}") from e
        except (KeyError, TypeError) as e:
            keys = ", ".join(record) if isinstance(record, dict) else "none, it is no object"
            raise BadInput(
                f"{path} has a line, before byte {end}, without the field {self._field!r} (its "
                f"fields: {keys}): name the one with the text"
            ) from e
        if text is not None and not isinstance(text, str):
            raise BadInput(
                f"{path} has a line, before byte {end}, whose {self._field!r} is not text but "
                f"{type(text).__name__}: name the field with the text"
            )
        text = text or ""
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise BadInput(
                f"{path} has a line, before byte {end}, whose {self._field!r} holds half a "
                f"character ({text[e.start]!a}), which is no text: mend the line or leave it out"
            ) from e
        return text

    def _separated(self, path: Path, place: Place) -> Iterator[Piece]:
        separator = (self._separator or "").encode()
        with _Reader(path, place.item) as reader:
            item, buffer, more = place.item, b"", True
            while more:
                chunk = reader.file.read(READ)
                more = bool(chunk)
                *documents, buffer = (buffer + chunk).split(separator)
                for i, document in enumerate([*documents, *([] if more else [buffer])]):
                    item += len(document) + (len(separator) if i < len(documents) else 0)
                    text = _decoded(path, document).strip("\r\n")
                    if text:
                        after = place._replace(item=item)
                        yield Piece(text, True, True, None, after, reader.read)

    def _plain(self, path: Path, place: Place) -> Iterator[Piece]:
        with _Reader(path, place.item) as reader:
            buffer, more, begins = b"", True, not place.open
            while True:
                while more and len(buffer) <= PIECE:
                    chunk = reader.file.read(PIECE + 1 - len(buffer))
                    more = bool(chunk)
                    buffer += chunk
                if not buffer:
                    return
                n = _cut(buffer) if len(buffer) > PIECE else len(buffer)
                text, buffer = _decoded(path, buffer[:n]), buffer[n:]
                held_out = False
                if self._train_characters is not None:
                    left = self._train_characters - place.characters
                    held_out = left <= 0
                    if 0 < left < len(text):  # what is after the split is a piece of its own
                        text, buffer = text[:left], text[left:].encode() + buffer
                # A document ends with its file, and where the split cuts it.
                characters = place.characters + len(text)
                ends = not (more or buffer) or characters == self._train_characters
                place = Place(
                    place.file, place.item + len(text.encode()), characters, open=not ends
                )
                yield Piece(text, begins, ends, held_out, place, reader.read)
                begins = ends


class _Reader:
    """A file's decompressed bytes from an offset on, and how much of the file was read."""

    def __init__(self, path: Path, offset: int):
        self._path = path
        try:
            self._raw = open(path, "rb")
            self.file = _decompressed(path, self._raw)
            if self.file is self._raw:
                self.file.seek(offset)
            else:  # there is no other way into a compressed file
                while offset:
                    offset -= len(self.file.read(min(offset, READ))) or offset
        except OSError as e:
            raise _cannot_read(path, e) from e

    @property
    def read(self) -> int:
        return self._raw.tell()

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.file.close()
        self._raw.close()
        if isinstance(error, OSError | EOFError):
            raise _cannot_read(self._path, error) from error
        if error is not None and type(error).__name__ == "ZstdError":
            raise _cannot_read(self._path, error) from error


def _decompressed(path: Path, raw: IO[bytes]) -> Any:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise BadInput(f"{path} needs the zstandard library: {installed_by('zstd')}") from None
        import io

        stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return io.BufferedReader(stream, READ)
    return raw


def _cannot_read(path: Path, error: BaseException) -> BadInput:
    reason = getattr(error, "strerror", None) or error
    return BadInput(f"cannot read {path} ({reason}): check the file")


def _parquet(path: Path, field: str):
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadInput(f"{path} needs pyarrow: {installed_by('parquet')}") from None
    import pyarrow

    try:
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as e:
        raise _cannot_read(path, e) from e
    names = file.schema_arrow.names
    if field not in names:
        raise BadInput(
            f"{path} has no column {field!r} (its columns: {', '.join(names)}): name the one with "
            "the text"
        )
    kind = file.schema_arrow.field(field).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise BadInput(f"column {field!r} of {path} holds {kind}, not text: name another")
    return file


def _format(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def has_documents(path: Path) -> bool:
    return _format(path) in (".parquet", *LINES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as e:
        raise _cannot_read(path, e) from e


def _decoded(path: Path, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{path} is not UTF-8 text; convert it, or leave it out") from e


def _n_characters(path: Path) -> int:
    """UTF-8 characters: bytes that do not continue one."""
    n = 0
    with _Reader(path, 0) as reader:
        while chunk := reader.file.read(READ):
            n += int(np.count_nonzero(np.frombuffer(chunk, np.uint8) & 0xC0 != 0x80))
    return n


def _share(n: int, fraction: float) -> int:
    """What of n characters is held out: all but the first floor(n (1 - fraction)), exactly."""
    from fractions import Fraction

    return n - int(n * (1 - Fraction(str(fraction))))


def _cut(buffer: bytes) -> int:
    """Where a piece of at most PIECE bytes ends: see the file's docstring."""
    end = PIECE
    while (end := buffer.rfind(b"\n", 0, end)) >= 0:
        if not buffer[end + 1 : end + 2].isspace():
            return end + 1
    end = buffer.rfind(b"\n", 0, PIECE) + 1 or PIECE
    while buffer[end] & 0xC0 == 0x80:  # within a character
        end -= 1
    return end
