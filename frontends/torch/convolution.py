"""Convolutions and transposed convolutions along one, two and three axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _with_batch_axis(call: OverloadCall, axes: int) -> tuple[Value, bool]:
    """Returns the data with a batch axis, and whether it was added."""
    x = call.value("input")
    # PyTorch takes one image without a batch axis too; the language does not.
    if x.type.rank == axes + 2:
        return x, False
    return call.add("unsqueeze", {"x": x}, {"axes": (0,)}), True


def _convolution(axes: int) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        padding = call["padding"]
        if padding == "valid":
            pads = (0,) * axes * 2
        elif padding == "same":
            pads = _same_padding(call, axes)
        else:
            pads = call.integers("padding", axes) * 2
        x, added = _with_batch_axis(call, axes)
        attrs: dict[str, Attr] = {
            "stride": call.integers("stride", axes),
            "pad": pads,
            "dilation": call.integers("dilation", axes),
            "groups": call.integer("groups"),
        }
        operands = {"x": x, "w": call.value("weight"), "bias": call.optional("bias")}
        result = call.add(f"conv{axes}d", operands, attrs)
        return call.add("squeeze", {"x": result}, {"axes": (0,)}) if added else result

    return read


def _same_padding(call: OverloadCall, axes: int) -> tuple[int, ...]:
    """Returns the padding of mode "same"; of an odd total, the larger part is at the end."""
    kernel = call.fake_tensor("weight").shape[2:]
    dilation = call.integers("dilation", axes)
    total = [d * (int(k) - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple(t // 2 for t in total) + tuple(t - t // 2 for t in total)


def _transposed(axes: int) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x, added = _with_batch_axis(call, axes)
        attrs: dict[str, Attr] = {
            "stride": call.integers("stride", axes),
            # The same padding on both sides; what PyTorch adds at the end alone is output_padding.
            "pad": call.integers("padding", axes) * 2,
            "output_pad": call.integers("output_padding", axes),
            "dilation": call.integers("dilation", axes),
            "groups": call.integer("groups"),
        }
        operands = {"x": x, "w": call.value("weight"), "bias": call.optional("bias")}
        result = call.add(f"conv_transpose{axes}d", operands, attrs)
        return call.add("squeeze", {"x": result}, {"axes": (0,)}) if added else result

    return read


def _any_convolution(call: OverloadCall) -> Value:
    """Reads `aten.convolution`, into which PyTorch decomposes all convolutions."""
    axes = call.fake_tensor("weight").dim() - 2
    # Other ranks, and weights without elements, are kept as PyTorch's own operator.
    if axes not in (1, 2, 3) or prod(call.fake_tensor("weight").shape) == 0:
        raise KeepCall
    return (_transposed if call.flag("transposed") else _convolution)(axes)(call)


OPS = {
    **{
        f"conv{axes}d.{form}": _convolution(axes)
        for axes in (1, 2, 3)
        for form in ("default", "padding")
    },
    "conv_transpose1d.default": _transposed(1),
    "conv_transpose2d.input": _transposed(2),
    "conv_transpose3d.input": _transposed(3),
    "convolution.default": _any_convolution,
}
