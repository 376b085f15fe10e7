"""A work folder is trained by one process at a time: two would write each other's checkpoints."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from lm.errors import BadInput
from lm.progress import warn
from lm.train.workdir import make_folder
from lm.whole_file import unwritable

NAME = ".lock"  # stays in the folder; what locks is that a process holds it open


@contextlib.contextmanager
def locked(workdir: Path, wait: bool = False) -> Iterator[None]:
    """A context in which no other process trains in the folder, which is made if it is not there.

    Raises BadInput where another does, or waits for its end. However a process ends, its lock ends
    with it (kill -9 too); programs it starts do not inherit it. Where a file system has no locks,
    says so and goes on.
    """
    make_folder(workdir)
    try:
        file = open(workdir / NAME, "a")  # closed on exec, as Python opens all files
    except OSError as e:
        raise unwritable(workdir / NAME, e, "choose another --workdir") from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as e:
            raise BadInput(
                f"{workdir} is being trained by another process: wait for it or choose another "
                "--workdir"
            ) from e
        except OSError as e:
            warn(f"{workdir} cannot be locked ({e.strerror}): train in it once at a time")
        yield
