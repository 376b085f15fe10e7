"""The processes that train together: joining them, who writes and speaks, what all must agree on.

A process learns its place here and nowhere else: from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
and JAX_PROCESS_ID, and what these leave out from the cluster that JAX recognises (a Slurm step of
several tasks). Without any of them it is alone, and everything here is free. Process 0 writes the
files and tells the user; checkpoints are written by all. ISOFLOP_JOIN_SECONDS and
ISOFLOP_HEARTBEAT_SECONDS bound the wait for processes that do not come, or no longer answer.
Imports nothing heavy until it joins.
"""

import os
import secrets
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from lm import progress
from lm.errors import BadInput, CannotFinish, CannotSave, Diverged, Stopped

JOIN_SECONDS = 300  # hosts of one job start minutes apart
HEARTBEAT_SECONDS = 100  # JAX ends every process when one has been silent for so long
MEET_SECONDS = 3600  # compiling takes some processes longer than others, but not this much
LEAVE_SECONDS = 60  # at the end, processes wait so long for each other
KINDS = (BadInput, CannotSave, CannotFinish, Diverged, Stopped)  # errors that cross processes

T = TypeVar("T")
_index, _size = 0, 1


def index() -> int:
    """Returns this process's number, from 0."""
    return _index


def size() -> int:
    """Returns the number of processes."""
    return _size


def first() -> bool:
    """Returns whether this process is the one that writes files and tells the user."""
    return _index == 0


def announced() -> bool:
    """Returns whether the environment says that several processes train together."""
    return _number("JAX_NUM_PROCESSES", _number("SLURM_STEP_NUM_TASKS", 1)) != 1


def join() -> None:
    """Joins the group that the environment names, if any: before any other use of JAX.

    Raises BadInput for an environment that cannot be meant. If the others do not come, says so and
    ends the process with exit code 1.
    """
    global _index, _size
    if not announced():
        return
    place: dict[str, Any] = {"coordinator_address": os.environ.get("JAX_COORDINATOR_ADDRESS")}
    for name in ("num_processes", "process_id"):
        variable = f"JAX_{name.upper()}"
        place[name] = _number(variable) if variable in os.environ else None
    if None not in place.values():
        place["cluster_detection_method"] = "deactivate"
    seconds = _number("ISOFLOP_JOIN_SECONDS", JOIN_SECONDS)
    # JAX itself would abort without a word to the user.
    patience = threading.Timer(seconds, _nobody_came, (seconds, place))
    patience.daemon = True
    patience.start()
    import jax

    try:
        jax.distributed.initialize(
            **place,
            initialization_timeout=2 * seconds,
            heartbeat_timeout_seconds=_number("ISOFLOP_HEARTBEAT_SECONDS", HEARTBEAT_SECONDS),
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )
        _index, _size = jax.process_index(), jax.process_count()
    except (ValueError, TypeError) as e:
        raise BadInput(
            f"the environment does not say which process this is ({str(e).splitlines()[0]}): set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or unset all three"
        ) from e
    finally:
        patience.cancel()
    sys.excepthook = _fail
    if not first():
        progress.be_quiet()
    progress.say(f"{_size} processes with {len(jax.local_devices())} devices each")


def _nobody_came(seconds: int, place: dict[str, Any]) -> None:
    n, address = place["num_processes"], place["coordinator_address"]
    progress.warn(
        f"the processes of this run did not meet within {seconds} seconds: see that all "
        f"{n or 'of them'} were started and reach {address or 'the first one'}"
    )
    end_alone(1)


def _number(variable: str, default: int = 0) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise BadInput(f"the environment has {variable}={text!r}: a whole number is meant")
    return int(text)


def together(work: Callable[[], T]) -> T:
    """Returns what work() returns here, once it is done everywhere; all call it at the same point.

    If it fails anywhere it fails everywhere: the first process that failed raises its own error,
    the others the same kind without words, so that it is told once.
    """
    if _size == 1:
        return work()
    value, error = None, None
    try:
        value = work()
    except Exception as e:
        error = e
    failures = _gathered(0 if error is None else 1 + _kind(error))
    failed = [i for i, kind in enumerate(failures) if kind]
    if failed and error is not None and failed[0] == _index:
        raise error
    if failed:
        raise KINDS[failures[failed[0]] - 1]("")
    return value  # type: ignore[return-value]


def meet(where: str) -> None:
    """Returns once every process is here, with what takes them unequal times (compiling) behind it:
    the first sum over new devices waits for 30 seconds only. All call it; no name twice."""
    if _size > 1:
        from orbax.checkpoint import multihost

        multihost.get_barrier_sync_fn()(key=f"isoflop {where}", timeout_ms=MEET_SECONDS * 1000)


def everywhere(here: bool) -> bool:
    """Returns whether it is so on every process; all call it at the same point."""
    return _size == 1 or all(_gathered(int(here)))


def see_first(folder: Path) -> bool:
    """Returns whether every process sees what the first one writes in a folder, which is made if it
    is not there; all call it at the same point. Raises OSError where it cannot be written."""
    if _size == 1:
        return True
    # A name that nobody looked for before: file systems over a network remember what was not there.
    path = folder / f".seen-{_gathered(secrets.randbelow(2**31))[0]}"

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()

    together(lambda: make() if first() else None)
    seen = everywhere(path.exists())
    if first():
        path.unlink()
    return seen


def end_alone(code: int) -> NoReturn:
    """Ends this process at once. Leaving in order would wait for others that wait for this one;
    they end when they miss it, or are ended by what started them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(kind, error, trace) -> None:
    traceback.print_exception(kind, error, trace)
    end_alone(1)


def _kind(error: Exception) -> int:
    """An error that no command expects is CannotFinish to the other processes."""
    known = [i for i, kind in enumerate(KINDS) if isinstance(error, kind)]
    return known[0] if known else KINDS.index(CannotFinish)


def _gathered(value: int) -> list[int]:
    import numpy as np
    from jax.experimental import multihost_utils

    return [int(v) for v in multihost_utils.process_allgather(np.int32(value))]
