"""Ops that pick and place by indices, against onnxruntime and torch, on random shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qir.errors import OpError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I64
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.reference.table import compute, compute_all
from tests.reference.oracles import (
    Array,
    assert_near,
    assert_rounded_once,
    frozen,
    onnxruntime_runs,
)
from tests.reference.rules import assert_rule_agrees

KINDS = [np.float32, np.int64, np.uint8, np.int32, np.bool_, np.float16]
SEEDS = range(24)


def _draw(seed: int, axes: int | None = None) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 5, int(rng.integers(1, 5)) if axes is None else axes)
    return rng, frozen(rng.integers(0, 100, shape).astype(KINDS[seed % len(KINDS)]))


@pytest.mark.parametrize("seed", SEEDS)
def test_elements_are_gathered_as_onnxruntime_gathers_them(seed: int) -> None:
    rng, x = _draw(seed)
    axis = int(rng.integers(-x.ndim, x.ndim))
    shape = [int(rng.integers(0, d + 1)) for d in x.shape]
    shape[axis] = int(rng.integers(0, 6))
    size = x.shape[axis]
    indices = rng.integers(-size, size, shape).astype([np.int64, np.int32][seed % 2])
    operands, attrs = {"x": x, "indices": indices}, {"axis": axis}
    (got,) = assert_rule_agrees("gather_elements", operands, attrs, note=f"seed {seed}")
    theirs = onnxruntime_runs("GatherElements", [x, indices], axis=axis)
    assert np.array_equal(got, theirs), f"seed {seed}"
    with pytest.raises(OpError, match=f"index {size}, but the axis has {size}"):
        compute("gather_elements", {"x": x, "indices": np.full(x.shape, size)}, {"axis": axis})


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_are_gathered_as_onnxruntime_gathers_them(seed: int) -> None:
    rng, x = _draw(seed)
    batch = int(rng.integers(0, x.ndim))
    length = int(rng.integers(1, x.ndim - batch + 1))
    lead = (*x.shape[:batch], *(int(v) for v in rng.integers(1, 4, int(rng.integers(0, 3)))))
    if len(lead) < batch + 1 and batch:
        lead = (*lead, 2)
    limits = x.shape[batch : batch + length]
    indices = np.stack([rng.integers(-d, d, lead) for d in limits], -1)
    operands = {"x": x, "indices": indices}
    plain = rule_with_length(operands, "gather_nd", {"batch": batch}, f"seed {seed}")
    theirs = onnxruntime_runs("GatherND", [x, indices], batch_dims=batch)
    assert plain.shape == theirs.shape, f"seed {seed}"
    assert np.array_equal(plain, theirs), f"seed {seed}"


def rule_with_length(
    operands: dict[str, Array], op: str, attrs: dict[str, Attr], note: str
) -> Array:
    """As `assert_rule_agrees`; indices are constants, so that their tuples' length is known."""
    (got,) = assert_rule_agrees(op, operands, attrs, constant=["indices"], note=note)
    return got


WAYS = {"none": None, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _placed(x: Array, at: list[tuple[int, ...]], updates: list[Array], way: str) -> Array:
    """The definition, one update at a time."""
    out = x.astype(np.float64) if x.dtype.kind == "f" else x.copy()
    for place, value in zip(at, updates, strict=True):
        function = WAYS[way]
        out[place] = value if function is None else function(out[place], value.astype(out.dtype))
    return out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(12))
