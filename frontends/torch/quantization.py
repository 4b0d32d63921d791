"""Quantize, dequantize and fake quantization of exported (PT2E) programs.

Constant scales and zero points become the quantized type of the result, computed ones operands of
`quantize` and `dequantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, F64, DType, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

from .call import OverloadCall, known_dtype
from .elements import array_of
from .profiles import PT2E, profile_name
from .reader import KeepCall

Numbers = NDArray[np.generic]
IS_EXPLICIT_QUANTIZE = "stated"
"""Key in a node's meta: the program calls quantize itself after float operators.

Such a quantize must not be merged into a kernel: PyTorch computes it separately.
"""


def _known_qparam(call: OverloadCall, name: str) -> Numbers | None:
    """Returns a constant scale or zero point, or several; None for computed ones."""
    argument = call[name]
    if isinstance(argument, fx.Node):
        stored = call.reader.stored_tensor(argument)
        return None if stored is None else np.atleast_1d(array_of(stored[1]))
    return np.atleast_1d(np.asarray(argument))


def quant_type(
    storage: DType,
    scales: Numbers,
    zeros: Numbers,
    *,
    axis: int | None = None,
    bounds: tuple[int, int] | None = None,
) -> QuantType:
    """Returns the quantized type with these scales and zero points.

    PyTorch's scales are doubles; they become float32 if that is exact, else float64.
    """
    doubles = scales.astype(np.float64)
    # A scale above the float32 range becomes infinite, so is not exact either.
    with np.errstate(over="ignore"):
        exact = np.array_equal(doubles.astype(np.float32).astype(np.float64), doubles)
    kind = F32 if exact else F64
    stored = doubles.astype(kind.carrier)
    if axis is None:
        if stored.size != 1 or zeros.size != 1:
            raise KeepCall("a tensor has one scale and one zero point")
        scale, zero = (float(stored.item()),), (int(zeros.item()),)
        return QuantType(storage, F32, scale, zero, bounds=bounds, scale_dtype=kind)
    scale_array = Array(stored, TensorType(stored.shape, kind))
    zero_array: tuple[()] | Array = ()
    # Zero points that are all 0 are left out: the type is symmetric.
    if zeros.any():
        integers = zeros.astype(np.int32)
        zero_array = Array(integers, TensorType(integers.shape, dtype("i32")))
    granularity = Granularity(((axis, 1),))
    return QuantType(
        storage, F32, scale_array, zero_array, granularity, bounds=bounds, scale_dtype=kind
    )


def _stated_quant_type(call: OverloadCall, axis: int | None = None) -> QuantType | None:
    """Returns the type that constant arguments state; None for computed ones."""
    per_channel = axis is not None
    scales = _known_qparam(call, "scales" if per_channel else "scale")
    name = "zero_points" if per_channel else "zero_point"
    zeros = np.zeros(1, np.int64) if call[name] is None else _known_qparam(call, name)
    if scales is None or zeros is None:
        return None
    return quant_type(_storage(call), scales, zeros, axis=axis, bounds=_bounds(call))


def _storage(call: OverloadCall) -> DType:
    stated = call["dtype"]
    storage = known_dtype(stated if isinstance(stated, torch.dtype) else call.result.dtype)
    if not storage.is_integer:
        raise KeepCall(f"{storage} holds no quantized integers")
    return storage


def _bounds(call: OverloadCall) -> tuple[int, int] | None:
    limits = [_known_qparam(call, name) for name in ("quant_min", "quant_max")]
    if any(limit is None for limit in limits):
        raise KeepCall("its bounds are computed")
    low, high = (int(limit.item()) for limit in limits if limit is not None)
    return low, high


def set_export_profile(call: OverloadCall) -> None:
    """Sets the graph's profile to that of exported programs, unless an engine's is set."""
    # `native` is the default of a new graph, which no program chose.
    if not call.reader.graph.profile or call.reader.graph.profile == "native":
        call.reader.graph.profile = profile_name(PT2E)


def _axis(call: OverloadCall) -> int:
    return call.axis("axis", call.rank("input"))


def _quantize(call: OverloadCall) -> Value:
    set_export_profile(call)
    return _quantize_as(call, _stated_quant_type(call))


def _quantize_channels(call: OverloadCall) -> Value:
    set_export_profile(call)
    return _quantize_as(call, _stated_quant_type(call, _axis(call)))


def _quantize_as(call: OverloadCall, quant: QuantType | None) -> Value:
    x = call.value("input")
    if quant is not None:
        # Passes never take a quantize with a `round` attribute for the end of a kernel.
        attrs: dict[str, Attr] = (
            {"round": "even"} if call.node.meta.get(IS_EXPLICIT_QUANTIZE) else {}
        )
        return call.add_typed("quantize", {"x": x}, x.type.with_element(quant), attrs)
    if _known_qparam(call, "scale" if "scale" in call.arguments else "scales") is not None:
        raise KeepCall("its scale is known and its zero point is not")
    if "scales" in call.arguments:
        raise KeepCall("its scales are computed")
    return call.add_typed(
        "quantize",
        {"x": x, **_runtime_qparams(call)},
        x.type.with_element(_runtime_quant_type(call)),
    )


def _runtime_quant_type(call: OverloadCall) -> QuantType:
    """Returns the type of integers whose parameters are operands."""
    scale = call.value("scale").type.dtype
    return QuantType(_storage(call), F32, None, None, bounds=_bounds(call), scale_dtype=scale)


def _runtime_qparams(call: OverloadCall) -> dict[str, Value]:
    """Returns computed scale and zero point as operands of rank 0."""
    qparams = {}
    for slot, name in (("scale", "scale"), ("zero", "zero_point")):
        value = call.value(name)
        # `_choose_qparams` added the axes of PyTorch's result; the operands here are scalars.
        if value.node.op == "unsqueeze" and not value.node.operands["x"].type.rank:
            value = value.node.operands["x"]
        qparams[slot] = call.scalar(value) if value.type.rank else value
    return qparams


def _dequantize(call: OverloadCall) -> Value:
    set_export_profile(call)
    return _dequantize_as(call, _stated_quant_type(call))


def _dequantize_channels(call: OverloadCall) -> Value:
    set_export_profile(call)
    return _dequantize_as(call, _stated_quant_type(call, _axis(call)))


def _dequantize_as(call: OverloadCall, quant: QuantType | None) -> Value:
    if call.arguments.get("out_dtype") not in (None, torch.float32):
        raise KeepCall("its result is not float32")
    if quant is None:
        if "scales" in call.arguments:
            raise KeepCall("its scales are computed")
        x = call.quantized_value("input")
        if x.type.quant is None or not x.type.quant.dynamic:
            raise KeepCall("its data are not quantized by computed numbers")
        qparams = {f"x.{slot}": value for slot, value in _runtime_qparams(call).items()}
        return call.add("dequantize", {"x": x, **qparams})
    return call.add("dequantize", {"x": as_quantized(call, "input", quant)})


def as_quantized(call: OverloadCall, name: str, quant: QuantType) -> Value:
    """Returns an argument as that quantized type: a typed constant, or a recode of integers."""
    node = call[name]
    # Weights that `convert_pt2e` folded are stored as integers.
    stored = call.reader.stored_tensor(node)
    if stored is not None:
        return call.reader.quantized_constant(node, quant)
    x = call.quantized_value(name)
    if x.type.quant is not None and x.type.quant.has_same_mapping(quant):
        return x
    if x.type.dtype != quant.storage:
        raise KeepCall(f"its data are {x.type.dtype}, not {quant.storage}")
    return call.add_typed("recode", {"x": x}, x.type.with_element(quant))


RULE_BY_LEAST_SCALE = {2.0**-23: "torch.observer", 2.0**-12: "torch.qnnpack.symmetric"}
"""Scale rules by their minimum scale (eps): PyTorch's default, and QNNPACK's."""


def _choose_qparams(call: OverloadCall) -> list[Value]:
    """Reads choose_qparams: scale and zero point from the range of the data."""
    bounds = call.integer("quant_min"), call.integer("quant_max")
    # PyTorch passes eps with each call; it names the rule, since QIR has a rule for each of the
    # two.
    rule = RULE_BY_LEAST_SCALE.get(call.number("eps"))
    if rule is None:
        raise KeepCall(f"its least scale {call.number('eps'):g} is neither 2^-23 nor 2^-12")
    storage = known_dtype(call["dtype"])
    attrs: dict[str, Attr] = {"rule": rule, "storage": storage}
    if bounds != storage.bounds:
        attrs["bounds"] = bounds
    dtypes = [known_dtype(fake.dtype) for fake in call.node.meta["val"]]
    attrs |= {"scale_type": dtypes[0], "zero_type": dtypes[1]}
    set_export_profile(call)
    results = call.add_many("choose_qparams", {"x": call.value("input")}, attrs)
    return [_with_axes_of(call, v, f) for v, f in zip(results, call.node.meta["val"], strict=True)]


def _with_axes_of(call: OverloadCall, value: Value, fake: torch.Tensor) -> Value:
    """Returns a scalar with the axes of size 1 that PyTorch's result has."""
    axes = tuple(range(fake.dim()))
    return call.add("unsqueeze", {"x": value}, {"axes": axes}) if axes else value


