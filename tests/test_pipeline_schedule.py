"""Pipeline schedules: their figures, their checks, and their programs run literally."""

import dataclasses
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from heapq import heappop, heappush
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lm.errors import BadInput
from lm.pipeline.program import CODES, WORK, Program, make_program
from lm.pipeline.schedule import (
    COSTS,
    Schedule,
    Work,
    check,
    high_water,
    idle_share,
    makespan,
    tick_costs,
)
from lm.pipeline.schedules import SCHEDULES, make_schedule

# Interleaved with one chunk a stage is 1F1B.
KINDS = [(name, r) for name in SCHEDULES for r in ((2, 3) if name == "interleaved" else (1,))]
SIZES = [*product(range(1, 7), [*range(1, 10), 16]), (8, 16)]
NOTHING = ("nothing", -1, -1)
WHAT = {code: what for what, code in CODES.items()}


def run_literally(program: Program) -> dict[str, int]:
    """Runs a program on values that say what they are; returns how often each kind was done.

    It does what the arrays say and nothing else, and forgets what is in a trash slot at once.
    """
    p, last = program.stages, program.stages * program.repeats - 1
    sizes = (program.inbox_size, program.stash_size, program.ct_size, program.deferred_size)
    inbox, stash, ct, deferred = ([[NOTHING] * (n + 1) for _ in range(p)] for n in sizes)
    # Lists, (ticks, stages): NumPy is slow at single numbers.
    rows = {
        f.name: getattr(program, f.name).tolist()
        for f in dataclasses.fields(program)
        if f.type is np.ndarray
    }
    done = []
    for t in range(program.ticks):
        now = {name: row[t] for name, row in rows.items()}
        ahead, back = [NOTHING] * p, [NOTHING] * p
        for s in range(p):
            what, slot = WHAT[now["what"][s]], now["stash"][s]
            i, g = now["microbatch"][s], now["chunk"][s] * p + s
            if what == "idle":
                continue
            done.append((what, i, g))
            if what == "forward":
                if g > 0:
                    assert inbox[s][now["inbox_read"][s]] == ("activation", i, g - 1)
                stash[s][slot] = ("kept", i, g)
                ahead[s] = ("activation", i, g)
                continue
            assert stash[s][slot] == ("kept", i, g)
            if what == "weight":
                assert deferred[s][now["deferred"][s]] == ("deferred", i, g)
                continue
            if g < last:
                assert ct[s][now["ct_read"][s]] == ("cotangent", i, g + 1)
            back[s] = ("cotangent", i, g)
            if what == "input":
                deferred[s][now["deferred"][s]] = ("deferred", i, g)
        for s in range(p):
            if now["sends_forward"]:
                inbox[s][now["inbox_write"][s]] = ahead[(s - 1) % p]
            if now["sends_backward"]:
                ct[s][now["ct_write"][s]] = back[(s + 1) % p]
            for buffer in (inbox, stash, ct, deferred):
                buffer[s][-1] = NOTHING
    assert len(set(done)) == len(done)
    return dict(Counter(what for what, _, _ in done))


@pytest.mark.parametrize("name, repeats", KINDS)
def test_every_work_of_every_program_reads_the_value_it_should(name, repeats):
    for p, m in SIZES:
        schedule = make_schedule(name, p, m, repeats)
        check(schedule)
        program = make_program(schedule)
        times = p * m * repeats
        split = name == "zero_bubble"
        parts = ("input", "weight") if split else ("backward",)
        assert run_literally(program) == dict.fromkeys(("forward", *parts), times)
        # No slot more than the activations that are held at once, and none where nothing is kept.
        assert program.stash_size == max(high_water(schedule))
        assert (program.deferred_size > 0) == split
        # What arrives is used in the next tick of its kind, but for blocks longer than the ring.
        waits = repeats > 1 and m > p and m % p > 0
        least = int(p * repeats > 1)
        assert least <= program.inbox_size <= (p if waits else least)
        assert least <= program.ct_size <= (p if waits else least)


