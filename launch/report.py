"""What a compiled step costs on a machine: the content of compile.json, as plain values.

Bytes and counts are of one device and one step. FLOPs are those of matrix products: the model's by
definition (lm/budget.py: backward twice forward, causal attention at half, no recomputation), and
those the program executes, summed over devices and of the busiest device times their number.
"""

import math
import platform
from importlib import metadata
from typing import Any, NamedTuple

from launch.hlo import parse
from launch.roofline import outlook, predict
from launch.tally import Tally, tally
from launch.topology import Machine
from lm import budget
from lm.device_order import n_slices, slice_of

ATTENTION_CALLS = ("tpu_custom_call", "__cudnn$fmha")  # custom calls that attention can run in


class Compiled(NamedTuple):
    """A compiled step."""

    text: str  # HLO
    memory: Any  # bytes: memory_analysis() of the compiled program
    seconds: float  # to compile, by the clock
    cpu_seconds: float  # of all threads


def describe(m: Machine, run: Any, compiled: Compiled) -> dict[str, Any]:
    """Returns the report. run is what lm/train/setup.py builds, on a layout of m's devices.

    The stages of a pipeline branch differently: what is exchanged is the busiest stage's, and time
    is that of stages in lockstep.
    """
    c, layout = run.config, run.layout
    mesh = dict(layout.mesh.shape)
    placed = list(layout.mesh.devices.flat)
    slices, slow = n_slices(placed), layout.slow_axis
    program = parse(compiled.text)
    inside, numbered = mesh, placed
    if program.n_partitions < len(placed):
        # libtpu writes one slice's program: it numbers the places of the mesh inside a slice.
        inside = {axis: n // (slices if axis == slow else 1) for axis, n in mesh.items()}
        first = min(slice_of(d) for d in placed)
        numbered = [d for d in placed if slice_of(d) == first]
    if layout.stages > 1:
        from lm.train.step import pipeline_program

        branches = pipeline_program(c, layout).branches()
        kinds = [tally(program, counts) for counts in branches.stages]
        lockstep = tally(program, branches.lockstep)
    else:
        lockstep = tally(program)
        kinds = [lockstep]
    busiest = max(kinds, key=lambda t: t.matmul_flops)
    rows = max(stage.batch_size for stage in run.horizon.stages)
    step_tokens, dtype = rows * c.length, c.precision.matmul_dtype
    flops = _flops(c, kinds, busiest, len(placed), step_tokens)
    in_kernels = flops["kernels"] / len(placed)
    predicted = predict(lockstep, m, inside, numbered, dtype, in_kernels)
    meaning = outlook(predicted, m, dtype, step_tokens, flops["model"], run.horizon.n_tokens)
    return {
        "topology": m.name,
        "chip": m.chip.name,
        "n_chips": m.n_chips,
        "n_devices": len(placed),
        "n_slices": slices,
        "slow_axis": slow,
        "mesh": mesh,
        "fully_sharded": layout.fully_sharded,
        "device_order": [list(getattr(d, "coords", ())) for d in placed],
        "n_params": budget.n_params(c.model),
        "batch_size": rows,
        "tokens_per_step": step_tokens,
        "bytes_per_device": _bytes(m, run, compiled.memory),
        "flops": flops,
        "collectives": _collectives(busiest, inside, slow, [slice_of(d) for d in numbered]),
        "hbm_bytes": busiest.hbm_bytes,
        "predicted": {
            "step_seconds": predicted.step,
            "bound": predicted.bound,
            "seconds": predicted.seconds,
            "exposed_seconds": predicted.exposed,
            **meaning,
            "planned_tokens": run.horizon.n_tokens,
            "watts": m.chip.watts,
            "watts_are": m.chip.watts_are,
            "sources": list(m.chip.sources),
        },
        "compile_seconds": compiled.seconds,
        "compile_cpu_seconds": compiled.cpu_seconds,
        "warnings": _warnings(m, flops, predicted.unknown),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "jaxlib", m.compiler)},
        },
    }


def _warnings(m: Machine, flops, unknown) -> list[str]:
    warnings = [f"not counted: {what}" for what in unknown]
    if flops["kernels"]:
        warnings.append("attention runs in kernels: its FLOPs are the model's, not read off")
    if m.chip.watts is None:
        warnings.append(f"energy is not known: the power of {m.chip.name} is not published")
    return warnings


def _bytes(m: Machine, run: Any, memory: Any) -> dict[str, int]:
    """Bytes of one device: the state's by its shapes, the program's as compiled."""
    import jax

    from lm.train import state as train_state

    def held(tree: Any) -> int:
        leaves = jax.tree.leaves(tree)
        return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)

    state = train_state.abstract(run.model.table, run.tx, run.layout)
    return {
        "parameters": held(state.params),
        "optimizer": held(state.opt),
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,  # outputs that take their argument's place
        "temporaries": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "limit": int(m.chip.hbm_limit),
    }


def _flops(c, kinds: list[Tally], busiest: Tally, n: int, step_tokens: int) -> dict[str, Any]:
    model = budget.flops_per_token(c.model, c.length) * step_tokens
    square = budget.forward_matmul_flops(c.model, c.length, full_attention=True)
    half = square - budget.forward_matmul_flops(c.model, c.length)  # causal attention, forward
    attention = 3 * half * step_tokens
    executed = sum(t.matmul_flops for t in kinds) / len(kinds) * n
    in_attention = sum(t.attention_flops for t in kinds) / len(kinds) * n
    # Attention is either in products under its scope or in kernels; else it cannot be told apart.
    fused = any(name.startswith(ATTENTION_CALLS) for name in busiest.custom_calls)
    kernels = attention if fused and not in_attention else 0.0
    told = bool(in_attention or kernels)
    outside, per_device = model - attention, busiest.matmul_flops - busiest.attention_flops
    return {
        "model": model,
        "executed": executed,
        "ratio": executed / model,
        "busiest_device": busiest.matmul_flops,
        "busiest_ratio": busiest.matmul_flops * n / model,
        "model_outside_attention": outside,
        "executed_outside_attention": executed - in_attention if told else None,
        "ratio_outside_attention": (executed - in_attention) / outside if told else None,
        "busiest_ratio_outside_attention": per_device * n / outside if told else None,
        "kernels": kernels,
        "custom_calls": dict(busiest.custom_calls),
    }


def _collectives(
    t: Tally, mesh: dict[str, int], slow: str | None, slices: list[int]
) -> list[dict[str, Any]]:
    """Exchanges of one device and step; the bytes are of all `count` together."""
    rows: dict[tuple, dict[str, Any]] = {}
    for what, count in t.collectives.items():
        axis = "unknown" if what.groups is None else what.groups.axes(mesh)
        far = what.slow or (what.groups is not None and what.groups.crossing(slices) > 1)
        if what.slow:
            axis = slow or "unknown"
        if axis and count:  # else a group of one, or in a branch that is not taken
            place = {
                "kind": what.kind,
                "axis": axis,
                "network": "between slices" if far else "inside",
                "group": what.size,
                "overlapped": what.overlapped,
            }
            empty = place | {"count": 0.0, "tensor_bytes": 0.0, "wire_bytes": 0.0}
            row = rows.setdefault(tuple(place.values()), empty)
            row["count"] += count
            row["tensor_bytes"] += count * what.tensor_bytes
            row["wire_bytes"] += count * what.wire_bytes
    return sorted(rows.values(), key=lambda row: -row["wire_bytes"])
