"""Convolution, transposed convolution and fully connected layers."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.node import Value

from .call import SymbolCall, Unsupported

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


def check_channels(call: SymbolCall, name: str, found: Dim) -> None:
    """Raises Unsupported where an attribute contradicts the channels of the weights."""
    wanted = call.attrs.integer(name, 0)
    if wanted and isinstance(found, int) and wanted != found:
        raise Unsupported(f"{name} is {wanted}, its weights have {found} channels")


def convolution(call: SymbolCall) -> Value:
    """Adds a convolution along one, two or three axes."""
    axes, attrs = layer_attrs(call)
    made = call.add(f"conv{axes}d", layer_operands(call, no_bias=False), attrs)
    check_channels(call, "num_filter", made.type.shape[1])
    return made


def _deconvolution(call: SymbolCall) -> Value:
    axes, attrs = layer_attrs(call)
    given = layer_operands(call, no_bias=True)
    extra = call.attrs.integers("adj", (0,) * axes)
    if any(call.attrs.integers("target_shape")):
        raise Unsupported("target_shape is set; write it as pad and adj")
    made = call.add(f"conv_transpose{axes}d", given, attrs | {"output_pad": extra})
    check_channels(call, "num_filter", made.type.shape[1])
    return made


def fully_connected(call: SymbolCall) -> Value:
    """Adds a linear layer; `flatten` flattens data with more axes."""
    x = call.broadcast_operand(0)
    bias = None if call.attrs.flag("no_bias") else call.value(2)
    if call.attrs.flag("flatten", True) and x.type.rank != 2:
        x = call.add("flatten", {"x": x}, {"axis": 1})
    made = call.add("linear", {"x": x, "w": call.value(1), "bias": bias})
    check_channels(call, "num_hidden", made.type.shape[-1])
    return made


OPS = {
    "Convolution": convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": fully_connected,
}
