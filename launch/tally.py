"""What one device does when it runs a compiled program: products, collectives, bytes of memory.

Counts every instruction as often as it runs: the body of a loop times its trips, nested loops
multiplied, one branch of a conditional. XLA's own cost analysis counts a loop's body once.

Devices of one program differ where it branches on the device's place: a pipeline switches between
the phases of its schedule. `branch_counts` states how often each kind of device takes each branch,
of a conditional or of a loop of one turn or none; without it every conditional counts its heaviest
branch, which no device exceeds.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from launch import products, traffic
from launch.groups import Groups, parse_groups
from launch.hlo import Computation, Instruction, Program
from lm.model.attention import SCOPE as ATTENTION_SCOPE

SLOW_KIND = "_xla_megascale_transfer_type"  # how libtpu marks what goes between slices

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
    "collective-broadcast",
)

# What runs other instructions, or what the text does not show.
BODIES = ("while", "conditional", "call", "custom-call")
SMALL = 4096  # bytes written and read: no more is a scalar or a row of a table, not work


@dataclass(frozen=True)
class Collective:
    """One kind of exchange between devices, as the program states it."""

    kind: str
    groups: Groups | None = field(compare=False, repr=False)  # None: not understood, or slow
    groups_text: str
    tensor_bytes: int  # of one device: the larger of operand and result
    overlapped: bool  # other work runs between its start and its end
    slow: bool = False  # between slices, over the data-centre network
    size: int = 0  # how many take part: devices, or slices

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device sends in a ring: (n-1)/n of the tensor to gather or scatter it."""
        part = 1 - 1 / self.size if self.size else 1.0
        whole = ("collective-permute", "collective-broadcast")
        share = 2 * part if self.kind == "all-reduce" else 1.0 if self.kind in whole else part
        return self.tensor_bytes * share


@dataclass
class Tally:
    """What a device does in one run of a computation."""

    matmul_flops: float = 0.0  # of dots and convolutions, a multiply-add is 2
    attention_flops: float = 0.0  # the part of them inside attention's scope
    hbm_bytes: float = 0.0  # read and written, outside fusions
    collectives: Counter = field(default_factory=Counter)  # Collective -> times
    custom_calls: Counter = field(default_factory=Counter)  # name -> times
    unknown_loops: Counter = field(default_factory=Counter)  # loops counted once, by name

    def add(self, other: "Tally", times: float = 1.0) -> None:
        self.matmul_flops += times * other.matmul_flops
        self.attention_flops += times * other.attention_flops
        self.hbm_bytes += times * other.hbm_bytes
        for mine, theirs in (
            (self.collectives, other.collectives),
            (self.custom_calls, other.custom_calls),
            (self.unknown_loops, other.unknown_loops),
        ):
            for key, count in theirs.items():
                mine[key] += times * count  # type: ignore[assignment]


# {jax.named_scope around a branching: how often, of one execution, the device takes each branch}
BranchCounts = Mapping[str, Sequence[float]]


def tally(program: Program, branch_counts: BranchCounts | None = None) -> Tally:
    """Returns what a device does in one run of the program.

    A pipeline that runs 11 ticks and takes its three branches 3, 4 and 4 times has (3/11, 4/11,
    4/11). A branching that branch_counts does not name counts its heaviest branch.
    """
    return _Walk(program, branch_counts or {}).entry()


class _Walk:
    def __init__(self, program: Program, branches: BranchCounts):
        self.program, self.branches = program, branches
        self.done: dict[tuple[str, bool], Tally] = {}
        # A collective that is spread over fused products shows up in each of them; one starts it.
        self.spread = {
            _channel(i)
            for c in program.computations.values()
            for i in c
            if _kind(i) and _starts_spread(c, i)
        }

    def entry(self) -> Tally:
        return self.computation(self.program.entry, fused=False)

    def computation(self, name: str, fused: bool) -> Tally:
        if (name, fused) not in self.done:
            total = Tally()
            computation = self.program.computations[name]
            for instruction in computation:
                self.instruction(total, computation, instruction, fused)
            self.done[name, fused] = total
        return self.done[name, fused]

    def instruction(self, total: Tally, c: Computation, i: Instruction, fused: bool) -> None:
        product = products.flops(c, i)
        total.matmul_flops += product
        if product and re.search(rf"\b{ATTENTION_SCOPE}\b", i.op_name):
            total.attention_flops += product
        if i.opcode == "while":
            counts = self.counts(i)
            trips = counts[1] if counts else self.program.trip_count(c, i)
            if trips is None:
                total.unknown_loops[i.op_name or i.name] += 1
            for part in i.called("condition", "body"):
                total.add(self.computation(part, fused), 1 if trips is None else trips)
        elif i.opcode == "conditional":
            self.conditional(total, i, fused)
        elif i.opcode == "fusion":
            total.add(self.computation(i.called("calls")[0], True))
        elif i.opcode in ("call", "async-start"):
            for part in i.called("to_apply", "calls", "called_computations"):
                inner = self.computation(part, fused)
                total.add(_beside(inner) if _work_between(self.program, c, i) else inner)
        elif i.opcode == "custom-call" and i.target not in traffic.BOOKKEEPING:
            total.custom_calls[_call_name(i)] += 1
        if _kind(i):
            self.collective(total, c, i, fused)
        elif i.opcode == "send" and SLOW_KIND in i.attributes:
            total.collectives[_between_slices(self.program, c, i)] += 1
        if not fused:
            total.hbm_bytes += traffic.hbm_bytes(self.program, c, i)

    def conditional(self, total: Tally, i: Instruction, fused: bool) -> None:
        branches = [self.computation(name, fused) for name in i.branches]
        counts = self.counts(i)
        if counts is None:
            total.add(max(branches, key=lambda b: (b.matmul_flops, b.hbm_bytes)))
            return
        for branch, times in zip(branches, counts, strict=True):
            total.add(branch, times)

    def counts(self, i: Instruction) -> Sequence[float] | None:
        """Returns what is stated of a conditional, or of a loop: the shares of no turn and one."""
        scope = re.search(r"(\w+)/(cond|while)$", i.op_name)
        return self.branches.get(scope.group(1)) if scope else None

    def collective(self, total: Tally, c: Computation, i: Instruction, fused: bool) -> None:
        kind = _kind(i)
        starts_spread = _starts_spread(c, i)
        if fused and _channel(i) in self.spread and not starts_spread:
            return  # the same exchange, going on beside another product
        done = _done(c, i)
        result = done.bytes if done else i.bytes
        operand = sum(c.instructions[name].bytes for name in i.operands)
        if kind == "all-reduce" and fused and _keeps_a_shard(c, i):
            kind = "reduce-scatter"  # written as an all-reduce of which each device keeps a part
        text = re.search(r"(replica_groups|source_target_pairs)=.*?(?=, \w+=|$)", i.attributes)
        groups = parse_groups(i.attributes, self.program.n_partitions)
        what = Collective(
            kind,
            groups,
            text.group() if text else "",
            max(result, operand),
            starts_spread or _work_between(self.program, c, i),
            size=groups.size if groups else 0,
        )
        total.collectives[what] += 1


