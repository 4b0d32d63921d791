"""How torch's quantized kernels make means: of windows, of whole images, along lines, over volumes.

Where it is said float32, every step rounds to float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import cast

import numpy as np
from numpy.typing import NDArray

from qir.ir.types import TensorType
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.integer_means import ALL_MEANS
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    int_list,
    quantized_result,
    require_per_tensor,
    round_to_int32,
    saturate,
)
from qir.reference.pool import counts
from qir.reference.products import ProductKernel
from qir.reference.table import compute
from qir.reference.volume_means import mean_of_volumes
from qir.reference.windows import windows_along_axis

Arrays = Mapping[str, Integers]


def run_in_operand_type(
    kernel: Callable[[MethodCall, Arrays], Integers], call: MethodCall, arrays: Arrays
) -> Integers:
    """Returns what a kernel makes in its operand's map, dequantized and quantized to the result's:
    all that a model can do, as the kernel makes no other."""
    x, out = call.affine("x"), quantized_result(call)
    kept_type = TensorType(call.result.shape, call.types["x"].element)
    result = kernel(replace(cast("ProductKernel", call), result=kept_type), arrays)
    return quantize(dequantize(result, x, call.rule), out, call.rule)


def mean_of_steps(
    call: MethodCall,
    arrays: Arrays,
    *,
    lanes: int = 0,
    fused: bool = False,
    raw: bool = False,
    divide: bool = False,
    after: bool = False,
) -> Integers:
    """Means in steps of the quantized value: the sum of q - z is whole, times 1 / n in float32.

    Single elements add the zero point before rounding. `lanes` channels make a vector, which adds
    it after rounding, or before by one multiply-add where it is `fused`. `after`: single
    elements of channels-last data, and of whole means, add it after rounding too. `raw`: the zero
    point is in the sum from the start, and 1 is divided by one side of a window after the other,
    in float32; not so for images of one channel, which are in memory as channels-last ones do.
    `divide`: the
    sum is divided by n. A volume's whole mean is one over its last axes; with channels last, and
    over axes that are not the last ones, means pass through float.
    """
    x, out = call.affine("x"), quantized_result(call)
    require_per_tensor(call.op, x, out)
    # The kernel keeps its operand's parameters; others take a second step.
    if not x.same_map(out):
        kernel = partial(
            mean_of_steps, lanes=lanes, fused=fused, raw=raw, divide=divide, after=after
        )
        return run_in_operand_type(kernel, call, arrays)
    if call.op == "reduce_mean" and not _is_inner_mean(call, arrays["x"].ndim):
        # torch's kernel reduces the last axes only; other axes are averaged as floats.
        floats = (arrays["x"].astype(np.int32) - int(x.zero)).astype(float32) * float32(x.scale)
        return quantize(compute(call.op, {"x": floats}, call.attrs), out, call.rule)
    raw = raw and arrays["x"].shape[1] > 1
    # The global mean of a volume has a loop of its own: no vectors, and a division.
    if arrays["x"].ndim == 5 and _is_global(call):
        if _channels(call, 5) == 4 and arrays["x"].shape[4] > 1:
            return mean_of_volumes(arrays["x"], x, out, call.rule)
        raw, divide, lanes, after = False, True, 0, False
    # q - z: the sum of whole numbers is exact in float64.
    steps = (arrays["x"].astype(np.int64) - int(x.zero)).astype(np.float64)
    mean = compute(call.op, {"x": steps}, call.attrs).astype(np.float64)
    number = divisors(call, steps.shape)
    # The mean times the count is the whole sum again.
    sums, zero = np.rint(mean * number), float32(out.zero)
    if raw:
        sums, zero = sums + float(out.zero) * number, float32(0)
    total, divisor = sums.astype(float32), number.astype(float32)
    # The kernel divides 1 by the height, then by the width, each rounded to float32.
    sides = _sides(call, steps.shape) if raw and call.op != "reduce_mean" else [divisor]
    scaled = total / divisor if divide else total * reduce(np.divide, sides, np.ones((), float32))
    adds_zero_after = after and not raw and _is_channels_last_or_global(call, arrays["x"].shape)
    scalar_result = (
        round_to_int32(scaled) + int(out.zero)
        if adds_zero_after
        else round_to_int32(np.asarray(scaled + zero, float32))
    )
    if not lanes:
        return saturate(scalar_result, out)
    vector_result = (
        round_to_int32(fma(total, float32(1) / divisor, zero))
        if fused
        else round_to_int32(scaled) + int(out.zero)
    )
    channels = _channels(call, mean.ndim)
    # Complete vectors of channels; what is left over of the channels goes element by element.
    is_in_vector = np.arange(mean.shape[channels]) < mean.shape[channels] // lanes * lanes
    shape = [-1 if axis == channels else 1 for axis in range(mean.ndim)]
    return saturate(np.where(is_in_vector.reshape(shape), vector_result, scalar_result), out)


def _is_inner_mean(call: MethodCall, rank: int) -> bool:
    """Returns whether a mean is over the last axes, all of them."""
    axes = sorted(a % rank for a in int_list(call.attrs, "axes")) or list(range(rank))
    return axes == list(range(rank - len(axes), rank))


def _is_channels_last_or_global(call: MethodCall, shape: tuple[int, ...]) -> bool:
    """Returns whether a mean is of data with channels last, or of a whole image: windows of images
    in the plain order have a loop of their own, in which zero points are added before rounding."""
    if call.op in ("avg_pool1d", "avg_pool2d"):
        return call.attrs.get("layout") == "NHWC" or shape[1] == 1
    return call.op != "reduce_mean"


def _is_global(call: MethodCall) -> bool:
    """Returns whether each image has one mean."""
    if call.op == "adaptive_avg_pool":
        return set(int_list(call.attrs, "size")) == {1}
    return call.op == "global_avg_pool"


def _channels(call: MethodCall, rank: int) -> int:
    return rank - 1 if call.attrs.get("layout") == "NHWC" else 1


def divisors(call: MethodCall, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """By how many elements each sum is divided, shaped to go with the result."""
    if call.op == "reduce_mean":
        axes = [a % len(shape) for a in int_list(call.attrs, "axes")] or list(range(len(shape)))
        return np.array(float(math.prod(shape[a] for a in axes)))
    return reduce(np.multiply, _sides(call, shape), np.ones(()))


def _sides(call: MethodCall, shape: tuple[int, ...]) -> list[Float32Array]:
    """Returns how many elements windows take of each axis of an image, shaped to go with the
    result."""
    channels = _channels(call, len(shape))
    sides = [size for axis, size in enumerate(shape) if axis not in (0, channels)]
    if call.op == "global_avg_pool":
        counts_per_axis = [np.array([float(size)]) for size in sides]
    elif call.op == "adaptive_avg_pool":
        counts_per_axis = [
            _adaptive_counts(a, b) for a, b in zip(sides, int_list(call.attrs, "size"), strict=True)
        ]
    else:
        kernel, stride, pad = (int_list(call.attrs, name) for name in ("kernel", "stride", "pad"))
        ceil, no_dilation = call.attrs["ceil"] is True, (1,) * len(sides)
        windows = windows_along_axis(call.op, sides, kernel, stride, pad, no_dilation, ceil=ceil)
        counts_per_axis = [counts(window, call.attrs["count_pad"] is True) for window in windows]
    return [
        _along_side(one.astype(float32), i, len(sides), channels != 1)
        for i, one in enumerate(counts_per_axis)
    ]


def _along_side(numbers: Float32Array, index: int, rank: int, last: bool) -> Float32Array:
    """Numbers along one of the sides of a result, whose channels may be last."""
    return numbers.reshape(-1, *(1,) * (rank - 1 - index + last))


def _adaptive_counts(size: int, count: int) -> NDArray[np.float64]:
    """Returns how many elements of an axis each of `count` means takes."""
    index = np.arange(count)
    return (-(-(index + 1) * size // count) - index * size // count).astype(np.float64)


METHODS: Mapping[str, PluginMethod] = {
    "mean_of_steps": PluginMethod(
        mean_of_steps,
        ALL_MEANS,
        reads=("quantize",),
        params={"lanes": Param(), "fused": FLAG, "raw": FLAG, "divide": FLAG, "after": FLAG},
    ),
}
"""The methods of this module, by the name that profiles use."""
