"""Throughput grows with processes: measured on this machine when nothing else runs on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.bench
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processors cannot be pinned here")
def test_two_processes_of_one_processor_each():
    done = subprocess.run(
        [sys.executable, "-m", "launch.scaling", "--processes=2"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.returncode == 0
    found = json.loads(done.stdout)
    print(json.dumps(found, indent=1))
    assert found["weak_efficiency"] >= 0.9
    assert found["pipe_of_theory"] >= 0.8
