"""oneDNN kernels that torch's x86 inductor lowering puts into exported programs, as groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType

from .call import OverloadCall, known_dtype
from .elements import array_of
from .quantization import as_quantized, quant_type, set_export_profile
from .reader import KeepCall

_ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "hardswish": "hard_swish",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
"""Activations without parameters, by oneDNN's name."""


@dataclass(frozen=True)
class _ArgumentNames:
    """Names of a kernel's arguments after weights and bias."""

    activation: str
    parameters: str
    algorithm: str
    binary: str
    other: str
    other_scale: str
    other_zero: str


_CONVOLUTION_ARGUMENTS = _ArgumentNames(
    "unary_attr", "unary_scalars", "unary_algorithm", "binary_attr", "qaccum", "accum_scale",
    "accum_zero_point",
)  # fmt: skip
_LINEAR_ARGUMENTS = _ArgumentNames(
    "unary_post_op", "unary_post_op_args", "unary_post_op_algorithm", "binary_post_op", "other",
    "other_scale", "other_zp",
)  # fmt: skip
_UNARY_ARGUMENTS = {
    "conv2d": ("attr", "scalars", "algorithm"),
    "linear": ("post_op_name", "post_op_args", "post_op_algorithm"),
}
"""The same for kernels without a binary epilogue: activation, parameters, algorithm."""


def _known_array(
    call: OverloadCall, name: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Returns a number or a stored tensor as an array; raises KeepCall for a computed one."""
    argument = call[name]
    if isinstance(argument, fx.Node):
        stored = call.reader.stored_tensor(argument)
        if stored is None:
            raise KeepCall(f"its {name} is computed")
        return array_of(stored[1]).reshape(-1)
    return np.atleast_1d(np.asarray(argument))


def _quantized_operand(call: OverloadCall, name: str, scale: str, zero: str) -> Value:
    storage = known_dtype(call.fake_tensor(name).dtype)
    if not storage.is_integer:
        raise KeepCall(f"its {name} is {storage}")
    return as_quantized(
        call, name, quant_type(storage, _known_array(call, scale), _known_array(call, zero))
    )


def _packed_weights(call: OverloadCall, op: str) -> Value:
    """Returns the weights, which the program stores in oneDNN's packed layout."""
    stored = call.reader.stored_tensor(call["qw"])
    if stored is None or stored[1].dtype != torch.int8:
        raise KeepCall("its weights are not stored as int8")
    name, data = stored
    # A packed tensor has an opaque oneDNN layout (`_mkldnn`): `to_dense` restores the elements.
    if data.layout != torch.strided:
        data = data.to_dense()
        data = data.t().contiguous() if op == "linear" else data
    scales, zeros = _known_array(call, "w_scale"), _known_array(call, "w_zero_point")
    # oneDNN's int8 weights are symmetric: it takes no zero points for them.
    if zeros.any():
        raise KeepCall("its weights have zero points")
    quant = quant_type(known_dtype(torch.int8), scales, np.zeros(1, np.int64), axis=0)
    if scales.size == 1:
        quant = quant_type(known_dtype(torch.int8), scales, zeros)
    return call.reader.constant(name, data, quant)


def _activation(name: str | None, parameters: list[float], algorithm: str) -> Stage | None:
    """Returns the activation as a stage of the group; None without one."""
    attrs: dict[str, Attr] = {}
    if name in (None, "", "none"):
        return None
    op = _ACTIVATIONS.get(str(name), "")
    if name == "hardtanh":
        op, attrs = "clip", {"min": float(parameters[0]), "max": float(parameters[1])}
    elif name == "leaky_relu":
        op, attrs = "leaky_relu", {"alpha": float(parameters[0])}
    elif name == "gelu":
        op, attrs = "gelu", {"approximate": "tanh"} if algorithm == "tanh" else {}
    if not op:
        raise KeepCall(f"its activation {name} is not read")
    return Stage(op, spec(op).complete_attrs(attrs), (), flow="x")


def _kernel(op: str, *, joins: bool) -> Callable[[OverloadCall], Value]:
    """Returns the converter of a product with its epilogue.

    The epilogue is a binary op (`joins`) or an activation.
    """

    def read(call: OverloadCall) -> Value:
        set_export_profile(call)
        operands = {
            "x": _quantized_operand(call, "qx", "x_scale", "x_zero_point"),
            "w": _packed_weights(call, op),
        }
        bias = call.optional("bias")
        if bias is not None:
            operands["bias"] = bias
        attrs = _window_attrs(call) if op == "conv2d" else {}
        full = spec(op).complete_attrs(attrs)
        stages = [Stage(op, full, tuple(operands))]
        # A product of quantized operands has a float type, until the epilogue ends the group.
        (float_type,) = infer_result_types(op, operands, full)
        names = _LINEAR_ARGUMENTS if op == "linear" else _CONVOLUTION_ARGUMENTS
        activation_arguments = (
            (names.activation, names.parameters, names.algorithm) if joins else _UNARY_ARGUMENTS[op]
        )
        # `sum` adds in place, to the tensor that the call overwrites; `add` adds another operand.
        if joins and call[names.binary] != "none":
            if call[names.binary] not in ("sum", "add"):
                raise KeepCall(f"it joins by {call[names.binary]}")
            operand = _quantized_operand(call, names.other, names.other_scale, names.other_zero)
            stages.append(Stage("add", spec("add").complete_attrs({}), ("b",), flow="a"))
            operands["1.b"] = operand
        activation = _activation(
            call[activation_arguments[0]],
            call[activation_arguments[1]] or [],
            call[activation_arguments[2]] or "",
        )
        if activation is not None:
            stages.append(activation)
        result_type = float_type.with_element(_result_type(call) or F32)
        return call.add_group(stages, operands, result_type)

    return read


def _window_attrs(call: OverloadCall) -> dict[str, Attr]:
    if call.fake_tensor("qw").dim() != 4:
        raise KeepCall("it is no convolution of images")
    return {
        "stride": call.integers("stride", 2),
        "pad": call.integers("padding", 2) * 2,
        "dilation": call.integers("dilation", 2),
        "groups": call.integer("groups"),
    }


def _result_type(call: OverloadCall) -> QuantType | None:
    """Returns the quantized type of the result; None for a float result."""
    kind = call.result.dtype
    if kind == torch.float32:
        return None
    if kind not in (torch.uint8, torch.int8):
        raise KeepCall(f"its result is {kind}")
    return quant_type(
        known_dtype(kind),
        _known_array(call, "output_scale"),
        _known_array(call, "output_zero_point"),
    )


_CONVOLUTIONS = ("qconv_pointwise.default", "qconv_pointwise.tensor", "qconv2d_pointwise.default")
OPS: dict[str, Callable[[OverloadCall], Value]] = {
    **{f"onednn.{name}": _kernel("conv2d", joins=False) for name in _CONVOLUTIONS},
    **{
        f"onednn.{name}_pointwise.{form}": _kernel(op, joins=form.startswith("binary"))
        for name, op, forms in (
            ("qconv2d", "conv2d", ("binary", "binary_tensor")),
            ("qlinear", "linear", ("default", "tensor", "binary", "binary_tensor")),
        )
        for form in forms
    },
}
"""Converters by overload."""
