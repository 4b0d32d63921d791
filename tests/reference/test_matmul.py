"""matmul, gemm and linear against NumPy's float64, onnxruntime, and exact integers."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.reference.matmul import gemm, linear, matmul
from tests.reference.oracles import (
    Array,
    Exact,
    assert_near,
    assert_rounded_once,
    frozen,
    onnxruntime_runs,
)


def _wide(x: Array) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64))


def _pair(seed: int) -> tuple[Array, Array, bool, bool]:
    """Two operands that matmul takes, of 1 to 4 axes, and whether each is swapped first."""
    rng = np.random.default_rng(seed)
    rows, depth, columns = (int(v) for v in rng.integers(1, 40, 3))
    if seed % 9 == 0:
        depth = int(rng.integers(300, 2000))
    batch = [int(v) for v in rng.integers(1, 4, rng.integers(0, 3))]
    turn_a, turn_b = bool(rng.integers(2)), bool(rng.integers(2))
    left = [depth, rows] if turn_a else [rows, depth]
    right = [columns, depth] if turn_b else [depth, columns]
    a_batch = [1 if rng.random() < 0.3 else n for n in batch]
    b_batch = batch if rng.random() < 0.5 else []
    a = rng.standard_normal([*a_batch, *left]).astype(np.float32)
    b = rng.standard_normal([*b_batch, *right]).astype(np.float32)
    if seed % 7 == 0:
        a, turn_a = a[(0,) * (a.ndim - 2)].reshape(-1)[:depth], False
    if seed % 11 == 0:
        b, turn_b = b[(0,) * (b.ndim - 2)].reshape(-1)[:depth], False
    return a, b, turn_a, turn_b


def _turned(x: Array, turn: bool) -> Array:
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if turn else x


@pytest.mark.parametrize("seed", range(80))
def test_matmul_rounds_the_float64_product_once_and_is_near_onnxruntime(seed: int) -> None:
    a, b, turn_a, turn_b = _pair(seed)
    left, right = _turned(a, turn_a), _turned(b, turn_b)
    exact: Exact = (_wide(left) @ _wide(right)).numpy()
    size: Exact = (_wide(left).abs() @ _wide(right).abs()).numpy()
    got = matmul(frozen(a), frozen(b), trans_a=turn_a, trans_b=turn_b)
    assert_rounded_once(got, exact, size, f"seed {seed}")
    theirs = onnxruntime_runs("MatMul", [left, right])
    assert_near(got, theirs, size, left.shape[-1], f"seed {seed}")


@pytest.mark.parametrize("seed", range(20))
def test_matmul_adds_its_bias_before_the_one_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((2, 7, 33)).astype(np.float32)
    b = rng.standard_normal((33, 5)).astype(np.float32)
    bias = rng.standard_normal((5,) if seed % 2 else (7, 1)).astype(np.float32)
    exact = (_wide(a) @ _wide(b) + _wide(bias)).numpy()
    size = (_wide(a).abs() @ _wide(b).abs() + _wide(bias).abs()).numpy()
    assert_rounded_once(matmul(a, b, bias), exact, size, f"seed {seed}")


@pytest.mark.parametrize("seed", range(60))
def test_gemm_rounds_once_and_is_near_onnxruntime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, depth, columns = (int(v) for v in rng.integers(0 if seed % 6 == 0 else 1, 50, 3))
    turn_a, turn_b = bool(rng.integers(2)), bool(rng.integers(2))
    alpha = float(np.float32(rng.choice([1.0, 0.3, -2.5])))
    beta = float(np.float32(rng.choice([1.0, 0.0, 0.7])))
    a = rng.standard_normal((depth, rows) if turn_a else (rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if turn_b else (depth, columns)).astype(np.float32)
    shapes: list[tuple[int, ...] | None] = [None, (), (columns,), (rows, 1), (rows, columns), (1,)]
    shape = shapes[seed % 6]
    c = None if shape is None else rng.standard_normal(shape).astype(np.float32)
    exact = alpha * (_wide(_turned(a, turn_a)) @ _wide(_turned(b, turn_b)))
    size = abs(alpha) * (_wide(_turned(a, turn_a)).abs() @ _wide(_turned(b, turn_b)).abs())
    if c is not None:
        exact, size = exact + beta * _wide(c), size + abs(beta) * _wide(c).abs()
    got = gemm(a, b, c, alpha=alpha, beta=beta, trans_a=turn_a, trans_b=turn_b)
    assert_rounded_once(got, exact.numpy(), size.numpy(), f"seed {seed}")
    theirs = onnxruntime_runs(
        "Gemm", [a, b, c], alpha=alpha, beta=beta, transA=int(turn_a), transB=int(turn_b)
    )
    assert_near(got, theirs, size.numpy(), depth, f"seed {seed}")


@pytest.mark.parametrize("seed", range(40))
def test_linear_rounds_torchs_float64_result_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lead = [int(v) for v in rng.integers(0 if seed % 5 == 0 else 1, 6, seed % 4)]
    inner, outer = int(rng.integers(1, 300)), int(rng.integers(1, 300))
    x = rng.standard_normal([*lead, inner]).astype(np.float32)
    w = rng.standard_normal((outer, inner)).astype(np.float32)
    bias = rng.standard_normal(outer).astype(np.float32) if seed % 2 else None
    wide = None if bias is None else _wide(bias)
    exact = torch.nn.functional.linear(_wide(x), _wide(w), wide)
    tops = None if wide is None else wide.abs()
    size = torch.nn.functional.linear(_wide(x).abs(), _wide(w).abs(), tops)
    got = linear(frozen(x), frozen(w), bias)
    assert_rounded_once(got, exact.numpy(), size.numpy(), f"seed {seed}")


def test_a_product_equals_the_exact_one_in_rationals() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 40), (40, 4)))
    got = matmul(a, b)
    for i, j in np.ndindex(3, 4):
        terms = [
            Fraction(float(p)) * Fraction(float(q)) for p, q in zip(a[i], b[:, j], strict=True)
        ]
        assert got[i, j] == np.float32(float(sum(terms))), f"seed 3 at {i}, {j}"


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_products_wrap(kind: type[np.integer]) -> None:
    rng = np.random.default_rng(1)
    limits = np.iinfo(kind)
    a, b, c = (rng.integers(limits.min, limits.max, s, kind) for s in ((3, 9), (9, 4), (4,)))
    exact = a.astype(object) @ b.astype(object)

    unsigned = f"u{limits.bits // 8}"

    def wrapped(values: object) -> Array:
        bits: Array = np.array(values, object) & (2**limits.bits - 1)
        return bits.astype(unsigned)

    assert np.array_equal(matmul(a, b).view(unsigned), wrapped(exact))
    assert np.array_equal(linear(a, b.T, c).view(unsigned), wrapped(exact + c.astype(object)))
    scaled = gemm(a, b, c, alpha=-3.0, beta=2.0)
    assert np.array_equal(scaled.view(unsigned), wrapped(-3 * exact + 2 * c.astype(object)))


def test_gemm_does_not_read_c_where_beta_is_zero() -> None:
    a = np.ones((2, 2), np.float32)
    got = gemm(a, a, np.full((2, 2), np.nan, np.float32), beta=0.0)
    theirs = onnxruntime_runs("Gemm", [a, a, np.full((2, 2), np.nan, np.float32)], beta=0.0)
    assert np.array_equal(got, np.full((2, 2), 2, np.float32))
    assert np.array_equal(got, theirs)


def test_nothing_to_sum_gives_zeros_and_nothing_to_make_gives_nothing() -> None:
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    assert np.array_equal(matmul(a, b), np.zeros((2, 3), np.float32))
    assert matmul(b, np.ones((3, 5), np.float32)).shape == (0, 5)
    assert (
        linear(a, np.ones((4, 0), np.float32), np.arange(4, dtype=np.float32)).tolist()
        == [[0, 1, 2, 3]] * 2
    )
    assert linear(np.ones((0, 2, 3), np.float32), np.ones((4, 3), np.float32)).shape == (0, 2, 4)


def test_nan_and_infinity_pass_through_a_product() -> None:
    a = np.array([[np.nan, 1], [np.inf, 1], [np.inf, -np.inf], [1, 1]], np.float32)
    b = np.ones((2, 3), np.float32)
    theirs = onnxruntime_runs("MatMul", [a, b])
    assert np.array_equal(matmul(a, b), theirs, equal_nan=True)


_DIGEST = """
import hashlib, numpy as np
from qir.reference.matmul import matmul
from qir.reference.conv import conv2d
from qir.reference.conv_nd import FUNCTIONS
rng = np.random.default_rng(0)
digest = hashlib.sha256()
shapes = [(37, 4608, 49), (1, 20000, 1), (65, 700, 129), (200, 3, 900), (257, 257, 1)]
shapes += [(1, 513, 999), (1, 260000, 1)]
for rows, depth, columns in shapes:
    a, b = rng.standard_normal((rows, depth)), rng.standard_normal((depth, columns))
    digest.update(matmul(a, b).tobytes())
    digest.update(matmul(b, a, trans_a=True, trans_b=True).tobytes())