def _kind(i: Instruction) -> str:
    kind = i.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else ""


def _between_slices(program: Program, c: Computation, send: Instruction) -> Collective:
    """Returns the exchange between slices that a send and its receive stand for."""
    meeting = send.attribute("_xla_host_transfer_rendezvous")
    receive = next((i for i in c if i.opcode == "recv" and meeting in i.attributes), send)
    name = re.search(rf'{SLOW_KIND}="(\w+)"', send.attributes)
    kind = (name.group(1) if name else "").lower().replace("_", "-")
    slices = re.search(r'_xla_megascale_target="\{([\d,]+)\}x', send.attributes)
    done = next((u for u in c.users[receive.name] if u.opcode == "recv-done"), None)
    return Collective(
        "collective-permute" if kind == "one-to-one" else kind,
        None,
        meeting,
        max(send.shapes[0].bytes, receive.shapes[0].bytes),
        done is not None and _works(program, c, send, done),
        slow=True,
        size=len(slices.group(1).split(",")) if slices else 2,
    )


def _channel(i: Instruction) -> str:
    return i.attribute("channel_id")


def _starts_spread(c: Computation, i: Instruction) -> bool:
    return any(u.target == "AsyncCollectiveStart" for u in c.users[i.name])


def _keeps_a_shard(c: Computation, i: Instruction) -> bool:
    uses = list(c.users[i.name])
    while uses and uses[0].opcode in ("bitcast", "reshape", "get-tuple-element", "convert"):
        uses = list(c.users[uses[0].name])
    return bool(uses) and all(u.opcode == "dynamic-slice" for u in uses)


def _done(c: Computation, i: Instruction) -> Instruction | None:
    """Returns the instruction that waits for what `i` started."""
    if not i.opcode.endswith("-start"):
        return None
    users = c.users[i.name]
    while users and users[0].opcode == "async-update":
        users = c.users[users[0].name]
    return next((u for u in users if u.opcode == i.opcode[:-5] + "done"), None)


def _work_between(program: Program, c: Computation, i: Instruction) -> bool:
    """Whether a device has other work between the start and the end of an exchange."""
    done = _done(c, i)
    return done is not None and _works(program, c, i, done)


def _works(program: Program, c: Computation, start: Instruction, done: Instruction) -> bool:
    """Whether what stands between takes time: counters, places in tables and keys do not."""
    return any(
        j.opcode in BODIES
        or j.opcode in ("fusion", "dot", "convolution")
        and max(j.bytes, traffic.hbm_bytes(program, c, j)) > SMALL
        for j in list(c)[c.order[start.name] + 1 : c.order[done.name]]
        if j.target not in traffic.BOOKKEEPING
    )


def _beside(inner: Tally) -> Tally:
    """Returns the same tally with its exchanges marked as running beside other work."""
    marked: Counter = Counter()
    for what, times in inner.collectives.items():
        marked[replace(what, overlapped=True)] += times
    return replace(inner, collectives=marked)


def _call_name(i: Instruction) -> str:
    """Returns a kernel's own name where it has one, else the call's target."""
    kernel = re.search(r'"kernel_name":\s*"([^"]+)"', i.attributes)
    path = i.op_name.split("/")
    inner = next((part for part in reversed(path) if part and "pallas_call" not in part), "")
    if i.target == "tpu_custom_call":
        return f"{i.target} {kernel.group(1) if kernel else inner}".strip()
    return i.target
