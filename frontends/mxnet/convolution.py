"""Convolution, transposed convolution and fully connected layers."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.node import Value

from .call import SymbolCall
from .results import Unsupported

_LAYOUTS = ("", "NCW", "NCHW", "NCDHW")


def layer_attrs(call: SymbolCall) -> tuple[int, dict[str, Attr]]:
    """Returns the count of spatial axes, and the attributes of a (transposed) convolution."""
    kernel = call.attrs.integers("kernel")
    axes = len(kernel)
    if axes not in (1, 2, 3):
        raise Unsupported(f"kernel is {kernel}, it must have 1 to 3 axes")
    call.choice("layout", "", *_LAYOUTS)
    attrs: dict[str, Attr] = {
        "stride": call.attrs.integers("stride", (1,) * axes),
        "pad": call.attrs.integers("pad", (0,) * axes) * 2,
        "dilation": call.attrs.integers("dilate", (1,) * axes),
        "groups": call.attrs.integer("num_group", 1),
    }
    return axes, attrs


def layer_operands(call: SymbolCall, no_bias: bool) -> dict[str, Value | None]:
    """Returns data, weights and the optional bias; `no_bias` is the attribute's default."""
    bias = None if call.attrs.flag("no_bias", no_bias) else call.value(2)
    return {"x": call.value(0), "w": call.value(1), "bias": bias}


def check_channels(call: SymbolCall, name: str, channels: Dim) -> None:
    """Raises Unsupported where an attribute contradicts the channels of the weights."""
    stated = call.attrs.integer(name, 0)
    if stated and isinstance(channels, int) and stated != channels:
        raise Unsupported(f"{name} is {stated}, its weights have {channels} channels")


def convolution(call: SymbolCall) -> Value:
    """Adds a convolution along one, two or three axes."""
    axes, attrs = layer_attrs(call)
    result = call.add(f"conv{axes}d", layer_operands(call, no_bias=False), attrs)
    check_channels(call, "num_filter", result.type.shape[1])
    return result


def _deconvolution(call: SymbolCall) -> Value:
    axes, attrs = layer_attrs(call)
    operands = layer_operands(call, no_bias=True)
    output_pad = call.attrs.integers("adj", (0,) * axes)
    # `target_shape` would determine the padding by the size of the data.
    if any(call.attrs.integers("target_shape")):
        raise Unsupported("target_shape is set; write it as pad and adj")
    result = call.add(f"conv_transpose{axes}d", operands, attrs | {"output_pad": output_pad})
    check_channels(call, "num_filter", result.type.shape[1])
    return result


def fully_connected(call: SymbolCall) -> Value:
    """Adds a linear layer; `flatten` flattens data with more axes."""
    x = call.broadcast_operand(0)
    bias = None if call.attrs.flag("no_bias") else call.value(2)
    if call.attrs.flag("flatten", True) and x.type.rank != 2:
        x = call.add("flatten", {"x": x}, {"axis": 1})
    result = call.add("linear", {"x": x, "w": call.value(1), "bias": bias})
    check_channels(call, "num_hidden", result.type.shape[-1])
    return result


OPS = {
    "Convolution": convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": fully_connected,
}
