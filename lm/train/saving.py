"""A save that goes on while training does: its errors and its stalling reach who asks."""

import threading
import time
from collections.abc import Callable

from lm.errors import Stalled

POLL = 0.05  # seconds between two looks while waiting


class Saving:
    """finish() in a thread of its own."""

    def __init__(self, finish: Callable[[], None], what: str, stall_seconds: float):
        self._finish, self._what, self._limit = finish, what, stall_seconds
        self._error: Exception | None = None
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._finish()
        except Exception as e:
            self._error = e

    def done(self) -> bool:
        """Returns whether it ended; raises its error, or Stalled when it takes too long."""
        if self._thread.is_alive():
            if time.monotonic() - self._started > self._limit:
                raise Stalled(
                    f"{self._what} has not ended within {self._limit:g} seconds "
                    "(checkpoint.stall_seconds): see that the storage answers, then run the same "
                    "command again, it goes on from the step before"
                )
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self) -> None:
        """Returns once it ended; raises as `done` does."""
        while not self.done():
            self._thread.join(POLL)
