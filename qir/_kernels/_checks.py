"""What the operands of a step must be; each check raises ValueError naming the step."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

BOUNDS = {"u8": (0, 255), "i8": (-128, 127)}


def whole(step: str, what: str, values: Iterable[int], least: int) -> tuple[int, ...]:
    """`values` as integers of at least `least`."""
    result = tuple(int(value) for value in values)
    if any(value < least for value in result):
        raise ValueError(f"{step}: {what} is {result}; {least} is the least possible")
    return result


def of_length(
    step: str, what: str, values: Iterable[int], count: int, least: int
) -> tuple[int, ...]:
    """`values` as `count` integers of at least `least`."""
    result = whole(step, what, values, least)
    if len(result) != count:
        raise ValueError(f"{step}: {what} has {len(result)} numbers, {count} are needed")
    return result


def bounds_of(step: str, codes: str) -> tuple[int, int]:
    """The least and greatest code of a storage type."""
    if codes not in BOUNDS:
        raise ValueError(f"{step}: no codes {codes!r}; known are {', '.join(BOUNDS)}")
    return BOUNDS[codes]


def flip_of(step: str, codes: str) -> int:
    """The bit whose change makes a byte of these codes an unsigned one of the same order."""
    return 0x80 if bounds_of(step, codes)[0] < 0 else 0


def code_in(step: str, what: str, codes: str, value: int) -> int:
    """A code that fits its storage type."""
    least, most = bounds_of(step, codes)
    if not least <= value <= most:
        raise ValueError(f"{step}: {what} is {value}, codes {codes} are {least} to {most}")
    return value


def limits(step: str, codes: str, low: int | None, high: int | None) -> tuple[int, int]:
    """The bounds of a result, those of its storage type where none are given."""
    least, most = bounds_of(step, codes)
    low = least if low is None else low
    high = most if high is None else high
    if not least <= low <= high <= most:
        raise ValueError(
            f"{step}: low {low} and high {high} do not fit codes {codes}, {least} to {most}"
        )
    return low, high


def scale_of(step: str, what: str, value: float) -> np.float32:
    """A scale: a positive number, in float32."""
    scale = np.float32(value)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"{step}: {what} is {value}, not a positive float32")
    return scale


def table_of(step: str, table: NDArray[np.uint8 | np.int8]) -> NDArray[np.uint8]:
    """The 256 bytes of a table."""
    flat = np.ascontiguousarray(table).reshape(-1)
    if flat.dtype.itemsize != 1 or flat.size != 256:
        raise ValueError(f"{step}: table has {flat.size} {flat.dtype}, 256 bytes are needed")
    return flat.view(np.uint8)


def windows(
    step: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """How many windows fit along h and along w."""
    result = []
    for axis in range(2):
        room = sizes[axis] + pad[axis] + pad[axis + 2] - dilation[axis] * (kernel[axis] - 1) - 1
        if room < 0:
            raise ValueError(
                f"{step}: a window of {tuple(kernel)} dilated by {tuple(dilation)} is larger than "
                f"the input of {tuple(sizes)} padded by {tuple(pad)}"
            )
        result.append(room // stride[axis] + 1)
    return tuple(result)


def split_planes(step: str, shape: Iterable[int], moved: bool, axis: int) -> tuple[int, int, int]:
    """(n, channels, pixels) of an array whose channels are `axis` of 4, or of one that stays."""
    sizes = whole(step, "shape", shape, 0)
    if not moved:
        return 1, 1, math.prod(sizes)
    if len(sizes) != 4:
        raise ValueError(f"{step}: shape {sizes} has {len(sizes)} axes, a change of layout needs 4")
    return sizes[0], sizes[axis], math.prod(sizes[1:]) // max(1, sizes[axis])


def permutation(
    step: str, shape: Sequence[int], perm: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same permutation with axes that stay together made one, and at least three axes."""
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"{step}: perm {tuple(perm)} does not order {len(shape)} axes")
    runs: list[list[int]] = []
    for axis in perm:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(range(len(runs)), key=lambda i: runs[i][0])
    sizes = [math.prod(shape[axis] for axis in runs[i]) for i in order]
    places = [order.index(i) for i in range(len(runs))]
    missing = max(0, 3 - len(sizes))
    return (
        (*[1] * missing, *sizes),
        (*range(missing), *(place + missing for place in places)),
    )
