"""Recorded cases of curves, comparisons, quotients and moves, and of layers with few bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from backends.tflite.models import Array, CaseOperand, F, OpCase, Value
from tests.oracles.tflite_elements import every, sums
from tests.oracles.tflite_operands import (
    Suites,
    beside,
    biased,
    bounds,
    fitting,
    operand,
    pair,
    random_integers,
    result,
    scale_of,
    seeds,
    weights,
    window,
    zero_of,
)
from tests.oracles.tflite_products import conv, linear, tied

Attrs = dict[str, Value]
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


def clips(low: float, high: float, kind: str, count: int) -> Iterator[OpCase]:
    """Numbers kept between two ends; of every three results one lies on ties, one just beside.

    The integers reach about as far as the ends, and those of the result not always.
    """
    for number, case in enumerate(every("clip", kind, count, None)):
        x, reach = case.operands["x"], high * (0.7, 1.4, 2.0)[number // 3 % 3]
        more = 2.0 ** round(math.log2(reach / (x.step * bounds(kind)[1] / (1 + (kind == "uint8")))))
        out = replace(case.out, scale=case.out.step * more)
        held = {"x": replace(x, scale=x.step * more)}
        yield replace(case, operands=held, out=out, attrs={"min": low, "max": high})


def curve(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """All integers of 8 bits, or one of 13 of 16, in many maps; roots of none below zero."""
    for number, seed in seeds(f"{op}{kind}", count):
        low, high = bounds(kind)
        zero = zero_of(seed, kind)
        if op == "rsqrt":
            zero = low + 1 if kind == "int8" and number % 2 else zero
        start = max(low, zero + (kind == "int16")) if op == "rsqrt" else low + number % 13
        data = np.arange(start, high + 1, 1 if kind != "int16" else 13).astype(kind)
        least, most = (0.004, 0.08) if kind != "int16" else (5e-5, 4e-4)
        x = CaseOperand(data.reshape(1, -1), scale_of(seed, number, least, most), zero)
        if kind == "int16" and number % 3 == 0:
            x = replace(x, scale=2.0 ** -int(seed.integers(10, 15)))
        to = float(2.0 ** -int(seed.integers(3, 7))) if number % 2 else seed.uniform(least, most)
        if op in ("gelu", "elu") and number % 4 == 2 and kind != "int16":
            to = 2 * x.step  # the line that the curve becomes lies on ties
        made = result(seed, kind, to / (256 if kind == "int16" and number % 2 else 1))
        attrs: Attrs = {}
        if op == "gelu":
            attrs["approximate"] = ("none", "tanh")[number % 2]
        if op == "elu":
            attrs["alpha"] = 1.0
        yield OpCase(op, {"x": x}, made, x.data.shape, attrs)


def compared(kind: str, count: int) -> Iterator[OpCase]:
    """Each comparison of two tensors, of one map, of one with twice its scale, and of any."""
    for number, seed in seeds(f"cmp{kind}", count):
        a = operand(seed, kind, number // 6, 3, 1 + number * 7 % 70)
        other = float(F(a.step * (1.0, 2.0, 1.3)[number // 6 % 3]))
        same = number // 6 % 3 == 0 and number % 2 == 0
        b = CaseOperand(
            random_integers(seed, kind, *a.data.shape),
            other,
            a.zero if same else zero_of(seed, kind),
        )
        near = np.clip(
            np.rint((a.data.astype(int) - a.zero) * a.step / other) + b.zero, *bounds(kind)
        )
        b = replace(b, data=np.where(seed.random(near.shape) < 0.5, near, b.data).astype(kind))
        made = CaseOperand(np.zeros(0, np.bool_))
        yield OpCase(COMPARISONS[number % 6], {"a": a, "b": b}, made, a.data.shape, fed=("a", "b"))


def quotients(kind: str, count: int) -> Iterator[OpCase]:
    """a / b; no divisor is zero, nor has the code 0, which the kernel refuses."""
    for number, seed in seeds(f"div{kind}", count):
        a = operand(seed, kind, number, 3, 1 + number * 13 % 70)
        b = operand(seed, kind, number + 1, *a.data.shape)
        for _ in range(2):
            data = np.where((b.data == b.zero) | (b.data == 0), b.data + 1, b.data).astype(kind)
            b = replace(b, data=data)
        wide = (0.5, 0.25, a.step, seed.uniform(0.01, 0.1))[number % 4]
        made = result(seed, kind, float(wide) / (256 if kind == "int16" else 1))
        yield OpCase("div", {"a": a, "b": b}, made, a.data.shape, fed=("a", "b"))


def powers(kind: str, count: int) -> Iterator[OpCase]:
    """Products along an axis of two to seven integers: of one, the kernel takes what memory
    holds."""
    for number, seed in seeds(f"prod{kind}", count):
        length = 2 + number % 6
        x = operand(seed, kind, number, 60, length)
        x = replace(x, data=(x.data // (1, 4, 8, 16, 16, 16)[number % 6]).astype(kind))
        values = np.prod((x.data.astype(np.float64) - x.zero) * x.step, 1)
        scale = float(np.quantile(np.abs(values), 0.8)) / bounds(kind)[1]
        keep = number % 2 == 0
        made = result(seed, kind, max(scale, 1e-6))
        yield OpCase(
            "reduce_prod", {"x": x}, made, (60, 1) if keep else (60,), {"axes": (1,), "keep": keep}
        )


def ends(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """The greatest or least along axes, or where it is."""
    for number, seed in seeds(f"{op}{kind}", count):
        x = operand(seed, kind, number, 2, *pair(seed, 2, 9), 1 + number * 5 % 40)
        size = x.data.shape
        if op.startswith("arg"):
            axis = number % 3 + 1
            shape = tuple(n for i, n in enumerate(size) if i != axis)
            attrs: Attrs = {"axis": axis, "keep": False}
            yield OpCase(op, {"x": x}, CaseOperand(np.zeros(0, np.int64)), shape, attrs)
            continue
        axes, keep = ((1, 2), (3,), (1, 2, 3), (1,))[number % 4], number % 3 != 1
        shape = tuple(1 if i in axes else n for i, n in enumerate(size) if keep or i not in axes)
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        yield OpCase(op, {"x": x}, made, shape, {"axes": axes, "keep": keep})


def rows(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Rows of 1..70 numbers, far apart or near the zero point."""
    for number, seed in seeds(f"{op}{kind}", count):
        x = operand(seed, kind, number, 12, 1 + number * 9 % 70)
        low, high = bounds(kind)
        if number % 3 == 0:
            near = np.clip(seed.integers(-3, 4, x.data.shape) + x.zero, low, high)
            x = replace(x, data=near.astype(kind))
        if op == "log_softmax":
            made, attrs = CaseOperand(np.zeros(0, kind), 16 / 256, high), {"axis": -1}
        else:
            made, attrs = CaseOperand(np.zeros(0, kind), 1 / 128, low + 128), {"axis": -1, "p": 2}
        yield OpCase(op, {"x": x}, made, x.data.shape, dict(attrs))


