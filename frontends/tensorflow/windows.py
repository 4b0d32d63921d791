"""Where windows are laid on images: TensorFlow's data formats and its names for padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.dims import Dim
from qir.ir.node import Value
from qir.ir.types import Array

from .call import KeepNode, NodeCall

FIRST, LAST = "NCHW", "NHWC"


@dataclass(frozen=True)
class Images:
    """The layout of an op on images of two axes."""

    layout: str

    @property
    def axes(self) -> tuple[int, int]:
        """The axes of height and width."""
        return (2, 3) if self.layout == FIRST else (1, 2)

    @property
    def channels(self) -> int:
        """The axis of the channels."""
        return 1 if self.layout == FIRST else 3

    def sides(self, call: NodeCall, name: str, default: tuple[int, ...] = ()) -> tuple[int, int]:
        """Returns the numbers for height and width of an attribute that lists all axes."""
        held = call.wholes(name) or default
        if len(held) != 4 or any(held[i] != 1 for i in (0, self.channels)) or min(held) < 1:
            raise KeepNode(f"its {name} are {list(held)}")
        return held[self.axes[0]], held[self.axes[1]]


def images(call: NodeCall) -> Images:
    """Returns the layout that a node names; Keep for one that is none of the usual two."""
    layout = call.text("data_format", LAST)
    if layout not in (FIRST, LAST):
        raise KeepNode(f"its data_format is {layout}")
    return Images(layout)


def pads(
    call: NodeCall,
    where: Images,
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, int, int, int]:
    """Returns the padding at the top, left, bottom and right for images of these sizes."""
    padding = call.text("padding", "VALID")
    if padding == "EXPLICIT":
        held = call.wholes("explicit_paddings") or call.wholes("padding_list")
        if len(held) != 8:
            raise KeepNode(f"its explicit paddings are {list(held)}")
        h, w = where.axes
        return held[2 * h], held[2 * w], held[2 * h + 1], held[2 * w + 1]
    if padding == "VALID":
        return 0, 0, 0, 0
    if padding != "SAME":
        raise KeepNode(f"its padding is {padding!r}")
    total = [same(sizes[i], kernel[i], stride[i], dilation[i]) for i in (0, 1)]
    top, left = total[0] // 2, total[1] // 2
    return top, left, total[0] - top, total[1] - left


def same(size: Dim, kernel: int, stride: int, dilation: int) -> int:
    """Returns the padding of both sides together that gives one result for each stride."""
    span = (kernel - 1) * dilation + 1
    if isinstance(size, int):
        return max((-(-size // stride) - 1) * stride + span - size, 0)
    if stride == 1:
        return span - 1
    raise KeepNode(f"SAME padding with stride {stride} needs the size of its input; state it")


def transposed(call: NodeCall, value: Value, perm: tuple[int, ...], what: str) -> Value:
    """Returns a value with its axes in another order; constants are transposed here."""
    held = value.constant
    if held is not None and not held.type.quant:
        return call.constant(held.data.transpose(perm), what)
    if value.node.op == "dequantize":
        # the codes are transposed, so that whoever reads them still finds a dequantize
        return call.add("dequantize", {"x": _coded(call, value.node.operands["x"], perm)})
    return call.add("transpose", {"x": value}, {"perm": perm})


def _coded(call: NodeCall, value: Value, perm: tuple[int, ...]) -> Value:
    """Returns quantized values with their axes in another order; weights in float before it."""
    node = value.node
    if (held := value.constant) is not None:
        kind = call.add("transpose", {"x": value}, {"perm": perm}).type
        data = np.ascontiguousarray(held.data.transpose(perm))
        array = Array(data, kind, call.reader.names(call.node, "weights"))
        return call.reader.graph.constant(array)
    if node.op != "quantize":
        return call.add("transpose", {"x": value}, {"perm": perm})
    x = transposed(call, node.operands["x"], perm, "weights")
    kind = call.add("transpose", {"x": value}, {"perm": perm}).type
    return call.add_typed("quantize", {"x": x}, node.attrs, kind)
