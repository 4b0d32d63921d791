"""Layer forms that decide whether TensorFlow Lite's own kernel or XNNPACK's is used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.profiles.kernel_forms import Form, KernelLayer

_MIN_XNNPACK_RATIO = 2.0**-10
"""The smallest quotient of an operand's and the result's scale that XNNPACK's sums accept."""


def _is_same_padded_with_unread_data(of: KernelLayer) -> bool:
    """Returns whether padding may be stored as SAME, and some rows or columns stay unread."""
    if max(of.kernel) == 1:
        return False
    unread = False
    for axis in of.axes:
        window_extent = (axis.taps - 1) * axis.dilation + 1
        if axis.size is None:
            unread |= axis.stride > window_extent and not any(axis.pads)
            continue
        # SAME: ceil(size / stride) windows; the padding is what they need beyond the data.
        needed = (-(-axis.size // axis.stride) - 1) * axis.stride + window_extent - axis.size
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
    # A scale of zero gives infinity or NaN, which is not below the limit.
    with np.errstate(all="ignore"):
        ratios = scales[1] / scales[0], scales[2] / scales[0]
    return bool(min(ratios) < _MIN_XNNPACK_RATIO)


def _has_stride_above_window(of: KernelLayer) -> bool:
    return any(s > k for s, k in zip(of.ints("stride"), of.ints("kernel"), strict=False))


def _has_one_type(of: KernelLayer) -> bool:
    result = of.result
    return result is not None and all(
        q is not None and q.has_same_mapping(result) for q in of.joined
    )


def _has_weight_blocks(of: KernelLayer) -> bool:
    return of.quant is not None and of.quant.granularity is not None and of.quant.axis is None


FORMS: Mapping[str, Form] = {
    "same_unpadded": Form(
        "conv2d by more than one tap, padded as SAME pads, with a stride that leaves rows or "
        "columns unread: a defect of XNNPACK in TensorFlow 2.21",
        _is_same_padded_with_unread_data,
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
        _has_stride_above_window,
        ("max_pool2d",),
    ),
    "one_map": Form(
        "concat whose operands all have the result's quantized type",
        _has_one_type,
        ("concat",),
    ),
    "weight_blocks": Form(
        "linear whose weights have scales in blocks of terms",
        _has_weight_blocks,
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
