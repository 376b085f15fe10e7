"""FLOPs of the matrix products that an instruction does: dots, convolutions, calls of a library."""

import math
import re
from functools import cache

from launch.hlo import Computation, Instruction


def flops(c: Computation, i: Instruction) -> float:
    """Returns 2 x multiply-adds of a product, 0 for every other instruction."""
    if i.opcode == "dot":
        inner = _integers(i.attribute("lhs_contracting_dims"))
        return 2.0 * math.prod(i.shapes[0].dims) * _sizes(c, i.operands[0], inner)
    if i.opcode == "convolution":
        return _convolution_flops(c, i)
    if i.opcode == "custom-call" and i.target.startswith("__cublas$"):
        inner = _integers(_cublas_inner(i))
        return 2.0 * math.prod(i.shapes[0].dims) * _sizes(c, i.operands[0], inner)
    return 0.0


def _sizes(c: Computation, name: str, dims: list[int]) -> int:
    shape = c.instructions[name].shapes[0].dims
    return math.prod(shape[d] for d in dims)


def _integers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _cublas_inner(i: Instruction) -> str:
    found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', i.attributes)
    return found.group(1) if found else ""


def _convolution_flops(c: Computation, i: Instruction) -> float:
    """Counts positions that exist: padding and the gaps of a dilation multiply nothing.

    TPUs write batched products as convolutions whose dilated window meets one position a step.
    """
    left, right = (c.instructions[name].shapes[0].dims for name in i.operands[:2])
    out = i.shapes[0].dims
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    assert labels, i.attributes
    lhs, rhs, result = labels.groups()
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", i.attribute("window")))
    spatial = [d for d in lhs if d.isdigit()]

    def of(key: str, default: str) -> list[str]:
        return window[key].split("x") if key in window else [default] * len(spatial)

    pads = [int(pad.split("_")[0]) for pad in of("pad", "0_0")]
    strides, bases, gaps = of("stride", "1"), of("lhs_dilate", "1"), of("rhs_dilate", "1")
    met = math.prod(
        _positions_met(
            left[lhs.index(d)],
            right[rhs.index(d)],
            out[result.index(d)],
            int(strides[n]),
            pads[n],
            int(bases[n]),
            int(gaps[n]),
        )
        for n, d in enumerate(spatial)
    )
    batch = left[lhs.index("b")] // int(i.attribute("batch_group_count") or 1)
    # The kernel's input features are already those of one feature group.
    return 2.0 * met * batch * right[rhs.index("i")] * right[rhs.index("o")]


@cache
def _positions_met(n, kernel, out, stride, pad, base_dilation, window_dilation) -> int:
    """Returns how many (output, kernel) positions of one dimension fall on an input's element."""
    last = (n - 1) * base_dilation
    met = 0
    for k in range(kernel):
        offset = k * window_dilation - pad
        first = max(0, -(offset // stride))  # the least o with o * stride + offset >= 0
        beyond = min(out - 1, (last - offset) // stride)
        if base_dilation == 1:
            met += max(0, beyond - first + 1)
        else:
            met += sum((o * stride + offset) % base_dilation == 0 for o in range(first, beyond + 1))
    return met
