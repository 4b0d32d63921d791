"""Mistakes against the steps that compute as other runtimes do, and those on rows of floats.

The calls are made, respelled and broken as `tests/fuzzing/kernels.py` does it with all others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from qir._kernels import _cpu
from tests.fuzzing.judging import Try
from tests.fuzzing.kernels import SIZES, Call, ints, judge, step_of

F32 = np.float32
LONG = (*SIZES, 255, 256, 257, 600)
"""Sizes around the stages by which functions are computed."""
AT_ZERO: dict[str, float] = {
    "exp": 1, "erf": 0, "tanh": 0, "sigmoid": 0.5, "silu": 0, "gelu": 0, "gelu_tanh": 0, "elu": 0,
    "selu": 0, "mish": 0, "softplus": math.log(2), "log_sigmoid": -math.log(2), "hard_swish": 0,
    "square": 0, "sqrt": 0, "abs": 0,
}  # fmt: skip
"""What functions with quick kernels are at 0."""


def _quantize_by(rng: random.Random) -> Call:
    x = ints(rng, rng.choice(LONG), -600, 600, F32) / F32(2)
    zero = rng.randrange(256)
    given: dict[str, Any] = {"size": x.size, "factor": 1.0, "y_type": "u8", "zero": zero}
    given |= {"low": 0, "high": 255, "divide": rng.random() < 0.5, "fused": False, "before": 0.0}
    given |= {"least": -math.inf, "most": math.inf, "away": False, "nan": 0}
    given |= {"wraps": rng.random() < 0.3}
    return step_of("quantize_by", [x], given, np.clip(np.rint(x) + zero, 0, 255).astype(np.uint8))


def _lookup_runs(rng: random.Random) -> Call:
    x, run = ints(rng, rng.choice(LONG), 0, 255, np.uint8), rng.randrange(1, 40)
    body = rng.randint(0, run)
    tables = ints(rng, 512, 0, 255, np.uint8).reshape(2, 256)
    given = {"size": x.size, "table": tables[0], "tail": tables[1], "run": run, "body": body}
    late = (np.arange(x.size) % run >= body).astype(np.int64)
    return step_of("lookup_runs", [x], given, tables[late, x])


def _lookup_pairs(rng: random.Random) -> Call:
    shape = rng.randrange(4), rng.randrange(4), rng.choice(SIZES)
    shared = rng.choice(["a", "b", None])
    narrow = shape[0], 1, shape[2]
    of = [narrow if shared == name else shape for name in "ab"]
    a, b = (ints(rng, math.prod(s), 0, 255, np.uint8).reshape(s) for s in of)
    table = np.add.outer(np.arange(256), 3 * np.arange(256)).astype(np.uint8)
    run = rng.randrange(1, 40)
    given = {"shape": shape, "table": table, "tail": table, "run": run, "body": run // 2}
    expected = np.broadcast_to(a + 3 * b, shape)
    return step_of("lookup_pairs", [a, b], given | {"broadcast": shared}, expected)


def _code_means(rng: random.Random) -> Call:
    """Of windows of one pixel, whose zero points stay."""
    n, h, w, c = rng.randrange(3), rng.randrange(1, 4), rng.randrange(1, 4), rng.choice(SIZES)
    x = ints(rng, n * h * w * c, 0, 255, np.uint8).reshape(n, h, w, c)
    zero = rng.randrange(256)
    end = (0.0, False, zero, rng.random() < 0.5, 1.0)
    given: dict[str, Any] = {"shape": x.shape, "kernel": (1, 1), "stride": (1, 1), "pad": (0, 0)}
    given |= {"out": (h, w), "factor": np.ones(h * w, F32), "body": rng.randint(0, c)}
    given |= {"ends": (end, end), "x_zero": zero, "x_type": "u8", "y_type": "u8"}
    return step_of("code_means", [x], given | {"low": 0, "high": 255}, x)


def _lookup_sums(rng: random.Random) -> Call:
    """Of windows of one pixel, whose levels are the integers, or of whole images of zeros."""
    n, h, w, c = rng.randrange(3), rng.randrange(1, 4), rng.randrange(1, 4), rng.choice(SIZES)
    whole = rng.random() < 0.5
    x = ints(rng, n * h * w * c, 0, 0 if whole else 255, np.uint8).reshape(n, h, w, c)
    out = (1, 1) if whole else (h, w)
    given: dict[str, Any] = {"shape": x.shape, "kernel": (h, w) if whole else (1, 1)}
    given |= {"stride": (1, 1), "pad": (0, 0), "out": out, "levels": np.arange(1, 256)}
    given |= {"kinds": np.zeros(math.prod(out), np.uint8), "x_type": "u8", "y_type": "u8"}
    return step_of("lookup_sums", [x], given, np.zeros((n, 1, 1, c), np.uint8) if whole else x)


def _resize_linear(rng: random.Random) -> Call:
    """Of images to themselves, in which the nearer neighbour has all the weight."""
    n, h, w, c = rng.randrange(3), rng.randrange(1, 4), rng.randrange(1, 4), rng.choice(SIZES)
    x = ints(rng, n * h * w * c, 0, 255, np.uint8).reshape(n, h, w, c)
    rows, columns = (
        [np.arange(s), np.zeros(s, np.int32), np.full(s, 8), np.zeros(s, np.int32)] for s in (h, w)
    )
    given: dict[str, Any] = {"shape": x.shape, "rows": rows, "columns": columns, "shift": 6}
    return step_of("resize_linear", [x], given | {"away": rng.random() < 0.5, "x_type": "u8"}, x)


def _whole_add(rng: random.Random) -> Call:
    size = rng.choice(LONG)
    a, b = (ints(rng, size, 0, 60, np.uint8) for _ in range(2))
    given: dict[str, Any] = {"shape": (1, 1, size), "a_factor": 8, "b_factor": 16, "offset": 0}
    given |= {"shift": 3, "y_zero": 3, "a_type": "u8", "b_type": "u8", "y_type": "u8"}
    given |= {"low": 0, "high": 255, "broadcast": None}
    return step_of("whole_add", [a, b], given, a + 2 * b + 3)


def _conv_by(rng: random.Random) -> Call:
    """A convolution of one tap, with steps, a bias and a summand in whole numbers."""
    n, h, w, c = (rng.randrange(1, 4) for _ in range(4))
    depthwise = rng.random() < 0.5
    c = rng.randrange(2, 70) if depthwise else c
    out = c if depthwise else rng.randrange(1, 70)
    x = ints(rng, n * h * w * c, 0, 9, np.uint8).reshape(n, h, w, c)
    other = ints(rng, n * h * w * out, 0, 99, np.uint8).reshape(n, h, w, out)
    weight = ints(rng, out * (1 if depthwise else c), -9, 9, np.int8).reshape(out, -1, 1, 1)
    steps, bias = (ints(rng, out, -99, 99, F32) for _ in range(2))
    values = weight[:, :, 0, 0].astype(np.int64)
    total = x * values[:, 0] if depthwise else x.astype(np.int64) @ values.T
    total = total + steps + bias + other
    to_float = rng.random() < 0.5
    epilogue: dict[str, Any] = {"factor": np.ones(1, F32), "steps": steps, "bias": bias}
    epilogue |= {"summand": 1, "summand_most": 255, "bias_fused": rng.random() < 0.5}
    given: dict[str, Any] = {"weight": weight, "bias": None, "multiplier": np.ones(1, F32)}
    given |= {"shape": x.shape, "stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1)}
    given |= {"groups": c if depthwise else 1, "pairs": depthwise and rng.random() < 0.3}
    given |= {"x_type": "u8", "x_zero": 0, "y_type": "f32" if to_float else "u8", "y_zero": 0}
    given |= {"epilogue": tuple(epilogue.items()), "low": 0, "high": 255}
    expected = total.astype(F32) if to_float else np.clip(total, 0, 255).astype(np.uint8)
    return step_of("conv2d", [x, other], given, expected)


def _at_zero(rng: random.Random) -> Call:
    """A function of zeros, by the kernels of floats or those of single elements."""
    op = rng.choice(sorted(AT_ZERO))
    kind = "float_unary" if op in _cpu.UNARY and rng.random() < 0.5 else "function"
    x = np.zeros(rng.choice(LONG), F32)
    given = {"op": op, "size": x.size, "a": 1.0, "b": 1.0}
    return step_of(kind, [x], given, np.full(x.size, AT_ZERO[op], F32))


def _equal_rows(rng: random.Random) -> Call:
    """Rows of one number: the shares of softmax are equal, and a normalized row is `beta`."""
    rows, width = rng.randrange(5), rng.choice([1, 2, 8, 16, 64, 512])
    x = np.repeat(ints(rng, rows, -99, 99, F32), width).reshape(rows, width)
    if rng.random() < 0.6:
        given: dict[str, Any] = {"rows": rows, "width": width, "in_f32": rng.random() < 0.7}
        return step_of("real_softmax", [x], given, np.full_like(x, 1 / width))
    beta = ints(rng, width, -9, 9, F32)
    given = {"rows": rows, "gamma": np.ones(width, F32), "beta": beta, "eps": 1e-5}
    return step_of("layer_norm", [x], given, np.broadcast_to(beta, x.shape))


def _wide_depthwise(rng: random.Random) -> Call:
    """A depthwise convolution of one tap, summed in float64."""
    n, c = rng.randrange(1, 3), rng.randrange(1, 5)
    size = rng.randrange(1, 4), rng.randrange(1, 4), rng.choice(SIZES[1:])
    x = ints(rng, n * c * math.prod(size), -9, 9, F32).reshape(n, c, *size)
    weight, bias = (ints(rng, c, -9, 9, F32) for _ in range(2))
    given: dict[str, Any] = {"shape": x.shape, "kernel": (c, 1, 1, 1), "bias": bias, "groups": c}
    given |= {"out": size, "stride": (1,) * 3, "pad": (0,) * 3, "dilation": (1,) * 3}
    spread = (1, c, 1, 1, 1)
    expected = x * weight.reshape(spread) + bias.reshape(spread)
    return step_of("wide_conv", [x, weight], given | {"transposed": False}, expected)


CALLS: tuple[Callable[[random.Random], Call], ...] = (
    _quantize_by, _lookup_runs, _lookup_pairs, _code_means, _lookup_sums, _resize_linear,
    _whole_add, _conv_by, _at_zero, _equal_rows,
    _wide_depthwise,
)  # fmt: skip


def by_rule_case(attempt: Try) -> None:
    """One call of such a step."""
    judge(attempt.rng, attempt.rng.choice(CALLS)(attempt.rng))
