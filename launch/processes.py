"""Several processes run on this machine as one: prefixed lines, one stop, one exit code.

What starts them decides what they are; this file starts, hears, stops and counts them. No process
outlives the others by more than a bounded time, nor the one that started it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from launch.places import Place
from lm.progress import warn

POLL_SECONDS = 0.05
MISSED_SECONDS = 5.0  # after one failed, the others get so long: they cannot save without it
NOISE = (b"[Gloo] Rank ", b"connected peer ranks")  # a line, or parts, for every set of devices
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SPEAKING = threading.Lock()


def run_together(command: Sequence[str], places: Sequence[Place], grace: float) -> int:
    """Runs a command once for each place and returns 0, or the exit code of the first to fail.

    A signal to this process becomes SIGTERM to all of them; those that are still there after
    `grace` seconds, or at a second signal, are killed. When one fails the others get SIGTERM and
    MISSED_SECONDS. A process ended by a signal has exit code 128 + its number.
    """
    asked: list[int] = []
    before = {s: signal.signal(s, lambda number, _: asked.append(number)) for s in SIGNALS}
    children: list[_Child] = []
    try:
        for i, place in enumerate(places):  # one by one: if one cannot start, the others are known
            children.append(_Child(i, command, place))
        for child in children:
            child.listen()
        return _attend(children, asked, grace)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.end()
        for number, handler in before.items():
            signal.signal(number, handler)


def _attend(children: Sequence["_Child"], asked: list[int], grace: float) -> int:
    first_failure, deadline, told = 0, None, 0
    running = list(children)
    while running:
        time.sleep(POLL_SECONDS)
        ended = [(child, code) for child in running if (code := child.code()) is not None]
        # Of two in one look, one that was killed is why the other failed.
        for child, code in sorted(ended, key=lambda end: end[1] <= 128):
            running.remove(child)
            if code and not first_failure:
                first_failure = code
                if running and not asked:
                    deadline = time.monotonic() + MISSED_SECONDS
                    _signal(running, signal.SIGTERM)
        if len(asked) > told:
            told = len(asked)
            deadline = time.monotonic() + (grace if told == 1 else 0)
            _signal(running, signal.SIGTERM)
        if running and deadline is not None and time.monotonic() > deadline:
            for child in running:
                warn(f"process {child.index} did not end when it was told to: it is killed")
                child.kill()
            deadline = None
    return first_failure


def _signal(children: Sequence["_Child"], number: int) -> None:
    for child in children:
        child.send(number)


class _Child:
    """One process and the threads that read what it prints."""

    def __init__(self, index: int, command: Sequence[str], place: Place):
        self.index = index
        self._process = subprocess.Popen(
            command,
            env=dict(place.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C reaches us alone, and we pass it on once
            preexec_fn=settle(place.cores),
        )
        self._listeners: list[threading.Thread] = []

    def listen(self) -> None:
        assert self._process.stdout and self._process.stderr
        for source, sink in (
            (self._process.stdout, sys.stdout),
            (self._process.stderr, sys.stderr),
        ):
            thread = threading.Thread(target=_copy, args=(self.index, source, sink), daemon=True)
            thread.start()
            self._listeners.append(thread)

    def code(self) -> int | None:
        """Returns the exit code, None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        self._process.send_signal(number)  # does nothing once it has ended

    def kill(self) -> None:
        """Kills it with all that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # all of them have ended

    def end(self) -> None:
        """Returns once it is gone and its last words are printed."""
        self._process.wait()
        for thread in self._listeners:
            thread.join(timeout=1.0)


def _copy(index: int, source: IO[bytes], sink: IO[str]) -> None:
    for line in source:
        if not any(part in line for part in NOISE):
            text = line.decode(errors="replace").rstrip("\r\n")
            with _SPEAKING:  # or lines of two processes mix
                print(f"[{index}] {text}", file=sink, flush=True)


def settle(cores: Sequence[int] | None):
    """Returns what a new process does before it becomes a command: takes its processors, and asks
    to be sent SIGTERM, so that it saves and ends, when the process that started it is gone."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare
