"""Programmers' mistakes against `qir._kernels`: wrong types, sizes, strides and numbers.

A case makes a call whose result a formula in NumPy gives, writes it in another form or breaks an
argument of it, and looks at the answer: an exception, or the right result, and no byte beside the
arrays. What kills the process is found by who started it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _codes, _cpu, _statistics
from tests.fuzzing.judging import Broken, Try

Array = NDArray[Any]
REFUSED = (ValueError, TypeError, OverflowError, MemoryError, BufferError)
GUARD = 64
CANARY = 0x5C
SIZES = (*range(12), 16, 31, 64, 65)


class Liar(np.ndarray[Any, Any]):
    """An ndarray that reports sizes which it does not have."""

    told = 0
    nbytes = property(lambda self: self.told)
    size = property(lambda self: self.told)
    ndim = property(lambda self: 4)

    def reshape(self, *shape: object, **order: object) -> Array:  # type: ignore[override]
        return np.zeros(1, np.uint8)


@dataclass
class Guarded:
    """An array with bytes on both sides that nobody may write to."""

    array: Array

    def __post_init__(self) -> None:
        plain = np.ascontiguousarray(self.array)
        self.memory = np.full(plain.nbytes + 2 * GUARD, CANARY, np.uint8)
        view = self.memory[GUARD : GUARD + plain.nbytes].view(plain.dtype).reshape(plain.shape)
        view[...] = plain
        self.array = view

    def check(self) -> None:
        if (self.memory[:GUARD] != CANARY).any() or (self.memory[-GUARD:] != CANARY).any():
            raise Broken("bytes beside an array were written to")


@dataclass
class Call:
    """A call that is right, with the array it fills and what has to stand in it after."""

    door: Callable[..., object]
    arguments: dict[str, Any]
    filled: Guarded
    expected: Array

    def answer(self, changed: dict[str, Any]) -> bool:
        """Makes the call; False where it is refused."""
        try:
            self.door(**(self.arguments | changed))
        except REFUSED:
            return False
        finally:
            self.filled.check()
        return True


def ints(rng: random.Random, count: int, low: int, high: int, kind: type) -> Array:
    """Random integers, in some type."""
    return np.array([rng.randint(low, high) for _ in range(count)], np.int64).astype(kind)


# -- steps of a plan ------------------------------------------------------------------------------


PAIRS = frozenset({"add", "mul", "whole_add", "apply", "wide_product", "lookup_pairs"})
"""Steps whose operands are a and b."""


def step_of(kind: str, inputs: Sequence[Array], constants: dict[str, Any], expected: Array) -> Call:
    """A plan of one step: its buffers, the arrays given to `run` and the step's own arguments."""
    names = ["a", "b"] if kind in PAIRS else ["x", "weight"][: len(inputs)]
    filled = Guarded(np.zeros_like(expected))
    arrays = [*(Guarded(x).array for x in inputs), filled.array]
    places = dict(zip([*names, "y"], range(len(arrays)), strict=True))

    def door(arena: Any, buffers: Any, isa: Any, arrays: Any, threads: Any, **given: Any) -> None:
        plan = _cpu.Plan(arena, buffers, isa=isa)
        getattr(plan, kind)("step", **given)
        plan.run(arrays, threads=threads)

    of_plan = {
        "arena": 64,
        "buffers": [(_cpu.EXTERNAL, array.nbytes) for array in arrays],
        "isa": None,
        "arrays": arrays,
        "threads": 1,
    }
    return Call(door, of_plan | places | constants, filled, expected)


def _lookup(rng: random.Random) -> Call:
    x, table = ints(rng, rng.choice(SIZES), 0, 255, np.uint8), ints(rng, 256, 0, 255, np.uint8)
    return step_of("lookup", [x], {"size": x.size, "table": table}, table[x])


def _copy(rng: random.Random) -> Call:
    rows, width, more = rng.choice(SIZES), rng.choice(SIZES), rng.randrange(3)
    x = ints(rng, rows * (width + more), 0, 255, np.uint8).reshape(rows, width + more)
    given = {"rows": rows, "width": width, "x_stride": width + more, "y_stride": width}
    return step_of("copy", [x], given | {"x_offset": 0, "y_offset": 0}, x[:, :width])


def _fill(rng: random.Random) -> Call:
    size, value = rng.choice(SIZES), rng.randrange(256)
    given = {"size": size, "value": value, "offset": 0}
    return step_of("fill", [], given, np.full(size, value, np.uint8))


