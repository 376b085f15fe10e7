"""Files written in one piece: whoever reads sees the old one or the new one, after a kill too."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lm.errors import BadInput, CannotSave

# Of disks, memory and open files: the machine fails, whatever the user writes.
FULL = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context with a path to write to, which becomes `path` at the end, on the disk.

    If anything fails, what was written is removed and `path` stays as it was. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(*paths: Path) -> None:
    """Returns once what files hold, and renames in folders, are on the disk; where the system can
    say so, some sync files only."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        except OSError as e:
            if e.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def write(path: Path, content: str | bytes, instead: str) -> None:
    """Writes a file in one piece, and makes its folder.

    Raises CannotSave where the disk is full, BadInput with what to do `instead` where the path
    cannot be written; `path` then stays as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as e:
        raise unwritable(path, e, instead) from e


def unwritable(path: Path, e: OSError, instead: str) -> CannotSave | BadInput:
    """The error to raise for a file that could not be written."""
    if e.errno in FULL:
        return CannotSave(
            f"{path} cannot be written ({e.strerror}): make room and give the same command again"
        )
    return BadInput(f"{path} cannot be written ({e.strerror or e}): {instead}")
