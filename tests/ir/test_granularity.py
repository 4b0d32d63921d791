"""Maps of blocks move with their elements: what integers mean is the same before and after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32
from qir.ir.graph import Graph
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.reference.table import compute

Data = NDArray[np.generic]
Blocks = tuple[tuple[int, int], ...]


def spread(kind: TensorType, grid: Data) -> Data:
    """The parameter of each element: the grid's, block by block."""
    assert kind.quant is not None
    assert kind.quant.granularity is not None
    out = grid
    for axis, size in kind.quant.granularity.blocks:
        out = np.repeat(out, size, axis)
        whole = kind.shape[axis]
        assert isinstance(whole, int)
        out = np.take(out, range(whole), axis)
    return np.broadcast_to(out, [d for d in kind.shape if isinstance(d, int)])


def params(kind: TensorType) -> tuple[Data, Data]:
    """Scale and zero of each element."""
    quant = kind.quant
    assert quant is not None
    assert quant.granularity is not None
    grid = [d for d in quant.granularity.grid(kind.shape) if isinstance(d, int)]
    scales, zeros = (np.asarray(p).reshape(grid) for p in (quant.scales(), quant.zeros()))
    return spread(kind, scales), spread(kind, zeros)


def blocked(shape: tuple[int, ...], blocks: Blocks, inline: bool = False) -> TensorType:
    """Integers with a scale and a zero for each block, all different."""
    grain = Granularity(blocks)
    grid = tuple(d for d in grain.grid(shape) if isinstance(d, int))
    count = int(np.prod(grid))
    scales = (np.arange(1, count + 1) / 8).astype(np.float32).reshape(grid)
    zeros = np.arange(count, dtype=np.int32).reshape(grid)
    if inline:
        quant = QuantType(
            I8, F32, tuple(scales.reshape(-1).tolist()), tuple(zeros.reshape(-1).tolist()), grain
        )
    else:
        held = Array(zeros, TensorType(grid, I32), "zeros")
        quant = QuantType(I8, F32, Array.of(scales, "scales"), held, grain)
    return TensorType(shape, quant)


def moved(
    op: str, kind: TensorType, attrs: dict[str, Attr], more: Mapping[str, Data]
) -> TensorType:
    graph = Graph("grains")
    x = graph.add("input", types=[kind]).result
    slot = "xs.0" if op == "concat" else "x"
    operands = {slot: x, **{s: graph.constant(Array.of(d)) for s, d in more.items()}}
    if op == "concat":
        operands["xs.1"] = x
    return graph.add(op, operands, attrs).result.type


TARGET = np.array
MOVES: list[tuple[str, tuple[int, ...], Blocks, dict[str, Attr], dict[str, Data]]] = [
    ("transpose", (4, 6), ((0, 1), (1, 3)), {"perm": (1, 0)}, {}),
    ("transpose", (4, 6, 2), ((0, 2), (1, 3)), {"perm": (2, 0, 1)}, {}),
    ("transpose", (4, 6, 2), ((1, 3),), {"perm": (2, 1, 0)}, {}),
    ("squeeze", (1, 4, 6), ((1, 2), (2, 3)), {"axes": (0,)}, {}),
    ("unsqueeze", (4, 6), ((0, 2), (1, 3)), {"axes": (1,)}, {}),
    ("unsqueeze", (4, 6), ((1, 3),), {"axes": (0, -1)}, {}),
    ("reshape", (4, 6), ((0, 1), (1, 3)), {}, {"shape": TARGET([2, 2, 6])}),
    ("reshape", (4, 6), ((0, 1), (1, 3)), {}, {"shape": TARGET([4, 2, 3])}),
    ("reshape", (4, 6), ((0, 1), (1, 2)), {}, {"shape": TARGET([4, 3, 2])}),
    ("reshape", (4, 2, 3), ((0, 1), (1, 1)), {}, {"shape": TARGET([4, 6])}),
    ("reshape", (4, 6), ((0, 1), (1, 3)), {}, {"shape": TARGET([24])}),
    ("reshape", (4, 2, 3), ((0, 2),), {}, {"shape": TARGET([8, 3])}),
    ("reshape", (4, 12), ((0, 1), (1, 6)), {}, {"shape": TARGET([4, 2, 2, 3])}),
    ("reshape", (4, 6), ((0, 3), (1, 5)), {}, {"shape": TARGET([1, 4, 6, 1])}),
    ("flatten", (4, 2, 3), ((0, 1), (1, 1)), {"axis": 1}, {}),
    ("flatten", (2, 2, 3), ((0, 2),), {"axis": 2}, {}),
    ("concat", (4, 6), ((1, 3),), {"axis": 0}, {}),
    ("pad", (4, 6), ((1, 3),), {"pads": (1, 0, 2, 0)}, {}),
    ("tile", (4, 6), ((1, 3),), {"repeats": (2, 1)}, {}),
    ("expand", (4, 6), ((0, 2), (1, 3)), {}, {"shape": TARGET([3, 4, 6])}),
    ("gather", (4, 6), ((1, 3),), {"axis": 0}, {"indices": TARGET([[0, 3], [1, 1]])}),
    ("flip", (4, 6), ((1, 3),), {"axes": (0,)}, {}),
    ("identity", (4, 6), ((0, 3), (1, 5)), {}, {}),
    ("trilu", (4, 6), ((0, 2), (1, 3)), {}, {}),
    ("max_pool1d", (4, 6, 5), ((0, 2), (1, 3)), {"kernel": (2,)}, {}),
    ("global_max_pool", (4, 6, 5), ((1, 3),), {}, {}),
    ("adaptive_max_pool", (4, 6, 5), ((1, 3),), {"size": (2,)}, {}),
    ("resize_nearest", (4, 6, 5), ((1, 3),), {"scales": (1.0, 1.0, 2.0)}, {}),
    ("depth_to_space", (4, 4, 2, 2), ((0, 2),), {"block": 2}, {}),
]
SLICES: list[dict[str, Attr]] = [
    {"starts": (3,), "ends": (9,), "axes": (1,), "steps": (1,)},
    {"starts": (3,), "ends": (-3,), "axes": (1,), "steps": (1,)},
    {"starts": (1, 6), "ends": (3, 99), "axes": (0, 1), "steps": (1, 1)},
    {"starts": (-1,), "ends": (-9,), "axes": (2,), "steps": (-1,)},
]


