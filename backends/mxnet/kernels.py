"""Quantized operators of MXNet on oneDNN that do not accumulate integers and round once.

Everything is float32, step by step, with ties to even at the end. A gain is the number of steps in
1.0: 127.5 or 255.5 over the larger end of the declared range, whatever the scale is rounded to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.definition import F32, gains
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.integer_means import integer_mean
from qir.reference.method import (
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    saturate,
    variadic_slots,
)

Arrays = Mapping[str, Integers]
Real32 = NDArray[np.float32]
_RANGE_DIVISORS = {"i8": float32(127.5), "u8": float32(255.5)}
_WRITTEN_DIVISORS = {"i8": float32(127), "u8": float32(255)}
_INT32_MAX = float32(2.0**31 - 1)


def _type_gain(affine: Affine, call: MethodCall) -> np.float32:
    require_per_tensor(call.op, affine)
    return float32(gains(affine, call.rule, F32))


def _round_to_int(floats: Real32) -> NDArray[np.int64]:
    return np.rint(floats).astype(np.int64)


def _range_maximum(affine: Affine, level: np.float32) -> np.float32:
    """Returns the float that the larger end of a quantized type means."""
    if affine.ends is None:
        return float32(float32(affine.scale) * level)
    return float32(max(abs(float32(affine.ends.low)), abs(float32(affine.ends.high))))


def requantize_by_gain(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Requantize: int32 by one factor, to bytes whose end is 127 or 255."""
    x, out = call.affine("x"), call.out
    assert out is not None
    storage = str(out.storage)
    if storage not in _WRITTEN_DIVISORS or x.storage.bits != 32:
        raise OpError("gain_recode: 32-bit integers become bytes")
    require_per_tensor("gain_recode", x, out)
    # The float that one step of the int32 sum means.
    step = _range_maximum(x, _INT32_MAX) / _INT32_MAX
    factor = float32(
        step * float32(_WRITTEN_DIVISORS[storage] / _range_maximum(out, _RANGE_DIVISORS[storage]))
    )
    return saturate(_round_to_int(arrays["x"].astype(float32) * factor), out)