def test_updates_are_placed_one_after_the_other(seed: int, way: str) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rng.integers(1, 5, 3)).astype([np.float32, np.float64][seed % 2])
    if seed % 3 == 0:
        x = (x * 10).astype(np.int64)
    axis = int(rng.integers(-3, 3))
    shape = [int(rng.integers(1, d + 1)) for d in x.shape]
    size = x.shape[axis]
    indices = rng.integers(-size, size, shape)
    updates = (rng.standard_normal(shape) * 3).astype(x.dtype)
    attrs: dict[str, Attr] = {"axis": axis, "reduction": way}
    operands = {"x": x, "indices": indices, "updates": updates}
    (got,) = assert_rule_agrees("scatter_elements", operands, attrs, note=f"seed {seed}")
    at = []
    for place in np.ndindex(*shape):
        there = list(place)
        there[axis] = int(indices[place])
        at.append(tuple(there))
    wanted = _placed(x, at, [updates[p] for p in np.ndindex(*shape)], way)
    _compare(got, wanted, f"seed {seed} {way}")
    if way != "none":  # where two updates meet, onnxruntime keeps either
        theirs = onnxruntime_runs("ScatterElements", [*operands.values()], axis=axis, reduction=way)
        assert_near(got, theirs, np.abs(got.astype(np.float64)) + 30, 12, f"seed {seed} {way}")
    tuples = np.stack([rng.integers(-d, d, (2, 2)) for d in x.shape[:2]], -1)
    parts = (rng.standard_normal((2, 2, x.shape[2])) * 3).astype(x.dtype)
    operands = {"x": x, "indices": tuples, "updates": parts}
    placed = rule_with_length(operands, "scatter_nd", {"reduction": way}, f"seed {seed}")
    every = [tuple(int(v) for v in tuples[p]) for p in np.ndindex(2, 2)]
    wanted = _placed(x, every, [parts[p] for p in np.ndindex(2, 2)], way)
    _compare(placed, wanted, f"seed {seed} {way}")


def _compare(got: Array, wanted: Array, note: str) -> None:
    if got.dtype.kind != "f":
        assert np.array_equal(got, wanted), note
        return
    exact = wanted.astype(np.float64)
    assert_rounded_once(got, exact, np.abs(exact), note)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_hot_is_onnxruntimes(seed: int) -> None:
    rng, _ = _draw(seed)
    shape = tuple(int(v) for v in rng.integers(1, 4, int(rng.integers(1, 3))))
    depth = int(rng.integers(1, 5))
    indices = np.asarray(rng.integers(-6, 7, shape))
    values = rng.integers(0, 9, 2).astype([np.float32, np.int64][seed % 2])
    axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
    operands = {"indices": indices, "values": values}
    attrs: dict[str, Attr] = {"depth": depth, "axis": axis}
    (got,) = assert_rule_agrees("one_hot", operands, attrs, constant=["values"], note=f"{seed}")
    theirs = onnxruntime_runs("OneHot", [indices, np.array(depth), values], axis=axis)
    assert np.array_equal(got, theirs), f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_hangs_on_the_elements_is_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    x = x % np.array(3, x.dtype) if x.dtype != np.bool_ else x
    (got,) = assert_rule_agrees("nonzero", {"x": x}, unknown=True, note=f"seed {seed}")
    if x.dtype in (np.float32, np.int64, np.uint8, np.int32, np.bool_):
        assert np.array_equal(got, onnxruntime_runs("NonZero", [x])), f"seed {seed}"
    assert np.array_equal(got, np.array(np.nonzero(x)).reshape(x.ndim, -1)), f"seed {seed}"
    axis = int(rng.integers(-x.ndim, x.ndim))
    condition = np.less(rng.random(x.shape[axis]), 0.5)
    operands, attrs = {"x": x, "condition": condition}, {"axis": axis}
    (got,) = assert_rule_agrees("compress", operands, attrs, unknown=True, note=f"seed {seed}")
    if x.dtype != np.float16:
        theirs = onnxruntime_runs("Compress", [x, condition], axis=axis)
        assert np.array_equal(got, theirs), f"seed {seed}"
    (got,) = assert_rule_agrees("compress", operands, unknown=True, note=f"seed {seed}")
    assert np.array_equal(got, x.reshape(-1)[: len(condition)][condition]), f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_there_once_or_more_is_numpys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, rng.integers(1, 4, 2)).astype([np.float32, np.int64][seed % 2])
    for axis in (None, 0, -1):
        attrs: dict[str, Attr] = {"axis": axis}
        made = assert_rule_agrees("unique", {"x": x}, attrs, unknown=True, note=f"seed {seed}")
        wanted = np.unique(x, True, True, True, axis)
        for got, one in zip(made, wanted, strict=True):
            assert np.array_equal(got.reshape(-1), one.reshape(-1)), f"seed {seed} {axis}"
    kept, first, which, times = compute_all("unique", {"x": x}, {"sorted": False})
    assert np.array_equal(first, np.sort(first)), f"seed {seed}"
    assert np.array_equal(kept[which], x.reshape(-1)), f"seed {seed}"
    assert times.sum() == x.size


