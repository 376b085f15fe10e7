"""What is settled before JAX is imported: flags that simulated devices and processes need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm import platform

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "environment, ordered",
    [
        ({}, False),
        ({"JAX_NUM_CPU_DEVICES": "8"}, True),
        ({"JAX_NUM_PROCESSES": "2"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"JAX_NUM_PROCESSES": "1", "SLURM_STEP_NUM_TASKS": "4"}, False),
    ],
)
def test_collectives_keep_one_order_where_several_run(monkeypatch, environment, ordered):
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.setenv(name, "")  # put back afterwards, whatever is set below
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    platform.prepare(compile_cache=False)
    assert (platform.ORDERED in os.environ.get("XLA_FLAGS", "")) == ordered


def test_what_the_user_said_to_xla_stays(monkeypatch):
    theirs = "--xla_backend_extra_options=-unroll-threshold=9 --xla_cpu_enable_fast_math=false"
    monkeypatch.setenv("XLA_FLAGS", theirs)
    platform.compile_as_written()
    assert os.environ["XLA_FLAGS"].startswith(theirs) and not platform.compiles_as_written()
    monkeypatch.setenv("XLA_FLAGS", "")
    platform.compile_as_written()
    assert os.environ["XLA_FLAGS"].split() == list(platform.AS_WRITTEN)
    assert platform.compiles_as_written()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize("theirs", ["", "glibc.rtld.optional_static_tls=512"])
def test_a_command_starts_again_once_with_memory_kept_for_arrays(theirs):
    """Told by what a process was started with, which its own os.environ cannot change. glibc cuts
    its settings apart there, where it reads them."""
    code = (
        "import os, sys; sys.argv[0] = '-m'; import experiments; "
        "print(os.getppid(), open('/proc/self/environ').read().split('\\0'), sys.argv[1:])"
    )
    environment = os.environ | {"GLIBC_TUNABLES": theirs}
    argv = [sys.executable, "-c", code, "--an=argument", "and another"]
    told = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    settings = ":".join([theirs, platform.MEMORY]).lstrip(":").split(":")
    assert all(setting in told for setting in settings), told
    assert str(os.getpid()) in told.split() and "['--an=argument', 'and another']" in told


def test_what_the_user_said_of_memory_stays(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=4")
    platform.restart_with_memory()  # else it would not come back
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=4"
