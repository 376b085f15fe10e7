"""Whether a run was asked to stop: by a signal to its process, or to any process of its group."""

import os
import signal

from lm import group
from lm.platform import STOP_SIGNALS

_early: list[int] = []  # signals that came before a run could answer them


def hold() -> None:
    """Keeps SIGUSR1, which schedulers send some time before the end, until StopSignals answers it:
    it would end a process that is still starting. SIGTERM ends that process: there is nothing to
    save. Blocking it would not do: libraries have threads by then, which would hear it."""
    signal.signal(signal.SIGUSR1, lambda number, _: _early.append(number))


class StopSignals:
    """A context in which SIGTERM and SIGUSR1 ask the run to stop after a step."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._calls = 0

    def __enter__(self) -> "StopSignals":
        handlers = {number: self._note for number in STOP_SIGNALS}
        if group.size() > 1:
            # JAX listens to SIGTERM, tells the other processes and finds a step they all have yet
            # to reach. It knows no other signal.
            del handlers[signal.SIGTERM]
            handlers[signal.SIGUSR1] = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        self._before = {number: signal.signal(number, f) for number, f in handlers.items()}
        while _early:
            os.kill(os.getpid(), _early.pop())
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame) -> None:
        self._seen = number

    def asked(self) -> str | None:
        """Returns the signal's name if the run has to stop now. Once a step: every process gets the
        same answer for the same step."""
        if group.size() == 1:
            return signal.Signals(self._seen).name if self._seen else None
        from jax.experimental import multihost_utils

        # Counted from this start on: JAX takes a process that never asked for one at 0, and looks
        # for a number that comes next, which a step after a resume would not be.
        self._calls += 1
        return "SIGTERM" if multihost_utils.reached_preemption_sync_point(self._calls) else None
