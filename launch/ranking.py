"""The legal layouts of a run on a machine, ranked by their estimated seconds a step."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from launch.estimate import Estimate, Estimator
from launch.layouts import Candidate, Layouts, choices, meshes
from launch.topology import Machine
from lm.config import Config, to_dict
from lm.errors import BadInput
from lm.progress import Progress

TIE = 0.01  # steps this close are as good as each other: then the least memory wins

T = TypeVar("T")


@dataclass(frozen=True)
class Ranked:
    """A layout with what it is estimated to cost."""

    candidate: Candidate
    estimate: Estimate

    @property
    def step(self) -> float:
        return self.estimate.prediction.step

    def row(self) -> dict[str, Any]:
        """Returns it as a row of a table: the choice, seconds, bytes of one device."""
        e = self.estimate
        seconds = {
            f"{name.replace(' ', '_')}_seconds": s for name, s in e.prediction.seconds.items()
        }
        return {
            **asdict(self.candidate.choice),
            "step_seconds": self.step,
            "bound": e.prediction.bound,
            "tokens_per_second": e.meaning["tokens_per_second"],
            "mfu": e.meaning["mfu"],
            "idle": e.idle,
            **seconds,
            "exposed_seconds": e.prediction.exposed,
            **{f"{part}_bytes": n for part, n in e.memory.items()},
            "peak_bytes": e.peak,
            "limit_bytes": e.limit,
            "fits": e.fits,
        }


@dataclass(frozen=True)
class Ranking:
    """All legal layouts: those that fit, fastest first, and those that do not, smallest first."""

    fitting: list[Ranked]
    too_large: list[Ranked]
    refused: int  # choices that training would not accept

    def of_meshes(self) -> list[Ranked]:
        """Returns the best layout of each mesh, fastest first."""
        by_mesh: dict[tuple, list[Ranked]] = {}
        for ranked in self.fitting:
            by_mesh.setdefault(ranked.candidate.choice.mesh, []).append(ranked)
        best = [preferred(group)[0] for group in by_mesh.values()]
        return sorted(best, key=lambda r: (r.step, r.estimate.peak))


def preferred(
    found: Sequence[Any], step=lambda r: r.step, memory=lambda r: r.estimate.peak
) -> tuple[Any, int]:
    """Returns the one that needs least memory of those within TIE of the fastest, and their number.

    found is not empty.
    """
    fastest = min(map(step, found))
    tied = [r for r in found if step(r) <= fastest * (1 + TIE)]
    return min(tied, key=lambda r: (memory(r), step(r))), len(tied)


def rank(c: Config, machine: Machine) -> Ranking:
    """Returns every legal layout of a run on a machine; raises BadInput where there is none."""
    layouts, estimate = Layouts(to_dict(c), machine), Estimator(machine)
    asked = [choice for mesh in meshes(len(machine.devices)) for choice in choices(c, mesh)]
    progress = Progress("estimating", len(asked), unit="layout")
    found: list[Ranked] = []
    for i, choice in enumerate(asked):
        candidate = layouts.candidate(choice)
        if candidate:
            found.append(Ranked(candidate, estimate(candidate)))
        progress.update(i + 1)
    progress.close()
    if not found:
        raise BadInput(
            f"none of {len(asked)} layouts on the {len(machine.devices)} devices of {machine.name} "
            f"can train this; the first refusal: {layouts.first_refusal}"
        )
    # Equal but for rounding: the order of sums differs between schedules.
    order = lambda r: (float(f"{r.step:.9g}"), r.estimate.peak)
    return Ranking(
        sorted((r for r in found if r.estimate.fits), key=order),
        sorted((r for r in found if not r.estimate.fits), key=lambda r: r.estimate.peak),
        layouts.refused,
    )


def nothing_fits(ranking: Ranking, machine: Machine) -> BadInput:
    """Returns the sentence for a run that no layout fits."""
    least = ranking.too_large[0]
    gib = lambda n: f"{math.ceil(n / 2**30 * 100) / 100:.2f} GiB"
    return BadInput(
        f"no layout fits {machine.name}: of {len(ranking.too_large)} the smallest "
        f"({least.candidate.choice.words()}) needs about {gib(least.estimate.peak)} on each "
        f"device, which has {gib(least.estimate.limit)}: take more chips or a smaller "
        "train.batch_size"
    )
