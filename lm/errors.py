"""Errors that a user can cause. Imports nothing, so every part may import it."""


class BadInput(ValueError):
    """Something a user wrote cannot be used.

    The message is one plain sentence that says what is wrong, where, and what to do.
    Commands print it without a traceback and exit with 2.
    """


class Diverged(RuntimeError):
    """Training reached a non-finite loss or stayed above its first loss; commands exit with 3."""
