"""Measures how training speeds up on this machine: one process against several, a processor each.

    python -m launch.scaling --processes=2

Runs experiments.train on shape S of the benchmarks (0.9 million parameters, 4096 tokens a step, in
4 parts that fit a processor's cache), each case --repeats times in turn, and prints one JSON line
of the best repeat's median steps:
    weak        as many rows a process as one process has alone: efficiency 1 is the same step time
    strong      the same rows in all: efficiency 1 is a step --processes times shorter
    pipe        as many pipeline stages, 8 micro-batches, 1F1B: against the speed-up that its idle
                share leaves, (1 - idle) times the number of stages
    apart       that many runs that share nothing but the machine: what its processors give at best
    lockstep    the same runs, had each waited after every step for the slowest: what a step costs
                on processors that are not equally fast at every moment, with nothing to exchange
    accumulate  one process, 8 micro-batches one after another, as each stage of pipe has them
pipe_step_shares says what the pipe's step is made of: what theory leaves of a step on one
processor, what accumulate and apart take longer than that step (as much of it as theory leaves),
and the rest: what stages keep and send, and their wait for the one that has the head.

Shape S is small enough to repeat and large enough to be fair: a step on one processor takes some
hundred times longer than the sum of its 3.6 MB of gradients over the loopback network, about the
relation that pods are built for. Anything else that runs meanwhile spoils the numbers.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import flags

from experiments import cli
from launch.processes import settle
from lm.errors import BadInput, CannotFinish
from lm.progress import say

_PROCESSES = flags.DEFINE_integer("processes", 2, "processes, a processor each", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps", 12, "steps measured, after 3 that are not", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "runs of each case, the best counts", lower_bound=1)
WARMUP = 3
MICROBATCHES = 8
ROWS = 16  # of a step of shape S


def main() -> None:
    n = _PROCESSES.value
    have = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if n > len(have):
        raise BadInput(f"--processes={n} and there are {len(have)} processors to give: lower it")
    if MICROBATCHES % n or ROWS % n:
        raise BadInput(
            f"--processes={n} does not divide {MICROBATCHES} micro-batches: take 2, 4, 8"
        )
    whole, data = have[:n], {"mesh.data": n, "mesh.fully_sharded": False}
    pipe = {"mesh.pipe": n, "pipeline.microbatches": MICROBATCHES, "pipeline.recompute": False}
    one_part = {"pipeline.schedule": "1f1b", "train.accumulate": 1}
    cases: dict[str, list[tuple[list[int], dict[str, Any]]]] = {
        "one": [(have[:1], {})],
        "accumulate": [(have[:1], {"train.accumulate": MICROBATCHES})],
        "apart": [([core], {}) for core in whole],
        "weak": [(whole, data | {"train.batch_size": n * ROWS})],
        "strong": [(whole, data)],
        "pipe": [(whole, pipe | one_part)],
    }
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("".join(chr(97 + i * i * 7 % 26) for i in range(2_000_000)))
        for repeat in range(_REPEATS.value):
            for name, runs in cases.items():
                workdirs = [Path(folder) / f"{name}-{repeat}-{i}" for i in range(len(runs))]
                steps = _steps(name, runs, workdirs, text)
                found = {name: max(map(statistics.median, steps))}
                if name == "apart":
                    found["lockstep"] = statistics.median(map(max, zip(*steps, strict=True)))
                for case, seconds in found.items():
                    best[case] = min(seconds, best.get(case, seconds))
                    say(f"{case}: {seconds:.4f} s a step")
    print(json.dumps(_summary(best, n)))


def _summary(best: dict[str, float], n: int) -> dict[str, Any]:
    idle = (n - 1) / (MICROBATCHES + n - 1)
    theory = n * (1 - idle)
    one = best["one"]
    in_theory = lambda seconds: seconds / theory / best["pipe"]
    shares = {
        "theory": in_theory(one),
        "microbatches": in_theory(best["accumulate"] - one),
        "machine": in_theory(best["apart"] - one),
    }
    return {
        "processes": n,
        "step_seconds": best,
        "weak_efficiency": one / best["weak"],
        "strong_efficiency": one / best["strong"] / n,
        "apart_efficiency": one / best["apart"],
        "lockstep_efficiency": one / best["lockstep"],
        "pipe_idle_share": idle,
        "pipe_speedup": one / best["pipe"],
        "pipe_speedup_in_theory": theory,
        "pipe_of_theory": one / best["pipe"] / theory,
        "pipe_step_shares": shares | {"rest": 1 - sum(shares.values())},
    }


def _steps(
    name: str, runs: list[tuple[list[int], dict[str, Any]]], workdirs: list[Path], text: Path
) -> list[list[float]]:
    """Returns the seconds of the measured steps of each of several runs started at once."""
    started = [
        _start(cores, changes, workdir, text)
        for (cores, changes), workdir in zip(runs, workdirs, strict=True)
    ]
    for process in started:
        _, stderr = process.communicate()
        if process.returncode:
            raise CannotFinish(f"the run {name} failed: {stderr.strip().splitlines()[-1]}")
    return [_step_seconds(workdir / "metrics.jsonl") for workdir in workdirs]


def _start(cores: list[int], changes: dict[str, Any], workdir: Path, text: Path):
    common = {
        "data.source": "files",
        "data.path": text,
        "data.validation_fraction": 0.005,
        "train.steps": WARMUP + _STEPS.value + 1,
        "checkpoint.every": "none",
        "eval.every": "none",
        "log.every": 1,
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "launch.local", f"--processes={len(cores)}", "--cores=1", "--"),
            *("experiments.train", "--config=experiments/configs/bench_s.py"),
            f"--workdir={workdir}",
            *(f"--config.{key}={value}" for key, value in (common | changes).items()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=settle(cores),
    )


def _step_seconds(metrics: Path) -> list[float]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    ends = [row["seconds"] for row in rows if "loss" in row]
    # The last row also waits for the evaluation's turn.
    return [b - a for a, b in zip(ends[WARMUP - 1 : -2], ends[WARMUP:-1], strict=True)]


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
