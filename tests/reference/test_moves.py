"""Ops that pick, repeat and rearrange, their rules and the maps they carry, on random shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from qir.errors import OpError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8
from qir.ir.graph import Graph
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType, uniform
from qir.reference.moves import cut_at
from qir.reference.table import compute
from tests.reference.oracles import Array, frozen, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

KINDS = [np.float32, np.int8, np.uint8, np.int32, np.int64, np.bool_]
SEEDS = range(30)


def _draw(seed: int, axes: int | None = None) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 5, int(rng.integers(1, 5)) if axes is None else axes)
    return rng, frozen(rng.integers(0, 100, shape).astype(KINDS[seed % len(KINDS)]))


def _i64(values: object) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize("seed", SEEDS)
def test_squeeze_and_unsqueeze_undo_each_other(seed: int) -> None:
    rng, x = _draw(seed)
    rank = x.ndim + int(rng.integers(1, 4))
    axes = [int(a) for a in rng.choice(rank, rank - x.ndim, replace=False)]
    axes = [a - rank if rng.random() < 0.5 else a for a in axes]
    attrs: dict[str, Attr] = {"axes": tuple(axes)}
    (wide,) = assert_rule_agrees("unsqueeze", {"x": x}, attrs, note=f"seed {seed}")
    assert np.array_equal(wide, onnxruntime_runs("Unsqueeze", [x, _i64(axes)])), f"seed {seed}"
    (back,) = assert_rule_agrees("squeeze", {"x": wide}, attrs, note=f"seed {seed}")
    assert back.shape == x.shape
    assert np.array_equal(back, x), f"seed {seed}"
    bare = compute("squeeze", {"x": wide}, {"axes": ()})
    assert bare.shape == onnxruntime_runs("Squeeze", [wide]).shape, f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_slice_equals_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    axes = [int(a) for a in rng.permutation(x.ndim)[: rng.integers(1, x.ndim + 1)]]
    huge = 2**63 - 1
    starts = [int(rng.choice([0, -1, 1, -9, 9, 2, huge, -huge])) for _ in axes]
    steps = [int(rng.choice([1, 1, 2, -1, -2, 7])) for _ in axes]
    some = [0, -1, 3, -9, 9, 2, -huge]  # going back from huge is onnxruntime's own matter
    ends = [int(rng.choice([*some, huge] if s > 0 else some)) for s in steps]
    lists = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    attrs: dict[str, Attr] = {n: tuple(v) for n, v in lists.items()}
    theirs = onnxruntime_runs("Slice", [x, *(_i64(v) for v in lists.values())])
    (got,) = assert_rule_agrees("slice", {"x": x}, attrs, note=f"seed {seed}")
    assert got.shape == theirs.shape, f"seed {seed} {attrs}"
    assert np.array_equal(got, theirs), f"seed {seed} {attrs}"
    bounds = {"x": x, "starts": _i64(starts), "ends": _i64(ends)}
    rest: dict[str, Attr] = {"axes": tuple(axes), "steps": tuple(steps)}
    for constant in ((), ("starts", "ends")):
        (computed,) = assert_rule_agrees(
            "slice_at", bounds, rest, constant=constant, unknown=True, note=f"seed {seed}"
        )
        assert np.array_equal(computed, theirs), f"seed {seed} {attrs}"


def test_bounds_that_are_no_rows_are_told_by_their_shapes() -> None:
    wide = np.zeros((7, 8, 9), np.float32)
    with pytest.raises(OpError, match=r"starts int64 of \[1\] and ends float32 of \[7, 8, 9\] are"):
        cut_at(wide, _i64([0]), wide, axes=(0,))


@pytest.mark.parametrize("seed", SEEDS)
def test_split_gives_the_parts_that_numpy_gives(seed: int) -> None:
    rng, x = _draw(seed)
    axis = int(rng.integers(-x.ndim, x.ndim))
    cuts = sorted(int(c) for c in rng.integers(0, x.shape[axis] + 1, int(rng.integers(0, 3))))
    parts = np.split(x, cuts, axis)
    attrs: dict[str, Attr] = {"sizes": tuple(p.shape[axis] for p in parts), "axis": axis}
    made = assert_rule_agrees("split", {"x": x}, attrs, note=f"seed {seed}")
    for got, part in zip(made, parts, strict=True):
        assert np.array_equal(got, part), f"seed {seed}"
    with pytest.raises(OpError, match="do not make up axis"):
        compute("split", {"x": x}, {"sizes": (99,), "axis": axis})


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_equals_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    axis = int(rng.integers(-x.ndim, x.ndim))
    size = x.shape[axis]
    shape = rng.integers(0, 4, rng.integers(0, 3))
    indices = np.asarray(rng.integers(-size, size, shape)).astype([np.int32, np.int64][seed % 2])
    operands = {"x": x, "indices": indices}
    (got,) = assert_rule_agrees("gather", operands, {"axis": axis}, note=f"seed {seed}")
    assert np.array_equal(got, onnxruntime_runs("Gather", [x, indices], axis=axis)), f"seed {seed}"
    with pytest.raises(OpError, match=f"index {size}, but axis"):
        compute("gather", {"x": x, "indices": _i64([size])}, {"axis": axis})


@pytest.mark.parametrize("seed", SEEDS)
def test_expand_and_tile_equal_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    narrow = x[tuple(slice(0, 1) if rng.random() < 0.5 else slice(None) for _ in x.shape)]
    wanted = [1 if rng.random() < 0.3 else d for d in x.shape][int(rng.integers(0, x.ndim)) :]
    shape = _i64([2, *x.shape] if seed % 3 == 0 else wanted)
    theirs = onnxruntime_runs("Expand", [narrow, shape])
    for constant in ((), ("shape",)):
        (got,) = assert_rule_agrees(
            "expand",
            {"x": narrow, "shape": shape},
            constant=constant,
            unknown=True,
            note=f"seed {seed}",
        )
        assert got.shape == theirs.shape, f"seed {seed}"
        assert np.array_equal(got, theirs), f"seed {seed}"
    repeats = tuple(int(n) for n in rng.integers(0, 3, x.ndim))
    (got,) = assert_rule_agrees("tile", {"x": x}, {"repeats": repeats}, note=f"seed {seed}")
    assert np.array_equal(got, onnxruntime_runs("Tile", [x, _i64(repeats)])), f"seed {seed}"


@pytest.mark.parametrize("seed", range(12))
def test_blocks_of_pixels_become_channels_and_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w, side = (int(v) for v in rng.integers(1, 4, 5))
    x = rng.standard_normal((n, c * side**2, h, w)).astype(np.float32)
    for mode in ("DCR", "CRD"):
        attrs: dict[str, Attr] = {"block": side, "mode": mode}
        (got,) = assert_rule_agrees("depth_to_space", {"x": x}, attrs, note=f"seed {seed}")
        theirs = onnxruntime_runs("DepthToSpace", [x], blocksize=side, mode=mode)
        assert np.array_equal(got, theirs), f"seed {seed} {mode}"
        last = x.transpose(0, 2, 3, 1)
        (got,) = assert_rule_agrees("depth_to_space", {"x": last}, {**attrs, "layout": "NHWC"})
        assert np.array_equal(got.transpose(0, 3, 1, 2), theirs), f"seed {seed} {mode}"
    pixels = torch.pixel_shuffle(torch.from_numpy(x), side).numpy()
    assert np.array_equal(compute("depth_to_space", {"x": x}, attrs), pixels)
    (back,) = assert_rule_agrees("space_to_depth", {"x": pixels}, {"block": side})
    assert np.array_equal(back, onnxruntime_runs("SpaceToDepth", [pixels], blocksize=side))


def test_sizes_that_nobody_knows_stay_named_where_nothing_is_cut() -> None:
    graph = Graph("g")
    n = dims.symbol("N")
    x = graph.add("input", types=[TensorType((n, 4), F32)]).result
    all_of_it: dict[str, Attr] = {"starts": (0,), "ends": (2**63 - 1,), "axes": (0,), "steps": (1,)}
    assert graph.add("slice", {"x": x}, all_of_it).result.type.shape == (n, 4)
    assert graph.add("slice", {"x": x}, {**all_of_it, "starts": (1,)}).result.type.shape == (
        None,
        4,
    )
    assert graph.add("tile", {"x": x}, {"repeats": (3, 2)}).result.type.shape == (n * 3, 8)
    with pytest.raises(TypeRuleError, match="which of its axes are 1 must be known"):
        graph.add("squeeze", {"x": x})


@pytest.mark.parametrize("seed", range(80))
def test_scales_along_an_axis_go_where_their_elements_go(seed: int) -> None:
    """The floats that moved integers mean are the moved floats."""
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(2, 4, 3)]
    axis = int(rng.integers(3))
    op, attrs, operands = CARRIED[seed % len(CARRIED)]
    if op == "squeeze":
        shape = [1, *shape[1:]]
    if op in ("depth_to_space", "space_to_depth"):
        shape = [shape[0], 4, 2, 2]
    scales = rng.uniform(0.5, 2, shape[axis]).astype(np.float32)
    quantized = rng.integers(-9, 9, shape).astype(np.int8)
    graph = Graph("g")
    element = uniform(I8, scales, 0, axis=axis)
    given = {"x": graph.add("input", types=[TensorType(tuple(shape), element)]).result}
    extra = {s: _i64(v) for s, v in operands.items()}
    if op == "expand":
        extra = {"shape": _i64([2, *shape])}
    given |= {s: graph.constant(Stored.of(v)) for s, v in extra.items()}
    if _lost(op, axis):
        with pytest.raises(TypeRuleError, match="does not survive"):
            graph.add(op, given, attrs)
        return
    kind = graph.add(op, given, attrs).result.type
    spread = [-1 if i == axis else 1 for i in range(len(shape))]
    expected = compute(op, {"x": quantized * scales.reshape(spread), **extra}, _full(op, attrs))
    moved = compute(op, {"x": quantized, **extra}, _full(op, attrs))
    quant = kind.quant
    assert quant is not None
    assert quant.axis is not None
    spread = [-1 if i == quant.axis else 1 for i in range(kind.rank)]
    assert np.array_equal(moved.astype(np.float32) * quant.scales().reshape(spread), expected), (
        f"seed {seed} {op}"
    )
    assert replace(quant, granularity=None, scale=None) == replace(
        element, granularity=None, scale=None
    )


CARRIED: list[tuple[str, dict[str, Attr], dict[str, list[int]]]] = [
    ("squeeze", {"axes": (0,)}, {}),
    ("unsqueeze", {"axes": (0, 2)}, {}),
    ("unsqueeze", {"axes": (-1,)}, {}),
    ("slice", {"starts": (1,), "ends": (9,), "axes": (1,), "steps": (1,)}, {}),
    ("gather", {"axis": 1}, {"indices": [1, 0, 1]}),
    ("expand", {}, {"shape": []}),
    ("tile", {"repeats": (1, 2, 1)}, {}),
    ("depth_to_space", {"block": 2}, {}),
    ("space_to_depth", {"block": 2}, {}),
]


def _lost(op: str, axis: int) -> bool:
    """Whether the op cuts, merges or repeats along that axis."""
    touched = {"squeeze": (0,), "slice": (1,), "gather": (1,), "tile": (1,)}
    return axis in touched.get(op, ()) or (op.endswith(("_space", "_depth")) and axis > 0)


def _full(op: str, attrs: dict[str, Attr]) -> dict[str, Attr]:
    return {"axis": 1} if op == "gather" else attrs