@pytest.mark.parametrize("name, repeats", KINDS)
def test_a_program_says_every_work_of_its_schedule_and_nothing_else(name, repeats):
    schedule = make_schedule(name, 4, 6, repeats)
    program = make_program(schedule)
    shape = (schedule.ticks, 4)
    busy = np.zeros(shape, bool)
    for work in schedule.works:
        busy[work[:2]] = True
        said = program.what[work[:2]], program.microbatch[work[:2]], program.chunk[work[:2]]
        assert said == (CODES[work.what], work.microbatch, work.chunk)
    assert not program.what[~busy].any()
    for slots, size in (
        (program.inbox_read, program.inbox_size),
        (program.inbox_write, program.inbox_size),
        (program.stash, program.stash_size),
        (program.ct_read, program.ct_size),
        (program.ct_write, program.ct_size),
        (program.deferred, program.deferred_size),
    ):
        assert slots.shape == shape and slots.dtype == np.int32
        assert slots.min() >= 0 and slots.max() <= size
    trash = [program.inbox_read, program.stash, program.ct_read, program.deferred]
    assert [a[~busy].min() for a in trash] == [a[~busy].max() for a in trash]
    # The last group has nobody to send its activations to, the first none for its cotangents.
    forward = {
        w.tick
        for w in schedule.works
        if w.what == "forward" and schedule.group(w) < 4 * repeats - 1
    }
    backward = {
        w.tick for w in schedule.works if w.what in ("backward", "input") and schedule.group(w) > 0
    }
    assert set(np.flatnonzero(program.sends_forward)) == forward
    assert set(np.flatnonzero(program.sends_backward)) == backward


@pytest.mark.parametrize("name, repeats", KINDS)
def test_in_lockstep_a_tick_is_as_long_as_its_costliest_work(name, repeats):
    # Weights have 3 products for each of attention's here; the input's part has two of attention's.
    products = {"forward": 3 + 1, "input": 3 + 2, "weight": 3, "backward": 6 + 2}
    schedule = make_schedule(name, 4, 6, repeats)
    longest = Counter(
        max((w.what for w in schedule.works if w.tick == tick), key=products.__getitem__)
        for tick in range(schedule.ticks)
    )
    lockstep = make_program(schedule).branches().lockstep
    for what in products:
        _, taken = lockstep.get(WORK[what], (1, 0))
        assert taken * schedule.ticks == pytest.approx(longest[what]), what


def test_idle_shares_of_four_stages_and_eight_microbatches():
    figures = {}
    for name, repeats in KINDS:
        schedule = make_schedule(name, 4, 8, repeats)
        figures[name, repeats] = (schedule.ticks, makespan(schedule), idle_share(schedule))
    assert figures == {
        ("gpipe", 1): (22, 33, Fraction(3, 11)),
        ("1f1b", 1): (22, 33, Fraction(3, 11)),
        ("interleaved", 2): (38, Fraction(57, 2), Fraction(3, 19)),
        ("interleaved", 3): (54, 27, Fraction(3, 27)),
        ("zero_bubble", 1): (27, 27, Fraction(3, 27)),
    }