_CLOSE: Mapping[float, list[list[int]]] = {
    0.125: [[127, 124, 79], [127, 90, 49], [27, 72, 75]],
    0.0625: [[127, 121, 31], [127, 38, 28], [127, 53, -29]],
}
"""Rows whose shares lie so near to ties that 32-bit fractions miss what float32 rounds to."""


def close_rows() -> Iterator[OpCase]:
    """Softmax of such rows."""
    for scale, of in _CLOSE.items():
        x = CaseOperand(np.array(of, np.int8), scale, 1)
        made = CaseOperand(np.zeros(0, np.int8), 1 / 256, -128)
        yield OpCase("softmax", {"x": x}, made, x.data.shape, {"axis": -1})


def moves(kind: str, count: int) -> Iterator[OpCase]:
    """What hands integers on: each op in turn."""
    for number, seed in seeds(f"move{kind}", count):
        x = operand(seed, kind, number, 2, 4, 6, 8)
        op, shape, attrs = _MOVES[number % len(_MOVES)]
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        given = {"x": x}
        if op in _BESIDE:
            given["indices"] = CaseOperand(_BESIDE[op])
        yield OpCase(op, given, made, shape, dict(attrs))


_BESIDE: Mapping[str, Array] = {
    "gather": np.array([3, 1, 2, 2, 0], np.int32),
    "gather_nd": np.array([[1, 2], [0, 3], [1, 0]], np.int32),
}
_MOVES: tuple[tuple[str, tuple[int, ...], Mapping[str, Value]], ...] = (
    ("gather", (2, 5, 6, 8), {"axis": 1}),
    ("gather_nd", (3, 6, 8), {}),
    ("flip", (2, 4, 6, 8), {"axes": (2,)}),
    ("transpose", (8, 2, 4, 6), {"perm": (3, 0, 1, 2)}),
    (
        "slice",
        (2, 2, 6, 5),
        {"starts": (0, 1, 0, 2), "ends": (2, 3, 6, 7), "axes": (0, 1, 2, 3), "steps": (1, 1, 1, 1)},
    ),
    ("depth_to_space", (2, 8, 12, 2), {"block": 2, "layout": "NHWC", "mode": "DCR"}),
    ("space_to_depth", (2, 2, 3, 32), {"block": 2, "layout": "NHWC"}),
    ("tile", (4, 4, 6, 24), {"repeats": (2, 1, 1, 3)}),
)


