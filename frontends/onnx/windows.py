"""Padding of convolutions and pools, automatic padding in onnxruntime's terms included."""

from __future__ import annotations

from qir.ir.dims import Shape

from .op import KeepOperator, OnnxOp


def explicit_pads(
    op: OnnxOp,
    size: Shape,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    axes: int = 2,
    *,
    pool: bool = False,
    shifts: bool = True,
) -> tuple[int, ...]:
    """Returns the padding as explicit amounts.

    Raises KeepOperator for automatic padding that depends on open sizes, or that onnxruntime
    computes otherwise than the standard: with explicit amounts the operator would compute something
    else there. onnxruntime ignores dilations in a pool's automatic padding. Where automatic padding
    is negative, some of its kernels (`shifts`) let windows begin inside the data.
    """
    mode = op.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return op.integers("pads", (0,) * 2 * axes)
    if mode == "VALID":
        return (0,) * 2 * axes
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise op.error(f"auto_pad {mode!r} is none that ONNX has")
    if not len(size) == len(kernel) == len(stride) == len(dilation) == axes or min(stride) < 1:
        raise op.error(f"kernel, strides and dilations take {axes} numbers, 1 or more")
    low, high = [], []
    for dim, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        if pool and k > 1 and d > 1:
            raise KeepOperator(
                f"onnxruntime leaves dilations out of {mode}, the standard counts them"
            )
        if isinstance(dim, int):
            total = (-(-dim // s) - 1) * s + (k - 1) * d + 1 - dim
            if shifts and (pool or d == 1) and total + (mode == "SAME_LOWER") < -1:
                raise KeepOperator(f"onnxruntime lets windows of {mode} begin within the data")
            total = max(total, 0)
        elif s == 1:
            total = (k - 1) * d
        else:
            raise KeepOperator
        small, large = total // 2, total - total // 2
        low.append(small if mode == "SAME_UPPER" else large)
        high.append(large if mode == "SAME_UPPER" else small)
    return (*low, *high)


def check_window_fits(
    sizes: Shape,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    dilation: tuple[int, ...],
) -> None:
    """Raises KeepOperator where a window exceeds the padded data and onnxruntime still makes a
    result.

    Its integer division rounds the negative room toward zero: one position more than the standard.
    """
    n = len(sizes)
    if not len(kernel) == len(stride) == len(dilation) == n or len(pad) != 2 * n:
        return  # which the op's own rule reports
    for size, k, s, d, *ends in zip(sizes, kernel, stride, dilation, pad[:n], pad[n:], strict=True):
        if isinstance(size, int) and s > 0 and (room := size + sum(ends) - (k - 1) * d - 1) < 0:
            if room % s:
                raise KeepOperator(f"a window is larger than its padded side of {size + sum(ends)}")
