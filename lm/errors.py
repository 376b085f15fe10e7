"""Errors that end a command with one plain sentence. Imports nothing: every part may import it."""


class BadInput(ValueError):
    """Something a user wrote cannot be used: exit code 2.

    The message is one plain sentence that says what is wrong, where, and what to do.
    """


class CannotSave(OSError):
    """A file could not be written (a full disk, say): exit code 1. Earlier saves are whole."""


class Stalled(CannotSave):
    """A file has been being written for too long: exit code 1, at once."""


class CannotFinish(RuntimeError):
    """Something outside ended the work (a killed worker, say): exit code 1. Run again to go on."""


class Diverged(RuntimeError):
    """Training reached a non-finite loss or stayed above its first loss: exit code 3."""


class Stopped(RuntimeError):
    """A signal asked the process to stop, and the state was saved: exit code 75."""


def installed_by(extra: str) -> str:
    """Returns how an extra of pyproject.toml is installed: from the checkout, not from an index."""
    return f"pip install -e '.[{extra}]' in the checkout"
