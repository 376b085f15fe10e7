"""What a person sees while something long runs: a bar on a terminal, plain lines elsewhere."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
_quiet = False


def be_quiet() -> None:
    """Silences this process: a worker whose parent speaks for it."""
    global _quiet
    _quiet = True


def say(text: str) -> None:
    """Prints one line to stderr, clear of any progress bar; nothing in a quiet process."""
    if not _quiet:
        warn(text)


def warn(text: str) -> None:
    """Prints one line to stderr whether the process is quiet or not."""
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


class Progress:
    """Counts work done and says how long the rest will take. stays: the bar does, when it ends."""

    def __init__(
        self, what: str, total: int, done: int = 0, unit: str = "step", stays: bool = True
    ):
        self._what, self._total, self._first, self._unit = what, total, done, unit
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and not _quiet:
            from tqdm import tqdm

            settings = dict(desc=what, unit=unit, leave=stays, dynamic_ncols=True)
            self._bar = tqdm(total=total, initial=done, **settings)

    def update(self, done: int, note: str = "") -> None:
        """Says that `done` of the total are done, with a few words of how it goes."""
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            where = f"{done} %" if self._unit == "%" else f"{self._unit} {done} of {self._total}"
            say(f"{self._what}: {', '.join(filter(None, (where, note, self._left(done))))}")

    def _left(self, done: int) -> str:
        if done - self._first < self._total / 50:
            return ""  # too little to judge by
        spent = time.monotonic() - self._started
        return f"{clock(spent / (done - self._first) * (self._total - done))} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def clock(seconds: float) -> str:
    """Returns a duration as people write it: 42 s, 3 min 20 s, 2 h 5 min."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s"
    return f"{s // 3600} h {s % 3600 // 60} min"
