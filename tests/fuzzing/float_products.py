"""Random uses of ops that multiply matrices: products, convolutions, recurrent layers, attention.

Their sizes lie around every size at which `qir.reference` changes how it multiplies, taken from
the constants of its modules. Weights are scaled so that one term too many is seen in the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.reference import conv, product
from tests.fuzzing.float_uses import Draw, Rng, Use, around, flag, normal, one_of, small
from tests.reference.oracles import Array

DEPTHS = (product._TILE_DEPTH, 2 * product._TILE_DEPTH, 3 * product._TILE_DEPTH)


def sizes(rng: Rng, number: int) -> tuple[int, int, int]:
    """Rows, depth and columns of a product.

    Every fourth is small; the others have more multiplications than stay in one tile, and a depth
    around whole tiles.
    """
    if number % 4 == 3:
        return small(rng, 1, 9), small(rng, 1, 40), small(rng, 1, 9)
    depth = around(number - number // 4, *DEPTHS)
    rows = (1, 2, small(rng, 3, 40), product._TILE_ROWS + small(rng, -1, 2))[int(rng.integers(4))]
    columns = product._MAX_UNTHREADED // (rows * depth) + small(rng, 1, 3)
    return rows, depth, columns


def _swapped(rng: Rng, x: Array) -> tuple[Array, bool]:
    """A matrix, or its transpose and True."""
    return (np.ascontiguousarray(x.swapaxes(-1, -2)), True) if flag(rng) else (x, False)


def _matmul(rng: Rng, number: int) -> Use:
    rows, depth, columns = sizes(rng, number)
    lead = (2,) if flag(rng) else ()
    a, trans_a = _swapped(rng, normal(rng, *lead, rows, depth))
    b, trans_b = _swapped(rng, normal(rng, *(lead if flag(rng) else ()), depth, columns))
    bias = {"bias": normal(rng, columns)} if flag(rng) else {}
    given = {"trans_a": trans_a, "trans_b": trans_b}
    return Use({"a": a, "b": b, **bias}, given, "sum", terms=depth)


def _gemm(rng: Rng, number: int) -> Use:
    rows, depth, columns = sizes(rng, number)
    a, trans_a = _swapped(rng, normal(rng, rows, depth))
    b, trans_b = _swapped(rng, normal(rng, depth, columns))
    c = {"c": normal(rng, columns)} if flag(rng) else {}
    given = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 0.5, "beta": 2.0}
    return Use({"a": a, "b": b, **c}, given, "sum", terms=depth)


def _linear(rng: Rng, number: int) -> Use:
    rows, depth, columns = sizes(rng, number)
    bias = {"bias": normal(rng, columns)} if flag(rng) else {}
    x, w = normal(rng, 1, rows, depth), normal(rng, columns, depth)
    return Use({"x": x, "w": w, **bias}, {}, "sum", terms=depth)


def _einsum(rng: Rng, number: int) -> Use:
    equation = one_of(rng, ("ij,jk->ik", "bij,jk->bik", "bij,bkj->bik"))
    rows, depth, columns = sizes(rng, number)
    known = {"b": 2, "i": rows, "j": depth, "k": columns}
    inputs = equation.split("->")[0].split(",")
    xs = {f"xs.{i}": normal(rng, *(known[c] for c in s)) for i, s in enumerate(inputs)}
    return Use(xs, {"equation": equation}, "sum", terms=depth)


# -- convolutions -----------------------------------------------------------------------------


def _slides(rng: Rng, kernel: Sequence[int]) -> dict[str, Attr]:
    n = len(kernel)
    return {
        "stride": tuple(small(rng, 1, 2) for _ in range(n)),
        "dilation": tuple(small(rng, 1, 2) for _ in range(n)),
        "pad": tuple(small(rng, 0, k - 1) for k in (*kernel, *kernel)),
    }


def _convolved(
    rng: Rng, x: Sequence[int], w: Sequence[int], attrs: dict[str, Attr], terms: int, outputs: int
) -> Use:
    bias = {"bias": normal(rng, outputs)} if flag(rng) else {}
    given = {"x": normal(rng, *x), "w": normal(rng, *w), **bias}
    return Use(given, attrs, "sum", terms=terms)


def _conv(n: int) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        groups, images = small(rng, 1, 2), small(rng, 1, 2)
        if number % 4 == 3:
            kernel = tuple(small(rng, 1, 3) for _ in range(n))
            inside, made = small(rng, 1, 5), small(rng, 1, 4)
            area = tuple(small(rng, 7, 12) for _ in range(n))
        else:  # a kernel of one element: the depth of the product is the count of channels
            kernel, (made, inside, columns) = (1,) * n, sizes(rng, number)
            area = (*(1,) * (n - 1), columns) if columns < 5 else (*(2,) * (n - 1), columns)
        slid: dict[str, Attr] = _slides(rng, kernel) if number % 4 == 3 else {}
        x = (images, inside * groups, *area)
        w = (made * groups, inside, *kernel)
        attrs = {**slid, "groups": groups}
        return _convolved(rng, x, w, attrs, inside * math.prod(kernel), made * groups)

    return draw


def _conv2d(rng: Rng, number: int) -> Use:
    """One that unfolds more than one block, a depthwise one, or any."""
    if number % 8 not in (6, 7):
        return _conv(2)(rng, number)
    side, images = small(rng, 20, 30), small(rng, 1, 2)
    if number % 8 == 6:
        inside = conv._COLUMNS // (9 * side * side * images) + small(rng, 0, 1)
        pad: dict[str, Attr] = {"pad": (1, 1, 1, 1)}
        x, w = (images, inside, side, side), (2, inside, 3, 3)
        return _convolved(rng, x, w, pad, 9 * inside, 2)
    times = small(rng, 1, 2)
    groups = conv._CACHED // (times * side * side) + small(rng, 0, 1)
    attrs: dict[str, Attr] = {"groups": groups, "pad": (1, 1, 1, 1)}
    x, w = (images, groups, side, side), (groups * times, 1, 3, 3)
    return _convolved(rng, x, w, attrs, 9, groups * times)


def _transposed(n: int) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        groups, kernel = small(rng, 1, 2), tuple(small(rng, 1, 3) for _ in range(n))
        inside = small(rng, 1, 5) if number % 4 == 3 else around(number, *DEPTHS)
        made, area = small(rng, 1, 3), tuple(small(rng, 3, 9) for _ in range(n))
        x, w = (small(rng, 1, 2), inside * groups, *area), (inside * groups, made, *kernel)
        slid = _slides(rng, kernel)
        terms = inside * math.prod(kernel)
        return _convolved(rng, x, w, {**slid, "groups": groups}, terms, made * groups)

    return draw


# -- recurrent layers and attention -----------------------------------------------------------


def _recurrent(gates: int) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        batch, steps = small(rng, 1, 3), small(rng, 1, 3)
        depth, hidden = small(rng, 1, 40), small(rng, 1, 9)
        if number % 4 < 2:  # a deep input
            depth = around(number // 4 * 2 + number % 4, *DEPTHS)
            hidden = product._MAX_UNTHREADED // (batch * steps * depth * gates) + small(rng, 1, 2)
        elif number % 4 == 2:  # a deep state
            hidden = around(number // 4, product._TILE_DEPTH)
            batch = product._MAX_UNTHREADED // (gates * hidden * hidden) + small(rng, 1, 2)
        direction = one_of(rng, ("forward", "reverse", "bidirectional"))
        ways = 1 + (direction == "bidirectional")
        attrs: dict[str, Attr] = {"direction": direction}
        operands = {
            "x": normal(rng, steps, batch, depth),
            "w": normal(rng, ways, gates * hidden, depth, scale=depth**-0.5),
            "r": normal(rng, ways, gates * hidden, hidden, scale=hidden**-0.5),
            "bias": normal(rng, ways, 2 * gates * hidden),
            "h0": normal(rng, ways, batch, hidden),
        }
        if gates == 3:
            attrs["linear_before_reset"] = flag(rng)
        return Use(operands, attrs)

    return draw


def _attention(rng: Rng, number: int) -> Use:
    rows, deep, keys = small(rng, 1, 9), small(rng, 1, 40), small(rng, 1, 9)
    if number % 4 < 2:  # many keys: the second product is deep
        keys = around(number // 4 * 2 + number % 4, *DEPTHS)
        rows, deep = 33, product._MAX_UNTHREADED // (33 * keys) + small(rng, 1, 2)
    elif number % 4 == 2:  # wide heads: the first product is deep
        deep = around(number // 4, product._TILE_DEPTH)
        rows, keys = 33, product._MAX_UNTHREADED // (33 * deep) + small(rng, 1, 2)
    lead = small(rng, 1, 2), small(rng, 1, 2)
    q, k = normal(rng, *lead, rows, deep), normal(rng, *lead, keys, deep)
    return Use({"q": q, "k": k, "v": normal(rng, *lead, keys, deep)})


def _matrix(rng: Rng, number: int) -> Use:
    n = small(rng, 1, 12)
    return Use(
        {"x": np.add(normal(rng, small(rng, 1, 3), n, n), (n + 4) * np.eye(n, dtype=np.float32))}
    )


PRODUCTS: dict[str, Draw] = {
    "matmul": _matmul,
    "gemm": _gemm,
    "linear": _linear,
    "einsum": _einsum,
    "conv1d": _conv(1),
    "conv2d": _conv2d,
    "conv3d": _conv(3),
    **{f"conv_transpose{n}d": _transposed(n) for n in (1, 2, 3)},
    "rnn": _recurrent(1),
    "gru": _recurrent(3),
    "lstm": _recurrent(4),
    "attention": _attention,
    "det": _matrix,
    "inverse": _matrix,
}
