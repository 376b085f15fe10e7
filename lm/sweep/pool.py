"""Runs trained side by side on this machine: worker processes, each on its own share of the cores.

Models this small leave a second core idle, so one core a run trains about twice as many.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from lm import budget, platform, progress
from lm.config import Config
from lm.errors import CannotFinish, Diverged, Stopped
from lm.sweep.points import Point
from lm.sweep.table import result_of

POLL_SECONDS = 1.0
_stopped = False  # in a worker: it was told to stop


def cores() -> list[int]:
    """Returns the processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_workers() -> int:
    """Returns one worker a core; one in all where JAX may find an accelerator, which holds one run
    at a time. For a process that lm/platform.py has prepared."""
    return len(cores()) if os.environ.get("JAX_PLATFORMS") == "cpu" else 1


def shares(available: Sequence[int], workers: int) -> list[list[int]]:
    """Returns the processors of each worker, as many for each: how many there are decides in which
    order sums are taken, and so the last bits of a run. More workers than processors share them."""
    size = max(1, len(available) // workers)
    return [
        [available[(i + k * workers) % len(available)] for k in range(size)] for i in range(workers)
    ]


def check(points: Iterable[Point], runs: Path) -> None:
    """Raises BadInput for a run that is too large for this machine, before any is trained; one that
    has ended may have been trained elsewhere."""
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        return  # asking an accelerator for its memory would take it away from the workers
    from lm.train import memory

    for p in points:
        if result_of(p, runs) is None:
            memory.check(p.config)


def train_all(
    points: Sequence[Point], runs: Path, workers: int, done: Callable[[Point], None], what: str
) -> None:
    """Trains what has not ended yet, longest first; calls done(point) as runs end.

    A run that diverges is a result like any other. Any other failure stops the rest and is raised;
    a signal lets every worker save first.
    """
    todo = [p for p in points if result_of(p, runs) is None]
    if len(todo) < len(points):
        progress.say(f"{len(points) - len(todo)} of {len(points)} runs are done already")
    if not todo:
        return
    every = chains(points)
    lines = [line for line in every if any(p in todo for p in line)]
    lines.sort(key=lambda line: -sum(p.horizon.flops for p in line if p in todo))
    bar = _FlopsBar(what, todo, runs)
    # Shares are those of the whole sweep: its last runs, resumed alone, give the same bits.
    given = shares(cores(), min(workers, len(every)))[: len(lines)]
    context = multiprocessing.get_context("spawn")
    free = context.Queue()
    for share in given:
        free.put(share)
    pool = ProcessPoolExecutor(len(given), context, _start_worker, (free,))
    trains = lambda line: [(p.config, str(runs / p.run_id)) for p in line]
    pending: dict[Future, list[Point]] = {}
    stop: list[int] = []
    before = {s: signal.signal(s, lambda n, _: stop.append(n)) for s in platform.STOP_SIGNALS}
    try:
        with platform.deaf_children():
            pending |= {pool.submit(_train_chain, trains(line)): line for line in lines}
        while pending:
            ended, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            if stop:
                raise Stopped("the sweep was told to stop; run the same command again to go on")
            for future in ended:
                line = pending.pop(future)
                future.result()
                for point in line:
                    done(point)
            bar.update()
    except BrokenProcessPool as e:
        raise CannotFinish(
            "a worker process died (out of memory, or killed); run the same command again to go on"
        ) from e
    except BaseException:
        _stop_workers(pool)  # they save and end; the pool is waited for below
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        pool.shutdown(wait=True, cancel_futures=True)
        bar.close()


def _start_worker(free: Any) -> None:
    share = free.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share)  # before jax counts the cores
    platform.prepare()
    platform.quiet_libraries()
    progress.be_quiet()


def chains(points: Sequence[Point]) -> list[list[Point]]:
    """Returns the points, in one list those that share a trunk (lm/train/trunk.py), shortest first:
    each starts from the one before, so all cost one trunk and their own decays."""
    from lm.train import trunk

    found: dict[str, list[Point]] = {}
    for p in points:
        shares = trunk.end(p.config) is not None
        found.setdefault(trunk.family(p.config) if shares else p.run_id, []).append(p)
    return [sorted(line, key=lambda p: p.horizon.steps) for line in found.values()]


def shared_flops(points: Sequence[Point]) -> float:
    """Returns the FLOPs that runs need not spend because another spent them on their trunk."""
    from lm.train import trunk

    shared = 0.0
    for line in chains(points):
        for before, p in zip(line, line[1:], strict=False):
            steps = trunk.end(before.config) or 0
            share = p.horizon.sequences(steps) / p.horizon.sequences(p.horizon.steps)
            shared += share * p.horizon.flops
    return shared


def _train_chain(line: list[tuple[Config, str]]) -> None:
    before: Path | None = None
    for c, workdir in line:
        _train_one(c, Path(workdir), before)
        before = Path(workdir)


def _train_one(c: Config, workdir: Path, before: Path | None) -> None:
    from lm.train import trunk
    from lm.train.run import train

    global _stopped
    if _stopped:  # the executor had handed this run over before it was told to stop
        return
    branch_of = before if before and (before / trunk.FOLDER).is_dir() else None
    if before and branch_of is None:
        progress.warn(f"{before.name} left no trunk: {workdir.name} starts from the beginning")
    try:
        train(c, workdir, branch_of)
    except Diverged:
        pass  # result.json says so
    except Stopped:
        _stopped = True
        raise


def _stop_workers(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):  # no public way to signal workers
        if process.pid and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)


class _FlopsBar:
    """Progress of all runs in FLOPs, read off their metrics files."""

    def __init__(self, what: str, points: Sequence[Point], runs: Path):
        self._per_token = {
            runs / p.run_id / "metrics.jsonl": budget.flops_per_token(
                p.config.model, p.config.length
            )
            for p in points
        }
        self._n_runs = len(points)
        self._total = sum(p.horizon.flops for p in points)
        self._results = [runs / p.run_id / "result.json" for p in points]
        self._last = 0.0
        self._bar = progress.Progress(what, 100, self._percent(), "%")

    def _percent(self) -> int:
        """Of the FLOPs of all runs: a run's tokens cost more the larger its model is."""
        trained = sum(_tokens(path) * flops for path, flops in self._per_token.items())
        return min(100, round(100 * trained / self._total))

    def update(self) -> None:
        if time.monotonic() - self._last < POLL_SECONDS:
            return
        self._last = time.monotonic()
        ended = sum(path.exists() for path in self._results)
        self._bar.update(self._percent(), f"{ended} of {self._n_runs} runs done")

    def close(self) -> None:
        self._bar.close()


def _tokens(path: Path) -> int:
    """Returns n_tokens of the last whole row of a metrics file, 0 where there is none."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, path.stat().st_size - 2000))
            lines = f.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["n_tokens"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0
