"""Processes started together are heard, stopped and counted; none outlives the others."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.places import places
from lm.errors import BadInput

ROOT = Path(__file__).parents[1]

WORKER = """
import os, pathlib, signal, sys, time
me = int(os.environ["JAX_PROCESS_ID"])
what = sys.argv[1:]
if "stubborn" in what and me == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "saves" in what:
    signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(75)))
print(me, os.getpid(), sorted(os.sched_getaffinity(0)), flush=True)
print(f"words of {me}", file=sys.stderr)
if "fails" in what:
    pathlib.Path(f"here{me}").touch()
    all = int(os.environ["JAX_NUM_PROCESSES"])
    while me == 1 and len(list(pathlib.Path().glob("here*"))) < all:
        time.sleep(0.01)  # the others listen and have spoken before this one fails
    if me == 1:
        sys.exit(7)
if "waits" in what:
    time.sleep(600)
"""

NO_SUCH_CORE = """
import os, subprocess
from launch.places import Place
from launch.processes import run_together
try:
    run_together(["sleep", "60"], [Place(os.environ, None), Place(os.environ, (2**15,))], 1.0)
except subprocess.SubprocessError:
    print("refused")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


@pytest.fixture
def start(tmp_path):
    """Starts launch.local with workers that do as told; returns its Popen."""
    (tmp_path / "worker.py").write_text(WORKER)
    started = []

    def start(*args: str) -> subprocess.Popen:
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        command = [sys.executable, "-m", "launch.local", *args]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ids(process: subprocess.Popen, n: int) -> list[int]:
    """Process ids of n workers, as soon as all have printed theirs."""
    lines = [process.stdout.readline() for _ in range(n)]
    return [int(line.split()[2]) for line in sorted(lines)]


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"  # ended; nobody has asked for its exit code


def test_lines_have_the_number_of_their_process(start):
    process = start("--processes=3", "--", "worker", "--looks=like", "a", "flag")
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert [line[:6] for line in sorted(stdout.splitlines())] == ["[0] 0 ", "[1] 1 ", "[2] 2 "]
    assert sorted(stderr.splitlines()) == [f"[{i}] words of {i}" for i in range(3)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_one_that_cannot_start_ends_those_before_it():
    done = subprocess.run(
        [sys.executable, "-c", NO_SUCH_CORE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "refused\nno child is left\n", done.stderr


def test_of_two_that_ended_in_one_look_the_killed_one_counts(start):
    process = start("--processes=2", "--", "worker", "saves", "waits")
    first, second = ids(process, 2)
    process.send_signal(signal.SIGSTOP)  # looks no more
    os.kill(first, signal.SIGTERM)
    os.kill(second, signal.SIGKILL)
    while not (gone(first) and gone(second)):
        time.sleep(0.01)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 128 + signal.SIGKILL


def test_the_exit_code_is_that_of_the_first_to_fail(start):
    process = start("--processes=3", "--", "worker", "fails", "waits")
    pids = ids(process, 3)
    assert process.wait() == 7
    assert all(map(gone, pids))


def test_a_process_that_does_not_end_is_killed(start):
    started = time.monotonic()
    process = start("--processes=2", "--", "worker", "fails", "waits", "stubborn")
    pids = ids(process, 2)
    assert process.wait() == 7
    assert time.monotonic() - started < 20
    assert "process 0 did not end" in process.stderr.read()
    assert all(map(gone, pids))


def test_a_killed_process_ends_the_others(start):
    process = start("--processes=2", "--", "worker", "waits")
    pids = ids(process, 2)
    os.kill(pids[1], signal.SIGKILL)
    assert process.wait() == 128 + signal.SIGKILL
    assert all(map(gone, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_let_all_save_and_end(start, number):
    process = start("--processes=2", "--", "worker", "waits", "saves")
    pids = ids(process, 2)
    process.send_signal(number)
    stdout, _ = process.communicate()
    assert process.returncode == 75
    assert sorted(stdout.splitlines()) == ["[0] saved", "[1] saved"]
    assert all(map(gone, pids))


@pytest.mark.parametrize("signals, grace", [(1, "0.5"), (2, "600")])
def test_the_wait_for_a_save_is_bounded(start, signals, grace):
    process = start("--processes=2", f"--grace={grace}", "--", "worker", "waits", "stubborn")
    pids = ids(process, 2)
    started = time.monotonic()
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert process.wait() == 128 + signal.SIGTERM  # process 1 ends first, and has not saved
    assert time.monotonic() - started < 10
    assert all(map(gone, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children")
def test_no_process_outlives_a_killed_launcher(start):
    process = start("--processes=2", "--", "worker", "waits")
    pids = ids(process, 2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_processes_get_processors_of_their_own(start):
    have = sorted(os.sched_getaffinity(0))
    n = min(2, len(have))
    process = start(f"--processes={n}", "--cores=1", "--", "worker")
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert [json.loads(line.split(maxsplit=3)[3]) for line in sorted(stdout.splitlines())] == [
        [core] for core in have[:n]
    ]
    with pytest.raises(BadInput, match=f"need {len(have) + 1}, and there are {len(have)}"):
        places(len(have) + 1, 1, 1)


def test_each_place_names_the_same_group_and_its_own_number():
    first, second = (p.environment for p in places(2, 4, None))
    assert {k for k in first if first[k] != second[k]} == {"JAX_PROCESS_ID"}
    assert first["JAX_NUM_PROCESSES"] == "2" and first["JAX_NUM_CPU_DEVICES"] == "4"
    assert first["JAX_COORDINATOR_BIND_ADDRESS"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "args, word",
    [
        (["--processes=2"], "no command given"),
        (["--processes=2", "--"], "no command given"),
        (["--processes=0", "--", "worker"], "processes"),
        (["--", "experiments.nothing"], "experiments.nothing is no Python module"),
        (["--", "no.such.thing"], "no.such.thing is no Python module"),
        (["worker"], "unexpected argument 'worker'"),
    ],
)
def test_mistakes_are_one_sentence(start, args, word):
    process = start(*args)
    stdout, stderr = process.communicate()
    assert process.returncode == 2 and not stdout
    assert len(stderr.splitlines()) == 1 and word in stderr, stderr
