"""Numbers chosen so that a slightly wrong formula gives other bytes: every pair of integers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir.backends.cpu import CpuTarget
from qir.ir.dtype import I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType, uniform

from . import naive

F = np.float32
CODES = np.arange(256)
A, B = (v.ravel() for v in np.meshgrid(CODES, CODES, indexing="ij"))


def maps(seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scales and odd zeros of a, b and the result."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.01, 0.05, 3).astype(F), rng.integers(0, 128, 3) * 2 + 1


def graph(
    seed: int,
    op: str,
    shapes: list[tuple[int, ...]],
    given: NDArray[np.float32] | None = None,
) -> Graph:
    """One op; its scales are drawn, or the given ones."""
    scales, zeros = maps(seed)
    scales = scales if given is None else given
    out = Graph()
    shapes = [*shapes, tuple(np.broadcast_shapes(*shapes))]
    kinds = [
        TensorType(shape, uniform(U8, np.array(scale, F), int(zero)))
        for shape, scale, zero in zip(shapes, scales, zeros, strict=True)
    ]
    a, b = (out.add("input", types=[k], name=n).result for k, n in zip(kinds, "ab", strict=False))
    y = out.add(op, {"a": a, "b": b}, types=[kinds[2]]).result
    out.add("output", {"y": y})
    return out


def both(seed: int, op: str, a: NDArray[np.int64], b: NDArray[np.int64]) -> None:
    """The compiled op gives the formula's bytes."""
    made = graph(seed, op, [a.shape, b.shape])
    data = {"a": a.astype(np.uint8), "b": b.astype(np.uint8)}
    got = np.asarray(CpuTarget().compile(made)(**data)["y"])
    assert np.array_equal(got, naive.run(made, data)["y"]), f"seed {seed}"


def total(seed: int, fault: str = "") -> NDArray[np.float32]:
    """A sum of all pairs of integers by the right formula, or with a fault in it."""
    (sa, sb, sc), (za, zb, zc) = maps(seed)
    ra, rb = F(sa / sc), F(sb / sc)
    if fault == "operands swapped":
        c = F(zc) - naive.fma(F(zb), rb, ra * F(za))
        y = naive.fma(B, rb, naive.fma(A, ra, c))
    else:
        inner = naive.fma(F(za), ra, rb * F(zb))
        if fault == "constant unfused":
            inner = np.asarray(ra * F(za) + rb * F(zb))
        c = F(zc) - inner
        y = naive.fma(A, ra, naive.fma(B, rb, c))
    out: NDArray[np.float32] = np.rint(y).clip(0, 255)
    return out


@pytest.mark.parametrize("seed", [11, 28, 55, 119, 120])
def test_the_constant_of_a_sum_is_fused(seed: int) -> None:
    assert (total(seed) != total(seed, "constant unfused")).any()
    both(seed, "add", A, B)


@pytest.mark.parametrize("seed", [6, 12, 36, 37, 38])
def test_a_sum_takes_its_operands_in_turn_where_the_first_is_the_scalar(seed: int) -> None:
    assert (total(seed) != total(seed, "operands swapped")).any()
    both(seed, "add", CODES.reshape(256, 1), np.tile(CODES, (256, 1)))
    both(seed, "add", np.tile(CODES, (256, 1)), CODES.reshape(256, 1))


@pytest.mark.parametrize("seed", range(20))
def test_a_product_of_all_pairs_equals_its_formula(seed: int) -> None:
    both(seed, "mul", A, B)


EXTREME = [(300.0, 200.0, 1e-6), (1e7, 2e7, 1e-3), (1e30, 1e20, 1e-8), (1e38, 1e38, 1e-30)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("given", EXTREME, ids=str)
@pytest.mark.parametrize("isa", _cpu.isa())
def test_results_that_do_not_fit_32_bits_are_the_low_code(
    op: str, given: tuple[float, float, float], isa: str
) -> None:
    made = graph(1, op, [A.shape, B.shape], np.array(given, F))
    data = {"a": A.astype(np.uint8), "b": B.astype(np.uint8)}
    got = np.asarray(CpuTarget().compile(made, isa=isa)(**data)["y"])
    with np.errstate(all="ignore"):
        wanted = naive.run(made, data)["y"]
    assert np.array_equal(got, wanted)
    assert got[-1] == 0  # of 255 and 255, where bounding first would give 255


def test_a_multiplier_is_rounded_after_each_factor() -> None:
    """Accumulators at ties of the right multiplier: the other order of factors moves some."""
    moved = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sx, sw, sy = (rng.uniform(1, 4, 3) * [1e-3, 1e-3, 1]).astype(F)
        right, other = F(F(sx * sw) / sy), F(sx * F(sw / sy))
        if right == other:
            continue
        # x = 1 and one weight of 0: the bias alone is the accumulator.
        near = np.rint((np.arange(-90, 90) + 0.5) / np.float64(right)).astype(np.int64)
        bias = (near[:, None] + np.arange(-8, 9)).ravel().astype(np.int32)
        made = _biased(bias, sx, sw, sy)
        got = np.asarray(CpuTarget().compile(made)(x=np.ones((1, 1), np.uint8))["y"])
        wanted = np.rint(bias.astype(F) * right).astype(np.int64) + 100
        assert np.array_equal(got[0], wanted.clip(0, 255)), f"seed {seed}"
        moved += int((np.rint(bias.astype(F) * other) != np.rint(bias.astype(F) * right)).sum())
    assert moved > 0


def _biased(bias: NDArray[np.int32], sx: float, sw: float, sy: float) -> Graph:
    out, count = Graph(), len(bias)
    kind = TensorType((1, 1), uniform(U8, np.array(sx, F), 1))
    x = out.add("input", types=[kind], name="x").result
    weights = TensorType((count, 1), uniform(I8, np.array(sw, F)))
    w = out.constant(Array(np.zeros((count, 1), np.int8), weights))
    c = out.constant(Array(bias, TensorType((count,), I32)))
    result = TensorType((1, count), uniform(U8, np.array(sy, F), 100))
    y = out.add("linear", {"x": x, "w": w, "bias": c}, types=[result]).result
    out.add("output", {"y": y})
    return out
