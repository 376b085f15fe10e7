"""How far runs on different layouts come apart in 100 steps, and that reproducible ones do not."""

import json

import pytest

from experiments.configs import tiny
from lm.config import freeze
from lm.train.run import train

LAYOUTS = {
    "data 2": {"mesh.data": 2},
    "data 8": {"mesh.data": 8},
    "data 8, whole": {"mesh.data": 8, "mesh.fully_sharded": False},
    "model 2": {"mesh.model": 2},
    "pipe 2": {"mesh.pipe": 2, "pipeline.microbatches": 4},
    "data 2 x model 2 x pipe 2": {
        "mesh.data": 2, "mesh.model": 2, "mesh.pipe": 2, "pipeline.microbatches": 2
    },
}  # fmt: skip


def losses(folder, name: str, changes: dict) -> list[float]:
    file = tiny.get_config()
    common = {"train.steps": 100, "log.every": 1, "checkpoint.every": None}
    for key, value in (common | changes).items():
        group, field = key.split(".")
        file[group][field] = value
    workdir = folder / name.replace(" ", "_").replace(",", "")
    train(freeze(file), workdir)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.bench
def test_distance_of_layouts_after_100_steps(tmp_path):
    alone = losses(tmp_path, "alone", {})
    assert len(alone) == 100
    for name, changes in LAYOUTS.items():
        got = losses(tmp_path, name, changes)
        apart = [abs(a / b - 1) for a, b in zip(got, alone, strict=True)]
        print(f"{name}: first step {apart[0]:.1e}, 100th {apart[-1]:.1e}, largest {max(apart):.1e}")
        assert apart[0] < 2e-6 and max(apart) < 1e-3


@pytest.mark.bench
def test_reproducible_layouts_do_not_come_apart(tmp_path):
    always = {"train.reproducible": True}
    alone = losses(tmp_path, "alone", always)
    for name in ("data 2", "data 8", "data 8, whole"):
        assert losses(tmp_path, name, always | LAYOUTS[name]) == alone