def _transpose(rng: random.Random) -> Call:
    shape = [rng.randrange(5) for _ in range(rng.randrange(1, 5))]
    perm = rng.sample(range(len(shape)), len(shape))
    kind = rng.choice([np.uint8, np.uint16, np.uint32, np.uint64])
    x = ints(rng, int(np.prod(shape)), 0, 255, kind).reshape(shape)
    given = {"shape": shape, "perm": perm, "itemsize": x.itemsize}
    return step_of("transpose", [x], given, np.ascontiguousarray(x.transpose(perm)))


def _quantize(rng: random.Random) -> Call:
    shape = [rng.randrange(4) for _ in range(4)]
    x = ints(rng, int(np.prod(shape)), -600, 600, np.float32).reshape(shape) / np.float32(2)
    zero, nhwc = rng.randrange(256), rng.random() < 0.5
    quantized = np.clip(np.rint(x) + zero, 0, 255).astype(np.uint8)
    given = {"shape": shape, "scale": 1.0, "zero": zero, "low": 0, "high": 255, "nhwc": nhwc}
    expected = quantized.transpose(0, 2, 3, 1) if nhwc else quantized
    return step_of("quantize", [x], given | {"y_type": "u8"}, np.ascontiguousarray(expected))


def _dequantize(rng: random.Random) -> Call:
    shape = [rng.randrange(4) for _ in range(4)]
    x = ints(rng, int(np.prod(shape)), 0, 255, np.uint8).reshape(shape)
    zero, nchw = rng.randrange(256), rng.random() < 0.5
    real = (x.astype(np.int64) - zero).astype(np.float32) * np.float32(0.5)
    given = {"shape": shape, "scale": 0.5, "zero": zero, "nchw": nchw, "x_type": "u8"}
    expected = real.transpose(0, 3, 1, 2) if nchw else real
    return step_of("dequantize", [x], given, np.ascontiguousarray(expected))


