"""Files written in one piece: whoever reads sees the old one or the new one, after a kill too."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context with a path to write to, which becomes `path` at the end, on the disk.

    If anything fails, what was written is removed and `path` stays as it was. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Returns once renames in a folder are on the disk, where the system can say so."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems sync files only
            raise
    finally:
        os.close(fd)
