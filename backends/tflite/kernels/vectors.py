"""TensorFlow Lite's vector kernels where they differ from their remainder loops: both round sums
twice, vectors halves up the second time; and the kernels that XNNPACK leaves to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.rounding import shift_right_away
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.fixed_point import Int64Array, to_fixed_point
from qir.reference.method import Integers, MethodCall, saturate
from qir.reference.products import ProductKernel, integer_product
from qir.reference.transposed import transposed

from .sums_and_means import DOUBLE, fixed_recode, fixed_sum, to_8_fraction_bits


# Vector and remainder loops differ in the second rounding alone.
def _vector_rule(rule: Rule) -> Rule:
    """Returns the rule of whole vectors."""
    if rule.requant.round != "double":
        raise OpError("what vectors leave over is rounded by requant.round = 'double'")
    return replace(rule, requant=replace(rule.requant, round="double_up"))


def recode_vectors(x: Integers, x_map: Affine, out: Affine, *, rule: Rule, lanes: int) -> Integers:
    """Requantizes integers as vectors of `lanes` and a remainder."""
    vectors = fixed_recode(x, x_map, out, rule=_vector_rule(rule))
    tail = fixed_recode(x, x_map, out, rule=rule)
    in_vectors = np.arange(x.size).reshape(x.shape) < x.size // lanes * lanes
    return np.where(in_vectors, vectors, tail)


def short_recode(x: Integers, x_map: Affine, out: Affine) -> Integers:
    """Requantizes as XNNPACK does: (q - z) times the scales' quotient with 8 fraction bits, ties
    up.

    XNNPACK leaves quotients below 1/256 to a TensorFlow Lite kernel with vectors of sixteen.
    """
    ratio = np.float32(x_map.scale) / np.float32(out.scale)
    if ratio < 2.0**-8:
        return recode_vectors(x, x_map, out, rule=DOUBLE, lanes=16)
    if x_map.axis is not None:
        raise OpError("short_recode: one scale a tensor, not one a channel")
    value = x.astype(np.int64) - int(x_map.zero)
    return saturate(((value * to_8_fraction_bits(ratio) + 128) >> 8) + int(out.zero), out)


def transposed_vectors(
    call: MethodCall, arrays: Mapping[str, Integers], *, lanes: int, rows: bool = False
) -> Integers:
    """Returns a transposed convolution whose sums are scaled so many at a time, channels last in
    memory: all of them one after the other, or the channels of each place (`rows`)."""
    if not isinstance(call, ProductKernel):
        raise OpError(f"{call.op}: transposed_vectors is of transposed convolutions")
    vectors = transposed(replace(call, rule=_vector_rule(call.rule)), arrays)
    tail = transposed(call, arrays)
    n, channels, *sizes = tail.shape
    count = channels if rows else tail.size
    # Whole vectors come first, either in the whole tensor or in each pixel's channels.
    in_vectors = np.arange(tail.size).reshape(n, *sizes, channels) % count < count // lanes * lanes
    return np.where(np.moveaxis(in_vectors, -1, 1), vectors, tail)


def depth_vectors(call: MethodCall, arrays: Mapping[str, Integers], *, lanes: int) -> Integers:
    """Returns a convolution of channels each by itself, whose sums are scaled so many channels at a
    time."""
    if not isinstance(call, ProductKernel) or call.types["w"].shape[1] != 1:
        raise OpError(f"{call.op}: depth_vectors is of channels each by itself")
    plain_rule = replace(call.rule, method=None)
    vectors = integer_product(replace(call, rule=_vector_rule(plain_rule)), arrays)
    tail = integer_product(replace(call, rule=plain_rule), arrays)
    axis = -1 if call.attrs["layout"] == "NHWC" else 1
    count = tail.shape[axis]
    in_vectors = np.arange(count) < count // lanes * lanes
    return np.where(in_vectors if axis == -1 else in_vectors.reshape(-1, 1, 1), vectors, tail)


def sum_vectors(
    a: Integers,
    b: Integers,
    a_map: Affine,
    b_map: Affine,
    out: Affine,
    *,
    lanes: int,
    after: bool = False,
) -> Integers:
    """Computes a + b as `fixed_sum`, but in vectors, where products round ties up and shifts drop
    bits.

    Operands are shifted before they are multiplied, or after it (`after`). The zero point is added
    in 16 bits, where results wrap.
    """
    if 1 in (a.size, b.size):
        a, b = np.broadcast_arrays(a, b)
    if a.shape != b.shape:
        raise OpError(
            "sum_vectors: no rule is known for sums of two shapes with scales so far apart; leave"
            " this sum float, or run the model with profile tflite-2.21.ref"
        )
    tail = fixed_sum(a, b, a_map, b_map, out, rule=DOUBLE)
    unit = 2 * max(float(a_map.scale), float(b_map.scale))
    total = np.zeros(a.shape, np.int64)
    for x, affine in ((a, a_map), (b, b_map)):
        q, exponent = to_fixed_point(float(affine.scale) / unit)
        value = x.astype(np.int64) - int(affine.zero)
        if after:
            total += _shift(_doubling_high_half(value << _EXTRA_BITS, q), exponent)
        else:
            total += _doubling_high_half(_shift(value, _EXTRA_BITS + exponent), q)
    q, exponent = to_fixed_point(unit / ((1 << _EXTRA_BITS) * float(out.scale)))
    scaled = shift_right_away(
        _doubling_high_half(total, q).astype(np.int32), np.array(max(-exponent, 0))
    )
    # The zero point is added in 16 bits, so a large sum wraps before it is clamped.
    wrapped = (scaled.astype(np.int64) + int(out.zero)).astype(np.int16)
    vectors = saturate(wrapped.astype(np.int64), out)
    in_vectors = np.arange(a.size).reshape(a.shape) < a.size // lanes * lanes
    return np.where(in_vectors, vectors, tail)


_EXTRA_BITS = 20
"""Bits that sums of 8-bit integers have more."""


def _doubling_high_half(x: Int64Array, q: int) -> Int64Array:
    """Returns the upper half of twice a product, rounded, halves up."""
    return np.asarray((x * q + (1 << 30)) >> 31)


def _shift(x: Int64Array, amount: int) -> Int64Array:
    """Shifted to the left, or to the right where bits are dropped."""
    return np.asarray(x << amount if amount >= 0 else x >> -amount)


METHODS: Mapping[str, PluginMethod] = {
    "short_recode": PluginMethod(short_recode, ("requantize",), slots=("x",)),
    "recode_vectors": PluginMethod(
        recode_vectors,
        ("requantize",),
        reads=("requant",),
        slots=("x",),
        params={"lanes": Param(needed=True, least=1)},
    ),
    "sum_vectors": PluginMethod(
        sum_vectors,
        ("add",),
        slots=("a", "b"),
        params={"lanes": Param(needed=True, least=1), "after": FLAG},
    ),
    "depth_vectors": PluginMethod(
        depth_vectors,
        ("conv2d",),
        reads=("acc", "bias", "requant", "stage"),
        params={"lanes": Param(needed=True, least=1)},
    ),
    "transposed_vectors": PluginMethod(
        transposed_vectors,
        ("conv_transpose2d",),
        reads=("acc", "bias", "requant", "stage"),
        params={"lanes": Param(needed=True, least=1), "rows": FLAG},
    ),
}
"""The methods of this module, by the name that profiles use."""
