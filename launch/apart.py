"""Runs a function in a process of its own, so that a compiler that aborts takes nothing with it.

XLA stops the whole process where it finds itself inconsistent; no Python exception is raised. What
libraries print there goes to a file and is told only where the process dies.
"""

import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from lm.errors import CannotFinish
from lm.progress import clock

# For compiling only: no accelerator is claimed, and programs for machines that are not here are not
# put into a cache that cannot give them back.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}


def apart(what: str, function: Callable, *args: Any) -> Any:
    """Returns function(*args), or raises what it raised; CannotFinish where its process died.

    `what` says in progress lines what is being done. function must be importable by name.
    """
    with tempfile.TemporaryFile("w+") as said:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, _prepare, (os.getpid(), said.fileno())) as pool:
            future = pool.submit(function, *args)
            try:
                return _wait(what, future)
            except BrokenProcessPool as e:
                raise CannotFinish(f"{what}: {_last_words(said)}") from e


def _prepare(parent: int, fileno: int) -> None:
    os.environ.update(ENVIRONMENT)
    # The file is the parent's: reached through /proc, since a spawned process inherits no numbers.
    errors = os.open(f"/proc/{parent}/fd/{fileno}", os.O_WRONLY | os.O_APPEND)
    os.dup2(errors, 2)


def _wait(what: str, future: Future) -> Any:
    """Returns the result, showing the seconds so far where someone watches."""
    started = time.monotonic()
    watched = sys.stderr.isatty()
    try:
        while True:
            try:
                return future.result(timeout=1.0 if watched else None)
            except TimeoutError:
                if future.done():
                    raise
                spent = clock(time.monotonic() - started)
                print(f"\r{what}: {spent}", end="", file=sys.stderr, flush=True)
    finally:
        if watched:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _last_words(said) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} |.*Check failed", line)]
    words = fatal[0] if fatal else lines[-1] if lines else "it said nothing"
    return f"the compiler's process died ({words[:300]}): change the layout or the versions"