# -- fake quantization ----------------------------------------------------------------------------


def _fake_quantize(call: OverloadCall) -> Value:
    return _quantize_dequantize(call, "scale", "zero_point", None)


def _fake_quantize_channels(call: OverloadCall) -> Value:
    return _quantize_dequantize(call, "scale", "zero_point", call.axis("axis", call.rank("self")))


def _fake_quantize_with_mask(call: OverloadCall) -> list[Value | None]:
    """Reads the forms for training, which also return the mask of unclamped elements."""
    # The mask serves the gradient: only a program of training reads it.
    if any(user.users and user.args[1] != 0 for user in call.node.users):
        raise KeepCall("its mask is read")
    enabled = call.arguments.get("fake_quant_enabled")
    if enabled is not None:
        stored = call.reader.stored_tensor(enabled)
        if stored is None:
            raise KeepCall("whether it is enabled is computed")
        # A disabled fake quantization returns its data.
        if not int(stored[1].item()):
            x = call.value("self")
            return [x, None]
    axis = call.axis("axis", call.rank("self")) if "axis" in call.arguments else None
    value = _quantize_dequantize(call, "scale", "zero_point", axis)
    return [value, None]


def _quantize_dequantize(call: OverloadCall, scale: str, zero: str, axis: int | None) -> Value:
    """Adds quantize and dequantize in the smallest storage that holds quant_min..quant_max."""
    set_export_profile(call)
    bounds = call.integer("quant_min"), call.integer("quant_max")
    scales, zeros = _known_qparam(call, scale), _known_qparam(call, zero)
    if scales is None or zeros is None:
        raise KeepCall("its scale or zero point is computed")
    # The storage only has to hold quant_max - quant_min: fake quantization never stores integers.
    bits = next((b for b in (8, 16, 32) if bounds[1] - bounds[0] < 2**b), None)
    if bits is None:
        raise KeepCall(f"its integers reach from {bounds[0]} to {bounds[1]}")
    storage = dtype(f"{'i' if bounds[0] < 0 else 'u'}{bits}")
    quant = quant_type(storage, scales, zeros, axis=axis, bounds=bounds)
    x = call.value("self")
    quantized = call.add_typed("quantize", {"x": x}, x.type.with_element(quant))
    return call.add("dequantize", {"x": quantized})


_PT2E_OPS: dict[str, Callable[[OverloadCall], Any]] = {
    "choose_qparams.tensor": _choose_qparams,
    "quantize_per_tensor.default": _quantize,
    "quantize_per_tensor.tensor": _quantize,
    "quantize_per_tensor.tensor2": _quantize,
    "quantize_per_channel.default": _quantize_channels,
    "dequantize_per_tensor.default": _dequantize,
    "dequantize_per_tensor.tensor": _dequantize,
    "dequantize_per_tensor.tensor2": _dequantize,
    "dequantize_per_channel.default": _dequantize_channels,
}
OPS: dict[str, Callable[[OverloadCall], Any]] = {
    "fake_quantize_per_tensor_affine.default": _fake_quantize,
    "fake_quantize_per_tensor_affine.tensor_qparams": _fake_quantize,
    "fake_quantize_per_channel_affine.default": _fake_quantize_channels,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantize_with_mask,
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantize_with_mask,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantize_with_mask,
}
DECOMPOSED = {f"quantized_decomposed.{name}": read for name, read in _PT2E_OPS.items()}
"""Converters of the ops that PT2E quantization inserts."""
