"""Data formats and padding modes of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.dims import Dim, subtract
from qir.ir.node import Value
from qir.ir.types import Array

from .call import NodeCall
from .dilations import BLOCK_PADDING
from .reader import KeepNode

FIRST, LAST = "NCHW", "NHWC"


@dataclass(frozen=True)
class ImageLayout:
    """The data format of an op on images, NHWC or NCHW."""

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
        """Returns the values for height and width of an attribute such as `strides`."""
        listed = call.integer_list(name) or default
        if len(listed) != 4 or any(listed[i] != 1 for i in (0, self.channels)) or min(listed) < 1:
            raise KeepNode(f"its {name} are {list(listed)}")
        return listed[self.axes[0]], listed[self.axes[1]]


def image_layout(call: NodeCall) -> ImageLayout:
    """Returns the data format of a node; raises KeepNode for other formats."""
    layout = call.text("data_format", LAST)
    if layout not in (FIRST, LAST):
        raise KeepNode(f"its data_format is {layout}")
    return ImageLayout(layout)


def explicit_pads(
    call: NodeCall,
    layout: ImageLayout,
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, int, int, int]:
    """Returns the padding as (top, left, bottom, right)."""
    padding = call.text("padding", "VALID")
    if padding == "EXPLICIT":
        listed = call.integer_list("explicit_paddings") or call.integer_list("padding_list")
        if len(listed) != 8:
            raise KeepNode(f"its explicit paddings are {list(listed)}")
        # Pairs for all four axes, in the order of the data format.
        h, w = layout.axes
        return listed[2 * h], listed[2 * w], listed[2 * h + 1], listed[2 * w + 1]
    if padding == "VALID":
        return 0, 0, 0, 0
    if padding == BLOCK_PADDING:
        return _pads_of_blocks(call)
    if padding != "SAME":
        raise KeepNode(f"its padding is {padding!r}")
    total = [same_padding(sizes[i], kernel[i], stride[i], dilation[i]) for i in (0, 1)]
    # Of an odd total, the larger part is at the bottom and at the right.
    top, left = total[0] // 2, total[1] // 2
    return top, left, total[0] - top, total[1] - left


def _pads_of_blocks(call: NodeCall) -> tuple[int, int, int, int]:
    """Returns what is left of the padding of blocks after their result is cropped."""
    found = [call.reader.known.sizes(call[i]) for i in (2, 3)]
    if any(sizes is None for sizes in found):
        raise KeepNode("the padding of its blocks is computed while the network runs")
    paddings, crops = (sizes.tolist() for sizes in found if sizes is not None)
    pairs = zip(paddings, crops, strict=True)
    rows = [[subtract(p, c) for p, c in zip(*pair, strict=True)] for pair in pairs]
    (top, bottom), (left, right) = [[0, 0]] * (2 - len(rows)) + rows
    sides = [side for side in (top, left, bottom, right) if isinstance(side, int)]
    if len(sides) != 4 or min(sides) < 0:
        raise KeepNode("the padding of its blocks depends on the sizes of its data")
    return sides[0], sides[1], sides[2], sides[3]


def same_padding(size: Dim, kernel: int, stride: int, dilation: int) -> int:
    """Returns the total padding of mode SAME along an axis."""
    span = (kernel - 1) * dilation + 1
    # The result has ceil(size / stride) positions.
    if isinstance(size, int):
        return max((-(-size // stride) - 1) * stride + span - size, 0)
    if stride == 1:
        return span - 1
    raise KeepNode(f"SAME padding with stride {stride} needs the size of its input; state it")


def add_transpose(call: NodeCall, value: Value, perm: tuple[int, ...], what: str) -> Value:
    """Returns a value transposed; constants are transposed at once."""
    constant = value.constant
    if constant is not None and not constant.type.quant:
        return call.constant(constant.data.transpose(perm), what)
    if value.node.op == "dequantize":
        # The transpose goes before the dequantize, so that a layer still reads dequantized weights.
        return call.add(
            "dequantize", {"x": _transpose_quantized(call, value.node.operands["x"], perm)}
        )
    return call.add("transpose", {"x": value}, {"perm": perm})


def _transpose_quantized(call: NodeCall, value: Value, perm: tuple[int, ...]) -> Value:
    """Returns quantized values transposed; a quantize of float weights is moved after it."""
    node = value.node
    if (constant := value.constant) is not None:
        # The type rule of transpose moves the axis of the scales; the added node is pruned.
        transposed_type = call.add("transpose", {"x": value}, {"perm": perm}).type
        data = np.ascontiguousarray(constant.data.transpose(perm))
        array = Array(data, transposed_type, call.reader.names(call.node, "weights"))
        return call.reader.graph.constant(array)
    if node.op != "quantize":
        return call.add("transpose", {"x": value}, {"perm": perm})
    x = add_transpose(call, node.operands["x"], perm, "weights")
    transposed_type = call.add("transpose", {"x": value}, {"perm": perm}).type
    return call.add_typed("quantize", {"x": x}, node.attrs, transposed_type)
