"""Files that a fit, a plan or a sweep leaves, read again: whole and of their kind, or refused.

The one reader behind plan, report and figures. A pattern says what a JSON value has to be; what
does not match is refused with the file, the place in it and what to do. Imports NumPy only.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.errors import BadInput

Array = np.ndarray


@dataclass(frozen=True)
class Plain:
    """A pattern of one value: a test, and the words for what passes it."""

    test: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Maybe:
    """A pattern or null."""

    of: Any


def is_number(x: Any) -> bool:
    """Whether x is a number that fits a double and is finite."""
    try:
        return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(float(x))
    except OverflowError:
        return False


def _is_text(x: Any) -> bool:
    return isinstance(x, str) and not re.search("[\ud800-\udfff]", x)  # those cannot be written


NUMBER = Plain(is_number, "a number")
POSITIVE = Plain(lambda x: is_number(x) and x > 0, "a number above 0")
WHOLE = Plain(lambda x: isinstance(x, int) and is_number(x), "a whole number")
TEXT = Plain(_is_text, "text")
FLAG = Plain(lambda x: isinstance(x, bool), "true or false")
ANYTHING = Plain(lambda _: True, "anything")


@dataclass(frozen=True)
class Kind:
    """A kind of JSON file, and what to do about one that does not match.

    The pattern is a Plain or a Maybe; [p], a list of p; (p, q), a list of just these; a dict, an
    object with these keys among others: "key?" may be missing, `...` stands for every other key.
    """

    pattern: Any
    remedy: str
    strict: bool = True  # NaN and infinity are refused, as JSON has none


class Unfit(ValueError):
    """Why a text is not what it should be, as the middle of a sentence."""


def read(path: Path, kind: Kind) -> dict[str, Any] | None:
    """Returns the JSON value of a file of that kind, None where there is no file.

    Raises BadInput for what cannot be read, is cut short, or holds something else.
    """
    if not path.is_file():
        return None
    try:
        value = parse(_bytes(path, kind.remedy), kind.strict)
        match(value, kind.pattern)
    except Unfit as e:
        raise damaged(path, str(e), kind.remedy) from e
    return value


def lines(path: Path, kind: Kind, growing: bool = False) -> list[dict[str, Any]]:
    """Returns the values of a file of one JSON value a line, each of that kind.

    growing: a last line without its end is being written, and left out. Raises BadInput.
    """
    *whole, last = _bytes(path, kind.remedy).split(b"\n")
    rows = []
    for number, line in enumerate(whole if growing else [*whole, last], 1):
        if not line.strip():
            continue
        try:
            rows.append(parse(line, kind.strict))
            match(rows[-1], kind.pattern)
        except Unfit as e:
            raise damaged(path, f"in line {number}, {e}", kind.remedy) from e
    return rows


def damaged(path: Path, why: str, remedy: str) -> BadInput:
    """The error for a file that is there and cannot be used."""
    return BadInput(f"{path} is damaged or another kind of file: {why}; {remedy}")


def parse(data: bytes, strict: bool = True) -> Any:
    """Returns the JSON value of UTF-8 bytes; raises Unfit, strict for NaN and infinity too."""
    hooks: Any = {"parse_constant": _refuse, "parse_float": _finite} if strict else {}
    try:
        return json.loads(data.decode("utf-8-sig"), **hooks)
    except Unfit:
        raise
    except UnicodeDecodeError as e:
        raise Unfit(f"byte {e.start + 1} is not UTF-8 text") from e
    except json.JSONDecodeError as e:
        raise Unfit(
            f"it is not whole JSON ({e.msg.lower()} at line {e.lineno}, column {e.colno})"
        ) from e
    except RecursionError as e:
        raise Unfit("its brackets are nested too deeply") from e
    except ValueError as e:
        raise Unfit("it holds a number of thousands of digits") from e


def match(value: Any, pattern: Any, where: str = "") -> None:
    """Raises Unfit at the first place where a JSON value does not match a pattern."""
    if isinstance(pattern, Maybe):
        if value is not None:
            match(value, pattern.of, where)
    elif isinstance(pattern, Mapping):
        if not isinstance(value, dict):
            raise _unfit(value, "an object", where)
        for key, part in pattern.items():
            if key is ...:
                for name in value:
                    if not _is_text(name):
                        raise Unfit(f"a name in {where or 'it'} is not text")
                    match(value[name], part, _within(where, name))
            elif key.removesuffix("?") in value:
                name = key.removesuffix("?")
                match(value[name], part, _within(where, name))
            elif not key.endswith("?"):
                raise Unfit(f"it lacks {_within(where, key)}")
    elif isinstance(pattern, list | tuple):
        if not isinstance(value, list):
            raise _unfit(value, "a list", where)
        if isinstance(pattern, tuple) and len(value) != len(pattern):
            raise Unfit(f"{where} has {len(value)} values instead of {len(pattern)}")
        parts = pattern * len(value) if isinstance(pattern, list) else pattern
        for k, (item, part) in enumerate(zip(value, parts, strict=True)):
            match(item, part, f"{where}[{k}]")
    elif not pattern.test(value):
        raise _unfit(value, pattern.words, where)


def _unfit(value: Any, words: str, where: str) -> Unfit:
    shown = f"{value!r:.40}"
    if value is None or isinstance(value, bool | dict | list):
        names = {dict: "an object", list: "a list", bool: str(value).lower()}
        shown = names.get(type(value), "null")
    return Unfit(f"{where or 'it'} is {shown}, not {words}")


def _within(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _refuse(name: str) -> None:
    raise Unfit(f"it holds {name}, which is no number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Unfit(f"it holds the number {text:.20}, which is too large")
    return value


def _bytes(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise BadInput(f"{path} cannot be read ({e.strerror}): make it readable; {remedy}") from e


def csv_rows(path: Path, remedy: str) -> Iterator[list[str]]:
    """Yields the header of a CSV file, then its rows, each as wide as the header; no empty lines.

    Raises BadInput, and names the row, counted from 1 below the header.
    """
    header: list[str] = []
    number = 0
    csv.field_size_limit(2**30)  # of a value: exported tables hold whole configs
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            for row in csv.reader(file):
                if not row or (len(row) == 1 and not row[0].strip()):
                    continue
                if not header:
                    header = row
                    twice = [n for i, n in enumerate(row) if n.strip() and n in row[:i]]
                    if twice:
                        raise damaged(path, f"its header names {twice[0]!r} twice", remedy)
                else:
                    number += 1
                if len(row) != len(header):
                    raise damaged(path, _width(number, row, header), remedy)
                yield row
    except UnicodeDecodeError as e:
        raise damaged(path, "it is not UTF-8 text", remedy) from e
    except csv.Error as e:
        raise damaged(path, f"row {number + 1} is no CSV ({e})", remedy) from e
    except OSError as e:
        raise BadInput(f"{path} cannot be read ({e.strerror}): make it readable; {remedy}") from e


def _width(number: int, row: list[str], header: list[str]) -> str:
    comma = ""
    if len(row) + 1 == len(header) and not header[-1].strip():
        comma = " (the header ends in a comma)"
    elif len(row) == len(header) + 1 and not row[-1].strip():
        comma = " (the row ends in a comma)"
    return (
        f"row {number} has {len(row)} value{'s' if len(row) != 1 else ''} and the header "
        f"{len(header)} column{'s' if len(header) != 1 else ''}{comma}"
    )


FIT_AGAIN = "fit it again with experiments.fit"


def samples(
    path: Path, names: tuple[str, ...], count: int | None = None
) -> dict[str, Array] | None:
    """Returns the columns `names` of a bootstrap.csv, (samples,) each; None where there is no file.

    count: how many samples its law.json says there are. Raises BadInput where it holds others.
    """
    if not path.is_file():
        return None
    if not _bytes(path, FIT_AGAIN).endswith(b"\n"):
        raise damaged(path, "its last line has no end", FIT_AGAIN)
    first, *rows = list(csv_rows(path, FIT_AGAIN)) or [[]]
    header = [name.strip() for name in first]
    if not set(names) <= set(header):
        raise BadInput(
            f"{path} does not hold a column for each of {', '.join(names)}: fit again, so that it "
            "belongs to the law.json beside it"
        )
    if count is not None and len(rows) != count:
        raise damaged(
            path, f"it holds {len(rows)} of the {count} samples that law.json has", FIT_AGAIN
        )
    found = np.empty((len(rows), len(names)))
    for i, row in enumerate(rows):
        for k, name in enumerate(names):
            try:
                found[i, k] = float(row[header.index(name)])
            except ValueError:
                found[i, k] = np.nan
            if np.isnan(found[i, k]):
                text = row[header.index(name)]
                why = f"{name} is {text!r:.40} in row {i + 1}, not a number"
                raise damaged(path, why, FIT_AGAIN)
    return dict(zip(names, found.T, strict=True))


def plain(value: Any) -> Any:
    """NumPy scalars as Python ones; infinite or missing numbers as null, which JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return [plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
