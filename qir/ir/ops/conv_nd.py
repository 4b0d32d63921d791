"""Convolution along one or three axes, and transposed convolution; channels are second.

Pads are all fronts, then all backs, as in conv2d.
"""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Dim, Shape
from qir.ir.ops.conv import window_count
from qir.ir.ops.elementwise import require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def _axes(call: Call) -> int:
    """Returns how many axes the window slides along."""
    # The digit in `conv1d`, `conv3d`, `conv_transpose2d`.
    return int(call.op[-2])


def _operands(call: Call) -> tuple[Shape, Shape, int]:
    """Shapes of x and w, and the groups; raises TypeRuleError where ranks or groups cannot be
    meant."""
    require_same_express(call, "x", "w")
    x, w, rank = call.shape("x"), call.shape("w"), _axes(call) + 2
    for slot, shape in (("x", x), ("w", w)):
        if len(shape) != rank:
            raise call.fail(f"{slot} has {len(shape)} axes, it takes {rank}")
    groups, first = call.int_attr("groups"), w[0]
    if groups < 1 or (isinstance(first, int) and first % groups):
        raise call.fail(f"w has {first} channels, which do not split into {groups} groups")
    return x, w, groups


def _slide(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Stride, dilation, and the pads of both sides."""
    axes = _axes(call)
    stride, dilation = call.int_list_attr("stride", axes), call.int_list_attr("dilation", axes)
    pad = call.int_list_attr("pad", 2 * axes)
    if min(*stride, *dilation) < 1 or min(pad) < 0:
        raise call.fail("stride and dilation are 1 or more, pad 0 or more")
    return stride, dilation, tuple(pad[i] + pad[i + axes] for i in range(axes))


def _result_shape(
    call: Call, batch: Dim, channels: Dim, sizes: list[Dim]
) -> tuple[TensorType, ...]:
    if "bias" in call.types and not dims.may_be_equal(dims.product(call.shape("bias")), channels):
        raise call.fail(f"bias has {list(call.shape('bias'))}, there are {channels} channels")
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise call.fail("the window is larger than the padded input")
    return (TensorType((batch, channels, *sizes), call.express("x")),)


def _conv(call: Call) -> tuple[TensorType, ...]:
    x, w, groups = _operands(call)
    if not dims.may_be_equal(x[1], dims.multiply(w[1], groups)):
        raise call.fail(f"x has {x[1]} channels, w wants {w[1]} x {groups} groups")
    sizes = [
        window_count(size, kernel, stride, pad, dilation)
        for size, kernel, stride, dilation, pad in zip(x[2:], w[2:], *_slide(call), strict=True)
    ]
    return _result_shape(call, x[0], w[0], sizes)


def _transposed(call: Call) -> tuple[TensorType, ...]:
    x, w, groups = _operands(call)
    if not dims.may_be_equal(x[1], w[0]):
        raise call.fail(f"x has {x[1]} channels, w takes {w[0]}")
    output_pad, axes = call.int_list_attr("output_pad", _axes(call)), _axes(call)
    stride, dilation, pad = _slide(call)
    if any(not 0 <= output_pad[i] < max(stride[i], dilation[i]) for i in range(axes)):
        raise call.fail(f"output_pad {output_pad} is not smaller than stride or dilation")
    sizes: list[Dim] = []
    for i in range(axes):
        kernel = w[i + 2]
        # size = (x - 1) * stride + dilation * (kernel - 1) + 1 + output_pad - pads, as in ONNX and
        # torch.
        span = dilation[i] * (kernel - 1) + 1 if isinstance(kernel, int) else None
        steps = dims.multiply(dims.add(x[i + 2], -1), stride[i])
        sizes.append(dims.add(dims.add(steps, span), output_pad[i] - pad[i]))
    return _result_shape(call, x[0], dims.multiply(w[1], groups), sizes)


def _macs(call: Call, result: Shape) -> int:
    """Counts multiply-adds: every weight of a group meets every position of the result, or of x
    where transposed.
    """
    # A transposed convolution multiplies each element of x with the whole kernel.
    places = call.shape("x") if "transpose" in call.op else result
    sizes = dims.known_shape((*places, *call.shape("w")[1:]))
    total = 1
    for size in sizes or (0,):
        total *= size
    return total


def _attrs(n: int) -> tuple[AttrSpec, ...]:
    return (
        AttrSpec("stride", "ints", (1,) * n),
        AttrSpec("pad", "ints", (0,) * 2 * n),
        AttrSpec("dilation", "ints", (1,) * n),
        AttrSpec("groups", "int", 1),
    )


_OPERANDS = (Slot("x"), Slot("w"), Slot("bias", optional=True))
_WEIGHT = Traits(
    weight="w",
    weight_axis=lambda call: 0,
    result_axis=lambda call: 1,
    bias="bias",
    layer="convolution",
)


def _lowering(attrs: Mapping[str, Attr]) -> str:
    stride = attrs["stride"]
    same_stride = isinstance(stride, tuple) and len(set(stride)) == 1
    return "lower-transposed" if attrs["groups"] == 1 and same_stride else ""


OPS = (
    *(
        OpSpec(
            f"conv{n}d",
            _OPERANDS,
            _conv,
            _attrs(n),
            _WEIGHT,
            cost=_macs,
            doc=f"{n}-d convolution, w is [out, in / groups, ...]; pad is fronts, then backs",
        )
        for n in (1, 3)
    ),
    *(
        OpSpec(
            f"conv_transpose{n}d",
            _OPERANDS,
            _transposed,
            (*_attrs(n), AttrSpec("output_pad", "ints", (0,) * n)),
            Traits(layer="transposed", lowering=_lowering if n == 2 else None),
            cost=_macs,
            doc=f"{n}-d transposed convolution, w is [in, out / groups, ...]",
        )
        for n in (1, 2, 3)
    ),
)
