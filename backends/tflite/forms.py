"""Forms of layers that decide which kernel TensorFlow Lite takes, its own or XNNPACK's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.profiles.kernel_forms import Form, KernelLayer

_SMALLEST_RATIO = 2.0**-10


def _same_unpadded(of: KernelLayer) -> bool:
    """Returns whether padding may be stored as SAME, and leaves some rows or columns unread."""
    if max(of.kernel) == 1:
        return False
    unread = False
    for axis in of.axes:
        reach = (axis.taps - 1) * axis.dilation + 1
        if axis.size is None:
            unread |= axis.stride > reach and not any(axis.pads)
            continue
        needed = (-(-axis.size // axis.stride) - 1) * axis.stride + reach - axis.size
        total = max(needed, 0)
        if axis.pads != (total // 2, total - total // 2):
            return False
        unread |= needed < 0
    return unread


def _has_fine_operand(of: KernelLayer) -> bool:
    """Returns whether an operand's scale is below 1/1024 of the result's, in float32."""
    scales = []
    for quant in (of.result, of.data, of.quant):
        if quant is None or quant.scale is None or quant.granularity is not None:
            return False
        scales.append(quant.scales().astype(np.float32))
    with np.errstate(all="ignore"):
        ratios = scales[1] / scales[0], scales[2] / scales[0]
    return bool(min(ratios) < _SMALLEST_RATIO)


def _steps_beyond_window(of: KernelLayer) -> bool:
    return any(s > k for s, k in zip(of.ints("stride"), of.ints("kernel"), strict=False))


def _one_map(of: KernelLayer) -> bool:
    result = of.result
    return result is not None and all(
        q is not None and q.has_same_mapping(result) for q in of.joined
    )


def _weight_blocks(of: KernelLayer) -> bool:
    return of.quant is not None and of.quant.granularity is not None and of.quant.axis is None


FORMS: Mapping[str, Form] = {
    "same_unpadded": Form(
        "conv2d by more than one tap, padded as SAME pads, with a stride that leaves rows or "
        "columns unread: a defect of XNNPACK in TensorFlow 2.21",
        _same_unpadded,
        ("conv2d",),
    ),
    "far_operand": Form(
        "add or sub of which an operand has a scale below 1/1024 of the result's: XNNPACK leaves "
        "these to other kernels",
        _has_fine_operand,
        ("add", "sub"),
    ),
    "steps_beyond_window": Form(
        "max_pool2d whose stride exceeds its window along some axis: XNNPACK leaves these to "
        "other kernels",
        _steps_beyond_window,
        ("max_pool2d",),
    ),
    "one_map": Form(
        "concat whose operands all have the result's quantized type",
        _one_map,
        ("concat",),
    ),
    "weight_blocks": Form(
        "linear whose weights have scales in blocks of terms",
        _weight_blocks,
        ("linear",),
    ),
    "odd_rows": Form(
        "linear whose rows of weights have an odd length: with 4-bit weights XNNPACK leaves these"
        " to other kernels",
        lambda of: of.weights[-1] % 2 == 1,
        ("linear",),
    ),
    "unbiased": Form(
        "linear without a bias: with 16-bit data TensorFlow Lite has another kernel",
        lambda of: not of.biased,
        ("linear",),
    ),
}
"""The forms that profiles of TensorFlow Lite name."""