def test_makespan_idle_share_and_activations_are_as_stated_for_every_size():
    for (p, m), (name, r) in product(SIZES, KINDS):
        schedule = make_schedule(name, p, m, r)
        span, held = makespan(schedule), high_water(schedule)
        # The work of every stage is 3 m whatever its order.
        assert idle_share(schedule) == 1 - Fraction(3 * m) / span
        if name == "zero_bubble":
            assert span == max(3 * m + p - 1, 2 * p + 2 * m - 1)
            assert max(held) == min(p, m)
        else:
            waves = m * r + p - 1 if m >= p else m + r * p - 1
            assert span == Fraction(3 * waves, r)
        if name == "gpipe":
            assert held == (m,) * p
        if name == "1f1b":
            assert held == tuple(min(m, 2 * (p - s) - 1) for s in range(p))
        if name == "interleaved":
            block = p if m % p == 0 else max(-(-m // max(m // p, 1)), p)
            assert all(h <= min(r * m, r * block + p - 1 - 2 * s) for s, h in enumerate(held))
            if m % p == 0 and m > p:
                assert held == tuple(r * p + p - 1 - 2 * s for s in range(p))


def shortest(m: int, most: tuple[int, ...], parts: tuple[str, ...]) -> int:
    """The makespan of the best lockstep schedule that holds at most most[s] on stage s: by search.

    A state is how often each stage has done each kind of work, in order of micro-batches; all ways
    to take a tick are tried (Dijkstra's algorithm over states).
    """
    p, kinds = len(most), ("forward", *parts)
    start = ((0,) * len(kinds),) * p
    best, queue = {start: 0}, [(0, start)]
    while queue:
        time, state = heappop(queue)
        if time > best[state]:
            continue
        if all(counts[-1] == m for counts in state):
            return time
        choices = []
        for s, counts in enumerate(state):
            arrived = m if s == 0 else state[s - 1][0]
            returned = counts[0] if s == p - 1 else min(counts[0], state[s + 1][1])
            limits = (min(arrived, counts[-1] + most[s]), returned, *counts[1:])
            may = [k for k in range(len(kinds)) if counts[k] < limits[k]]
            choices.append([None, *may])
        for choice in product(*choices):
            taken = [kinds[k] for k in choice if k is not None]
            if taken:
                after = tuple(
                    tuple(c + (k == j) for j, c in enumerate(counts))
                    for k, counts in zip(choice, state, strict=True)
                )
                then = time + max(COSTS[what] for what in taken)
                if then < best.get(after, then + 1):
                    best[after] = then
                    heappush(queue, (then, after))
    raise AssertionError("no schedule")


def less(most: tuple[int, ...], stage: int) -> tuple[int, ...]:
    return tuple(n - (s == stage) for s, n in enumerate(most))


@pytest.mark.parametrize("p, m", [(2, 4), (2, 6), (3, 5), (3, 6)])
def test_no_lockstep_1f1b_is_shorter_or_holds_less_on_any_stage(p, m):
    schedule = make_schedule("1f1b", p, m)
    held, span = high_water(schedule), makespan(schedule)
    assert held == tuple(2 * (p - s) - 1 for s in range(p))
    assert shortest(m, (m,) * p, ("backward",)) == span
    for stage in range(p - 1):  # the last holds 1, and could not do with none
        assert shortest(m, less(held, stage), ("backward",)) > span


@pytest.mark.parametrize("p, m", [(2, 1), (2, 4), (3, 2), (3, 4)])
def test_no_schedule_of_split_backwards_is_shorter_or_holds_less_on_the_last_stage(p, m):
    schedule = make_schedule("zero_bubble", p, m)
    held, span = high_water(schedule), makespan(schedule)
    assert shortest(m, (m,) * p, ("input", "weight")) == span
    if m >= p:
        assert shortest(m, less((m,) * (p - 1) + held[-1:], p - 1), ("input", "weight")) > span


def test_one_microbatch_is_naive_model_parallel():
    for name, p in product(SCHEDULES, range(1, 7)):
        schedule = make_schedule(name, p, 1)
        # Split backwards let the weight parts of all groups but the first run beside the inputs.
        time = 2 * p + 1 if name == "zero_bubble" else 3 * p
        assert makespan(schedule) == time
        assert idle_share(schedule) == 1 - Fraction(3, time)
    assert idle_share(make_schedule("1f1b", 4, 1)) == Fraction(3, 4)


def test_activations_in_flight_do_not_grow_with_microbatches():
    for name, repeats in (("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)):
        few, many = (make_schedule(name, 4, m, repeats) for m in (8, 64))
        assert high_water(few) == high_water(many)
        a, b = make_program(few), make_program(many)
        sizes = ("inbox_size", "stash_size", "ct_size", "deferred_size")
        assert [getattr(a, s) for s in sizes] == [getattr(b, s) for s in sizes]


@pytest.mark.parametrize("name, repeats", [k for k in KINDS if k[0] != "zero_bubble"])
def test_ticks_of_one_kind_where_a_backward_is_whole(name, repeats):
    schedule = make_schedule(name, 4, 10, repeats)
    assert len({work[::2][:2] for work in schedule.works}) == schedule.ticks
    assert set(tick_costs(schedule)) == {Fraction(1, repeats), Fraction(2, repeats)}


def test_a_tick_takes_as_long_as_the_longest_work_in_it():
    works = (
        Work(0, 0, "forward", 0, 0),
        Work(1, 0, "forward", 1, 0),
        Work(1, 1, "forward", 0, 0),
        Work(2, 1, "backward", 0, 0),
        Work(3, 0, "backward", 0, 0),
        Work(3, 1, "forward", 1, 0),
        Work(4, 1, "input", 1, 0),
        Work(5, 0, "backward", 1, 0),
        Work(5, 1, "weight", 1, 0),
    )
    schedule = Schedule("mixed", 2, 2, 1, works)
    check(schedule)
    assert tick_costs(schedule) == [1, 1, 2, 2, 1, 2]
    assert makespan(schedule) == 9
    assert idle_share(schedule) == Fraction(6, 18)
    assert high_water(schedule) == (2, 1)
    assert run_literally(make_program(schedule)) == {
        "forward": 4, "backward": 3, "input": 1, "weight": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name, old, new, complaint",
    [
        ("1f1b", (1, 1, "forward", 0, 0), (0, 1, "forward", 0, 0), "forward of group 0"),
        ("1f1b", (5, 1, "backward", 0, 0), (3, 1, "backward", 0, 0), "of group 2 at an earlier"),
        ("zero_bubble", (4, 1, "input", 0, 0), (3, 1, "input", 0, 0), "is done at tick 3"),
        ("zero_bubble", (8, 2, "weight", 0, 0), (1, 2, "weight", 0, 0), "the input of group 2"),
        ("1f1b", (2, 2, "forward", 0, 0), None, "forward of group 2 .* never done"),
        ("1f1b", (11, 0, "backward", 3, 0), None, "micro-batch 3 must pass group 0"),
        ("zero_bubble", (13, 1, "weight", 3, 0), None, "micro-batch 3 must pass group 1"),
        ("1f1b", None, (10, 2, "forward", 0, 0), "was done already, at tick 2"),
        ("1f1b", None, (9, 0, "input", 3, 0), "stage 0 does 2 things in a tick"),
        ("1f1b", None, (13, 0, "input", 3, 0), "nobody works at tick 12"),
        ("1f1b", None, (3, 3, "forward", 0, 0), "is outside"),
        ("1f1b", None, (3, 0, "forward", 4, 0), "is outside"),
        ("1f1b", None, (3, 0, "forward", 0, 1), "is outside"),
        ("1f1b", None, (3, 0, "rest", 0, 0), "is outside"),
    ],
)
def test_check_names_what_is_wrong(name, old, new, complaint):
    schedule = make_schedule(name, 3, 4)
    works = list(schedule.works)
    if old:
        works.remove(Work(*old))
    if new:
        works.append(Work(*new))
    check(schedule)
    with pytest.raises(ValueError, match=complaint):
        check(dataclasses.replace(schedule, works=tuple(sorted(works))))


def test_check_refuses_works_out_of_order():
    schedule = make_schedule("1f1b", 2, 2)
    with pytest.raises(ValueError, match="sorted by tick"):
        check(dataclasses.replace(schedule, works=schedule.works[::-1]))


@pytest.mark.parametrize(
    "request_, complaint",
    [
        (("2f2b", 4, 8, 1), "no pipeline schedule '2f2b': choose one of .*1f1b"),
        (("1f1b", 0, 8, 1), "at least 1 of its stages, not 0"),
        (("1f1b", 4, 0, 1), "at least 1 of its micro-batches, not 0"),
        (("interleaved", 4, 8, 0), "at least 1 of its repeats, not 0"),
        (("1f1b", 4, 8, 2), "set repeats to 1, or choose 'interleaved'"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_in_a_sentence(request_, complaint):
    with pytest.raises(BadInput, match=complaint):
        make_schedule(*request_)


def test_schedules_need_neither_jax_nor_matplotlib():
    code = (
        "import sys, lm.pipeline.drawing, lm.pipeline.program, lm.pipeline.schedules; "
        "print(sorted({'jax', 'matplotlib'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
