"""Quantize, dequantize and fake quantization of exported programs, as quantized types."""

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

from .call import KeepCall, OverloadCall, known
from .elements import array
from .profiles import EXPORTED, profile_name

Numbers = NDArray[np.generic]
STATED = "stated"
"""Marks a quantize that the program has after float operators, and no kernel ends in."""


def _numbers(call: OverloadCall, name: str) -> Numbers | None:
    """Returns scales or zero points that are known; None for those that are computed."""
    held = call[name]
    if isinstance(held, fx.Node):
        found = call.reader.held(held)
        return None if found is None else np.atleast_1d(array(found[1]))
    return np.atleast_1d(np.asarray(held))


def quant_type(
    storage: DType,
    scales: Numbers,
    zeros: Numbers,
    *,
    axis: int | None = None,
    bounds: tuple[int, int] | None = None,
) -> QuantType:
    """Returns the type of integers with these scales and zero points.

    Scales of PyTorch are doubles; those that float32 holds are stated as float32.
    """
    wide = scales.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = np.array_equal(wide.astype(np.float32).astype(np.float64), wide)
    kind = F32 if exact else F64
    carried = wide.astype(kind.carrier)
    if axis is None:
        if carried.size != 1 or zeros.size != 1:
            raise KeepCall("a tensor has one scale and one zero point")
        scale, zero = (float(carried.item()),), (int(zeros.item()),)
        return QuantType(storage, F32, scale, zero, bounds=bounds, scale_dtype=kind)
    held = Array(carried, TensorType(carried.shape, kind))
    of_zero: tuple[()] | Array = ()
    if zeros.any():
        whole = zeros.astype(np.int32)
        of_zero = Array(whole, TensorType(whole.shape, dtype("i32")))
    grain = Granularity(((axis, 1),))
    return QuantType(storage, F32, held, of_zero, grain, bounds=bounds, scale_dtype=kind)


def _integer_type(call: OverloadCall, axis: int | None = None) -> QuantType | None:
    """Returns the type that the arguments state; None where the numbers are computed."""
    many = axis is not None
    scales = _numbers(call, "scales" if many else "scale")
    name = "zero_points" if many else "zero_point"
    zeros = np.zeros(1, np.int64) if call[name] is None else _numbers(call, name)
    if scales is None or zeros is None:
        return None
    return quant_type(_storage(call), scales, zeros, axis=axis, bounds=_bounds(call))


def _storage(call: OverloadCall) -> DType:
    held = call["dtype"]
    found = known(held if isinstance(held, torch.dtype) else call.result.dtype)
    if not found.is_integer:
        raise KeepCall(f"{found} holds no quantized integers")
    return found


def _bounds(call: OverloadCall) -> tuple[int, int] | None:
    ends = [_numbers(call, name) for name in ("quant_min", "quant_max")]
    if any(end is None for end in ends):
        raise KeepCall("its bounds are computed")
    low, high = (int(end.item()) for end in ends if end is not None)
    return low, high


def note_exported(call: OverloadCall) -> None:
    """Names the profile of exported programs, unless an engine's is named."""
    if not call.reader.graph.profile or call.reader.graph.profile == "native":
        call.reader.graph.profile = profile_name(EXPORTED)


def _axis(call: OverloadCall) -> int:
    return call.axis("axis", call.rank("input"))


def _quantize(call: OverloadCall) -> Value:
    note_exported(call)
    return _quantized(call, _integer_type(call))


def _quantize_channels(call: OverloadCall) -> Value:
    note_exported(call)
    return _quantized(call, _integer_type(call, _axis(call)))


def _quantized(call: OverloadCall, kind: QuantType | None) -> Value:
    x = call.value("input")
    if kind is not None:
        # What states its rounding is never taken for the end of a kernel.
        attrs: dict[str, Attr] = {"round": "even"} if call.node.meta.get(STATED) else {}
        return call.add_typed("quantize", {"x": x}, x.type.with_element(kind), attrs)
    if _numbers(call, "scale" if "scale" in call.given else "scales") is not None:
        raise KeepCall("its scale is known and its zero point is not")
    if "scales" in call.given:
        raise KeepCall("its scales are computed")
    return call.add_typed("quantize", {"x": x, **_chosen(call)}, x.type.with_element(_open(call)))


def _open(call: OverloadCall) -> QuantType:
    """Returns the type whose parameters are operands."""
    scale = call.value("scale").type.dtype
    return QuantType(_storage(call), F32, None, None, bounds=_bounds(call), scale_dtype=scale)


def _chosen(call: OverloadCall) -> dict[str, Value]:
    """Returns the operands that hold scale and zero point, each of no axes."""
    found = {}
    for slot, name in (("scale", "scale"), ("zero", "zero_point")):
        value = call.value(name)
        if value.node.op == "unsqueeze" and not value.node.operands["x"].type.rank:
            value = value.node.operands["x"]
        found[slot] = call.scalar(value) if value.type.rank else value
    return found


def _dequantize(call: OverloadCall) -> Value:
    note_exported(call)
    return _real(call, _integer_type(call))


def _dequantize_channels(call: OverloadCall) -> Value:
    note_exported(call)
    return _real(call, _integer_type(call, _axis(call)))


