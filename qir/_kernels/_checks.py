"""What the operands of a step must be; each check raises ValueError naming the step."""

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOUNDS = {"u8": (0, 255), "i8": (-128, 127)}
LARGEST = 2**48
"""Largest size of anything; products of sizes are computed in Python, whose ints have no end."""
LARGEST_STEP = 2**31 - 1
"""Largest size, stride, padding or dilation of a window: sums of their products fit 64 bits."""
LARGEST_WINDOW = 2**24
"""Most elements of a window that is pooled: each is looked at, in padding too."""
LARGEST_MEAN = 2**20
"""Most quantized values of a mean: sums of as many float32 values are exact in float64."""
LARGEST_CODE_MEAN = 2**22
"""Most quantized values of a mean that is summed in 32 bits."""
WHOLE_FACTORS = 2**22
"""Most of two whole factors of bytes together: sums with an offset of 2^30 fit 32 bits."""
LONGEST = 64
"""Most numbers in one operand, so that an endless iterator ends."""


def integer(step: str, what: str, value: object, least: int, most: float = LARGEST) -> int:
    """Returns `value` as an int from `least` to `most`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{step}: {what} is {shown(value)}, not an integer") from None
    if number < least:
        raise ValueError(f"{step}: {what} is {number}; {least} is the least possible")
    if number > most:
        raise ValueError(f"{step}: {what} is {shown(number)}; {most} is the most possible")
    return number


def whole(
    step: str, what: str, values: Iterable[int], least: int, most: float = LARGEST
) -> tuple[int, ...]:
    """Returns `values`, which may be an array or an iterator, as ints from `least` to `most`."""
    try:
        found = tuple(islice(values, LONGEST + 1))
        result = tuple(map(operator.index, found))
    except TypeError:
        raise ValueError(f"{step}: {what} is {shown(values)}, not a list of integers") from None
    if len(result) > LONGEST:
        raise ValueError(f"{step}: {what} has more than {LONGEST} numbers")
    if result and min(result) < least:
        raise ValueError(f"{step}: {what} is {shown(result)}; {least} is the least possible")
    if result and max(result) > most:
        raise ValueError(f"{step}: {what} is {shown(result)}; {most} is the most possible")
    return result


def of_length(
    step: str, what: str, values: Iterable[int], count: int, least: int, most: float = LARGEST
) -> tuple[int, ...]:
    """Returns `values` as `count` integers of at least `least`."""
    result = whole(step, what, values, least, most)
    if len(result) != count:
        raise ValueError(f"{step}: {what} has {len(result)} numbers, {count} are needed")
    return result


def number_of(step: str, what: str, value: object) -> float:
    """Returns a number in float64."""
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        return float(value.item() if isinstance(value, np.ndarray) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{step}: {what} is {shown(value)}, not a float") from None


def real_of(step: str, what: str, value: object) -> np.float32:
    """Returns a number in float32."""
    with np.errstate(over="ignore"):
        return np.float32(number_of(step, what, value))


def floats_of(step: str, what: str, array: ArrayLike) -> NDArray[np.float32]:
    """Returns numbers as contiguous float32 of one axis."""
    plain = np.asarray(array)
    if plain.dtype.kind not in "fiu":
        raise ValueError(f"{step}: {what} is {plain.dtype} {plain.shape}, not float32")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(plain, np.float32).reshape(-1)


def integers_of(step: str, what: str, array: ArrayLike, kind: type[np.integer]) -> NDArray[Any]:
    """Returns integers as contiguous ones of `kind`, which holds all of them, of one axis."""
    plain = np.asarray(array)
    held = np.iinfo(kind)
    if plain.size and plain.dtype.kind not in "iu":
        raise ValueError(f"{step}: {what} is {plain.dtype} {plain.shape}, not {held.dtype}")
    if plain.size and not held.min <= int(plain.min()) <= int(plain.max()) <= held.max:
        raise ValueError(f"{step}: {what} has integers that {held.dtype} does not hold")
    return np.ascontiguousarray(plain, kind).reshape(-1)


def external_of(what: str, array: object, size: int, written: bool) -> NDArray[np.generic]:
    """Returns the array that is an external buffer of `size` bytes, as a plain ndarray."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{what} is {shown(array)}, not an array")
    plain = np.asarray(array)
    if plain.dtype.hasobject:
        raise ValueError(f"{what} is {plain.dtype}, whose elements are no plain bytes")
    if plain.nbytes != size or not plain.flags.c_contiguous:
        how = "" if plain.flags.c_contiguous else "not "
        raise ValueError(
            f"{what} has {plain.nbytes} bytes, {how}C-contiguous; "
            f"its buffer is {size} bytes, C-contiguous"
        )
    if written and not plain.flags.writeable:
        raise ValueError(f"{what} is read-only, and steps write to it")
    return plain


def shown(value: object, longest: int = 60) -> str:
    """Returns the start of what Python shows of a value."""
    try:
        text = repr(value)
    except Exception:  # such as an int of too many digits
        text = type(value).__name__
    return text if len(text) <= longest else f"{text[:longest]}..."