def _conv2d(rng: random.Random) -> Call:
    n, h, w, each, groups, out = (rng.randrange(1, 5) for _ in range(6))
    if rng.random() < 0.3:
        each, out = 1, 1
    x = ints(rng, n * h * w * each * groups, 0, 9, np.uint8).reshape(n, h, w, each * groups)
    weight = ints(rng, out * groups * each, -9, 9, np.int8).reshape(out * groups, each, 1, 1)
    bias = ints(rng, out * groups, -99, 99, np.int32)
    parts = [
        x[..., g * each : (g + 1) * each].astype(np.int64)
        @ weight[g * out : (g + 1) * out, :, 0, 0].astype(np.int64).T
        for g in range(groups)
    ]
    total = np.concatenate(parts, axis=-1) + bias
    given: dict[str, Any] = {"weight": weight, "bias": bias, "multiplier": np.ones(1, np.float32)}
    given |= {"shape": x.shape, "stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1)}
    given |= {"groups": groups, "x_type": "u8", "x_zero": 0, "y_type": "u8", "y_zero": 3}
    expected = np.clip(total + 3, 0, 255).astype(np.uint8)
    return step_of("conv2d", [x], given | {"low": 0, "high": 255}, expected)


def _linear(rng: random.Random) -> Call:
    rows, k, n = rng.randrange(5), rng.randrange(1, 40), rng.randrange(1, 20)
    x = ints(rng, rows * k, 0, 255, np.uint8).reshape(rows, k)
    weight = ints(rng, n * k, -127, 127, np.int8).reshape(n, k)
    given: dict[str, Any] = {"weight": weight, "bias": None, "rows": rows}
    given |= {"multiplier": np.ones(n, np.float32)}
    expected = (x.astype(np.int64) @ weight.astype(np.int64).T).astype(np.float32)
    return step_of("linear", [x], given | {"y_type": "f32", "x_type": "u8", "x_zero": 0}, expected)


def _binary(rng: random.Random) -> Call:
    shape = tuple(rng.randrange(5) for _ in range(3))
    shared = rng.choice(["b", None])
    a = ints(rng, int(np.prod(shape)), 0, 99, np.uint8).reshape(shape)
    of_b = (shape[0], 1, shape[2]) if shared else shape
    b = ints(rng, int(np.prod(of_b)), 0, 99, np.uint8).reshape(of_b)
    given: dict[str, Any] = {"shape": shape, "broadcast": shared, "low": 0, "high": 255}
    given |= {"a_type": "u8", "b_type": "u8", "y_type": "u8"}
    wide = a.astype(np.int64), b.astype(np.int64)
    if rng.random() < 0.5:
        total = np.clip(wide[0] + wide[1] + 7, 0, 255).astype(np.uint8)
        return step_of("add", [a, b], given | {"a_gain": 1.0, "b_gain": 1.0, "offset": 7.0}, total)
    total = np.clip((wide[0] - 5) * wide[1] + 2, 0, 255).astype(np.uint8)
    given |= {"a_zero": 5, "b_zero": 0, "multiplier": 1.0, "y_zero": 2}
    return step_of("mul", [a, b], given, total)


def _pool(rng: random.Random) -> Call:
    """Of integers that are all one: so is every maximum and every mean."""
    n, h, w, c, code = (
        *(rng.randrange(1, 5) for _ in range(3)),
        rng.randrange(5),
        rng.randrange(256),
    )
    x = np.full((n, h, w, c), code, np.uint8)
    given: dict[str, Any] = {"shape": x.shape}
    real = {"x_scale": 0.5, "x_zero": 9, "y_scale": 0.5, "y_zero": 9, "x_type": "u8"}
    kind = rng.choice(["max_pool2d", "avg_pool2d", "global_avg_pool"])
    if kind == "global_avg_pool":
        return step_of(kind, [x], given | real, np.full((n, c), code, np.uint8))
    kernel = rng.randint(1, h), rng.randint(1, w)
    out = h - kernel[0] + 1, w - kernel[1] + 1
    given |= {
        "kernel": kernel,
        "stride": (1, 1),
        "pad": (0, 0, 0, 0),
        "out": rng.choice([out, None]),
    }
    given |= real | {"count_pad": False} if kind == "avg_pool2d" else {"dilation": (1, 1)}
    return step_of(kind, [x], given, np.full((n, *out, c), code, np.uint8))


def _apply(rng: random.Random) -> Call:
    rows, inner = rng.randrange(5), rng.choice(SIZES)
    a, b = ints(rng, rows * inner, -9, 9, np.int32), ints(rng, inner, -9, 9, np.int32)
    given = {"op": "mul", "kind": "i32", "shape": (rows, inner)}
    given |= {"a_steps": (inner, 1), "b_steps": (0, 1)}
    return step_of("apply", [a, b], given, a.reshape(rows, inner) * b)


def _along(rng: random.Random) -> Call:
    shape = rng.randrange(4), rng.randrange(1, 9), rng.choice(SIZES)
    x = ints(rng, math.prod(shape), -9, 9, np.int64).reshape(shape)
    given: dict[str, Any] = {"shape": shape, "kind": "i64"}
    if rng.random() < 0.5:
        return step_of("reduce", [x], given | {"op": "sum"}, x.sum(1))
    return step_of("place", [x], given | {"least": False, "last": False}, x.argmax(1))


def _to_codes(rng: random.Random) -> Call:
    shape = rng.randrange(4), rng.randrange(1, 5), rng.choice(SIZES)
    x = ints(rng, math.prod(shape), -9, 9, np.float32).reshape(shape)
    zero = ints(rng, shape[1], 100, 200, np.int32)
    given: dict[str, Any] = {"shape": shape, "kind": "u16", "low": 0, "high": 65535}
    given |= {"scale": np.ones(shape[1], np.float32), "zero": zero}
    given |= {"scale_at": None, "zero_at": None}
    return step_of("encode", [x], given, (x + zero[:, None]).astype(np.uint16))


def _wide(rng: random.Random) -> Call:
    """Products of small whole numbers, which are exact; or a convolution of one tap."""
    m, k, n = rng.randrange(1, 7), rng.choice(SIZES[1:]), rng.choice(SIZES[1:])
    a, b = (ints(rng, u * v, -9, 9, np.float32).reshape(u, v) for u, v in ((m, k), (k, n)))
    if rng.random() < 0.5:
        given: dict[str, Any] = {"shape": (1, k, 1, 1, n), "kernel": (m, 1, 1, 1), "bias": None}
        given |= {"out": (1, 1, n), "stride": (1,) * 3, "pad": (0,) * 3, "dilation": (1,) * 3}
        given |= {"groups": 1, "transposed": False}
        return step_of("wide_conv", [b, a], given, a @ b)
    none = np.zeros(1, np.uint64)
    given = {"bias": None, "sizes": (m, k, n), "a_at": none, "b_at": none, "y_at": none}
    given |= {"a_row": k, "b_steps": (n, 1), "y_row": n}
    return step_of("wide_product", [a, b], given, a @ b)


def _softmax(rng: random.Random) -> Call:
    """Of rows of one code: each has the same share."""
    rows, width = rng.randrange(5), rng.choice([2, 4, 8, 64])
    x = np.repeat(ints(rng, rows, 0, 255, np.uint8), width).reshape(rows, width)
    given = {"rows": rows, "width": width, "x_scale": 0.1, "y_scale": 1 / 256, "y_zero": 0}
    expected = np.full(x.shape, 256 // width, np.uint8)
    return step_of("softmax", [x], given | {"x_type": "u8", "y_type": "u8"}, expected)


def _python(rng: random.Random) -> Call:
    x = ints(rng, rng.choice(SIZES), -99, 99, np.int16)
    filled = Guarded(np.zeros_like(x))

    def function(x: Array, y: Array) -> None:
        y[...] = x

    def door(function: Any, inputs: Any, outputs: Any, arrays: Any, threads: Any) -> None:
        plan = _cpu.Plan(0, [(_cpu.EXTERNAL, x.nbytes)] * 2)
        plan.call("step", function, inputs, outputs)
        plan.run(arrays, threads=threads)

    given: dict[str, Any] = {"arrays": [Guarded(x).array, filled.array], "threads": 1}
    given |= {"inputs": [(0, x.dtype, x.shape)], "outputs": [(1, x.dtype, x.shape)]}
    return Call(door, given | {"function": function}, filled, x)


# -- integers and statistics
# -------------------------------------------------------------------------


def _rows(first: Any, inner: Any, run: Any, count: Any) -> _codes.Rows:
    return _codes.Rows(first, inner, run, count)


def _plain(quantized: Array) -> Array:
    return quantized.reshape(-1).view(np.uint8)


def _encode(rng: random.Random) -> Call:
    inner, rows = rng.randrange(1, 9), rng.randrange(5)
    x = ints(rng, rows * inner, -600, 600, np.float32) / np.float32(2)
    filled = Guarded(np.zeros(x.size, np.uint8))

    def door(first: Any, inner: Any, run: Any, count: Any, **given: Any) -> None:
        _codes.encode(rows=_rows(first, inner, run, count), **given)

    given: dict[str, Any] = {"x": _plain(x), "codes": filled.array, "wide": False, "itemsize": 1}
    given |= {"first": np.zeros(rows, np.int64), "inner": inner, "run": inner, "count": 1}
    given |= {"round": "even", "low": 0, "high": 255, "isa": None, "divide": False, "sums": False}
    given |= {"factor": _plain(np.ones(1, np.float32)), "after": np.full(1, 7, np.int32)}
    given |= {"nan": np.zeros(1, np.int32), "minus": None, "before": None}
    given |= {"steps": None, "table": None}
    return Call(door, given, filled, np.clip(np.rint(x) + 7, 0, 255).astype(np.uint8))


def _fixed(rng: random.Random) -> Call:
    inner, rows = rng.randrange(1, 9), rng.randrange(5)
    acc = ints(rng, rows * inner, -3000, 3000, np.int32)
    filled = Guarded(np.zeros(acc.size, np.uint8))

    def door(first: Any, inner: Any, run: Any, count: Any, **given: Any) -> None:
        _codes.fixed(rows=_rows(first, inner, run, count), **given)

    given: dict[str, Any] = {"acc": acc, "codes": filled.array, "itemsize": 1, "twice": True}
    given |= {"first": np.zeros(rows, np.int64), "inner": inner, "run": inner, "count": 1}
    given |= {"multiplier": np.full(1, 1 << 30, np.int32), "left": np.ones(1, np.int32)}
    given |= {"right": np.zeros(1, np.int32), "zero": np.full(1, 5, np.int32)}
    given |= {"low": 0, "high": 255}
    return Call(door, given, filled, np.clip(acc + 5, 0, 255).astype(np.uint8))


def _decode(rng: random.Random) -> Call:
    inner, rows = rng.randrange(1, 9), rng.randrange(5)
    quantized = ints(rng, rows * inner, 0, 255, np.uint8)
    filled = Guarded(np.zeros(quantized.size * 4, np.uint8))

    def door(first: Any, inner: Any, run: Any, count: Any, **given: Any) -> None:
        _codes.decode(rows=_rows(first, inner, run, count), **given)

    given: dict[str, Any] = {"codes": quantized, "y": filled.array, "wide": False, "carrier": "u1"}
    given |= {"first": np.zeros(rows, np.int64), "inner": inner, "run": inner, "count": 1}
    given |= {"scale": _plain(np.full(1, 0.5, np.float32)), "zero": None, "minus": None}
    given |= {"plus": None, "table": None, "isa": None}
    return Call(door, given, filled, _plain(quantized.astype(np.float32) * np.float32(0.5)))


def _table(rng: random.Random) -> Call:
    quantized, table = (
        ints(rng, rng.choice(SIZES), 0, 255, np.uint8),
        ints(rng, 256, 0, 99, np.uint16),
    )
    filled = Guarded(np.zeros(quantized.size * 2, np.uint8))
    given = {
        "codes": quantized,
        "table": _plain(table),
        "y": filled.array,
        "itemsize": 1,
        "entry": 2,
    }
    return Call(_codes.lookup, given, filled, _plain(table[quantized]))


def _bits(rng: random.Random) -> Call:
    rows, n = rng.randrange(4), 2 * rng.randrange(20)
    quantized = ints(rng, rows * n, 0, 15, np.uint8)
    packed = (quantized[::2] | quantized[1::2] << 4).reshape(rows, n // 2)
    form: dict[str, Any] = {"n": n, "bits": 4, "itemsize": 1, "is_signed": False, "high": False}
    if rng.random() < 0.5:
        filled = Guarded(np.zeros_like(packed))
        return Call(_codes.pack, form | {"codes": quantized, "to": filled.array}, filled, packed)
    filled = Guarded(np.zeros_like(quantized))
    return Call(_codes.unpack, form | {"data": packed, "codes": filled.array}, filled, quantized)


def _recode(rng: random.Random) -> Call:
    quantized = ints(rng, rng.choice(SIZES), 0, 255, np.uint8)
    filled = Guarded(np.zeros_like(quantized))
    given = {"codes": quantized, "y": filled.array, "bits": 8, "itemsize": 1}
    return Call(_codes.recode, given | {"from_signed": False, "to_signed": True}, filled, quantized)


def _tally(rng: random.Random) -> Call:
    """Two tallies, one restored from what it says, merged; and extremes of channels."""
    count, inner, channels = rng.choice(SIZES), rng.randrange(1, 4), rng.randrange(1, 4)
    x = ints(rng, count, -50, 50, np.float32)
    filled = Guarded(np.full((2, channels), [[np.inf], [-np.inf]], np.float32))
    expected = filled.array.copy()
    for i, value in enumerate(x):
        channel = i // inner % channels
        expected[0, channel] = min(expected[0, channel], value)
        expected[1, channel] = max(expected[1, channel], value)

    def door(isa: Any, more: Any, **given: Any) -> None:
        one, other = _statistics.Tally(isa), _statistics.Tally()
        one.add(**given)
        other.merge(one)
        counts = [other.finite, other.nan, other.above, other.below, other.zeros]
        found: dict[str, Any] = {"counts": np.array(counts, np.uint64)}
        found |= {"extremes": other.extremes(), "bins": other.bins()} | more
        _statistics.Tally.restore(**found).merge(one)
        if int(other.bins().sum()) != other.finite:
            raise Broken("bins do not add up")

    given: dict[str, Any] = {"x": x, "lows": filled.array[0], "highs": filled.array[1]}
    given |= {"sums": np.zeros(channels), "inner": inner, "isa": None, "more": {}}
    if rng.random() < 0.3:
        name = rng.choice(["counts", "extremes", "bins"])
        given["more"] = {name: wrong_argument(rng, np.zeros(5, np.uint64))}
        return Call(door, given, filled, np.zeros(0))  # refused, or whatever it is
    return Call(door, given, filled, expected)


CALLS: tuple[Callable[[random.Random], Call], ...] = (
    _lookup, _copy, _fill, _transpose, _quantize, _dequantize, _conv2d, _linear, _binary, _pool,
    _apply, _along, _to_codes, _wide, _softmax, _python, _encode, _fixed, _decode, _table, _bits,
    _recode, _tally,
)  # fmt: skip


# -- mistakes -------------------------------------------------------------------------------------

NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**48, 2**56, 2**62, 2**63 - 1, 2**63, 2**64,
    10**30, -(2**31), -(2**63), -(10**30), 1.5, float("nan"), float("inf"), True,
    np.uint8(255), np.int8(-1), np.int32(2**31 - 1), np.int64(-(2**63)), np.uint64(2**64 - 1),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, "a", "", b"x", (), [], {}, object(), ..., "scalar", int, range(3))


def wrong_argument(rng: random.Random, value: Any) -> Any:
    """Something else in place of a value, of its kind or of none."""
    choice = rng.random()
    if choice < 0.15:
        return rng.choice(OTHERS)
    if choice < 0.3:
        return rng.choice(NUMBERS)
    if isinstance(value, np.ndarray):
        return _odd_array(rng, value)
    if isinstance(value, list | tuple) and value:
        changed = list(value)
        place = rng.randrange(len(changed))
        match rng.randrange(5):
            case 0:
                del changed[place]
            case 1:
                changed.insert(place, changed[place])
            case 2:
                return np.array([rng.choice(SIZES) for _ in changed], np.uint8)
            case _:
                changed[place] = wrong_argument(rng, changed[place])
        return tuple(changed) if isinstance(value, tuple) else changed
    return rng.choice(NUMBERS)


def _odd_array(rng: random.Random, array: Array) -> Array:
    flat = array.reshape(-1)
    match rng.randrange(10):
        case 0:
            return array.astype(rng.choice("?bBhHiIqQefdFO"))
        case 1:
            return flat[:-1]
        case 2:
            return np.concatenate([flat, flat, flat])[: rng.choice(SIZES)]
        case 3:
            return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
        case 4:
            return np.broadcast_to(flat[:1], array.shape) if array.size else array
        case 5:
            return array.astype(array.dtype.newbyteorder())
        case 6:
            return np.empty((0, *array.shape), array.dtype)
        case 7:
            return array[..., None]
        case 8:
            return array.astype("U3") if rng.random() < 0.5 else array.view("V1")
        case _:
            return _liar(rng, array.copy() if rng.random() < 0.5 else flat[: rng.choice(SIZES)])


def _liar(rng: random.Random, array: Array) -> Array:
    lying = array.view(Liar)
    lying.told = rng.choice([0, 1, 4, array.nbytes, 2**20, 2**40])
    return lying


def respelled(rng: random.Random, value: Any) -> Any:
    """The same value in another form, which may be refused but not misunderstood."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and 0 <= value < 256:
        return rng.choice(
            [
                np.uint8(value),
                np.int32(value),
                np.uint64(value),
                np.array(value),
                float(value),
                str(value),
            ]
        )
    if isinstance(value, float):
        return rng.choice([np.float32(value), np.float64(value), np.array(value)])
    if isinstance(value, np.ndarray):
        match rng.randrange(4):
            case 0:
                return _liar(rng, value)
            case 1:
                return np.asfortranarray(value)
            case 2:
                return np.repeat(value, 2, axis=-1)[..., ::2]
            case _:
                return value.tolist()
    if isinstance(value, list | tuple):
        if all(isinstance(each, int) and 0 <= each < 256 for each in value):
            kind = rng.choice([np.uint8, np.int32, np.uint64, np.int64])
            return rng.choice([iter(value), np.array(value, kind), [kind(i) for i in value]])
        return [respelled(rng, each) if rng.random() < 0.5 else each for each in value]
    return value


def kernels_case(attempt: Try) -> None:
    """One call of the kernels."""
    judge(attempt.rng, attempt.rng.choice(CALLS)(attempt.rng))


def judge(rng: random.Random, call: Call) -> None:
    """Makes a call: as it is, in another form, or broken."""
    filled = call.filled.array
    names = rng.sample(sorted(call.arguments), min(len(call.arguments), rng.choice([1, 1, 2, 3])))
    way = rng.random()
    if way < 0.1:
        if not call.answer({}) and call.expected.size:
            raise Broken(f"{call.door} refuses what is right")
    elif way < 0.4:
        with np.errstate(all="ignore"):
            changed = {name: respelled(rng, call.arguments[name]) for name in names}
        # Copies are filled in place of the array; what is read of them is not known here.
        if any(_holds(call.arguments[name], filled) for name in names) or not call.answer(changed):
            return
    else:
        with np.errstate(all="ignore"):
            changed = {name: wrong_argument(rng, call.arguments[name]) for name in names}
        call.answer(changed)
        return
    if call.expected.shape == filled.shape and not np.array_equal(filled, call.expected):
        raise Broken(f"{names} of {call.door.__qualname__}: {filled} is not {call.expected}")


def _holds(value: Any, array: Array) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds(each, array) for each in value)
    return isinstance(value, np.ndarray) and np.shares_memory(value, array)
