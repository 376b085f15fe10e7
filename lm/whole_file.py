"""Files written in one piece: whoever reads sees the old one or the new one, after a kill too."""

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
    finally:
        temporary.unlink(missing_ok=True)
