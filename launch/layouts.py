"""Every legal way to lay a training run out on a machine: mesh, sharding, schedule, micro-batches.

What is legal is what training accepts: the config's own checks (lm/config.py), the mesh over the
machine's devices, the checks of batches and sequences (lm/train/setup.py), and every parameter's
partition spec (lm/layout.py). Nothing is compiled and no array is made.
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from launch.topology import Machine
from lm.config import PIPELINE_SCHEDULES, Config, freeze
from lm.errors import BadInput
from lm.layout import Layout, make_layout
from lm.model import transformer
from lm.train.setup import check
from lm.train.state import param_specs

NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved",
         "zero_bubble": "zero-bubble"}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What a search decides. Without a pipeline, micro-batches are those of train.accumulate and
    recompute is model.remat; schedule and repeats are then None and 1."""

    data: int
    model: int
    pipe: int
    fully_sharded: bool
    microbatches: int
    recompute: bool
    schedule: str | None = None
    repeats: int = 1

    @property
    def mesh(self) -> tuple[int, int, int, bool]:
        return self.data, self.model, self.pipe, self.fully_sharded

    def settings(self) -> dict[str, Any]:
        """Returns the config's fields that make a run use this layout."""
        fields: dict[str, Any] = {
            "mesh.data": self.data,
            "mesh.model": self.model,
            "mesh.pipe": self.pipe,
            "mesh.fully_sharded": self.fully_sharded,
        }
        if self.schedule is None:
            return fields | {"train.accumulate": self.microbatches, "model.remat": self.recompute}
        return fields | {
            "train.accumulate": 1,
            "pipeline.schedule": self.schedule,
            "pipeline.microbatches": self.microbatches,
            "pipeline.repeats": self.repeats,
            "pipeline.recompute": self.recompute,
        }

    def line(self) -> str:
        """Returns the settings as flags to paste behind a command."""
        return " ".join(
            f"--config.{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.settings().items()
        )

    def words(self) -> str:
        """Returns the layout as a person says it."""
        axes = [f"{axis} {n}" for axis, n in list(asdict(self).items())[:3] if n > 1]
        sharded = " sharded" if self.fully_sharded and self.data > 1 else ""
        words = [(" x ".join(axes) or "one device") + sharded]
        if self.schedule:
            repeats = f" by {self.repeats}" if self.repeats > 1 else ""
            words.append(f"{NAMES[self.schedule]}{repeats}")
        if self.microbatches > 1 or self.schedule:
            words.append(f"{self.microbatches} micro-batches")
        return ", ".join([*words, "recomputing" if self.recompute else "keeping"])


@dataclass(frozen=True)
class Candidate:
    """A choice with the checked config and the layout it stands for."""

    choice: Choice
    config: Config
    layout: Layout


def divisors(n: int) -> list[int]:
    """Returns the whole numbers that divide n, the least first."""
    return [k for k in range(1, n + 1) if n % k == 0]


def meshes(n: int) -> Iterator[tuple[int, int, int, bool]]:
    """Yields (data, model, pipe, fully sharded) for every product of three that is n.

    With one data device there is nothing to shard over, so that comes once, as fully sharded.
    """
    for model in divisors(n):
        for pipe in divisors(n // model):
            data = n // model // pipe
            yield from ((data, model, pipe, sharded) for sharded in {True, data == 1})


def choices(c: Config, mesh: tuple[int, int, int, bool]) -> Iterator[Choice]:
    """Yields everything that can be decided on a mesh, legal or not."""
    data, _, pipe, _ = mesh
    parts = divisors(max(c.train.batch_size // data, 1))
    if pipe == 1:
        for k, recompute in itertools.product(parts, (True, False)):
            yield Choice(*mesh, k, recompute)
        return
    for schedule in PIPELINE_SCHEDULES:
        repeats = [1] if schedule != "interleaved" else divisors(c.model.n_layers // pipe)[1:]
        for r, m, recompute in itertools.product(repeats, parts, (True, False)):
            yield Choice(*mesh, m, recompute, schedule, r)


class Layouts:
    """Turns choices into candidates on one machine; counts those that training would refuse."""

    def __init__(self, config: dict[str, Any], machine: Machine):
        """config: complete, as plain values; its own mesh and pipeline are left aside."""
        self._config, self._machine = config, machine
        self.refused = 0
        self.first_refusal = ""
        self._layout = cache(lambda mesh: make_layout(mesh, machine.devices))
        self._sharded = cache(self._specs)

    def candidate(self, choice: Choice) -> Candidate | None:
        """Returns the candidate, None where training would refuse it."""
        values = {k: dict(v) if isinstance(v, dict) else v for k, v in self._config.items()}
        for key, value in choice.settings().items():
            group, field = key.split(".")
            values[group][field] = value
        try:
            c = freeze(values)
            layout = self._layout(c.mesh)
            check(c, layout)
            said = self._sharded(c.mesh, c.model, c.pipeline.repeats)
            if said:
                raise BadInput(said)
        except BadInput as e:
            self.refused += 1
            self.first_refusal = self.first_refusal or str(e)
            return None
        return Candidate(choice, c, layout)

    def _specs(self, mesh, model, repeats: int) -> str:
        """Returns why a parameter does not divide over the mesh, '' where all do."""
        try:
            param_specs(transformer.table(model, repeats), self._layout(mesh))
        except BadInput as e:
            return str(e)
        return ""
