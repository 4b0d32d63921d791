"""Layer forms (shapes and attributes) that decide which kernel PyTorch's engines select."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.profiles.kernel_forms import CONVOLUTIONS, TRANSPOSED, Axis, Form, KernelLayer

_MAX_ONEDNN_GROUPS = 100
"""The engine x86 gives convolutions of more groups to fbgemm."""
_MAX_CHECKED_WINDOWS = 1 << 16
"""Windows that are checked one by one; real layers have fewer in the padding."""


def _is_fbgemm_depthwise(of: KernelLayer) -> bool:
    out, channels_per_group = of.weights[:2]
    return (
        channels_per_group == 1
        and of.groups % 8 == 0
        and out in (of.groups, 2 * of.groups)
        and set(of.kernel) <= {3, 5, 7}
        and of.kernel[-2] == of.kernel[-1]
        and set(of.ints("stride")) <= {1, 2}
        and set(of.ints("dilation")) <= {1}
        and all(pads == ((k - 1) // 2,) * 2 for pads, k in zip(of.pads, of.kernel, strict=True))
    )


def _has_incomplete_group_block(of: KernelLayer) -> bool:
    out, channels_per_group = of.weights[:2]
    # fbgemm's group-wise kernels compute 8 groups of 2 channels, or 4 of 4, at a time.
    groups_at_once = {2: 8, 4: 4}.get(channels_per_group, 1)
    return (
        out == channels_per_group * of.groups
        and of.groups > groups_at_once
        and of.groups % groups_at_once > 0
        and set(of.kernel) == {3}
        and set(of.pads) == {(1, 1)}
        and set(of.ints("dilation")) == {1}
        and of.ints("stride")[-2:] in ((1, 1), (2, 2))
    )


def _is_fbgemm_scatter_kernel(of: KernelLayer) -> bool:
    channels_in, out = of.weights[:2]
    return (
        of.groups == 1
        and channels_in % 8 == out % 8 == 0
        and of.kernel[0] == 2
        and of.kernel[1] <= 6
        and set(of.ints("stride")) <= {1, 2}
        and set(of.ints("dilation")) == {1}
        and not any(map(any, of.pads))
    )


def _is_left_to_fbgemm(of: KernelLayer) -> bool:
    return of.groups > _MAX_ONEDNN_GROUPS or _has_zero_points(of)


def _has_zero_points(of: KernelLayer) -> bool:
    if of.quant is None or of.quant.zero is None or of.quant.dynamic:
        return False
    return bool(np.any(np.asarray(of.quant.zeros())))


def _is_shorter_than_padding(of: KernelLayer) -> bool:
    return any(axis.count is not None and axis.count < axis.pads[0] for axis in of.axes)


def _reads_beyond_data(of: KernelLayer) -> bool:
    is_padded_slice = of.op == "conv3d" and of.sizes[0] in (1, None) and any(of.pads[0])
    return is_padded_slice or any(_has_window_of_padding(axis) for axis in of.axes)


def _has_window_of_padding(axis: Axis) -> bool:
    """Returns whether some window reads padding alone."""
    # The window spans (taps - 1) * dilation + 1 elements from its start.
    pad_before, extent = axis.pads[0], (axis.taps - 1) * axis.dilation
    if axis.count is None or axis.size is None:
        return max(axis.pads) > extent
    if axis.count == 0:
        return False
    # The first window ends before the data, or the last one starts behind them.
    if pad_before > extent or (axis.count - 1) * axis.stride - pad_before >= axis.size:
        return True
    if axis.dilation <= axis.size:
        return False
    # All data fit between two taps: only windows that start in the padding before can miss them.
    leading_windows = min(axis.count, -(-pad_before // axis.stride), _MAX_CHECKED_WINDOWS)
    first_tap = (np.arange(leading_windows) * axis.stride - pad_before) % axis.dilation
    return bool(np.any(first_tap >= axis.size))


def _has_one_column(of: KernelLayer) -> bool:
    if of.ints("stride")[-1] < 2 or of.axes[-1].count not in (1, None):
        return False
    rows = of.axes[0].count
    is_tall = rows is None or rows >= 5 or max(of.ints("dilation")) > 1
    is_depthwise = of.weights[:2] == (of.groups, 1)
    return of.op == "conv3d" or (of.kernel[-1] > 1 and is_tall and not is_depthwise)


def _has_stride_above_kernel(of: KernelLayer) -> bool:
    return any(s > k for s, k in zip(of.ints("stride"), of.kernel, strict=False))


def _has_known_sizes(of: KernelLayer) -> bool:
    return None not in of.sizes and min(of.weights) > 0


def _is_small_product(of: KernelLayer) -> bool:
    if None in of.sizes or 0 in of.weights:
        return False
    outputs, terms = of.weights
    rows = int(np.prod([size or 0 for size in of.sizes], dtype=np.int64))
    return terms <= 16 or (rows == 1 and terms == 256) or (rows <= 32 and rows * outputs <= 256)


FORMS: Mapping[str, Form] = {
    "depthwise": Form(
        "conv2d or conv3d in as many groups as channels, a multiple of 8, with one result of each"
        " or two; 3, 5 or 7 taps along each axis, as many along the last two, padding of half the"
        " window; strides 1 or 2, no dilation: fbgemm's depthwise kernels",
        _is_fbgemm_depthwise,
        ("conv2d", "conv3d"),
    ),
    "volumes_apart": Form(
        "conv3d of 3 taps along each axis in as many groups as channels, two or more, with one "
        "result of each: a kernel of qnnpack",
        lambda of: of.weights == (of.groups, 1, 3, 3, 3) and of.groups > 1,
        ("conv3d",),
    ),
    "beyond_onednn": Form(
        "more than 100 groups, or weights with a zero point that is not 0: torch's engine x86 "
        "leaves these to fbgemm",
        _is_left_to_fbgemm,
        (*CONVOLUTIONS, *TRANSPOSED),
    ),
    "groups_left_over": Form(
        "conv2d or conv3d whose groups have 2 channels, or 4, and as many results, 3 taps along "
        "each axis, padding 1, no dilation and both last strides 1 or 2: more than 8 groups, or "
        "4, and no multiple of that: fbgemm computes 8 at a time, or 4, out of bounds",
        _has_incomplete_group_block,
        ("conv2d", "conv3d"),
    ),
    "scattered_rows": Form(
        "conv_transpose2d of one group, channels in and out multiples of 8, 2 rows of up to 6 "
        "taps, strides 1 or 2, no padding, no dilation: a kernel of fbgemm, which is right only "
        "for one image with stride 1",
        _is_fbgemm_scatter_kernel,
        ("conv_transpose2d",),
    ),
    "short_result": Form(
        "a result that is shorter along some axis than the padding before it",
        _is_shorter_than_padding,
        (*CONVOLUTIONS, *TRANSPOSED),
    ),
    "onednn_amiss": Form(
        "a convolution, not transposed, with a window of padding alone, or a conv3d of one slice "
        "with padding: oneDNN reads out of bounds",
        _reads_beyond_data,
        CONVOLUTIONS,
    ),
    "one_column": Form(
        "a result of width 1 with a stride of 2 or more: conv3d, or conv2d of 2 taps and more "
        "along its width that has 5 rows and more or a dilation; not depthwise",
        _has_one_column,
        ("conv2d", "conv3d"),
    ),
    "steps_beyond_taps": Form(
        "conv_transpose2d or conv_transpose3d whose stride exceeds its taps along some axis, so "
        "that no input reaches some results: oneDNN 3.13 computes these wrongly",
        _has_stride_above_kernel,
        ("conv_transpose2d", "conv_transpose3d"),
    ),
    "known_rows": Form(
        "linear with a known number of rows",
        _has_known_sizes,
        ("linear",),
    ),
    "small_product": Form(
        "linear of known rows, of 16 terms at most, of one row of 256 terms, or of 32 rows at "
        "most with no more than 256 results: oneDNN leaves these to kernels for VNNI where there "
        "is AMX",
        _is_small_product,
        ("linear",),
    ),
}
"""The forms that profiles of PyTorch name."""
