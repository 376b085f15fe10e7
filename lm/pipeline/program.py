"""A schedule as arrays that an executor reads tick by tick. Imports NumPy only.

Every stage has four buffers. Their slots are given out ahead of time by when a value is written and
last read, so that a buffer is as small as the schedule allows:

inbox      activations that arrived from the group before, until their forward has run
stash      what a forward leaves for its backward, until that (or its weight part) has run
ct         cotangents that arrived from the group after, until their backward or input part has run
deferred   what an input part leaves for its weight part, until that has run

A buffer of n slots has slot n beside them, the trash slot: writes of what nobody needs go there,
and who reads nothing is told to read it. A value sent at the end of a tick arrives then too, after
all work of the tick, so it may take a slot that the tick has just read for the last time.
"""

from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from lm.pipeline.schedule import Schedule

# jax.named_scope of each branching of the executor, the second branch taken by the first group's
# forward or backward, the last group's forward, or when anybody sends; and of the loop of one turn
# or none that each kind of work is.
FIRST, LAST, INTO_FIRST = (f"pipeline_{name}" for name in ("first", "last", "into_first"))
SEND_FORWARD, SEND_BACKWARD = "pipeline_send_forward", "pipeline_send_backward"

# The code of each kind of work in Program.what. The executor's loops stand in this order: with the
# weight part before the input part XLA for TPUs moved twice the bytes (BUILD_NOTES.md).
CODES = {"idle": 0, "forward": 1, "backward": 2, "input": 3, "weight": 4}
# By what their products cost: a weight part has those of a forward but for attention's, of which an
# input part has twice as many.
BY_COST = ("idle", "weight", "forward", "input", "backward")
WORK = {name: f"pipeline_{name}" for name in CODES}  # the scopes of their loops
NO_SLOT = -1


@dataclass(frozen=True)
class Branches:
    """How often the executor takes each branch of each branching, of one execution of it, and
    how often a loop of one turn or none has none and one.

    stages: for each stage {scope: shares of the branches}; lockstep: the same where every tick does
    the costliest work of any stage, which is what the step's time is made of.
    """

    stages: tuple[dict[str, tuple[float, ...]], ...]
    lockstep: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Program:
    """int32 arrays (ticks, stages), sends_* bool (ticks,); idle work is micro-batch 0, chunk 0.

    Stages send around a ring: forward from s to s + 1, backward from s to s - 1, modulo stages.
    The *_write slots are of what arrives at a stage at the end of the tick, and valid where the
    tick sends; all other slots are of the stage's own work at the tick, the trash slot where that
    does not use the buffer.
    """

    stages: int
    microbatches: int
    repeats: int
    inbox_size: int
    stash_size: int
    ct_size: int
    deferred_size: int
    what: np.ndarray
    microbatch: np.ndarray
    chunk: np.ndarray
    inbox_read: np.ndarray
    inbox_write: np.ndarray
    stash: np.ndarray  # written by forward, read by backward, input and weight
    ct_read: np.ndarray
    ct_write: np.ndarray
    deferred: np.ndarray  # written by input, read by weight
    sends_forward: np.ndarray
    sends_backward: np.ndarray

    @property
    def ticks(self) -> int:
        return len(self.what)

    @property
    def used(self) -> list[str]:
        """The kinds of work, by their code, that the executor has loops for: idle needs none."""
        return [name for name, code in CODES.items() if code and (self.what == code).any()]

    def branches(self) -> Branches:
        """Returns how often a step takes each branch."""
        group = self.chunk * self.stages + np.arange(self.stages)
        forward = self.what == CODES["forward"]
        back = (self.what == CODES["backward"]) | (self.what == CODES["input"])
        last = self.stages * self.repeats - 1
        two = {
            FIRST: (forward & (group == 0), forward),
            LAST: (forward & (group == last), forward),
            INTO_FIRST: (back & (group == 0), back),
        }
        sends = {SEND_FORWARD: self.sends_forward, SEND_BACKWARD: self.sends_backward}

        def shares(what: np.ndarray, stage: int | None = None) -> dict[str, tuple[float, ...]]:
            of = lambda a: a.any(1).sum() if stage is None else a[:, stage].sum()
            yes = {scope: of(taken) / of(among) for scope, (taken, among) in two.items()}
            yes |= {scope: sent.mean() for scope, sent in sends.items()}
            yes |= {WORK[name]: (what == CODES[name]).mean() for name in self.used}
            return {scope: (1 - float(y), float(y)) for scope, y in yes.items()}

        stages = (shares(self.what[:, s], s) for s in range(self.stages))
        by_cost = np.array([CODES[name] for name in BY_COST])
        rank = np.argsort(by_cost)  # of a code
        return Branches(tuple(stages), shares(by_cost[rank[self.what].max(1)]))

    def forward_only(self) -> "Program":
        """Returns the forward work alone, for an evaluation; no tick may mix it with other work."""
        rows = (self.what == CODES["forward"]).any(1)
        alone = np.isin(self.what[rows], (CODES["idle"], CODES["forward"]))
        assert alone.all(), "a tick mixes forward and other work"
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: a[rows] for name, a in arrays.items() if isinstance(a, np.ndarray)}
        return replace(self, **kept)


