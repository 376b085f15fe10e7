"""What a device holds while it trains, by part: memory.json."""

import math
from pathlib import Path
from typing import Any

import jax

from lm.train.state import TrainState
from lm.train.workdir import write_json

NAME = "memory.json"


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
    write_json(folder / NAME, {"bytes_on_a_device": held})


def told(held: dict[str, int]) -> str:
    """Returns a line for a person."""
    parts = ", ".join(f"{name} {n / 2**20:,.1f}" for name, n in held.items() if n)
    return f"MiB on a device: {parts}"