def chosen(kind: str, count: int) -> Iterator[OpCase]:
    """Elements of one of two tensors of one map."""
    for number, seed in seeds(f"where{kind}", count):
        a = operand(seed, kind, number, 3, 1 + number * 13 % 70)
        b = replace(a, data=random_integers(seed, kind, *a.data.shape))
        which = CaseOperand(seed.random(a.data.shape) < 0.5)
        made = CaseOperand(np.zeros(0, kind), a.scale, a.zero)
        given = {"condition": which, "a": a, "b": b}
        yield OpCase("where", given, made, a.data.shape, fed=tuple(given))


def recoded(kind: str, to: str, count: int) -> Iterator[OpCase]:
    """Integers of one kind as integers of another; of every three one lies on ties, one just
    beside."""
    for number, seed in seeds(f"re{kind}{to}", count):
        low, high = bounds(kind)
        data = np.arange(low, high + 1, 1 if high - low < 256 else 61).astype(kind).reshape(1, -1)
        x = CaseOperand(data, scale_of(seed, number // 2), zero_of(seed, kind))
        wide = (bounds(kind)[1] + 1) / (bounds(to)[1] + 1) if to != "int32" else 2.0**-10
        ratio = F(x.step * max(wide, 2.0**-10)) * F((1.0, 0.5, 2.0)[number // 3 % 3])
        wanted = (ratio, beside(seed, ratio), ratio * F(seed.uniform(0.5, 2)))[number % 3]
        zero = 0 if to == "int32" else None
        yield OpCase("requantize", {"x": x}, result(seed, to, float(wanted), zero), data.shape)


def grouped(count: int) -> Iterator[OpCase]:
    """Convolutions of two or three groups of several channels."""
    for number, seed in seeds("groups", count):
        groups, each, more = 2 + number % 2, int(seed.integers(2, 8)), int(seed.integers(2, 8))
        kernel, size = pair(seed, 1, 4), pair(seed, 5, 9)
        x = operand(seed, "int8", number, 1, *size, groups * each)
        w = weights(seed, number, (groups * more, each, *kernel), many=number % 4 != 1)
        b = biased(seed, x, w, groups * more, 2000)
        sizes, pad = window(size, kernel, (1, 1), (1, 1), same=False)
        attrs: Attrs = {"stride": (1, 1), "pad": pad, "dilation": (1, 1), "layout": "NHWC"}
        attrs["groups"] = groups
        made = result(seed, "int8", fitting(x, w, each * math.prod(kernel), number))
        given = {"x": x, "w": w, "bias": b}
        yield OpCase("conv2d", given, made, (1, *sizes, groups * more), attrs)


def nibbles(cases: Iterator[OpCase]) -> Iterator[OpCase]:
    """The same with weights of four bits: of all integers the upper half, few ones cut."""
    for case in cases:
        w = case.operands["w"]
        small = int(np.abs(w.data.astype(int)).max()) < 32
        data = np.clip(w.data, -8, 7) if small else w.data // 18
        held = {**case.operands, "w": replace(w, data=data.astype(np.int8), bits=4)}
        out = case.out if small else replace(case.out, scale=case.out.step / 16)
        yield replace(case, operands=held, out=out)


def memories(count: int) -> Iterator[OpCase]:
    """Long short-term memories of 1..70 numbers a step, 1..40 in the state, a scale a gate."""
    for number, seed in seeds("lstm", count):
        steps, batch = int(seed.integers(1, 8)), int(seed.integers(1, 4))
        into, hidden = 1 + number * 7 % 70, 1 + number * 3 % 40
        x = replace(
            operand(seed, "int8", number, steps, batch, into),
            scale=scale_of(seed, number, 0.01, 0.05),
        )
        gates = [np.repeat(seed.uniform(0.002, 0.02, 4).astype(F), hidden) for _ in "wr"]
        data = [
            seed.integers(-127, 128, (1, 4 * hidden, size)).astype(np.int8)
            for size in (into, hidden)
        ]
        w, r = (CaseOperand(d, scale, 0, 1) for d, scale in zip(data, gates, strict=True))
        b = seed.integers(-2000, 2001, (1, 4 * hidden)).astype(np.int32)
        given = {
            "x": x,
            "w": w,
            "r": r,
            "bias": CaseOperand(b, (gates[0] * F(x.step)).astype(F), 0, 1),
        }
        made = result(seed, "int8", seed.uniform(0.003, 0.01))
        attrs: Attrs = {"cell": int(seed.integers(-13, -9))}
        yield OpCase("lstm", given, made, (steps, batch, hidden), attrs)


def lengths(kind: str) -> Iterator[OpCase]:
    """Tensors of each length from 1 to 70: where vectors end, and what is left over."""
    for number, seed in seeds(f"len{kind}", 5 * 70):
        op = ("add", "sub", "mul", "requantize", "leaky_relu")[number // 70]
        a = operand(seed, kind, number, 1, 1 + number % 70)
        b = operand(seed, kind, number + 1, 1, 1 + number % 70)
        wide = a.step * b.step * 100 if op == "mul" else max(a.step, b.step)
        made = result(seed, kind, wide)
        given = {"a": a, "b": b} if number < 210 else {"x": a}
        attrs: Attrs = {"alpha": 0.25} if op == "leaky_relu" else {}
        yield OpCase(op, given, made, a.data.shape, attrs, fed=tuple(given))


def _of(kind: str, mark: str) -> Suites:
    """Suites of ops that take a kind of integers."""
    eight = kind != "int16"
    found: Suites = {
        "relu": lambda: every("relu", kind, 18, None),
        "lengths": lambda: lengths(kind),
        "relu6": lambda: clips(0.0, 6.0, kind, 18 if eight else 9),
        "compare": lambda: compared(kind, 36),
        "div": lambda: quotients(kind, 24),
        "reduce_max": lambda: ends("reduce_max", kind, 8),
        "reduce_min": lambda: ends("reduce_min", kind, 8),
        "moves": lambda: moves(kind, 5 if kind == "int16" else 8),
        "where": lambda: chosen(kind, 6),
        "gelu": lambda: curve("gelu", kind, 24),
    }
    if eight:
        found["relu1"] = lambda: clips(-1.0, 1.0, kind, 30)
        found["relu01"] = lambda: clips(0.0, 1.0, kind, 18)
        found["arg_max"] = lambda: ends("arg_max", kind, 6)
        found["arg_min"] = lambda: ends("arg_min", kind, 6)
        found["l2_norm"] = lambda: rows("lp_normalize", kind, 24)
        found["log_softmax"] = lambda: rows("log_softmax", kind, 24)
    if kind != "uint8":
        found["abs"] = lambda: every("abs", kind, 18, None)
        found["exp"] = lambda: curve("exp", kind, 24)
        found["log"] = lambda: curve("log", kind, 24)
        found["rsqrt"] = lambda: curve("rsqrt", kind, 24)
        found["prod"] = lambda: powers(kind, 24)
        found["sum"] = lambda: sums(kind, 20)
    return {f"{name}{mark}": suite for name, suite in found.items()}


WITHOUT_REFERENCE = ("dynamic_linear_blocks", "elu", "sum", "sum16")
"""Suites of which the reference kernels give nothing: there is none, or memory that is not theirs
tells what a sum is."""
MORE: Suites = {
    **_of("int8", ""),
    **_of("int16", "16"),
    **_of("uint8", "_u8"),
    "elu": lambda: curve("elu", "int8", 24),
    "recode_i8_u8": lambda: recoded("int8", "uint8", 18),
    "recode_u8_i8": lambda: recoded("uint8", "int8", 18),
    "recode_i16_i8": lambda: recoded("int16", "int8", 9),
    "recode_i16_i32": lambda: recoded("int16", "int32", 9),
    "softmax_close": close_rows,
    "lstm": lambda: memories(30),
    "conv_groups": lambda: grouped(16),
    "conv_i4": lambda: nibbles(conv("int8", 16, depth=False)),
    "linear_i4": lambda: nibbles(linear("int8", 24)),
    "linear_i4_ties": lambda: nibbles(tied("linear", "int8", 8)),
}
"""Suites of cases, by the names of their files."""