def concat_by_gain(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Concat: the integers of each operand times the quotient of gains."""
    out = call.out
    assert out is not None
    parts = []
    for slot in variadic_slots(arrays):
        factor = float32(_type_gain(out, call) / _type_gain(call.affine(slot), call))
        parts.append(saturate(_round_to_int(arrays[slot].astype(float32) * factor), out))
    axis = call.attrs["axis"]
    assert isinstance(axis, int)
    return np.concatenate(parts, axis)


def add_by_gain(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Add: each operand times the quotient of gains.

    Of an i8 and a u8 operand, the latter is rounded to an integer of the result first; for an int32
    result, to one of 8 bits, which is what it then counts for.
    """
    out = call.out
    assert out is not None
    terms: list[Real32] = []
    operand_types = [call.affine(slot) for slot in ("a", "b")]
    mixed = operand_types[0].storage != operand_types[1].storage
    is_int32 = out.storage.bits == 32
    # The rounding within is to 8 bits, also where the result has 32.
    low, high = (-128, 127) if is_int32 else (out.low, out.high)
    result_maximum = float32(
        sum(
            _range_maximum(operand_type, _RANGE_DIVISORS[str(operand_type.storage)])
            for operand_type in operand_types
        )
    )
    for slot, operand_type in zip(("a", "b"), operand_types, strict=True):
        level = _RANGE_DIVISORS[str(operand_type.storage)]
        factor = float32(_range_maximum(operand_type, level) * float32(2.0**31)) / float32(
            result_maximum * level
        )
        term = arrays[slot].astype(float32) * (
            factor if is_int32 else float32(_type_gain(out, call) / _type_gain(operand_type, call))
        )
        if mixed and str(operand_type.storage) == "u8":
            term = np.clip(np.rint(term), low, high)
        terms.append(np.asarray(term, float32))
    return saturate(_round_to_int(terms[0] + terms[1]), out)


def multiply_by_gain(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Multiply: the product of integers times one factor, truncated, and wrapped to 8
    bits.

    A float result is multiplied by 1 over both gains, an int32 result not at all.
    """
    a, b, out = call.affine("a"), call.affine("b"), call.out
    if str(a.storage) != "i8" or str(b.storage) != "i8":
        raise OpError(f"{call.op}: MXNet multiplies quantized values of i8")
    product: NDArray[np.int32] = arrays["a"].astype(np.int32) * arrays["b"].astype(np.int32)
    gains_ = _type_gain(a, call), _type_gain(b, call)
    if out is None:
        factor = float32(1.0 / float(gains_[0]) / float(gains_[1]))
        return np.asarray(product.astype(float32) * factor)
    if out.storage.bits == 32:
        return np.asarray(product)
    # Two divisions, each rounded to float32, in the kernel's order.
    factor = float32(float32(_type_gain(out, call) / gains_[0]) / gains_[1])
    # The conversion to int32 truncates and saturates; that to 8 bits wraps.
    truncated: Real32 = np.trunc(
        np.clip(product.astype(float32) * factor, float32(-(2.0**31)), float32(2.0**31 - 128))
    )
    return np.asarray(truncated.astype(np.int32).astype(out.carrier))


def batch_norm_folded(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes batch norm: one factor and offset per channel; u8 is rounded to i8 first."""
    x, out = call.affine("x"), call.out
    assert out is not None
    axis, eps = call.attrs["axis"], call.attrs["eps"]
    assert isinstance(axis, int)
    assert isinstance(eps, float)
    gamma, beta, mean, var = (arrays[s].astype(float32) for s in ("gamma", "beta", "mean", "var"))
    integers = arrays["x"].astype(float32)
    # oneDNN's batch norm reads i8 alone: u8 is rescaled from 255.5 to 127.5 steps first.
    if str(x.storage) == "u8":
        integers = np.clip(
            np.rint(integers * float32(_RANGE_DIVISORS["i8"] / _RANGE_DIVISORS["u8"])), -128, 127
        ).astype(float32)
    data_maximum = _range_maximum(x, _RANGE_DIVISORS[str(x.storage)])
    result_maximum = _range_maximum(out, _RANGE_DIVISORS["i8"])
    inverse = (1 / np.sqrt(var.astype(np.float64) + eps)).astype(float32)  # its epsilon is a double
    # oneDNN is given the variance 1, and adds the epsilon again.
    factor = (
        gamma
        * inverse
        * float32(data_maximum / result_maximum)
        / np.sqrt(float32(1) + float32(eps))
    )
    offset = (beta - mean * gamma * inverse) * float32(_RANGE_DIVISORS["i8"] / result_maximum)
    shape = [1] * integers.ndim
    shape[axis] = -1
    return saturate(_round_to_int(integers * factor.reshape(shape) + offset.reshape(shape)), out)


def raw_mean_of_all(
    x: Integers, x_map: Affine, out: Affine, *, layout: str = "NCHW", divide: bool = False
) -> Integers:
    """Global average pooling of raw integers: `integer_mean` of a window of the whole image."""
    image_sizes = x.shape[1:-1] if layout == "NHWC" else x.shape[2:]
    return integer_mean(x, x_map, out, kernel=image_sizes, layout=layout, divide=divide)


METHODS: Mapping[str, PluginMethod] = {
    "gain_recode": PluginMethod(requantize_by_gain, ("requantize",)),
    "gain_recode_all": PluginMethod(concat_by_gain, ("concat",), reads=("choose",)),
    "gain_sum": PluginMethod(add_by_gain, ("add",), reads=("choose",)),
    "gain_product": PluginMethod(multiply_by_gain, ("mul",), reads=("choose",), reals=True),
    "folded_norm": PluginMethod(batch_norm_folded, ("batch_norm",)),
    "raw_mean_of_all": PluginMethod(
        raw_mean_of_all,
        ("global_avg_pool",),
        slots=("x",),
        attrs=("layout",),
        params={"divide": FLAG},
    ),
}
"""The methods of this module, by the name that profiles use."""
