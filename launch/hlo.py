"""A compiled program as data: its computations, their instructions, and who calls whom.

Reads the text of XLA's HLO, `compiled.as_text()`. The text of a compiled program is scheduled: the
order of instructions in a computation is the order in which a device runs them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

HBM = 0  # the memory space of a shape that names none; TPU: 1 VMEM, 2 flags, 4 and 6 SMEM, 5 host

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"(\w+)\[([\d,<= ]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_PARENTHESIS = re.compile(r"[()]")
_NAME = re.compile(r"%([\w.\-]+)")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")


def dtype_bits(dtype: str) -> int:
    """Returns the width of a dtype's element: bf16 16, f8e4m3fn 8, s4 4, c64 64, pred 8."""
    digits = re.search(r"\d+", dtype)
    return _BITS[dtype] if dtype in _BITS else int(digits.group()) if digits else 0


@dataclass(frozen=True)
class Shape:
    """One array of an instruction's value. `bytes` leaves out what tiles pad."""

    dtype: str
    dims: tuple[int, ...]
    space: int = HBM

    @property
    def bytes(self) -> int:
        bits = dtype_bits(self.dtype)
        for dim in self.dims:
            bits *= dim
        return -(-bits // 8)


@dataclass(frozen=True)
class Instruction:
    """`%name = shapes opcode(operands), attributes`. A tuple's arrays are listed one by one."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    argument: str  # the text between the parentheses: the value of a constant, a parameter's number

    @property
    def bytes(self) -> int:
        return sum(shape.bytes for shape in self.shapes)

    def attribute(self, key: str) -> str:
        """Returns what follows `key=`, up to the end of the braces or the next comma, or ''."""
        found = re.search(rf"(?:^|[ ,]){key}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return found.group(1) if found else ""

    def called(self, *keys: str) -> tuple[str, ...]:
        """Returns the computations that these attributes name, in order."""
        return tuple(name for key in keys for name in _NAME.findall(self.attribute(key)))

    @property
    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional, in the order of its index (false, true for a pred)."""
        return self.called("branch_computations") or self.called(
            "false_computation", "true_computation"
        )

    @property
    def op_name(self) -> str:
        """The path of names (functions, scopes, primitive) that JAX gave the operation."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found.group(1) if found else ""

    @property
    def target(self) -> str:
        """What a custom call calls, or ''."""
        return self.attribute("custom_call_target").strip('"')


@dataclass
class Computation:
    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    @cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """Which instructions use each value."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self:
            for operand in dict.fromkeys(instruction.operands):
                if operand in users:
                    users[operand].append(instruction)
        return users

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each instruction in the schedule."""
        return {name: i for i, name in enumerate(self.instructions)}


@dataclass(frozen=True)
class Program:
    """What one device runs: every device runs the same program on its own part of the arrays."""

    entry: str
    computations: Mapping[str, Computation]
    n_partitions: int  # how many devices exchange data by numbers in the text: those of one slice

    def trip_count(self, computation: Computation, loop: Instruction) -> int | None:
        """Returns how often a while loop's body runs, or None where the text does not tell.

        XLA states it on some machines. Elsewhere it follows from a counter that starts at a
        constant, grows by a constant and is compared with a constant.
        """
        stated = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
        if stated:
            return int(stated.group(1))
        (condition_name,), (body_name,) = loop.called("condition"), loop.called("body")
        condition, body = self.computations[condition_name], self.computations[body_name]
        test = self._inside(condition, condition.root)
        if test is None or test[1].opcode != "compare":
            return None
        where, compare = test
        start = computation.instructions[loop.operands[0]]
        sides = [self._source(where, operand) for operand in compare.operands]
        direction = compare.attribute("direction")
        if sides[0] is None or sides[1] is None:
            return None
        if isinstance(sides[0], int):  # constant < counter is counter > constant
            sides.reverse()
            direction = direction.translate(str.maketrans("LG", "GL"))
        index, limit = sides
        if isinstance(limit, tuple):  # a limit that the loop carries along unchanged
            limit = self._start(computation, start, limit[0])
        if not isinstance(index, tuple) or not isinstance(limit, int):
            return None
        first = self._start(computation, start, index[0])
        step = self._step(body, index[0])
        if first is None or not step:
            return None
        span = {"LT": limit - first, "LE": limit - first + 1, "NE": limit - first}
        span |= {"GT": first - limit, "GE": first - limit + 1}
        if direction not in span or (direction in ("GT", "GE")) != (step < 0):
            return None
        return max(0, -(-span[direction] // abs(step)))

    def _inside(self, computation: Computation, name: str):
        """Follows copies, and single fusions, down to the instruction that makes a value."""
        instruction = computation.instructions[name]
        while instruction.opcode in ("copy", "bitcast", "convert", "copy-done", "copy-start"):
            instruction = computation.instructions[instruction.operands[0]]
        if instruction.opcode == "fusion":
            inner = self.computations[instruction.called("calls")[0]]
            made = inner.instructions[inner.root]
            # What the fusion takes in stands for its parameters, by number.
            numbers = {
                i.name: instruction.operands[int(i.argument)]
                for i in inner
                if i.opcode == "parameter"
            }
            if all(operand in numbers for operand in made.operands):
                operands = tuple(numbers[operand] for operand in made.operands)
                made = Instruction(
                    made.name, made.opcode, made.shapes, operands, made.attributes, made.argument
                )
                return computation, made
            return None
        return computation, instruction

    def _source(self, computation: Computation, name: str) -> int | tuple[int] | None:
        """Returns a constant's value, or (index,) for an element of the loop's state."""
        found = self._inside(computation, name)
        if found is None:
            return None
        made = found[1]
        if made.opcode == "constant":
            return int(made.argument) if re.fullmatch(r"-?\d+", made.argument) else None
        if made.opcode == "get-tuple-element":
            return (int(made.attribute("index")),)
        return None

    def _start(self, computation: Computation, state: Instruction, index: int) -> int | None:
        """Returns the constant that an element of the loop's state starts at."""
        if state.opcode != "tuple":
            return None
        value = self._source(computation, state.operands[index])
        return value if isinstance(value, int) else None

    def _step(self, body: Computation, index: int) -> int | None:
        """Returns the constant that a round adds to an element of the loop's state."""
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return None
        found = self._inside(body, root.operands[index])
        if found is None or found[1].opcode != "add":
            return None
        parts = [self._source(body, operand) for operand in found[1].operands]
        constants = [part for part in parts if isinstance(part, int)]
        return constants[0] if len(constants) == 1 and (index,) in parts else None


def parse(text: str) -> Program:
    """Returns the program that an HLO module's text describes."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry = ""
    for line in _whole_lines(text):
        if current is None:
            header = _HEADER.match(line) if line.endswith("{") else None
            if header:
                current = computations.setdefault(header.group(2), Computation(header.group(2)))
                entry = header.group(2) if header.group(1) else entry
        elif _ends(line):
            current = None
        elif " = " in line:
            instruction, is_root = _instruction(line)
            current.instructions[instruction.name] = instruction
            current.root = instruction.name if is_root else current.root
    partitions = re.search(r"\bnum_partitions=(\d+)", text[: text.find("\n")])
    return Program(entry, computations, int(partitions.group(1)) if partitions else 1)


def _ends(line: str) -> bool:
    return line == "}" or line.startswith("}, execution_thread")


def _whole_lines(text: str) -> Iterator[str]:
    """Lines of the text; what a kernel says of itself may run over several, and is joined."""
    held = ""
    for line in text.splitlines():
        starts = line.startswith(("  ", "%", "ENTRY", "HloModule")) or not line or _ends(line)
        if starts and held:
            yield held
            held = ""
        held += line
    yield held


def _instruction(line: str) -> tuple[Instruction, bool]:
    left, _, rest = line.strip().partition(" = ")
    is_root = left.startswith("ROOT ")
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode, _, _ = rest[end + 1 :].partition("(")
    opens = end + 1 + len(opcode)
    closes = _closing(rest, opens)
    argument = rest[opens + 1 : closes]
    return (
        Instruction(
            left.removeprefix("ROOT ").lstrip("%"),
            opcode,
            tuple(_shapes(rest[:end])),
            tuple(_NAME.findall(argument)),
            rest[closes + 1 :].lstrip(", "),
            argument,
        ),
        is_root,
    )


def _closing(text: str, opening: int) -> int:
    depth = 0
    for found in _PARENTHESIS.finditer(text, opening):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"unbalanced parentheses in HLO: {text[:200]}")


def _shapes(text: str) -> Iterator[Shape]:
    for found in _SHAPE.finditer(text):
        dims = tuple(int(d.lstrip("<= ")) for d in found.group(2).split(",") if d.strip())
        space = _SPACE.search(found.group(3) or "")
        yield Shape(found.group(1), dims, int(space.group(1)) if space else HBM)
