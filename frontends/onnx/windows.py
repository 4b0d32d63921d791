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
    for axis_size, window, step, spacing in zip(size, kernel, stride, dilation, strict=True):
        if pool and window > 1 and spacing > 1:
            raise KeepOperator(
                f"onnxruntime leaves dilations out of {mode}, the standard counts them"
            )
        if isinstance(axis_size, int):
            # SAME: the result has ceil(size / stride) positions.
            total = (-(-axis_size // step) - 1) * step + (window - 1) * spacing + 1 - axis_size
            if shifts and (pool or spacing == 1) and total + (mode == "SAME_LOWER") < -1:
                raise KeepOperator(f"onnxruntime lets windows of {mode} begin within the data")
            total = max(total, 0)
        elif step == 1:
            # With a stride of 1 the total does not depend on the size.
            total = (window - 1) * spacing
        else:
            raise KeepOperator
        smaller, larger = total // 2, total - total // 2
        # Of an odd total, UPPER has the larger part at the end.
        low.append(smaller if mode == "SAME_UPPER" else larger)
        high.append(larger if mode == "SAME_UPPER" else smaller)
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
    axes = len(sizes)
    if not len(kernel) == len(stride) == len(dilation) == axes or len(pad) != 2 * axes:
        return  # which the op's own rule reports
    for size, window, step, spacing, *pads in zip(
        sizes, kernel, stride, dilation, pad[:axes], pad[axes:], strict=True
    ):
        if (
            isinstance(size, int)
            and step > 0
            and (free := size + sum(pads) - (window - 1) * spacing - 1) < 0
        ):
            if free % step:
                raise KeepOperator(f"a window is larger than its padded side of {size + sum(pads)}")