a = rng.standard_normal((300, 300))
digest.update(matmul(a, a, trans_b=True).tobytes())
x, w = rng.standard_normal((2, 96, 30, 30)), rng.standard_normal((70, 96, 3, 3))
digest.update(conv2d(x, w).tobytes())
x, w = rng.standard_normal((1, 300, 700)), rng.standard_normal((200, 300, 1))
digest.update(FUNCTIONS["conv1d"](x, w).tobytes())
digest.update(FUNCTIONS["conv_transpose1d"](x, w.swapaxes(0, 1)).tobytes())
x, w = rng.standard_normal((1, 513, 1, 5, 14)), rng.standard_normal((130, 513, 1, 1, 1))
digest.update(FUNCTIONS["conv3d"](x, w).tobytes())
print(digest.hexdigest())
"""


def test_products_have_the_same_bytes_for_any_number_of_threads() -> None:
    found = set()
    for threads in ("1", "2", "5"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        run = subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, **dict.fromkeys(names, threads)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_products_say_what_does_not_fit() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    for op in (matmul, gemm):
        with pytest.raises(OpError, match="a has 3 columns, b has 4 rows"):
            op(a, b)
    with pytest.raises(OpError, match="linear: x has 3 features, w wants 5"):
        linear(a, b)
    with pytest.raises(OpError, match=r"bias \[7\] does not broadcast to \[2, 2\]"):
        matmul(a, a, np.ones(7, np.float32), trans_b=True)
    with pytest.raises(OpError, match=r"bias \[3, 2, 2\] does not broadcast to \[2, 2\]"):
        matmul(a, a, np.ones((3, 2, 2), np.float32), trans_b=True)
    with pytest.raises(OpError, match=r"c \[3\] does not broadcast to \[2, 2\]"):
        gemm(a, a, np.ones(3, np.float32), trans_b=True)
    with pytest.raises(OpError, match="b is a scalar"):
        matmul(a, np.array(1, np.float32))
    with pytest.raises(OpError, match=r"leading axes of \[2, 1, 3\] and \[3, 3, 1\]"):
        matmul(np.ones((2, 1, 3), np.float32), np.ones((3, 3, 1), np.float32))
    with pytest.raises(OpError, match="gemm: a has 3 axes, it takes 2"):
        gemm(a[None], b)
    with pytest.raises(OpError, match=r"alpha 0\.5 and beta 1\.0 must be whole numbers for i8"):
        gemm(np.ones((2, 2), np.int8), np.ones((2, 2), np.int8), alpha=0.5)
