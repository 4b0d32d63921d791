"""The kernels of oneDNN that lowering puts into exported programs, as groups of quantized types."""

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

from .call import KeepCall, OverloadCall, known
from .elements import array
from .quantization import note_exported, quant_type, with_type

_PLAIN: Mapping[str, str] = {
    "relu": "relu",
    "hardswish": "hard_swish",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
"""Activations without numbers, by oneDNN's name."""


@dataclass(frozen=True)
class _Names:
    """What the arguments of a kernel are called after its weights and bias."""

    activation: str
    numbers: str
    algorithm: str
    joined: str
    other: str
    other_scale: str
    other_zero: str


_CONVOLUTION = _Names(
    "unary_attr", "unary_scalars", "unary_algorithm", "binary_attr", "qaccum", "accum_scale",
    "accum_zero_point",
)  # fmt: skip
_LINEAR = _Names(
    "unary_post_op", "unary_post_op_args", "unary_post_op_algorithm", "binary_post_op", "other",
    "other_scale", "other_zp",
)  # fmt: skip
_ALONE = {
    "conv2d": ("attr", "scalars", "algorithm"),
    "linear": ("post_op_name", "post_op_args", "post_op_algorithm"),
}
"""The same arguments of kernels that add no other tensor."""


def _known(call: OverloadCall, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Returns a number, or a tensor that the program stores."""
    held = call[name]
    if isinstance(held, fx.Node):
        found = call.reader.held(held)
        if found is None:
            raise KeepCall(f"its {name} is computed")
        return array(found[1]).reshape(-1)
    return np.atleast_1d(np.asarray(held))


def _integers(call: OverloadCall, name: str, scale: str, zero: str) -> Value:
    storage = known(call.fake(name).dtype)
    if not storage.is_integer:
        raise KeepCall(f"its {name} is {storage}")
    return with_type(call, name, quant_type(storage, _known(call, scale), _known(call, zero)))


def _weights(call: OverloadCall, op: str) -> Value:
    """Returns the weights, which the program stores as oneDNN has packed them."""
    found = call.reader.held(call["qw"])
    if found is None or found[1].dtype != torch.int8:
        raise KeepCall("its weights are not stored as int8")
    name, data = found
    if data.layout != torch.strided:
        data = data.to_dense()
        data = data.t().contiguous() if op == "linear" else data
    scales, zeros = _known(call, "w_scale"), _known(call, "w_zero_point")
    if zeros.any():
        raise KeepCall("its weights have zero points")
    kind = quant_type(known(torch.int8), scales, np.zeros(1, np.int64), axis=0)
    if scales.size == 1:
        kind = quant_type(known(torch.int8), scales, zeros)
    return call.reader.constant(name, data, kind)


def _activation(name: str | None, numbers: list[float], algorithm: str) -> Stage | None:
    """Returns what follows the sum."""
    attrs: dict[str, Attr] = {}
    if name in (None, "", "none"):
        return None
    op = _PLAIN.get(str(name), "")
    if name == "hardtanh":
        op, attrs = "clip", {"min": float(numbers[0]), "max": float(numbers[1])}
    elif name == "leaky_relu":
        op, attrs = "leaky_relu", {"alpha": float(numbers[0])}
    elif name == "gelu":
        op, attrs = "gelu", {"approximate": "tanh"} if algorithm == "tanh" else {}
    if not op:
        raise KeepCall(f"its activation {name} is not read")
    return Stage(op, spec(op).complete_attrs(attrs), (), flow="x")


def _kernel(op: str, *, joins: bool) -> Callable[[OverloadCall], Value]:
    """Returns the reader of a product with what follows it."""

    def read(call: OverloadCall) -> Value:
        note_exported(call)
        operands = {
            "x": _integers(call, "qx", "x_scale", "x_zero_point"),
            "w": _weights(call, op),
        }
        bias = call.optional("bias")
        if bias is not None:
            operands["bias"] = bias
        attrs = _sides(call) if op == "conv2d" else {}
        full = spec(op).complete_attrs(attrs)
        stages = [Stage(op, full, tuple(operands))]
        (real,) = infer_result_types(op, operands, full)
        names = _LINEAR if op == "linear" else _CONVOLUTION
        asked = (names.activation, names.numbers, names.algorithm) if joins else _ALONE[op]
        if joins and call[names.joined] != "none":
            if call[names.joined] not in ("sum", "add"):
                raise KeepCall(f"it joins by {call[names.joined]}")
            other = _integers(call, names.other, names.other_scale, names.other_zero)
            stages.append(Stage("add", spec("add").complete_attrs({}), ("b",), flow="a"))
            operands["1.b"] = other
        last = _activation(call[asked[0]], call[asked[1]] or [], call[asked[2]] or "")
        if last is not None:
            stages.append(last)
        made = real.with_element(_result(call) or F32)
        return call.add_group(stages, operands, made)

    return read


def _sides(call: OverloadCall) -> dict[str, Attr]:
    if call.fake("qw").dim() != 4:
        raise KeepCall("it is no convolution of images")
    return {
        "stride": call.wholes("stride", 2),
        "pad": call.wholes("padding", 2) * 2,
        "dilation": call.wholes("dilation", 2),
        "groups": call.whole("groups"),
    }


def _result(call: OverloadCall) -> QuantType | None:
    """Returns the type of the result; None for a float one."""
    kind = call.result.dtype
    if kind == torch.float32:
        return None
    if kind not in (torch.uint8, torch.int8):
        raise KeepCall(f"its result is {kind}")
    return quant_type(known(kind), _known(call, "output_scale"), _known(call, "output_zero_point"))


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
"""The converters of the kernels, by their overloads."""
