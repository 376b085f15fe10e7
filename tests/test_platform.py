"""What is settled before JAX is imported: flags that simulated devices and processes need."""

import os

import pytest

from lm import platform


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
