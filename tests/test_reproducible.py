"""Runs of train.reproducible, compiled as users compile: the same bits on any number of devices.

The suite's own process compiles without LLVM's optimisations (conftest.py), which is where products
and sums are fused, so these are commands of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from lm import platform
from lm.config import MeshConfig
from lm.layout import make_layout
from lm.train.checkpoint import restore_run

ROOT = Path(__file__).parents[1]


def started(workdir: Path, text: Path, n_devices: int) -> subprocess.Popen:
    command = [
        sys.executable, "-m", "experiments.train", "--config=experiments/configs/tiny.py",
        f"--workdir={workdir}", f"--config.mesh.data={n_devices}", "--config.train.steps=4",
        "--config.train.reproducible=true", "--config.optim.optimizer=muon",
        "--config.data.source=files", f"--config.data.path={text}", "--config.log.every=1",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
    )  # fmt: skip


def end(workdir: Path) -> tuple[list[dict], float, dict[str, bytes]]:
    """Every step's loss and norm, the evaluation, and the state's bits."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    steps = [{k: r[k] for k in ("loss", "grad_norm", "clip")} for r in rows if "loss" in r]
    layout = make_layout(MeshConfig())
    with jax.set_mesh(layout.mesh):
        state = restore_run(workdir, layout).state
    bits = {
        jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    return steps, json.loads((workdir / "result.json").read_text())["eval_loss"], bits


@pytest.mark.skipif(platform.machine() not in platform.X86, reason="not an x86 processor")
def test_two_devices_end_in_the_bits_of_one(tmp_path):
    text = tmp_path / "text.txt"
    words = np.random.default_rng(0).integers(97, 123, (2000, 5), np.uint8)
    text.write_bytes(b" ".join(word.tobytes() for word in words))
    folders = [tmp_path / f"on_{n}" for n in (1, 2)]
    runs = [started(folder, text, n) for n, folder in enumerate(folders, 1)]
    for run in runs:
        _, stderr = run.communicate()
        assert run.returncode == 0, stderr
        assert "train.reproducible: the same bits on 1, 2, 4 or 8 data devices" in stderr
    one, two = map(end, folders)
    assert len(one[0]) == 4 and min(row["clip"] for row in one[0]) < 1
    assert one[:2] == two[:2]
    assert [path for path in one[2] if one[2][path] != two[2][path]] == []