@pytest.mark.parametrize("seed", range(12))
def test_triangles_orders_and_matrices_are_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rng.integers(1, 5, 3)).astype(np.float32)
    for k in (-2, -1, 0, 1, 3):
        for upper in (False, True):
            attrs: dict[str, Attr] = {"k": k, "upper": upper}
            (got,) = assert_rule_agrees("trilu", {"x": x}, attrs)
            theirs = onnxruntime_runs("Trilu", [x, np.array(k)], upper=int(upper))
            assert np.array_equal(got, theirs), f"seed {seed} {attrs}"
        (got,) = assert_rule_agrees("eye_like", {"x": x[0]}, {"k": k, "dtype": I64})
        assert np.array_equal(got, onnxruntime_runs("EyeLike", [x[0]], k=k, dtype=7))
    axes = tuple(int(a) for a in rng.permutation(3)[: int(rng.integers(1, 4))])
    (got,) = assert_rule_agrees("flip", {"x": x}, {"axes": axes})
    assert np.array_equal(got, torch.flip(torch.from_numpy(x), axes).numpy())
    for batch, time in ((0, 1), (1, 0)):
        lengths = rng.integers(0, x.shape[time] + 1, x.shape[batch])
        operands = {"x": x, "lengths": lengths}
        (got,) = assert_rule_agrees("reverse_sequence", operands, {"batch": batch, "time": time})
        marks = {"batch_axis": batch, "time_axis": time}
        theirs = onnxruntime_runs("ReverseSequence", [x, lengths], **marks)
        assert np.array_equal(got, theirs), f"seed {seed} {marks}"
    ties = np.round(x)
    for axis in (0, -1):
        (got,) = assert_rule_agrees("hardmax", {"x": ties}, {"axis": axis})
        assert np.array_equal(got, onnxruntime_runs("Hardmax", [ties], axis=axis)), f"seed {seed}"


def test_what_does_not_fit_is_told() -> None:
    x, one = np.ones((2, 3), np.float32), np.zeros((2, 1), np.int64)
    cases: list[tuple[str, dict[str, Array], dict[str, Attr], str]] = [
        ("gather_elements", {"indices": one[0]}, {}, "indices have 1 axes, x has 2"),
        ("gather_elements", {"indices": np.zeros((2, 4), np.int64)}, {}, "longer than x"),
        ("gather_nd", {"indices": np.zeros((1, 3), np.int64)}, {}, "do not fit"),
        ("scatter_nd", {"indices": one, "updates": x[:1]}, {}, "must have"),
        ("scatter_elements", {"indices": one, "updates": x}, {}, "updates"),
        ("reverse_sequence", {"lengths": one[:, 0]}, {"batch": 0, "time": 0}, "lengths"),
        ("compress", {"condition": np.ones(7, np.bool_)}, {}, "condition has 7"),
    ]
    for op, operands, attrs, why in cases:
        with pytest.raises(OpError, match=why):
            compute(op, {"x": x, **operands}, attrs)
    graph = Graph("misfits")
    value = graph.add("input", types=[TensorType((2, 3), F32)]).result
    places = graph.add("input", types=[TensorType((2, None), I64)]).result
    with pytest.raises(TypeRuleError, match="length of their last axis must be known"):
        graph.add("gather_nd", {"x": value, "indices": places})