def check(op: str, kind: TensorType, attrs: dict[str, Attr], more: Mapping[str, Data]) -> None:
    """The result's parameters are those of the operand, moved as the elements are."""
    found = moved(op, kind, attrs, more)
    assert found.quant is not None
    mine = params(found)
    theirs = params(kind)
    for got, was in zip(mine, theirs, strict=True):
        if op in ("pad", "trilu", "max_pool1d", "global_max_pool", "adaptive_max_pool"):
            lead = [(i, d) for i, d in enumerate(kind.shape) if d != found.shape[i]]
            assert not {i for i, _ in lead} & {a for a, _ in found.quant.granularity.blocks}  # type: ignore[union-attr]
            continue
        slots = {"xs.0": was, "xs.1": was} if op == "concat" else {"x": was}
        wanted = compute(op, {**slots, **more}, attrs)
        assert np.array_equal(got, wanted), f"{op} {kind} to {found}"


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("op", "shape", "blocks", "attrs", "more"), MOVES)
def test_blocks_move_with_their_elements(
    op: str,
    shape: tuple[int, ...],
    blocks: Blocks,
    attrs: dict[str, Attr],
    more: dict[str, Data],
    inline: bool,
) -> None:
    small = int(np.prod([d for d in Granularity(blocks).grid(shape) if isinstance(d, int)])) <= 8
    check(op, blocked(shape, blocks, inline and small), attrs, more)


@pytest.mark.parametrize("attrs", SLICES)
def test_whole_blocks_are_sliced_with_their_parameters(attrs: dict[str, Attr]) -> None:
    check("slice", blocked((4, 9, 2), ((0, 1), (1, 3))), attrs, {})


@pytest.mark.parametrize(
    ("op", "shape", "blocks", "attrs", "more"),
    [
        ("reshape", (4, 6), ((0, 2), (1, 3)), {}, {"shape": TARGET([24])}),
        ("reshape", (4, 6), ((1, 4),), {}, {"shape": TARGET([4, 2, 3])}),
        ("reshape", (4, 6), ((1, 2),), {}, {"shape": TARGET([4, 2, 3])}),
        ("reshape", (2, 6), ((1, 3),), {}, {"shape": TARGET([3, 4])}),
        ("slice", (4, 9), ((1, 3),), {**SLICES[0], "starts": (1,)}, {}),
        ("slice", (4, 9), ((1, 3),), {**SLICES[0], "ends": (8,)}, {}),
        ("slice", (4, 9), ((1, 3),), {**SLICES[0], "steps": (2,)}, {}),
        ("squeeze", (1, 4), ((0, 1), (1, 2)), {"axes": (0,)}, {}),
        ("concat", (4, 6), ((0, 2), (1, 3)), {"axis": 0}, {}),
        ("pad", (4, 6), ((1, 3),), {"pads": (0, 1, 0, 0)}, {}),
        ("tile", (4, 6), ((1, 3),), {"repeats": (1, 2)}, {}),
        ("expand", (1, 6), ((0, 1), (1, 3)), {}, {"shape": TARGET([4, 6])}),
        ("gather", (4, 6), ((0, 2),), {"axis": 0}, {"indices": TARGET([0, 3])}),
        ("gather_elements", (4, 6), ((0, 2),), {"axis": 0}, {"indices": TARGET([[0, 3]])}),
        ("flip", (4, 6), ((1, 3),), {"axes": (1,)}, {}),
        ("max_pool1d", (4, 6, 6), ((2, 3),), {"kernel": (2,)}, {}),
        ("global_max_pool", (4, 6, 6), ((2, 3),), {}, {}),
        ("resize_nearest", (4, 6), ((1, 3),), {"scales": (1.0, 2.0)}, {}),
        ("depth_to_space", (4, 4, 2, 2), ((1, 2),), {"block": 2}, {}),
    ],
)
def test_blocks_that_do_not_survive_are_refused(
    op: str,
    shape: tuple[int, ...],
    blocks: Blocks,
    attrs: dict[str, Attr],
    more: dict[str, Data],
) -> None:
    with pytest.raises(TypeRuleError, match="does not survive"):
        moved(op, blocked(shape, blocks), attrs, more)


def test_groups_by_index_stay_only_where_the_axes_keep_their_order() -> None:
    by = Array.of(np.zeros(6, np.int32), "g_idx")
    scales = Array.of(np.ones((4, 2), np.float32), "scales")
    kind = TensorType((4, 6), QuantType(I8, F32, scales, (), Granularity(((0, 1), (1, 3)), by)))
    found = moved("unsqueeze", kind, {"axes": (0,)}, {})
    assert found.quant is not None
    assert found.quant.granularity == Granularity(((1, 1), (2, 3)), by)
    for op, attrs in (("transpose", {"perm": (1, 0)}), ("slice", {**SLICES[0], "ends": (6,)})):
        with pytest.raises(TypeRuleError, match="does not survive"):
            moved(op, kind, attrs, {})  # type: ignore[arg-type]
