"""Bytes of device memory that an instruction reads and writes.

An estimate from shapes: a slice reads what it takes, an update in place writes what it changes,
the inside of a fusion moves nothing, and what lies in the chip's own fast memory is free. Caches
are not modelled and tiles are not padded.
"""

from collections.abc import Sequence

from launch.hlo import HBM, Computation, Instruction, Program, Shape

# Custom calls that compute nothing: XLA's bookkeeping.
BOOKKEEPING = (
    "AllocateBuffer", "AsyncCollectiveStart", "AsyncCollectiveDone", "Sharding",
    "SPMDFullToShardShape", "SPMDShardToFullShape", "AssumeGatherIndicesInBound", "MoveToHost",
    "MoveToDevice", "ConcatBitcast", "GatherScatterIndicesBitpacked",
    "ZeroCrop", "SliceId",
)  # fmt: skip
# Instructions that move nothing themselves.
FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional",
    "call", "after-all", "partition-id", "replica-id", "iota", "opt-barrier", "add-dependency",
    "domain", "copy-done", "async-start", "async-update", "async-done", "get-dimension-size",
)  # fmt: skip
SLICES = ("dynamic-slice", "slice", "gather")


def hbm_bytes(program: Program, c: Computation, i: Instruction) -> float:
    """Returns the bytes that an instruction outside fusions moves from and to device memory."""
    if i.opcode in FREE or i.opcode.endswith("-done") or i.target in BOOKKEEPING:
        return 0.0
    reads = [c.instructions[name] for name in i.operands]
    if i.opcode == "fusion":
        return _fusion_bytes(program.computations[i.called("calls")[0]], i, reads)
    if i.opcode in ("send", "recv"):
        return _in_memory(i.shapes[:1])
    written = _in_memory(i.shapes)
    if i.opcode.endswith("-start"):  # its tuple holds the operand again
        written = _in_memory(i.shapes[:1] if i.opcode == "copy-start" else i.shapes[1:2])
    if i.opcode in SLICES:
        return written + (i.bytes if _in_memory(reads[0].shapes) else 0)
    if i.opcode == "dynamic-update-slice":
        return reads[1].bytes * (bool(written) + bool(_in_memory(reads[1].shapes)))
    return written + sum(_in_memory(r.shapes) for r in reads)


def _in_memory(shapes: Sequence[Shape]) -> int:
    return sum(shape.bytes for shape in shapes if shape.space == HBM)


def _fusion_bytes(inner: Computation, i: Instruction, reads: Sequence[Instruction]) -> float:
    total = 0.0
    for parameter in inner:
        if parameter.opcode == "parameter":
            whole = _in_memory(reads[int(parameter.argument)].shapes)
            total += min(whole, _bytes_used(inner, parameter, whole))
    root = inner.instructions[inner.root]
    made = [inner.instructions[n] for n in root.operands] if root.opcode == "tuple" else [root]
    if len(made) != len(i.shapes):
        return total + _in_memory(i.shapes)
    for value, shape in zip(made, i.shapes, strict=True):
        while value.opcode in ("bitcast", "convert", "copy"):
            value = inner.instructions[value.operands[0]]
        if shape.space == HBM and value.opcode != "parameter":  # a parameter is handed through
            updates = value.opcode == "dynamic-update-slice"
            total += inner.instructions[value.operands[1]].bytes if updates else shape.bytes
    return total


def _bytes_used(inner: Computation, value: Instruction, whole: float) -> float:
    """Returns the bytes of a fusion's input that it reads."""
    used = 0.0
    for user in inner.users[value.name]:
        if user.opcode in ("bitcast", "reshape"):
            used += _bytes_used(inner, user, whole)
        elif user.opcode in SLICES and user.operands[0] == value.name:
            used += user.bytes
        elif user.opcode == "tuple" or user.target in BOOKKEEPING:
            continue
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # in place: what it changes is counted where it is written
        else:
            return whole
    return used
