"""What a layout does with a model, in words: where parameters live and what crosses devices."""

import math
from collections.abc import Iterator

import numpy as np

from lm.budget import n_params
from lm.layout import DATA, MODEL, PIPE, Layout
from lm.model.spec import ParamSpec, flatten
from lm.train.setup import Run

LARGE = 2**20  # values; replicated parameters from this size on are named


def text(run: Run) -> str:
    """Returns each parameter's mesh axes and bytes on a device, and a layer's exchanges."""
    rows = flatten(run.model.table)
    mesh = ", ".join(f"{axis} {n}" for axis, n in run.layout.mesh.shape.items())
    lines = [f"mesh: {mesh}; {n_params(run.config.model):,} parameters, float32 master weights"]
    wide = max(map(len, rows))
    total = 0
    for name, row in rows.items():
        held = bytes_per_device(run.layout, name, row)
        total += held
        axes = ", ".join(_placed(run.layout, name, row))
        lines.append(f"  {name:{wide}}  {_shape(row):24}  {axes:48}  {_amount(held)}")
    lines.append(f"  {'all':{wide}}  {'':24}  {'':48}  {_amount(total)} on each device")
    lines += [f"large and on every device: {name}" for name in large_replicated(run)]
    lines.append("exchanges of a layer and micro-batch, forward (the backward has as many again):")
    lines += [f"  {line}" for line in _exchanges(run)] or ["  none"]
    return "\n".join(lines)


def large_replicated(run: Run) -> list[str]:
    """Returns the parameters of LARGE values or more that no mesh axis splits, of several."""
    if run.layout.mesh.size == 1:
        return []
    return [
        name
        for name, row in flatten(run.model.table).items()
        if math.prod(row.shape) >= LARGE and not any(run.layout.spec(name, row))
    ]


def bytes_per_device(layout: Layout, name: str, row: ParamSpec) -> int:
    """Returns the bytes of float32 that one device holds of a parameter."""
    return 4 * math.prod(layout.param(name, row).shard_shape(row.shape))


def gathered_values(run: Run) -> int:
    """Returns the values that a device gathers over data of all layers' weights."""
    sizes, values = run.layout.mesh.shape, 0
    for name, row in flatten(run.model.table).items():
        spec = run.layout.spec(name, row)
        if name.startswith("blocks/") and DATA in spec:
            values += math.prod(row.shape) // (sizes[MODEL] if MODEL in spec else 1)
    return values


def _placed(layout: Layout, name: str, row: ParamSpec) -> Iterator[str]:
    spec = layout.spec(name, row)
    found = False
    for logical, axis in zip(row.axes, spec, strict=True):
        if axis:
            found = True
            yield f"{logical} over {axis}"
    if not found:
        yield "whole"


def _exchanges(run: Run) -> Iterator[str]:
    c, layout = run.config, run.layout
    sizes, m = layout.mesh.shape, c.model
    width = np.dtype(
        "uint16" if c.precision.compute == "bfloat16" else c.precision.compute
    ).itemsize
    rows = c.train.batch_size // sizes[DATA]
    rows //= c.pipeline.microbatches if layout.stages > 1 else c.train.accumulate
    activation = width * rows * c.length * m.d_model
    if layout.fully_sharded and sizes[DATA] > 1:
        gathered = width * gathered_values(run) / m.n_layers
        kept = layout.stages > 1 and not c.pipeline.recompute
        again = "and kept for the backward" if kept else "and again in the backward"
        yield f"{DATA}: weights gathered, {_amount(gathered)}, {again}; gradients scattered once"
    if sizes[MODEL] > 1:
        yield f"{MODEL}: activations gathered twice and scattered twice, {_amount(activation)} each"
    if sizes[PIPE] > 1:
        part = activation / sizes[MODEL]
        layers = m.n_layers // (sizes[PIPE] * c.pipeline.repeats)
        yield f"{PIPE}: one activation of {_amount(part)} sent on after every {layers} layers"


def _shape(row: ParamSpec) -> str:
    return " x ".join(map(str, row.shape))


def _amount(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"
