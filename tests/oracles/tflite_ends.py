"""Recorded cases of activations whose ends lie on ties, or one float32 beside them, behind every
kernel that has one; and of convolutions that leave rows unread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import CaseOperand, F, OpCase, Value
from tests.oracles.tflite_dynamic import REAL, bias, rows
from tests.oracles.tflite_operands import (
    Seed,
    Suites,
    biased,
    bounds,
    fitting,
    operand,
    random_integers,
    result,
    seeds,
    sparse,
    unsigned,
    weights,
    window,
    zero_of,
)

Attrs = dict[str, Value]
Maker = Callable[[Seed, str, int, CaseOperand], OpCase]
_PLAIN: Attrs = {"stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1), "layout": "NHWC"}
_POOL: Attrs = {"pad": (0, 0, 0, 0), "layout": "NHWC"}
_MANY = 192


def tied_scale(seed: Seed, kind: str, end: float, number: int) -> float:
    """By which the end lies on a tie, divided or times 1 / s; every fourth is one float32 off."""
    least, most = (5, 85) if kind != "int16" else (1000, 8000)
    while True:
        tie = int(seed.integers(least, most)) + 0.5
        step = F(end / tie)
        for scale in (step, np.nextafter(step, F(0)), np.nextafter(step, F(1))):
            found = (float(F(end) / scale), float(F(end) * (F(1) / scale)))
            if tie in found and (found[0] != found[1] or end == 1 or number % 3):
                return float(np.nextafter(scale, F(1)) if number % 4 == 3 else scale)


def _wide(seed: Seed, kind: str, scale: float, *shape: int) -> CaseOperand:
    return CaseOperand(random_integers(seed, kind, *shape), float(F(scale)), zero_of(seed, kind))


def _pair(op: str, sizes: tuple[float, float]) -> Maker:
    def made(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
        a, b = (_wide(seed, kind, out.step * s, 1, _MANY) for s in sizes)
        if op == "mul":
            b = replace(b, scale=float(F(sizes[1])))
        held = {"a": b, "b": a} if number % 4 == 1 and op == "sub" else {"a": a, "b": b}
        return OpCase(op, held, out, (1, _MANY), fed=("a", "b"))

    return made


def _layer(seed: Seed, kind: str, number: int, out: CaseOperand, into: int, bits: int) -> OpCase:
    """A layer of rows; of weights of four bits, or of eight. Half of them have sums on ties."""
    count = 6
    x = _wide(seed, kind, out.step * 1.5, _MANY // count, into)
    data = seed.integers(-7, 8, (count, into)).astype(np.int8)
    scale = seed.uniform(0.2, 1.2, count).astype(F) if kind == "int8" else 0.5
    w = CaseOperand(data, scale, bits=bits)
    if number % 4 < 2:
        w, _ = sparse(seed, w, 1.0, kind)
        each = seed.choice([1.0, 0.5, 1 / 3], count).astype(F)
        w = replace(w, scale=each if kind == "int8" else 0.5)
    w = unsigned(seed, replace(w, scale=0.5)) if kind == "uint8" else w
    given = {"x": x, "w": w, "bias": biased(seed, x, w, count, 20)}
    return OpCase("linear", given, out, (_MANY // count, count))


def _linear(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
    return _layer(seed, kind, number, out, 1 + number % 5, 8)


def _conv(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
    return _imaged(_linear(seed, kind, number, out))


def _conv_of_few(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
    return _imaged(_layer(seed, kind, number, out, 1 + number % 5, 4))


def _imaged(made: OpCase) -> OpCase:
    """A layer of rows as a convolution of pixels."""
    x, w = made.operands["x"], made.operands["w"]
    x = replace(x, data=x.data.reshape(1, 4, 8, -1))
    w = replace(w, data=w.data.reshape(6, -1, 1, 1))
    given = {**made.operands, "x": x, "w": w}
    return OpCase("conv2d", given, made.out, (1, 4, 8, 6), {**_PLAIN, "groups": 1})


def _depthwise(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
    made = _layer(seed, kind, number, out, 6, 8)
    w = made.operands["w"]
    w = replace(w, data=w.data[:, :1].reshape(6, 1, 1, 1))
    given = {**made.operands, "w": w}
    given["x"] = replace(given["x"], data=given["x"].data.reshape(1, 4, 8, 6))
    return OpCase("conv2d", given, out, (1, 4, 8, 6), {**_PLAIN, "groups": 6})


def _pool(op: str, kernel: tuple[int, int], stride: tuple[int, int]) -> Maker:
    def made(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
        x = CaseOperand(random_integers(seed, kind, 1, 8, 8, 4), out.scale, out.zero)
        sizes, _ = window((8, 8), kernel, stride, (1, 1), same=False)
        attrs: Attrs = {**_POOL, "kernel": kernel, "stride": stride}
        if op == "avg_pool2d":
            attrs["count_pad"] = False
        return OpCase(op, {"x": x}, out, (1, *sizes, 4), attrs)

    return made


def _few(bits: int, size: int, *, many: bool) -> Maker:
    def made(seed: Seed, kind: str, number: int, out: CaseOperand) -> OpCase:
        case = _layer(seed, kind, number, out, size, bits)
        if many:
            return case
        w = replace(case.operands["w"], scale=0.5)
        unit = float(F(case.operands["x"].step) * F(0.5))
        beside = replace(case.operands["bias"], scale=unit)
        return replace(case, operands={**case.operands, "w": w, "bias": beside})

    return made


_MAKERS: tuple[Maker, ...] = (
    _conv,
    _depthwise,
    _linear,
    _pair("add", (1.1, 0.7)),
    _pair("sub", (1.1, 0.7)),
    _pair("mul", (0.1, 1.0)),
    _pool("max_pool2d", (1, 1), (1, 1)),
    _pool("max_pool2d", (2, 1), (2, 1)),
    _pool("avg_pool2d", (1, 1), (1, 1)),
)
_LEFT: tuple[Maker, ...] = (
    _pool("max_pool2d", (1, 1), (2, 1)),
    _pool("max_pool2d", (2, 1), (1, 2)),
    _pair("add", (2.0, 2.0**-11)),
    _pair("sub", (2.0, 2.0**-12)),
)
"""What XNNPACK takes of no 8-bit integers."""
_FEW: tuple[Maker, ...] = (
    _conv_of_few,
    *(_few(4, size, many=many) for size in (2, 3, 4, 5) for many in (True, False)),
)


def ends(kind: str, makers: tuple[Maker, ...], count: int) -> Iterator[OpCase]:
    """Each kernel with relu6, and with what cuts at -1 and 1."""
    for number, seed in seeds(f"end{kind}{len(makers)}", count * len(makers)):
        act, end = (("relu6", 6.0), ("relu1", 1.0))[number // len(makers) % 2]
        low, high = bounds(kind)
        middle = (
            0 if kind == "int16" else int(seed.integers(-20, 20)) * 2 + 1 + (low + high + 1) // 2
        )
        if kind != "int16" and act == "relu6":
            middle -= 60
        scale = tied_scale(seed, kind, end, number // len(makers))
        out = CaseOperand(np.zeros(0, kind), scale, middle)
        yield replace(makers[number % len(makers)](seed, kind, number, out), activation=act)


def unread(kind: str, count: int, *, same: bool) -> Iterator[OpCase]:
    """Convolutions whose stride leaves rows or columns unread, padded SAME or VALID: as many
    results, of as much padding, by both."""
    done = 0
    for number, seed in seeds(f"unread{kind}", 100 * count):
        if done == count:
            return
        kernel, stride, size = (
            (int(seed.integers(*a)), int(seed.integers(*a))) for a in ((1, 4), (1, 5), (6, 14))
        )
        dilation = (1, 1) if number % 3 else (1 + number // 3 % 2, 2)
        (sizes, pads), (others, _) = (
            window(size, kernel, stride, dilation, same=how) for how in (True, False)
        )
        if any(pads) or sizes != others or _read(size, kernel, stride, dilation):
            continue
        done += 1
        depth = kind != "uint8" and done % 3 == 0
        into, out = (6, 6) if depth else (int(seed.integers(1, 8)), int(seed.integers(2, 8)))
        attrs: Attrs = {**_PLAIN, "stride": stride, "dilation": dilation}
        attrs["groups"] = into if depth else 1
        shape = (out, 1 if depth else into, *kernel)
        made = (1, *sizes, out)
        if kind == "float32":
            x = rows(seed, number, 1, size[0] * size[1] * into).reshape(1, *size, into)
            w = weights(seed, number, shape, many=True)
            given = {"x": CaseOperand(x), "w": w, "bias": bias(seed, out)}
            yield OpCase("conv2d", given, REAL, made, attrs, same=same)
            continue
        of = operand(seed, kind, number, 1, *size, into)
        w = weights(seed, number, shape, many=kind == "int8")
        tied = sparse(seed, w, of.step, kind) if done % 2 else None
        w = tied[0] if tied else w
        w = unsigned(seed, w) if kind == "uint8" else w
        reach = 60 if tied else 20_000 if kind == "uint8" else 2000
        given = {"x": of, "w": w, "bias": biased(seed, of, w, out, reach)}
        fit = fitting(of, w, int(np.prod(shape[1:])), number)
        to = tied[1] if tied else result(seed, kind, fit)
        yield OpCase("conv2d", given, to, made, attrs, same=same)


def _read(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> bool:
    """Whether every row and column is read, or one pixel alone."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    left = [-(-n // s) * s - s + r - n for n, s, r in zip(size, stride, reach, strict=True)]
    return min(left) >= 0 or kernel == (1, 1)


ENDS: Suites = {
    "ends": lambda: ends("int8", _MAKERS, 8),
    "ends_u8": lambda: ends("uint8", _MAKERS, 8),
    "ends16": lambda: ends("int16", _MAKERS, 4),
    "ends_left": lambda: ends("int8", _LEFT, 8),
    "ends_left_u8": lambda: ends("uint8", _LEFT, 8),
    "ends_i4": lambda: ends("int8", _FEW, 8),
    "unread_same": lambda: unread("int8", 24, same=True),
    "unread_same_u8": lambda: unread("uint8", 12, same=True),
    "unread_same_real": lambda: unread("float32", 12, same=True),
    "unread_valid": lambda: unread("int8", 24, same=False),
    "unread_valid_u8": lambda: unread("uint8", 12, same=False),
    "unread_valid_real": lambda: unread("float32", 12, same=False),
}
"""Suites of cases, by the names of their files."""
