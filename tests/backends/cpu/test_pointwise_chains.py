"""Chains of ops on each float are one step, which gives the bytes of a step for each op."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir._kernels._cpu import EXTERNAL, Plan
from qir.backends.cpu import CpuTarget
from qir.backends.cpu.compiled import Compiled
from tests.backends.cpu.test_float_graphs import Net
from tests.kernels.one import ISAS

F32 = np.float32
Floats = NDArray[np.float32]
SIZES = (1, 7, 1024, 1025, 40_000)
GELU = [
    ("real", "div", 0, 1, 0.0, 0.0),
    ("function", "erf", 4, 0, 0.0, 0.0),
    ("real", "add", 5, 2, 0.0, 0.0),
    ("real", "mul", 0, 6, 0.0, 0.0),
    ("real", "mul", 7, 3, 0.0, 0.0),
]
"""x * (erf(x / sqrt(2)) + 1) * 0.5: value 0 is x, 1 to 3 are the constants."""


def gelu(x: Floats) -> Floats:
    """The same by NumPy and the C library, each op rounded."""
    t = (x / F32(math.sqrt(2))).astype(F32)
    e = np.array([math.erf(v) for v in t.tolist()]).astype(F32)
    return ((x * (e + F32(1))).astype(F32) * F32(0.5)).astype(F32)


def chained(x: Floats, isa: str, threads: int, ops: list[Any], constants: list[float]) -> Floats:
    y = np.full(x.shape, np.nan, F32)
    plan = Plan(0, [(EXTERNAL, x.nbytes), (EXTERNAL, y.nbytes)], isa=isa)
    plan.pointwise("chain", [0], 1, constants=constants, ops=ops, size=x.size)
    plan.run([x, y], threads=threads)
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES)
def test_each_op_is_rounded(isa: str, size: int) -> None:
    rng = np.random.default_rng([61, size])
    x = (rng.normal(size=size) * 3).astype(F32)
    wanted = gelu(x)
    for threads in (1, 2):
        got = chained(x, isa, threads, GELU, [math.sqrt(2), 1.0, 0.5])
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_a_unary_op_takes_its_parameters(isa: str) -> None:
    x = np.linspace(-9, 9, 2000).astype(F32)
    ops = [("unary", "bound", 0, 0, -1.5, 2.0), ("real", "sub", 0, 1, 0.0, 0.0)]
    assert np.array_equal(chained(x, isa, 1, ops, []), x - np.clip(x, F32(-1.5), F32(2)))


def test_values_that_are_not_there_yet_are_refused() -> None:
    x = np.zeros(4, F32)
    with pytest.raises(ValueError, match="a is 1"):
        chained(x, ISAS[0], 1, [("unary", "abs", 1, 0, 0.0, 0.0)], [])
    with pytest.raises(ValueError, match="no kind of op, 'sum'"):
        chained(x, ISAS[0], 1, [("sum", "abs", 0, 0, 0.0, 0.0)], [])
    with pytest.raises(ValueError, match="number of ops"):
        chained(x, ISAS[0], 1, [], [])


def kinds_and_result(path: Path, x: Floats) -> tuple[list[str], Floats]:
    program = CpuTarget().compile(qir.load(path), threads=1)
    assert isinstance(program, Compiled)
    (y,) = (np.asarray(v) for v in program(x=x).values())
    return [row.kind for row in program.describe()], y


def test_what_somebody_else_reads_is_a_result_of_its_own(tmp_path: Path) -> None:
    net = Net(62)
    half = net.node("Mul", "x", net.constant(np.array(0.5, F32)))
    joined = net.node("Abs", net.node("Sub", half, net.constant(np.array(1.0, F32))))
    both = net.node("Concat", half, joined, axis=1)
    path = net.save(tmp_path / "net.onnx", [2, 30], both, 2)
    x = np.random.default_rng(62).normal(size=(2, 30)).astype(F32)
    kinds, y = kinds_and_result(path, x)
    assert kinds[:2] == ["real", "pointwise"]
    assert np.array_equal(y, np.concatenate([x * F32(0.5), np.abs(x * F32(0.5) - F32(1))], 1))


def test_two_tensors_may_meet_in_a_chain(tmp_path: Path) -> None:
    net = Net(63)
    weight = net.weight(30, 30)
    other = net.node("MatMul", "x", weight)
    added = net.node("Add", net.node("Mul", other, net.constant(np.array(3.0, F32))), "x")
    path = net.save(tmp_path / "net.onnx", [5, 30], net.node("Mul", added, added), 2)
    x = np.random.default_rng(63).normal(size=(5, 30)).astype(F32)
    kinds, y = kinds_and_result(path, x)
    assert kinds == ["float_linear", "pointwise"]
    wanted = (x @ np.asarray(qir.load(path)["w0"].constant.data)) * 3 + x  # type: ignore[union-attr]
    assert np.allclose(y, wanted * wanted, rtol=1e-4, atol=1e-5)


def test_a_broadcast_row_ends_a_chain(tmp_path: Path) -> None:
    net = Net(64)
    row = net.constant(np.arange(30, dtype=F32))
    path = net.save(tmp_path / "net.onnx", [5, 30], net.node("Add", net.node("Abs", "x"), row), 2)
    x = np.random.default_rng(64).normal(size=(5, 30)).astype(F32)
    kinds, y = kinds_and_result(path, x)
    assert "pointwise" not in kinds
    assert np.array_equal(y, np.abs(x) + np.arange(30, dtype=F32))