def bounds_of(step: str, codes: str) -> tuple[int, int]:
    """Returns the least and greatest integer of a storage type."""
    if codes not in BOUNDS:
        raise ValueError(f"{step}: no storage type {codes!r}; known are {', '.join(BOUNDS)}")
    return BOUNDS[codes]


def flip_of(step: str, codes: str) -> int:
    """Returns the bit whose change makes a byte of this type an unsigned one of the same order."""
    return 0x80 if bounds_of(step, codes)[0] < 0 else 0


def code_in(step: str, what: str, codes: str, value: int) -> int:
    """Returns an integer that fits its storage type."""
    least, most = bounds_of(step, codes)
    number = integer(step, what, value, -LARGEST)
    if not least <= number <= most:
        raise ValueError(f"{step}: {what} is {number}, {codes} holds {least} to {most}")
    return number


def limits(step: str, codes: str, low: int | None, high: int | None) -> tuple[int, int]:
    """Returns the bounds of a result, those of its storage type where none are given."""
    least, most = bounds_of(step, codes)
    low = least if low is None else integer(step, "low", low, -LARGEST)
    high = most if high is None else integer(step, "high", high, -LARGEST)
    if not least <= low <= high <= most:
        raise ValueError(f"{step}: low {low} and high {high} do not fit {codes}, {least} to {most}")
    return low, high


def scale_of(step: str, what: str, value: float) -> np.float32:
    """Returns a scale: a positive number, in float32."""
    scale = real_of(step, what, value)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"{step}: {what} is {shown(value)}, not a positive float32")
    return scale


def table_of(step: str, table: NDArray[np.uint8 | np.int8]) -> NDArray[np.uint8]:
    """Returns the 256 bytes of a table."""
    flat = np.ascontiguousarray(table).reshape(-1)
    if flat.dtype.itemsize != 1 or flat.size != 256:
        raise ValueError(f"{step}: table has {flat.size} {flat.dtype}, 256 bytes are needed")
    return flat.view(np.uint8)


def pairs_of(step: str, table: NDArray[np.uint8 | np.int8]) -> NDArray[np.uint8]:
    """Returns the 65536 bytes of a table of pairs."""
    flat = np.ascontiguousarray(table).reshape(-1)
    if flat.dtype.itemsize != 1 or flat.size != 1 << 16:
        raise ValueError(f"{step}: table has {flat.size} {flat.dtype}, 65536 bytes are needed")
    return flat.view(np.uint8)


def reals_of(step: str, table: ArrayLike) -> NDArray[np.float32]:
    """Returns a table of 256 floats."""
    numbers = floats_of(step, "table", table)
    if numbers.size != 256:
        raise ValueError(f"{step}: table has {numbers.size} float32, 256 are needed")
    return numbers


def item_of(step: str, itemsize: int) -> int:
    """Returns a number of bytes that elements may have."""
    item = integer(step, "itemsize", itemsize, 1, 8)
    if item not in (1, 2, 4, 8):
        raise ValueError(f"{step}: itemsize is {item}, not 1, 2, 4 or 8")
    return item


