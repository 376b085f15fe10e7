"""SHA256SUMS: what every file of a checkpoint was when it was written. `sha256sum -c SHA256SUMS`
checks it too; the comments add sizes, and a sum of the list itself."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

NAME = "SHA256SUMS"
END = "# SHA-256 of the lines above: "


class File(NamedTuple):
    size: int  # bytes
    sha256: str  # hexadecimal


class BadList(ValueError):
    """SHA256SUMS cannot be used; the message says what happened to it."""


def seal(folder: Path) -> None:
    """Writes the list of a folder's files into it; raises OSError."""
    lines = []
    for name in files(folder):
        path = folder / name
        lines.append(f"# {path.stat().st_size} bytes\n{_sha256(path)}  {name}\n")
    text = "".join(lines)
    with open(folder / NAME, "w") as f:
        f.write(f"{text}{END}{hashlib.sha256(text.encode()).hexdigest()}\n")
        f.flush()
        os.fsync(f.fileno())


def files(folder: Path) -> list[str]:
    """Returns what is in a folder, sorted, without the list: paths from it, with slashes."""
    found = (p for p in folder.rglob("*") if not p.is_dir() or p.is_symlink())
    names = sorted(p.relative_to(folder).as_posix() for p in found)
    return [name for name in names if name != NAME]


def listed(folder: Path) -> dict[str, File]:
    """Returns what the list says of each file; raises BadList."""
    path = folder / NAME
    if not path.is_file():
        raise BadList(f"{NAME} is missing")
    try:
        return parse(path.read_bytes())
    except OSError as e:
        raise BadList(f"{NAME} cannot be read ({e})") from e


def parse(content: bytes) -> dict[str, File]:
    """Returns what a list says of each file; raises BadList."""
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        raise BadList(f"{NAME} cannot be read ({e})") from e
    if not text:
        raise BadList(f"{NAME} is empty")
    body, found, end = text.rpartition(END)
    if not found or end != hashlib.sha256(body.encode()).hexdigest() + "\n":
        raise BadList(f"{NAME} does not have the contents it was written with")
    lines = body.splitlines()
    pairs = (line.split("  ", 1) for line in lines[1::2])
    sizes = (int(line.split()[1]) for line in lines[0::2])
    return {name: File(size, sha) for size, (sha, name) in zip(sizes, pairs, strict=True)}


def damage(folder: Path, part: int = 0, parts: int = 1) -> list[str]:
    """Returns a line for each file that is not what was written; none: the folder is whole.

    Of several processes each looks into every parts-th file, from its own on.
    """
    try:
        want = listed(folder)
    except BadList as e:
        return [str(e)]
    lines = [f"{name} was not there before" for name in files(folder) if name not in want]
    for name in sorted(want)[part::parts]:
        lines += _changed(folder / name, name, want[name])
    return lines


def _changed(path: Path, name: str, want: File) -> list[str]:
    try:
        size = path.stat().st_size
        if size == want.size:
            changed = _sha256(path) != want.sha256
            return [f"{name} does not have the contents it was written with"] if changed else []
    except FileNotFoundError:
        return [f"{name} is missing"]
    except OSError as e:
        return [f"{name} cannot be read ({e.strerror})"]
    if not size:
        return [f"{name} is empty"]
    kind = "truncated" if size < want.size else "longer than it was"
    return [f"{name} is {kind} ({size:,} of {want.size:,} bytes)"]


def _sha256(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
