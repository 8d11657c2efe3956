"""Counts the FLOPs of matrix products in HLO. A multiply-add counts as two."""

import math
import re

from t5x_like.planning.hlo import Array, Computation, Instruction


def product_flops(computation: Computation, instruction: Instruction) -> float:
    """Counts the FLOPs of a `dot` or `convolution`.

    The TPU compiler writes every matrix product as a convolution, with batch dimensions as windows with dilation and
    padding. Products with padding zeros are not counted because they are not computed.

    Args:
      computation: The computation of the instruction.
      instruction: Any instruction.

    Returns:
      FLOPs; 0 for other instructions.

    Raises:
      ValueError: A convolution has no `dim_labels`.
    """
    if instruction.opcode not in ("dot", "convolution"):
        return 0.0
    operands = computation.operand_arrays(instruction)
    if len(operands) < 2 or not operands[0] or not operands[1]:
        return 0.0
    left, right = operands[0][0], operands[1][0]
    if instruction.opcode == "dot":
        contracted = math.prod(left.dims[dim] for dim in _numbers(instruction.attribute("lhs_contracting_dims")))
        return 2.0 * instruction.arrays[0].size * contracted
    return _convolution_flops(left, right, instruction)


def _numbers(braced: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", braced or "")]


def _convolution_flops(left: Array, right: Array, instruction: Instruction) -> float:
    """Returns 2 x output features x input features x batch x the number of valid pairs per window dimension."""
    labels = re.search(r"dim_labels=([0-9a-z?]+)_([0-9a-z?]+)->([0-9a-z?]+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"convolution {instruction.name} has no dim_labels")
    left_labels, right_labels, out_labels = labels.groups()
    out = instruction.arrays[0]
    total = 2.0 * out.dims[out_labels.index("b")] * out.dims[out_labels.index("f")]  # b is divided by batch_group_count
    total *= right.dims[right_labels.index("i")]  # already divided by feature_group_count
    window = _window(instruction)
    for label in sorted(set(left_labels) - {"b", "f"}):
        position = int(label)
        total *= _valid_pairs(
            left.dims[left_labels.index(label)],
            right.dims[right_labels.index(label)],
            out.dims[out_labels.index(label)],
            {name: values[position] for name, values in window.items() if position < len(values)},
        )
    return total


def _window(instruction: Instruction) -> dict[str, list[tuple[int, ...]]]:
    """Parses `window={size=1x6 pad=0_0x5_5 …}` into one tuple per dimension for each property."""
    match = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    properties = dict(part.split("=") for part in match[1].split()) if match else {}
    return {
        name: [tuple(int(number) for number in entry.split("_")) for entry in text.split("x")]
        for name, text in properties.items()
    }


def _valid_pairs(size: int, kernel: int, out: int, window: dict[str, tuple[int, ...]]) -> int:
    """Counts the pairs (output position, kernel position) that read an input entry instead of padding."""
    stride, dilation = window.get("stride", (1,))[0], window.get("rhs_dilate", (1,))[0]
    base, low = window.get("lhs_dilate", (1,))[0], window.get("pad", (0, 0))[0]
    pairs = 0
    for position in range(kernel):
        # Input positions i * base = o * stride - low + position * dilation with 0 <= i < size and 0 <= o < out.
        shift = position * dilation - low
        first = max(0, -(shift // stride) if shift < 0 else 0)
        last = min(out - 1, ((size - 1) * base - shift) // stride)
        if base == 1:
            pairs += max(0, last - first + 1)
        else:
            pairs += sum((o * stride + shift) % base == 0 for o in range(first, last + 1))
    return pairs
