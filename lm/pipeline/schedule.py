"""A pipeline schedule: who does what at which tick, its checks and its figures. Plain Python.

The layers of a model are split into p * r groups of consecutive layers: chunk v of stage s holds
group v * p + s, where p is the number of stages and r that of repeats (1 unless interleaved). A
batch is split into m micro-batches, each of which passes every group forward, then backward. The
backward may be split (Qi et al. 2023, arXiv 2401.10241) into its input part, which the group before
waits for, and its weight part, which nobody waits for.

Stages move in lockstep: at a tick each does one piece of work or none, and the tick takes as long
as the longest piece done in it. What is done at tick t may be used, on any stage, from tick t + 1.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

# In units of one forward of all the layers of a stage; a chunk costs 1 / repeats of it.
COSTS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}


class Work(NamedTuple):
    """One piece of work; `what` is a key of COSTS. "backward" is "input" and "weight" at once."""

    tick: int
    stage: int
    what: str
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class Schedule:
    """Every piece of work of one training step, sorted by tick, then stage."""

    name: str
    stages: int
    microbatches: int
    repeats: int
    works: tuple[Work, ...]

    @property
    def groups(self) -> int:
        """Groups of consecutive layers: stages * repeats."""
        return self.stages * self.repeats

    @property
    def ticks(self) -> int:
        return 1 + max(work.tick for work in self.works)

    def group(self, work: Work) -> int:
        """Which group of consecutive layers a piece of work is about."""
        return work.chunk * self.stages + work.stage


def tick_costs(schedule: Schedule) -> list[Fraction]:
    """How long each tick takes, (ticks,), in forwards of all the layers of a stage."""
    longest = [0] * schedule.ticks
    for work in schedule.works:
        longest[work.tick] = max(longest[work.tick], COSTS[work.what])
    return [Fraction(cost, schedule.repeats) for cost in longest]


def makespan(schedule: Schedule) -> Fraction:
    """How long the step takes, in forwards of all the layers of a stage."""
    return sum(tick_costs(schedule), Fraction())


def idle_share(schedule: Schedule) -> Fraction:
    """1 - work / (stages * makespan): the share of their time that stages wait."""
    work = Fraction(sum(COSTS[work.what] for work in schedule.works), schedule.repeats)
    return 1 - work / (schedule.stages * makespan(schedule))


def high_water(schedule: Schedule) -> tuple[int, ...]:
    """The most activations that each stage holds at once, (stages,), in activations of a chunk.

    One is held from its forward until its backward is done, or its weight part where that is apart.
    """
    held, most = [0] * schedule.stages, [0] * schedule.stages
    for work in schedule.works:
        if work.what == "forward":
            held[work.stage] += 1
            most[work.stage] = max(most[work.stage], held[work.stage])
        elif work.what in ("backward", "weight"):
            held[work.stage] -= 1
    return tuple(most)


def check(schedule: Schedule) -> None:
    """Raises ValueError, naming the work, if the schedule is no way to do a training step.

    Every micro-batch passes every group forward once and backward once (whole or in two parts),
    each piece after what it needs; no stage does two things in a tick; no tick is empty.
    """
    _check_places(schedule)
    done = _first_done(schedule)
    for work in schedule.works:
        group = schedule.group(work)
        for what, needed in _needs(work.what, group, schedule.groups):
            keys = [(option, work.microbatch, needed) for option in what]
            at = [done[key] for key in keys if key in done]
            if not at or min(at) >= work.tick:
                when = f"is done at tick {min(at)}" if at else "is never done"
                raise ValueError(
                    f"{work} needs the {' or '.join(what)} of group {needed} at an earlier tick, "
                    f"but that {when}"
                )
    for microbatch in range(schedule.microbatches):
        for group in range(schedule.groups):
            parts = tuple(what for what in COSTS if (what, microbatch, group) in done)
            if parts not in (("forward", "backward"), ("forward", "input", "weight")):
                raise ValueError(
                    f"micro-batch {microbatch} must pass group {group} forward once and backward "
                    f"once, whole or in two parts, but what is done of it is {parts}"
                )


def _check_places(schedule: Schedule) -> None:
    """Raises where work is out of range or out of order, two works collide, or a tick is empty."""
    if list(schedule.works) != sorted(schedule.works, key=lambda work: work[:2]):
        raise ValueError("the works of a schedule are sorted by tick, then stage")
    inside = (schedule.stages, schedule.microbatches, schedule.repeats)
    for work in schedule.works:
        place = (work.stage, work.microbatch, work.chunk)
        if work.what not in COSTS or not all(
            0 <= a < b for a, b in zip(place, inside, strict=True)
        ):
            raise ValueError(
                f"{work} is outside {inside} stages, micro-batches, chunks, or not in {list(COSTS)}"
            )
    busy = Counter(work[:2] for work in schedule.works)
    for work in schedule.works:
        if busy[work[:2]] > 1:
            raise ValueError(f"stage {work.stage} does {busy[work[:2]]} things in a tick: {work}")
    used = {work.tick for work in schedule.works}
    if used != set(range(len(used))):
        missing = min(set(range(max(used, default=0) + 1)) - used, default=0)
        raise ValueError(f"nobody works at tick {missing}, so it should not exist")


def _first_done(schedule: Schedule) -> dict[tuple[str, int, int], int]:
    """The tick of each (what, micro-batch, group); raises where one is done twice."""
    done: dict[tuple[str, int, int], int] = {}
    for work in schedule.works:
        key = (work.what, work.microbatch, schedule.group(work))
        if key in done:
            raise ValueError(f"{work} was done already, at tick {done[key]}")
        done[key] = work.tick
    return done


def _needs(what: str, group: int, groups: int) -> Iterable[tuple[tuple[str, ...], int]]:
    """What a piece of work waits for: (any one of these, of this group)."""
    if what == "forward":
        return [(("forward",), group - 1)] if group > 0 else []
    if what == "weight":
        return [(("input",), group)]
    after = [(("backward", "input"), group + 1)] if group + 1 < groups else []
    return [(("forward",), group), *after]
