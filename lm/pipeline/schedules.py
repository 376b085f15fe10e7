"""The schedules that exist: GPipe, 1F1B, interleaved 1F1B and zero-bubble.

A new schedule is one entry of SCHEDULES: a function of (stages, micro-batches, repeats) that
returns the works in any order. Naive model parallel is 1F1B with one micro-batch.

With p stages, m micro-batches and r repeats (`lm.pipeline.schedule` has the units):

schedule      makespan                    idle share             activations of a chunk on stage s
gpipe         3 (m + p - 1)               (p-1) / (m+p-1)        m
1f1b          3 (m + p - 1)               (p-1) / (m+p-1)        at most 2 (p - s) - 1
interleaved   3 (m r + p - 1) / r         (p-1) / (m r + p-1)    at most r p + p - 1 - 2 s
zero_bubble   3 m + p - 1                 (p-1) / (3 m + p-1)    at most p

interleaved: as stated where p divides m. Otherwise its blocks are longer than p micro-batches, b
instead of p say, which holds at most r b + p - 1 - 2 s at the same makespan; with m < p the chunks
of a stage wait for each other: 3 (m + r p - 1) / r.
zero_bubble: as stated for m >= p, else 2 p + 2 m - 1; no schedule of these costs is shorter.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from lm.errors import BadInput
from lm.pipeline.schedule import Schedule, Work

Unit = tuple[int, int]  # micro-batch, chunk
Maker = Callable[[int, int, int], Iterator[Work]]


def gpipe(p: int, m: int, r: int) -> Iterator[Work]:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    forwards, backwards = _waves(p, m, r)
    return _merge(p, forwards, backwards, [len(forwards) + p - 1] * len(backwards))


def one_forward_one_backward(p: int, m: int, r: int) -> Iterator[Work]:
    """Each backward as soon as may be, each forward no sooner than needed for the next backward.

    With r = 1 this is 1F1B (Narayanan et al. 2019), with more it is the interleaved schedule of
    Narayanan et al. 2021, arXiv 2104.04473. Forwards and backwards never share a tick, since the
    shorter would wait for the longer. The price of lockstep: stages that run freely need p - s
    activations for 1F1B; here a value goes one stage on per forward tick, and those alternate with
    the backward ticks, so that 2 (p - s) - 1 are in flight. No lockstep schedule of this makespan
    needs less once m >= 2 p - 1: the last stage has to work without a pause from time p - 1 on,
    forward in ticks of cost 1 and backward in ticks of cost 2, and stages that are busy throughout
    follow its rhythm.
    """
    forwards, backwards = _waves(p, m, r)
    at = {unit: k for k, unit in enumerate(forwards)}
    # Only the backward of the last group waits for a forward; the others wait for backwards.
    needed = [at[unit] + p if unit and unit[1] == r - 1 else 0 for unit in backwards]
    return _merge(p, forwards, backwards, needed)


def zero_bubble(p: int, m: int, r: int) -> Iterator[Work]:
    """ZB-H1 (Qi et al. 2023, arXiv 2401.10241): weight parts fill the time that 1F1B waits.

    At every tick each stage takes the first of forward, input and weight part that it may: at most
    p - s micro-batches are between their forward and their input part on stage s, as in 1F1B
    without lockstep, and at most p activations are held. That is what stage 0 of such a 1F1B holds.
    On the last stage no less will do: its last input part must be done p ticks before the end, so
    only m - p of its weight parts fit in before.
    """
    forwards, inputs, weights = [0] * p, [0] * p, [0] * p
    tick = 0
    while min(weights) < m:
        # What was done before this tick: nothing done in it may be used in it.
        f, i, w = tuple(forwards), tuple(inputs), tuple(weights)
        for s in range(p):
            arrived = m if s == 0 else f[s - 1]
            returned = f[s] if s == p - 1 else i[s + 1]
            if f[s] < arrived and f[s] - i[s] < p - s and f[s] - w[s] < p:
                yield Work(tick, s, "forward", f[s], 0)
                forwards[s] += 1
            elif i[s] < min(f[s], returned):
                yield Work(tick, s, "input", i[s], 0)
                inputs[s] += 1
            elif w[s] < i[s]:
                yield Work(tick, s, "weight", w[s], 0)
                weights[s] += 1
        tick += 1


SCHEDULES: Mapping[str, Maker] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": one_forward_one_backward,
    "zero_bubble": zero_bubble,
}


def make_schedule(name: str, stages: int, microbatches: int, repeats: int = 1) -> Schedule:
    """Returns the schedule of that name; `check` holds for it.

    Raises BadInput for an unknown name, a size below 1, or repeats where they have no meaning.
    """
    if name not in SCHEDULES:
        raise BadInput(f"there is no pipeline schedule {name!r}: choose one of {list(SCHEDULES)}")
    sizes = {"stages": stages, "micro-batches": microbatches, "repeats": repeats}
    for what, size in sizes.items():
        if size < 1:
            raise BadInput(f"a pipeline needs at least 1 of its {what}, not {size}")
    if repeats > 1 and name != "interleaved":
        raise BadInput(
            f"pipeline schedule {name!r} has 1 group of layers a stage, not {repeats}: set repeats "
            "to 1, or choose 'interleaved'"
        )
    works = sorted(SCHEDULES[name](stages, microbatches, repeats))
    return Schedule(name, stages, microbatches, repeats, tuple(works))


def _waves(p: int, m: int, r: int) -> tuple[list[Unit | None], list[Unit | None]]:
    """The order in which every stage does its forwards, and its backwards; None: it waits.

    Blocks of p micro-batches pass chunk 0 of all stages, then chunk 1, and so on: the first comes
    back to stage 0 just when the block has left it. Where p does not divide m the remainder is
    spread over the blocks, which costs a little memory and no time.
    """
    blocks = max(m // p, 1)
    bounds = [m * b // blocks for b in range(blocks + 1)]
    forwards: list[Unit | None] = []
    backwards: list[Unit | None] = []
    for start, end in pairwise(bounds):
        for v in range(r):
            forwards += [(i, v) for i in range(start, end)]
            backwards += [(i, r - 1 - v) for i in range(start, end)]
            if v + 1 < r:  # only with m < p: nothing to do until the first is round
                forwards += [None] * (p - (end - start))
                backwards += [None] * (p - (end - start))
    return forwards, backwards


def _merge(
    p: int, forwards: list[Unit | None], backwards: list[Unit | None], needed: list[int]
) -> Iterator[Work]:
    """Works of the two waves, each crossing the stages one a tick, in ticks of one kind each.

    Backward tick k follows the first needed[k] forward ticks, and forward ticks come no sooner.
    """
    tick = done = 0
    for k in range(len(backwards) + p - 1):
        for j in range(done, needed[k] if k < len(needed) else 0):
            yield from _crossing(tick, "forward", forwards, j, range(p))
            tick, done = tick + 1, j + 1
        yield from _crossing(tick, "backward", backwards, k, range(p - 1, -1, -1))
        tick += 1


def _crossing(
    tick: int, what: str, wave: list[Unit | None], step: int, stages: range
) -> Iterator[Work]:
    """What a wave that enters the first of `stages` at step 0 does at this step."""
    for behind, stage in enumerate(stages):
        unit = wave[step - behind] if 0 <= step - behind < len(wave) else None
        if unit is not None:
            yield Work(tick, stage, what, *unit)
