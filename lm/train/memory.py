"""What training holds in memory: the least there must be, and what a device has by part."""

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lm import budget
from lm.config import Config, ModelConfig, OptimConfig
from lm.errors import BadInput
from lm.model import transformer
from lm.optim.build import build as build_optimizer
from lm.process import machine_memory_bytes
from lm.train.state import TrainState, shapes
from lm.train.workdir import write_while_training

NAME = "memory.json"


@cache
def moments(optim: OptimConfig, model: ModelConfig) -> float:
    """Returns the values of the optimizer's state for each parameter, on average: 2 of AdamW."""
    table = transformer.table(model)
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
    params = shapes(table)
    return size(jax.eval_shape(build_optimizer(optim, table).init, params)) / size(params)


def check(c: Config, processes: int = 1, eval_rows: int = 0) -> None:
    """Raises BadInput where CPUs are to train what this machine's memory cannot hold.

    Counted is the least that there must be: weights, gradients and optimizer state, once over all
    processes, and what enters one layer, of a micro-batch or of an evaluation's rows. A vocabulary
    that is not known yet counts as one token.
    """
    have = machine_memory_bytes()
    m, t = c.model, c.train
    padded = dataclasses.replace(m, vocab_size=m.vocab_size or 1).padded_vocab
    whole = dataclasses.replace(m, vocab_size=padded)
    n = budget.n_params(whole)
    kept = moments(dataclasses.replace(c.optim, staleness=0), whole)  # late gradients, one by one,
    copies = 2 + kept + c.optim.staleness + bool(c.optim.ema_decay)  # would take long to list
    positions = {"rope": m.head_dim, "sinusoidal": m.d_model}.get(m.position, 0) * m.max_length
    state = 4 * n * copies / processes + 8 * positions  # angles are made in float64
    batch = max(t.batch_size, *(rows for _, rows in t.batch_growth), 0)
    parts = c.pipeline.microbatches if c.mesh.pipe > 1 else 1
    rows = max(batch // max(t.accumulate, parts), eval_rows // parts)
    layer = rows * m.d_model * jnp.dtype(c.precision.compute).itemsize
    given = (layer + 12 * batch) * c.length // processes  # tokens, targets and weights are 12 bytes
    if have is not None and state + given > have:
        raise BadInput(
            f"this machine has {_told(have)} of memory, and {n:,} parameters with gradients, "
            f"optimizer state and positions take {_told(state)}, what {rows:,} sequences bring to "
            f"a layer {_told(given)}: ask for a smaller model or for fewer sequences at a time, by "
            "train.accumulate or eval.batch_size"
        )


def _told(n: float) -> str:
    n, unit = n / 2**20, "MiB"
    for larger in ("GiB", "TiB"):
        if n >= 1000:
            n, unit = n / 1024, larger
    return f"{n:,.4g} {unit}"


def bytes_by_part(abstract: TrainState, program: Any) -> dict[str, int]:
    """Returns bytes on one device: parts of the state, the rows, and what the compiled step needs
    beside them (gradients, kept activations)."""
    parts = {"parameters": abstract.params, "optimizer": (abstract.opt, abstract.guard),
             "average": abstract.average}  # fmt: skip
    held = {name: sum(map(_bytes, jax.tree.leaves(tree))) for name, tree in parts.items()}
    sizes = program.memory_analysis()
    rows = sizes.argument_size_in_bytes - sum(held.values()) - _bytes(abstract.step)
    return held | {"rows": max(0, rows), "temporaries": sizes.temp_size_in_bytes}


def _bytes(x: jax.ShapeDtypeStruct) -> int:
    shape = x.sharding.shard_shape(x.shape) if x.sharding else x.shape
    return math.prod(shape) * x.dtype.itemsize


def write(folder: Path, held: dict[str, int]) -> None:
    write_while_training(folder / NAME, {"bytes_on_a_device": held})


def told(held: dict[str, int]) -> str:
    """Returns a line for a person."""
    parts = ", ".join(f"{name} {n / 2**20:,.1f}" for name, n in held.items() if n)
    return f"MiB on a device: {parts}"
