"""Times the training step on random tokens and prints one line of JSON.

    python -m experiments.bench --shape=S --dtype=float32 --steps=30

The step is the one that training runs; its loss is fetched every step. tokens_per_second and
step_seconds are of the median step, step_cpu_seconds the median over all threads (steadier than
wall time on a shared machine), first_step_seconds counts from the start of the process.
"""

import json
import time
from importlib import import_module
from statistics import median

from absl import flags

from experiments import cli
from lm.process import age_seconds, peak_memory_bytes

_SHAPE = flags.DEFINE_enum("shape", "S", ["S", "M"], "the config: bench_s or bench_m")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "compute dtype")
_STEPS = flags.DEFINE_integer("steps", 30, "steps measured, after 3 that are not", lower_bound=1)
_WARMUP = 3


def main() -> None:
    import jax
    import numpy as np

    from lm import budget
    from lm.config import freeze
    from lm.data.dataset import Batch
    from lm.layout import make_layout
    from lm.optim.build import build
    from lm.train import state as train_state
    from lm.train.setup import model_of
    from lm.train.step import jit_step

    file = import_module(f"experiments.configs.bench_{_SHAPE.value.lower()}").get_config()
    file.precision.compute = _DTYPE.value
    c = freeze(file)
    layout = make_layout(c.mesh)
    model = model_of(c)
    tx = build(c.optim, model.table)
    state = train_state.initial(model.table, tx, layout, c.seed)
    step = jit_step(c, model, tx, 1000, layout)
    rng = np.random.default_rng(0)
    shape = (c.train.batch_size, c.length + 1)
    assert c.model.vocab_size is not None
    tokens = [rng.integers(0, c.model.vocab_size, shape, np.int32) for _ in range(8)]
    ones = np.ones((shape[0], c.length), np.float32)
    batches = [Batch(t[:, :-1].copy(), t[:, 1:].copy(), ones, None, None) for t in tokens]
    wall, cpu, first = [], [], 0.0
    with jax.set_mesh(layout.mesh):
        for i in range(1 + _WARMUP + _STEPS.value):
            started = time.perf_counter(), time.process_time()
            state, metrics = step(state, batches[i % 8])
            float(metrics["loss"])
            wall.append(time.perf_counter() - started[0])
            cpu.append(time.process_time() - started[1])
            first = first or age_seconds()
    wall, cpu = wall[1 + _WARMUP :], cpu[1 + _WARMUP :]
    print(
        json.dumps(
            {
                "tokens_per_second": c.train.batch_size * c.length / median(wall),
                "step_seconds": median(wall),
                "step_cpu_seconds": median(cpu),
                "first_step_seconds": first,
                "peak_memory_bytes": peak_memory_bytes(),
                "n_params": budget.n_params(c.model),
            }
        )
    )


def run() -> None:
    cli.run(main)


if __name__ == "__main__":
    run()