def joined(shape: Sequence[int], steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the same elements with axes that follow each other in memory made one; two axes or
    more."""
    sizes, strides = [1], [0]
    for size, step in zip(shape, steps, strict=True):
        if size == 1:
            continue
        if sizes[-1] != 1 and strides[-1] == size * step:
            sizes[-1], strides[-1] = sizes[-1] * size, step
        else:
            sizes.append(size)
            strides.append(step)
    if len(sizes) > 2:  # its first axis makes the tasks
        return sizes[1:], strides[1:]
    return ([1, *sizes], [0, *strides]) if len(sizes) == 1 else (sizes, strides)


def offsets_of(step: str, *many: ArrayLike) -> NDArray[np.uintp]:
    """Where the matrices of each operand begin, one row an operand."""
    plain = [np.asarray(offsets) for offsets in many]
    for offsets in plain:
        if offsets.dtype.kind not in "iu" or offsets.shape != plain[0].shape or offsets.ndim != 1:
            raise ValueError(f"{step}: offsets are {offsets.dtype} {offsets.shape}, not integers")
        if offsets.size and not 0 <= int(offsets.min()) <= int(offsets.max()) <= LARGEST:
            raise ValueError(f"{step}: an offset is below 0 or above {LARGEST}")
    return np.ascontiguousarray(np.stack(plain), np.uintp)


def entries_of(step: str, table: NDArray[np.generic]) -> tuple[NDArray[np.uint8], int]:
    """Returns the bytes of a table of 256 entries, and the size of an entry."""
    flat = np.ascontiguousarray(table).reshape(-1)
    if flat.dtype.hasobject or flat.dtype.itemsize not in (1, 2, 4, 8) or flat.size != 256:
        raise ValueError(f"{step}: table has {flat.size} {flat.dtype}, 256 entries are needed")
    return flat.view(np.uint8), flat.dtype.itemsize


def windows(
    step: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Returns how many windows fit along h and along w."""
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


def split_planes(step: str, sizes: Sequence[int], moved: bool, axis: int) -> tuple[int, int, int]:
    """(n, channels, pixels) of an array whose channels are `axis` of 4, or of one that stays."""
    if not moved:
        return 1, 1, math.prod(sizes)
    if len(sizes) != 4:
        raise ValueError(f"{step}: shape {sizes} has {len(sizes)} axes, a change of layout needs 4")
    if 0 in sizes:
        return 0, 0, 0
    return sizes[0], sizes[axis], math.prod(sizes[1:]) // sizes[axis]


def permutation(
    step: str, shape: Sequence[int], perm: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the same permutation with axes that stay together made one, and at least three
    axes."""
    perm = whole(step, "perm", perm, 0)
    if sorted(perm) != list(range(len(shape))):
        raise ValueError(f"{step}: perm {perm} does not order {len(shape)} axes")
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


def taps_of(step: str, what: str, taps: Sequence[ArrayLike], size: int) -> NDArray[np.int32]:
    """Returns, for each result along an axis, both neighbours and both weights: four rows."""
    rows = [integers_of(step, what, row, np.int32) for row in taps]
    if len(rows) != 4 or len({row.size for row in rows}) != 1:
        raise ValueError(f"{step}: {what} are two neighbours and two weights, of one length")
    found = np.ascontiguousarray(np.stack(rows))
    if found.size and not 0 <= int(found[:2].min()) <= int(found[:2].max()) < size:
        raise ValueError(f"{step}: {what} has a neighbour outside of {size}")
    if found.size and int(found[2:].min()) < 0:
        raise ValueError(f"{step}: {what} has a weight below 0")
    return found


def weights_of(step: str, rows: NDArray[np.int32], columns: NDArray[np.int32], shift: int) -> None:
    """Raises ValueError where the weights of a result add up to more than 2^shift."""
    both = (np.asarray(part)[2:].astype(np.int64).sum(0) for part in (rows, columns))
    if math.prod(int(part.max(initial=0)) for part in both) > 1 << shift:
        raise ValueError(f"{step}: weights add up to more than 2^{shift}")


EPILOGUE: dict[str, object] = {
    "factor": None,
    "steps": None,
    "share": None,
    "bias": None,
    "bias_fused": False,
    "unit": 1.0,
    "summand": None,
    "summand_type": "u8",
    "summand_zero": 0,
    "summand_most": 127,
    "summand_scale": 1.0,
    "summand_fused": False,
    "least": -math.inf,
    "most": math.inf,
    "last": 1.0,
    "divide": False,
    "offset": 0.0,
    "fixed": None,
    "shift": None,
    "away": None,
    "once": False,
}
"""The parameters of an epilogue, and what they are where they are not given."""


def epilogue_of(step: str, given: Iterable[tuple[str, object]], columns: int) -> dict[str, object]:
    """Returns all parameters of an epilogue, which is given as pairs of names and values."""
    try:
        named = {str(name): value for name, value in given}
    except (TypeError, ValueError):
        raise ValueError(f"{step}: epilogue is {shown(given)}, not names and values") from None
    if unknown := sorted(named.keys() - EPILOGUE.keys()):
        raise ValueError(f"{step}: an epilogue has no {unknown[0]!r}")
    found = EPILOGUE | named
    for what in ("factor", "steps", "share", "bias"):
        if found[what] is None:
            continue
        array = floats_of(step, what, found[what])  # type: ignore[arg-type]
        if array.size not in (1, columns):
            raise ValueError(f"{step}: {what} has {array.size} numbers for {columns} columns")
        found[what] = np.ascontiguousarray(np.broadcast_to(array, columns))
    if found["factor"] is None:
        raise ValueError(f"{step}: an epilogue needs a factor")
    if found["share"] is not None and found["steps"] is None:
        raise ValueError(f"{step}: share is that of steps, and there are none")
    for what in ("unit", "summand_scale", "least", "most", "last", "offset"):
        found[what] = float(real_of(step, what, found[what]))
    for what in ("bias_fused", "summand_fused", "divide", "once"):
        found[what] = bool(found[what])
    if found["fixed"] is not None:
        found |= _fixed_point(step, found, columns)
    return found


def _fixed_point(step: str, given: dict[str, object], columns: int) -> dict[str, object]:
    """Returns the multipliers of 31 bits, powers of two and roundings of an epilogue."""
    found: dict[str, object] = {}
    for what, least, most in (("fixed", 0, 2**31 - 1), ("shift", -30, 30), ("away", 0, 1)):
        array = integers_of(step, what, given[what], np.int32)  # type: ignore[arg-type]
        if array.size not in (1, columns):
            raise ValueError(f"{step}: {what} has {array.size} numbers for {columns} columns")
        if array.size and not least <= int(array.min()) <= int(array.max()) <= most:
            raise ValueError(f"{step}: {what} is not from {least} to {most}")
        found[what] = np.ascontiguousarray(np.broadcast_to(array, columns))
    return found
