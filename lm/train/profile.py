"""A profile of chosen steps, in the work folder: `tensorboard --logdir` (with its profile plugin)
opens profile/, and Perfetto (ui.perfetto.dev) the *.trace.json.gz in it."""

from pathlib import Path
from typing import Any

import jax

from lm.config import LogConfig
from lm.progress import say

FOLDER = "profile"


class Profile:
    """Asked before every step; traces the log.profile_steps steps from log.profile_from on."""

    def __init__(self, c: LogConfig, workdir: Path):
        self._folder = workdir / FOLDER
        first = c.profile_from
        self._steps = range(first, first + c.profile_steps) if first else range(0)
        self._running = False

    def before(self, step: int, state: Any) -> None:
        """state: what the last dispatched step made, which is waited for where the trace begins and
        ends, so that whole steps are in it."""
        if (step in self._steps) == self._running:
            return
        jax.block_until_ready(state)
        if self._running:
            self.close()
        else:
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def close(self) -> None:
        """Writes what was traced, also of a run that ends in between."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            say(f"steps from {self._steps[0]} on are profiled in {self._folder}")
