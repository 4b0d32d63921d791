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


def _up(rule: Rule) -> Rule:
    """Returns the rule of whole vectors."""
    if rule.requant.round != "double":
        raise OpError("what vectors leave over is rounded by requant.round = 'double'")
    return replace(rule, requant=replace(rule.requant, round="double_up"))


def recode_vectors(x: Integers, x_map: Affine, out: Affine, *, rule: Rule, lanes: int) -> Integers:
    """Quantized values to quantized values, so many at a time."""
    vectors = fixed_recode(x, x_map, out, rule=_up(rule))
    rest = fixed_recode(x, x_map, out, rule=rule)
    places = np.arange(x.size).reshape(x.shape) < x.size // lanes * lanes
    return np.where(places, vectors, rest)


def short_recode(x: Integers, x_map: Affine, out: Affine) -> Integers:
    """Quantized values to quantized values: (q - z) by the scales' quotient with 8 bits after the
    point, halves up; by a quotient below 1/256, which XNNPACK does not take, in vectors of
    sixteen."""
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
    vectors = transposed(replace(call, rule=_up(call.rule)), arrays)
    rest = transposed(call, arrays)
    n, channels, *sizes = rest.shape
    count = channels if rows else rest.size
    places = np.arange(rest.size).reshape(n, *sizes, channels) % count < count // lanes * lanes
    return np.where(np.moveaxis(places, -1, 1), vectors, rest)


def depth_vectors(call: MethodCall, arrays: Mapping[str, Integers], *, lanes: int) -> Integers:
    """Returns a convolution of channels each by itself, whose sums are scaled so many channels at a
    time."""
    if not isinstance(call, ProductKernel) or call.types["w"].shape[1] != 1:
        raise OpError(f"{call.op}: depth_vectors is of channels each by itself")
    plain = replace(call.rule, method=None)
    vectors = integer_product(replace(call, rule=_up(plain)), arrays)
    rest = integer_product(replace(call, rule=plain), arrays)
    axis = -1 if call.attrs["layout"] == "NHWC" else 1
    count = rest.shape[axis]
    places = np.arange(count) < count // lanes * lanes
    return np.where(places if axis == -1 else places.reshape(-1, 1, 1), vectors, rest)


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
    """a + b as `fixed_sum` has it, but in vectors, where products round halves up, and bits that
    leave by a shift are dropped: each is shifted before it is multiplied, or `after` that. The
    zero point is added in 16 bits, where results wrap."""
    if a.shape != b.shape:
        raise OpError("sum_vectors: tensors of two shapes, whose vectors were not looked at")
    rest = fixed_sum(a, b, a_map, b_map, out, rule=DOUBLE)
    twice = 2 * max(float(a_map.scale), float(b_map.scale))
    total = np.zeros(a.shape, np.int64)
    for x, of in ((a, a_map), (b, b_map)):
        q, exponent = to_fixed_point(float(of.scale) / twice)
        value = x.astype(np.int64) - int(of.zero)
        if after:
            total += _shifted(_high(value << _MORE, q), exponent)
        else:
            total += _high(_shifted(value, _MORE + exponent), q)
    q, exponent = to_fixed_point(twice / ((1 << _MORE) * float(out.scale)))
    whole = shift_right_away(_high(total, q).astype(np.int32), np.array(max(-exponent, 0)))
    short = (whole.astype(np.int64) + int(out.zero)).astype(np.int16)
    vectors = saturate(short.astype(np.int64), out)
    places = np.arange(a.size).reshape(a.shape) < a.size // lanes * lanes
    return np.where(places, vectors, rest)


_MORE = 20
"""Bits that sums of 8-bit integers have more."""


def _high(x: Int64Array, q: int) -> Int64Array:
    """Returns the upper half of twice a product, rounded, halves up."""
    return np.asarray((x * q + (1 << 30)) >> 31)


def _shifted(x: Int64Array, by: int) -> Int64Array:
    """Shifted to the left, or to the right where bits are dropped."""
    return np.asarray(x << by if by >= 0 else x >> -by)


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
