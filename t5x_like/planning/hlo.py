"""Parses optimized HLO text into computations and instructions, and derives the trip counts of loops."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from t5x_like.planning.sources import Sources

# Bytes per element.
_ELEMENT_BYTES = {
    **dict.fromkeys(("token", "opaque"), 0),
    **dict.fromkeys(("s1", "u1"), 0.125),
    **dict.fromkeys(("s2", "u2"), 0.25),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 0.5),
    **dict.fromkeys(("pred", "s8", "u8", "f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3fnuz", "f8e4m3b11fnuz"), 1),
    **dict.fromkeys(("f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9a-z]*)\[(?P<dims>[0-9,<= ]*)\](?:\{(?P<layout>[^}]*)\})?")
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[^\s(]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>\S+) = (?P<rest>.*)$", re.DOTALL)
_END = re.compile(r"^\}(, .*)?$")
_NAME = re.compile(r"%([^\s,(){}]+)")
_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape, dtype and memory space of an array.

    Attributes:
      dtype: Dtype in HLO notation, such as `bf16`.
      dims: Sizes of the dimensions.
      memory: Memory space; 0 for HBM, other numbers for on-chip memories.
    """

    dtype: str
    dims: tuple[int, ...]
    memory: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> float:
        """Size in bytes.

        Raises:
          ValueError: The dtype is unknown.
        """
        if self.dtype not in _ELEMENT_BYTES:
            raise ValueError(
                f"dtype {self.dtype} of a compiled program: unknown size. Install libtpu from constraints.txt."
            )
        return self.size * _ELEMENT_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
      name: Name without `%`.
      opcode: Operation, such as `fusion`.
      arrays: Arrays of the result; the elements of a tuple, flattened.
      operands: Names of the operands.
      literal: Text between the parentheses, such as the value of a constant or the number of a parameter.
      attributes: Text after the operands.
      is_root: Whether the instruction is the result of the computation.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool = False

    def attribute(self, name: str) -> str | None:
        """Returns the value of the attribute `name=value` with its braces, if any; None without the attribute."""
        match = re.search(rf"(?:^|[ ,]){name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return match[1] if match else None

    def called(self, name: str) -> str | None:
        """Returns the name of the computation in an attribute; None without the attribute."""
        value = self.attribute(name)
        return value.lstrip("%") if value else None


class Computation:
    """A named list of instructions.

    Args:
      name: Name of the computation.
      instructions: Instructions in order.

    Attributes:
      by_name: Name -> instruction.
    """

    def __init__(self, name: str, instructions: list[Instruction]):
        self.name = name
        self.instructions = instructions
        self.by_name = {instruction.name: instruction for instruction in instructions}

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the result of the computation."""
        return next((one for one in self.instructions if one.is_root), self.instructions[-1])

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Name of an instruction -> the instructions that use it as an operand."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    def operand_arrays(self, instruction: Instruction) -> list[tuple[Array, ...]]:
        """Returns the arrays of each operand of an instruction."""
        return [self.by_name[name].arrays for name in instruction.operands if name in self.by_name]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: Name -> computation.
      entry: The entry computation.
      sources: Sources of the instructions.
    """

    computations: dict[str, Computation]
    entry: Computation
    sources: Sources


def parse(text: str) -> Module:
    """Parses the text of a compiled program.

    Args:
      text: Result of `compiled.as_text()`.

    Returns:
      The program.

    Raises:
      ValueError: The text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, name, lines = None, None, []
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header and not line.startswith(" "):
            name, lines = header["name"], []
            entry = name if header["entry"] else entry
        elif name is not None and _END.match(line):
            computations[name] = Computation(name, [_instruction(_INSTRUCTION.match(each)) for each in lines])
            name = None
        elif name is not None and _INSTRUCTION.match(line):
            lines.append(line)
        elif name is not None and lines:  # the metadata of a kernel continues on further lines
            lines[-1] += line
    if entry is None or entry not in computations:
        raise ValueError("the text is not a compiled program: no ENTRY computation found")
    return Module(computations, computations[entry], Sources(text))


def _instruction(match: re.Match) -> Instruction:
    rest = _INDEX_COMMENT.sub("", match["rest"])
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    close = _closing(rest, len(opcode))
    literal = rest[len(opcode) + 1 : close]
    return Instruction(
        name=match["name"],
        opcode=opcode,
        arrays=tuple(_arrays(shape)),
        operands=tuple(_NAME.findall(literal)),
        literal=literal,
        attributes=rest[close + 1 :],
        is_root=bool(match["root"]),
    )


def _closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    raise ValueError(f"unbalanced parentheses in {text[:80]!r}")


def _arrays(shape: str) -> Iterator[Array]:
    for match in _ARRAY.finditer(shape):
        dims = tuple(int(size.strip(" <=")) for size in match["dims"].split(",") if size.strip(" <="))
        memory = re.search(r"S\((\d+)\)", match["layout"] or "")
        yield Array(match["dtype"], dims, int(memory[1]) if memory else 0)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Derives the number of iterations of a `while` loop.

    The count is an attribute of the loop, or follows from a counter that starts at a constant, grows by a constant and
    is compared with a constant.

    Args:
      module: The program.
      computation: The computation of the loop.
      loop: The `while` instruction.

    Returns:
      The number of iterations, or None if it is unknown.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations[loop.called("condition")]
    body = module.computations[loop.called("body")]
    compared = _comparison(module, condition)
    if compared is None:
        return None
    index, limit, inclusive = compared
    start = _constant(computation, _tuple_element(computation, loop.operands[0], index))
    stride = _stride(body, index)
    if start is None or not stride:
        return None
    return max(0, -(-(limit + inclusive - start) // stride))


def _comparison(module: Module, condition: Computation) -> tuple[int, int, bool] | None:
    """Parses `counter < limit` into (tuple index of the counter, limit, whether the limit is inclusive)."""
    root = condition.root
    if root.opcode == "fusion":  # a fusion that contains only the comparison
        inner = module.computations[root.called("calls")].root
        operands = [_outer(module, root, name) for name in inner.operands]
    else:
        inner, operands = root, list(root.operands)
    direction = inner.attribute("direction")
    if inner.opcode != "compare" or len(operands) != 2:
        return None
    if direction in ("GT", "GE"):
        operands.reverse()
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction not in ("LT", "LE"):
        return None
    counter, limit = condition.by_name.get(operands[0]), _constant(condition, operands[1])
    if counter is None or counter.opcode != "get-tuple-element" or limit is None:
        return None
    return int(counter.attribute("index")), limit, direction == "LE"


def _outer(module: Module, fusion: Instruction, name: str) -> str | None:
    """Returns the operand of a fusion that corresponds to its parameter `name`."""
    inner = module.computations[fusion.called("calls")].by_name.get(name)
    return fusion.operands[int(inner.literal)] if inner is not None and inner.opcode == "parameter" else None


_TRANSPARENT = ("copy", "bitcast", "convert", "reshape")


def _constant(computation: Computation, name: str | None) -> int | None:
    """Returns the value of a scalar integer constant; None for other instructions."""
    instruction = computation.by_name.get(name) if name else None
    while instruction is not None and instruction.opcode in _TRANSPARENT:
        instruction = computation.by_name.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "constant":
        return None
    try:
        return int(instruction.literal)
    except ValueError:
        return None


def _tuple_element(computation: Computation, name: str, index: int) -> str | None:
    instruction = computation.by_name.get(name)
    return instruction.operands[index] if instruction is not None and instruction.opcode == "tuple" else None


def _stride(body: Computation, index: int) -> int | None:
    """Returns the increment of the counter in the body of a loop."""
    updated = _tuple_element(body, body.root.name, index)
    instruction = body.by_name.get(updated) if updated else None
    while instruction is not None and instruction.opcode in _TRANSPARENT:
        instruction = body.by_name.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "add":
        return None
    found = [value for operand in instruction.operands if (value := _constant(body, operand)) is not None]
    return found[0] if len(found) == 1 else None
