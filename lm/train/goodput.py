"""Where a run's time went, over all its restarts: goodput.json.

Goodput is the share of the time in which the model learned: neither starting, evaluating, saving or
waiting for data, nor doing again what a kill had thrown away.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from lm.errors import BadInput
from lm.process import age_seconds
from lm.progress import warn
from lm.train.workdir import read_json, write_while_training

NAME = "goodput.json"
PARTS = ("starting", "steps", "waiting_for_data", "evaluating", "saving", "lost")
SECONDS_BETWEEN_WRITES = 5.0  # what a kill may hide of the time it lost

T = TypeVar("T")
_first_run = True


def start_time() -> float:
    """Returns when a run began (time.monotonic): the first of a process with the process."""
    global _first_run
    age, _first_run = (age_seconds() if _first_run else 0.0), False
    return time.monotonic() - age


class Clock:
    """Seconds by part: at every moment one part runs, `starting` first."""

    def __init__(self, started: float, earlier: dict[str, float], lost: float = 0.0):
        """earlier: the seconds in the checkpoint. lost: those after it, thrown away by a kill."""
        self._seconds = dict.fromkeys(PARTS, 0.0) | earlier
        self._seconds["lost"] += lost
        self._part, self._since = "starting", started
        self._before = dict(self._seconds)
        self._written = time.monotonic()

    def turn(self, part: str) -> str:
        """Starts a part; returns the one that ends."""
        now, ended = time.monotonic(), self._part
        self._seconds[ended] += now - self._since
        self._part, self._since = part, now
        return ended

    @contextlib.contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """What is done inside counts for this part."""
        before = self.turn(part)
        try:
            yield
        finally:
            self.turn(before)

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """Yields what it is given; the time until each is there counts as waiting for data."""
        end = object()
        while True:
            with self.spent("waiting_for_data"):
                batch = next(batches, end)
            if batch is end:
                return
            yield batch  # type: ignore[misc]

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of every part up to now; they add up to the run's time."""
        self.turn(self._part)
        return dict(self._seconds)

    def data_share(self) -> float:
        """Returns waiting for data / (waiting + steps) since this start."""
        now = self.seconds()
        waited, steps = (now[p] - self._before[p] for p in ("waiting_for_data", "steps"))
        return waited / max(waited + steps, 1e-9)

    def write(self, folder: Path) -> None:
        """Writes goodput.json: seconds and shares by part, and goodput, the share of steps."""
        seconds = self.seconds()
        total = max(sum(seconds.values()), 1e-9)
        shares = {part: s / total for part, s in seconds.items()}
        found = {"goodput": shares["steps"], "seconds": seconds, "shares": shares}
        found |= {"data_share_of_steps": self.data_share()}
        write_while_training(folder / NAME, found)
        self._written = time.monotonic()

    def beat(self, folder: Path) -> None:
        """Writes now and then, so that the next start knows what a kill threw away."""
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.write(folder)

    def told(self) -> str:
        """Returns the shares in words."""
        seconds = self.seconds()
        total = max(sum(seconds.values()), 1e-9)
        parts = (f"{p.replace('_', ' ')} {s / total:.1%}" for p, s in seconds.items() if s)
        return f"time: {', '.join(parts)}"


def lost_since(folder: Path, kept: dict[str, float]) -> float:
    """Returns the seconds that a run spent after a checkpoint that holds `kept`: before this start
    it did things that are gone. 0 without a goodput.json."""
    path = folder / NAME
    if not path.exists():
        return 0.0
    try:
        return max(0.0, sum(read_json(path)["seconds"].values()) - sum(kept.values()))
    except (BadInput, KeyError, TypeError, AttributeError):
        warn(f"{path} cannot be read: time lost before this start is not counted")
        return 0.0
