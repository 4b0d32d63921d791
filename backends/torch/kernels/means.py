"""Means of u8 as QNNPACK computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.integer_means import ALL_MEANS
from qir.reference.means import divisors, mean_of_steps, run_in_operand_type
from qir.reference.method import (
    Integers,
    MethodCall,
    float32,
    int_list,
    quantized_result,
    require_per_tensor,
    round_to_int32,
    saturate,
)
from qir.reference.products import ProductKernel
from qir.reference.table import compute

Floats = NDArray[np.float64]
Arrays = Mapping[str, Integers]


def mean_by_ratio(call: MethodCall, arrays: Arrays, *, after: bool = False) -> Integers:
    """Computes means of u8 as QNNPACK does.

    Sums of q - z are multiplied by s / (s * n) in float32, and the zero point is added after
    rounding. Padding always counts.

    torch computes what QNNPACK does not support: windows that `ceil` adds, images that the result
    size does not divide, volumes, and means over other axes than 2 and 3.
    """
    x, out = call.affine("x"), quantized_result(call)
    data = arrays["x"]
    channels_last = call.attrs.get("layout") == "NHWC"
    # What QNNPACK does not support goes to torch's own kernel.
    if not _is_qnnpack_mean(call, data.shape, channels_last=channels_last):
        from_raw = call.op in ("global_avg_pool", "adaptive_avg_pool")
        lanes, divide = 16 if channels_last else 0, call.op == "reduce_mean"
        return mean_of_steps(call, arrays, lanes=lanes, raw=from_raw, divide=divide, after=after)
    require_per_tensor(call.op, x, out)
    if not x.same_map(out):
        return run_in_operand_type(partial(mean_by_ratio, after=after), call, arrays)
    steps = (data.astype(np.int64) - int(x.zero)).astype(np.float64)
    # QNNPACK divides by the size of the whole window.
    attrs = dict(call.attrs) | ({"count_pad": True} if "count_pad" in call.attrs else {})
    counting_padding = replace(cast("ProductKernel", call), attrs=attrs)
    counts = divisors(counting_padding, steps.shape)
    # The mean times the count restores the integer sum exactly, after rint.
    total = np.rint(compute(call.op, {"x": steps}, attrs).astype(np.float64) * counts)
    return _scaled(total, counts, x, out)


def _scaled(total: Floats, count: Floats, x: Affine, out: Affine) -> Integers:
    """Returns sums of q - z times s / (s * n), with the zero point of the result."""
    scale = float32(x.scale)
    ratio = scale / (scale * count.astype(float32))
    return saturate(round_to_int32(total.astype(float32) * ratio) + int(out.zero), out)


def mean_by_ratio_of_sums(
    sums: NDArray[np.int64], count: int, x: Affine, out: Affine, *, rule: Rule, after: bool = False
) -> Integers:
    """Returns means of sums of raw integers by QNNPACK; see `mean_by_ratio`."""
    total = (sums - count * int(x.zero)).astype(np.float64)
    return _scaled(total, np.asarray(count, np.float64), x, out)


def _is_of_sums_alone(call: MethodCall, shape: tuple[int, ...]) -> bool:
    """Returns whether QNNPACK computes a mean, in its operand's type and without padding."""
    x, out = call.affine("x"), call.out
    if out is None or not x.same_map(out):
        return False
    if "pad" in call.attrs and any(int_list(call.attrs, "pad")):
        return False
    return _is_qnnpack_mean(call, shape, channels_last=call.attrs.get("layout") == "NHWC")


def _is_qnnpack_mean(call: MethodCall, shape: tuple[int, ...], *, channels_last: bool) -> bool:
    """Returns whether QNNPACK computes a mean."""
    if call.op.startswith("avg_pool"):
        return call.attrs["ceil"] is not True
    if call.op == "reduce_mean":
        return len(shape) == 4 and sorted(int_list(call.attrs, "axes")) == [2, 3]
    image_sizes = shape[1:-1] if channels_last else shape[2:]
    if len(image_sizes) > 2:
        return False
    if call.op == "global_avg_pool":
        return True
    return all(a % b == 0 for a, b in zip(image_sizes, int_list(call.attrs, "size"), strict=True))


METHODS: Mapping[str, PluginMethod] = {
    "mean_by_ratio": PluginMethod(
        mean_by_ratio,
        ALL_MEANS,
        reads=("quantize",),
        params={"after": FLAG},
        of_sums=mean_by_ratio_of_sums,
        sums_alone=_is_of_sums_alone,
    ),
}
"""The methods of this module, by the name that profiles use."""
