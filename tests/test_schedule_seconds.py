"""Wall time of the four schedules beside their idle shares, on this machine's simulated devices."""

import dataclasses
import statistics
import time

import jax
import numpy as np
import pytest
from test_layouts import ROWS, T, batch, config
from test_step import Run

from lm.config import MeshConfig, PipelineConfig
from lm.pipeline.schedule import idle_share
from lm.pipeline.schedules import make_schedule
from lm.train.step import jit_step

STAGES, MICROBATCHES, STEPS = 4, 8, 15
COPIES = 32
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)]
MODEL = dict(n_layers=8, d_model=256, d_ff=512)


def seconds(mesh: MeshConfig, pipeline: PipelineConfig | None = None) -> tuple[float, float]:
    """Returns the median seconds of a step, and the first step's loss."""
    c = config(mesh, pipeline=pipeline, **MODEL)
    c = dataclasses.replace(c, train=dataclasses.replace(c.train, batch_size=COPIES * ROWS))
    rows = jax.tree.map(lambda x: np.tile(x, (COPIES, 1)), batch(0, False))
    run = Run(c, [rows])
    step = jit_step(c, run.model, run.tx, 10, run.layout)
    state, times, losses = run.initial(), [], []
    with jax.set_mesh(run.layout.mesh):
        placed = jax.device_put(rows, run.layout.batch)
        for _ in range(STEPS):
            started = time.perf_counter()
            state, metrics = jax.block_until_ready(step(state, placed))
            times.append(time.perf_counter() - started)
            losses.append(float(metrics["loss"]))
    return statistics.median(times[2:]), losses[0]


@pytest.mark.bench
def test_wall_time_of_schedules():
    alone, loss = seconds(MeshConfig())
    print(f"\none device: {alone:.3f} s for {COPIES * ROWS * T} tokens")
    for name, repeats in SCHEDULES:
        idle = float(idle_share(make_schedule(name, STAGES, MICROBATCHES, repeats)))
        pipeline = PipelineConfig(name, MICROBATCHES, repeats, recompute=False)
        took, found = seconds(MeshConfig(pipe=STAGES), pipeline)
        print(f"{name}: {took:.3f} s, {took / alone:.2f} of one device's; idle share {idle:.3f}")
        assert found == pytest.approx(loss, rel=2e-6)