def _real(call: OverloadCall, kind: QuantType | None) -> Value:
    if call.given.get("out_dtype") not in (None, torch.float32):
        raise KeepCall("its result is not float32")
    if kind is None:
        if "scales" in call.given:
            raise KeepCall("its scales are computed")
        x = call.integers("input")
        if x.type.quant is None or not x.type.quant.dynamic:
            raise KeepCall("its data are not quantized by computed numbers")
        given = {f"x.{slot}": value for slot, value in _chosen(call).items()}
        return call.add("dequantize", {"x": x, **given})
    return call.add("dequantize", {"x": with_type(call, "input", kind)})


def with_type(call: OverloadCall, name: str, kind: QuantType) -> Value:
    """Returns an argument's integers with a meaning: constants get it as their type."""
    node = call[name]
    stored = call.reader.held(node)
    if stored is not None:
        return call.reader.integers(node, kind)
    x = call.integers(name)
    if x.type.quant is not None and x.type.quant.has_same_mapping(kind):
        return x
    if x.type.dtype != kind.storage:
        raise KeepCall(f"its data are {x.type.dtype}, not {kind.storage}")
    return call.add_typed("recode", {"x": x}, x.type.with_element(kind))


BY_LEAST_SCALE = {2.0**-23: "torch.observer", 2.0**-12: "torch.qnnpack.symmetric"}
"""Range rules by the least scale that they choose."""


def _choose(call: OverloadCall) -> list[Value]:
    """Reads choose_qparams: scale and zero point of the range that the data have."""
    bounds = call.whole("quant_min"), call.whole("quant_max")
    rule = BY_LEAST_SCALE.get(call.real("eps"))
    if rule is None:
        raise KeepCall(f"its least scale {call.real('eps'):g} is neither 2^-23 nor 2^-12")
    storage = known(call["dtype"])
    attrs: dict[str, Attr] = {"rule": rule, "storage": storage}
    if bounds != storage.bounds:
        attrs["bounds"] = bounds
    kinds = [known(fake.dtype) for fake in call.node.meta["val"]]
    attrs |= {"scale_type": kinds[0], "zero_type": kinds[1]}
    note_exported(call)
    made = call.add_many("choose_qparams", {"x": call.value("input")}, attrs)
    return [_shaped(call, v, f) for v, f in zip(made, call.node.meta["val"], strict=True)]


def _shaped(call: OverloadCall, value: Value, fake: torch.Tensor) -> Value:
    """Returns a number with the axes of one element that PyTorch gives it."""
    axes = tuple(range(fake.dim()))
    return call.add("unsqueeze", {"x": value}, {"axes": axes}) if axes else value


# -- fake quantization ----------------------------------------------------------------------------


def _fake(call: OverloadCall) -> Value:
    return _pair(call, "scale", "zero_point", None)


def _fake_channels(call: OverloadCall) -> Value:
    return _pair(call, "scale", "zero_point", call.axis("axis", call.rank("self")))


def _fake_with_switch(call: OverloadCall) -> list[Value | None]:
    """Reads the forms that also return the mask of unclamped elements."""
    if any(user.users and user.args[1] != 0 for user in call.node.users):
        raise KeepCall("its mask is read")
    enabled = call.given.get("fake_quant_enabled")
    if enabled is not None:
        held = call.reader.held(enabled)
        if held is None:
            raise KeepCall("whether it is enabled is computed")
        if not int(held[1].item()):
            x = call.value("self")
            return [x, None]
    axis = call.axis("axis", call.rank("self")) if "axis" in call.given else None
    made = _pair(call, "scale", "zero_point", axis)
    return [made, None]


def _pair(call: OverloadCall, scale: str, zero: str, axis: int | None) -> Value:
    """Adds quantize and dequantize."""
    note_exported(call)
    bounds = call.whole("quant_min"), call.whole("quant_max")
    scales, zeros = _numbers(call, scale), _numbers(call, zero)
    if scales is None or zeros is None:
        raise KeepCall("its scale or zero point is computed")
    bits = next((b for b in (8, 16, 32) if bounds[1] - bounds[0] < 2**b), None)
    if bits is None:
        raise KeepCall(f"its integers reach from {bounds[0]} to {bounds[1]}")
    storage = dtype(f"{'i' if bounds[0] < 0 else 'u'}{bits}")
    kind = quant_type(storage, scales, zeros, axis=axis, bounds=bounds)
    x = call.value("self")
    made = call.add_typed("quantize", {"x": x}, x.type.with_element(kind))
    return call.add("dequantize", {"x": made})


_EXPORTED: dict[str, Callable[[OverloadCall], Any]] = {
    "choose_qparams.tensor": _choose,
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
    "fake_quantize_per_tensor_affine.default": _fake,
    "fake_quantize_per_tensor_affine.tensor_qparams": _fake,
    "fake_quantize_per_channel_affine.default": _fake_channels,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_with_switch,
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_with_switch,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_with_switch,
}
DECOMPOSED = {f"quantized_decomposed.{name}": read for name, read in _EXPORTED.items()}
"""The converters of the ops that PT2E puts into exported programs."""