class Life(NamedTuple):
    """A value in a buffer of one stage: its first and last tick there, and who names its slot."""

    stage: int
    first: int
    last: int
    named: tuple[tuple[np.ndarray, int], ...]  # (slot array, tick) of each write and read


def make_program(schedule: Schedule) -> Program:
    """Returns the arrays of a schedule, for which `lm.pipeline.schedule.check` must hold."""
    shape = (schedule.ticks, schedule.stages)
    what, microbatch, chunk = (np.zeros(shape, np.int32) for _ in range(3))
    inbox_read, inbox_write, stash, ct_read, ct_write, deferred = (
        np.full(shape, NO_SLOT, np.int32) for _ in range(6)
    )
    sends_forward, sends_backward = (np.zeros(schedule.ticks, bool) for _ in range(2))
    ticks: dict[tuple[str, int, int], int] = {}
    for work in schedule.works:
        what[work[:2]] = CODES[work.what]
        microbatch[work[:2]], chunk[work[:2]] = work.microbatch, work.chunk
        # The whole backward and its input part are alike: both read and send a cotangent.
        kind = "return" if work.what in ("backward", "input") else work.what
        ticks[kind, work.microbatch, schedule.group(work)] = work.tick

    arrivals, returns, stashes, parted = [], [], [], []
    for i in range(schedule.microbatches):
        for g in range(schedule.groups):
            stage = g % schedule.stages
            there, back = ticks["forward", i, g], ticks["return", i, g]
            weight = ticks.get(("weight", i, g))
            uses = [(stash, there), (stash, back)]
            if weight is not None:
                uses.append((stash, weight))
                parted.append(Life(stage, back, weight, ((deferred, back), (deferred, weight))))
            stashes.append(Life(stage, there, uses[-1][1], tuple(uses)))
            # An arrival at the end of a tick takes its slot from the next tick on.
            if g > 0:
                sent = ticks["forward", i, g - 1]
                named = ((inbox_write, sent), (inbox_read, there))
                arrivals.append(Life(stage, sent + 1, there, named))
                sends_forward[sent] = True
            if g + 1 < schedule.groups:
                sent = ticks["return", i, g + 1]
                named = ((ct_write, sent), (ct_read, back))
                returns.append(Life(stage, sent + 1, back, named))
                sends_backward[sent] = True

    return Program(
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        repeats=schedule.repeats,
        inbox_size=_give_slots(arrivals, inbox_read, inbox_write),
        stash_size=_give_slots(stashes, stash),
        ct_size=_give_slots(returns, ct_read, ct_write),
        deferred_size=_give_slots(parted, deferred),
        what=what,
        microbatch=microbatch,
        chunk=chunk,
        inbox_read=inbox_read,
        inbox_write=inbox_write,
        stash=stash,
        ct_read=ct_read,
        ct_write=ct_write,
        deferred=deferred,
        sends_forward=sends_forward,
        sends_backward=sends_backward,
    )


def _give_slots(lives: list[Life], *arrays: np.ndarray) -> int:
    """Names a slot for every life, the trash slot elsewhere; returns the slots of the buffer.

    First come, first served, the lowest free slot: as few as are ever needed at once on a stage.
    """
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}  # (last tick, slot)
    opened: dict[int, int] = {}
    for life in sorted(lives, key=lambda life: life.first):
        spare, taken = free.setdefault(life.stage, []), busy.setdefault(life.stage, [])
        while taken and taken[0][0] < life.first:
            heappush(spare, heappop(taken)[1])
        if not spare:
            opened[life.stage] = opened.get(life.stage, 0) + 1
            spare.append(opened[life.stage] - 1)
        slot = heappop(spare)
        heappush(taken, (life.last, slot))
        for array, tick in life.named:
            array[tick, life.stage] = slot
    size = max(opened.values(), default=0)
    for array in arrays:
        array[array == NO_SLOT] = size
    return size
