"""How MXNet's quantized operators compute, on oneDNN, what is not "accumulate and round once".

All is float32, step by step, and ends with halves to even. A gain is how many steps 1.0 is: 127.5
or 255.5 over what the declared range reaches, whatever the scale is rounded to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.definition import F32, gains
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.code_means import raw_mean
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
_READ = {"i8": float32(127.5), "u8": float32(255.5)}
_WRITTEN = {"i8": float32(127), "u8": float32(255)}
_SUMS = float32(2.0**31 - 1)


def _gain(of: Affine, call: MethodCall) -> np.float32:
    require_per_tensor(call.op, of)
    return float32(gains(of, call.rule, F32))


def _whole(reals: Real32) -> NDArray[np.int64]:
    return np.rint(reals).astype(np.int64)


def _reach(of: Affine, level: np.float32) -> np.float32:
    """Returns what the far end of a quantized type means."""
    if of.ends is None:
        return float32(float32(of.scale) * level)
    return float32(max(abs(float32(of.ends.low)), abs(float32(of.ends.high))))


def gain_recode(call: MethodCall, arrays: Arrays) -> Integers:
    """Requantize: 32-bit integers by one factor, to bytes whose far end is 127 or 255."""
    x, out = call.affine("x"), call.out
    assert out is not None
    kind = str(out.storage)
    if kind not in _WRITTEN or x.storage.bits != 32:
        raise OpError("gain_recode: 32-bit integers become bytes")
    require_per_tensor("gain_recode", x, out)
    step = _reach(x, _SUMS) / _SUMS
    factor = float32(step * float32(_WRITTEN[kind] / _reach(out, _READ[kind])))
    return saturate(_whole(arrays["x"].astype(float32) * factor), out)


def gain_recode_all(call: MethodCall, arrays: Arrays) -> Integers:
    """Concat: the quantized values of each operand by the quotient of gains."""
    out = call.out
    assert out is not None
    parts = []
    for slot in variadic_slots(arrays):
        factor = float32(_gain(out, call) / _gain(call.affine(slot), call))
        parts.append(saturate(_whole(arrays[slot].astype(float32) * factor), out))
    axis = call.attrs["axis"]
    assert isinstance(axis, int)
    return np.concatenate(parts, axis)


def gain_sum(call: MethodCall, arrays: Arrays) -> Integers:
    """Add: each operand by the quotient of gains. Of a signed and an unsigned one, the latter
    becomes a quantized value of the result first; of a result of 32 bits, a quantized value of 8,
    which is what it then counts for."""
    out = call.out
    assert out is not None
    terms: list[Real32] = []
    maps = [call.affine(slot) for slot in ("a", "b")]
    mixed = maps[0].storage != maps[1].storage
    wide = out.storage.bits == 32
    low, high = (-128, 127) if wide else (out.low, out.high)
    most = float32(sum(_reach(of, _READ[str(of.storage)]) for of in maps))
    for slot, of in zip(("a", "b"), maps, strict=True):
        level = _READ[str(of.storage)]
        by = float32(_reach(of, level) * float32(2.0**31)) / float32(most * level)
        term = arrays[slot].astype(float32) * (
            by if wide else float32(_gain(out, call) / _gain(of, call))
        )
        if mixed and str(of.storage) == "u8":
            term = np.clip(np.rint(term), low, high)
        terms.append(np.asarray(term, float32))
    return saturate(_whole(terms[0] + terms[1]), out)


def gain_product(call: MethodCall, arrays: Arrays) -> Integers:
    """Multiply: the product of two quantized values by one factor, what is after the point left
    out, and what 8 bits do not hold wrapped; as floats by 1 over both gains; or as it is."""
    a, b, out = call.affine("a"), call.affine("b"), call.out
    if str(a.storage) != "i8" or str(b.storage) != "i8":
        raise OpError(f"{call.op}: MXNet multiplies quantized values of i8")
    product: NDArray[np.int32] = arrays["a"].astype(np.int32) * arrays["b"].astype(np.int32)
    gains_ = _gain(a, call), _gain(b, call)
    if out is None:
        factor = float32(1.0 / float(gains_[0]) / float(gains_[1]))
        return np.asarray(product.astype(float32) * factor)
    if out.storage.bits == 32:
        return np.asarray(product)
    factor = float32(float32(_gain(out, call) / gains_[0]) / gains_[1])
    cut: Real32 = np.trunc(
        np.clip(product.astype(float32) * factor, float32(-(2.0**31)), float32(2.0**31 - 128))
    )
    return np.asarray(cut.astype(np.int32).astype(out.carrier))


def folded_norm(call: MethodCall, arrays: Arrays) -> Integers:
    """Batch norm: one factor and one offset a channel; u8 becomes i8 first, halves to even."""
    x, out = call.affine("x"), call.out
    assert out is not None
    axis, eps = call.attrs["axis"], call.attrs["eps"]
    assert isinstance(axis, int)
    assert isinstance(eps, float)
    gamma, beta, mean, var = (arrays[s].astype(float32) for s in ("gamma", "beta", "mean", "var"))
    codes = arrays["x"].astype(float32)
    if str(x.storage) == "u8":
        codes = np.clip(np.rint(codes * float32(_READ["i8"] / _READ["u8"])), -128, 127).astype(
            float32
        )
    span = _reach(x, _READ[str(x.storage)])
    most = _reach(out, _READ["i8"])
    inverse = (1 / np.sqrt(var.astype(np.float64) + eps)).astype(float32)  # its epsilon is a double
    # oneDNN is given the variance 1, and adds the epsilon again.
    factor = gamma * inverse * float32(span / most) / np.sqrt(float32(1) + float32(eps))
    offset = (beta - mean * gamma * inverse) * float32(_READ["i8"] / most)
    shape = [1] * codes.ndim
    shape[axis] = -1
    return saturate(_whole(codes * factor.reshape(shape) + offset.reshape(shape)), out)


def raw_mean_of_all(
    x: Integers, x_map: Affine, out: Affine, *, layout: str = "NCHW", divide: bool = False
) -> Integers:
    """Global average pooling of raw integers: `raw_mean` of a window that is the whole image."""
    sides = x.shape[1:-1] if layout == "NHWC" else x.shape[2:]
    return raw_mean(x, x_map, out, kernel=sides, layout=layout, divide=divide)


METHODS: Mapping[str, PluginMethod] = {
    "gain_recode": PluginMethod(gain_recode, ("requantize",)),
    "gain_recode_all": PluginMethod(gain_recode_all, ("concat",), reads=("choose",)),
    "gain_sum": PluginMethod(gain_sum, ("add",), reads=("choose",)),
    "gain_product": PluginMethod(gain_product, ("mul",), reads=("choose",), reals=True),
    "folded_norm": PluginMethod(folded_norm, ("batch_norm",)),
    "raw_mean_of_all": PluginMethod(
        raw_mean_of_all,
        ("global_avg_pool",),
        slots=("x",),
        attrs=("layout",),
        params={"divide": FLAG},
    ),
}
"""The methods of this module, by the name that profiles use."""
