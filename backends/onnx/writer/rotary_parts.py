"""Decomposes rotary embedding into slices, products and sums, for operator sets without it."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import F32
from qir.ir.node import Node
from qir.ledger import Change

from ..opset.decomposed import OperatorSequence
from .elements import element_type
from .writer import STEP, AttrValue, OnnxWriter, OpToWrite


def is_decomposable(node: Node) -> bool:
    """Returns whether it can be decomposed: on floats of one type, and with a known head size."""
    kind = node.operands["x"].type
    tables = [node.operands[slot].type for slot in ("cos", "sin")]
    return (
        kind.dtype.bits >= 16
        and all(t.dtype == kind.dtype for t in tables)
        and isinstance(kind.shape[-1], int)
        and (kind.rank == 4 or isinstance(node.attrs["heads"], int))
    )


def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Writes the parts: the rotated elements of each head, and those that stay."""
    reason = f"rotary, which opset {writer.opset} has not so, by operators that each round"
    writer.ledger.add(Change.REGROUPED, STEP, work.out, reason)
    kind, flat = work.kind.dtype, work.operands["x"].type.rank == 3
    steps = OperatorSequence(writer, work, F32 if kind.bits == 16 else kind)
    x, cos, sin = (ins[slot] for slot in ("x", "cos", "sin"))
    if steps.kind != kind:
        x, cos, sin = (steps.do("Cast", name, to=element_type(F32)) for name in (x, cos, sin))
    width = work.kind.shape[-1]
    assert isinstance(width, int)
    size = width
    if flat:
        size = width // work.int_attr("heads")
        x = steps.do("Reshape", x, steps.int_list(0, 0, work.int_attr("heads"), size))
    # `dim` 0 means that all elements of a head are rotated.
    rotated_size = work.int_attr("dim") or size
    angles = [_table_rows(steps, ins.get("positions"), table, x, flat=flat) for table in (cos, sin)]
    parts = [_rotate(steps, x, rotated_size, *angles)]
    if rotated_size < size:
        parts.append(_slice_last_axis(steps, x, rotated_size, size))
    result = steps.do("Concat", *parts, axis=3)
    if flat:
        result = steps.do("Reshape", result, steps.int_list(0, 0, width))
    attrs: dict[str, AttrValue] = {"to": element_type(kind)} if steps.kind != kind else {}
    writer.emit("Cast" if attrs else "Identity", [result], [work.out], attrs, origins=work.origins)


def _table_rows(
    steps: OperatorSequence, positions: str | None, table: str, x: str, *, flat: bool
) -> str:
    """Returns the angles' sines or cosines, with an axis of size 1 for the heads."""
    if positions is not None:
        if steps.work.operands["positions"].type.rank == 1:
            positions = _consecutive_positions(steps, positions, x, 1 if flat else 2)
        table = steps.do("Gather", table, positions, axis=0)
    return steps.do("Unsqueeze", table, steps.int_list(2 if flat else 1))


def _consecutive_positions(steps: OperatorSequence, start: str, x: str, axis: int) -> str:
    """Writes consecutive positions from the first, the same for each of the batch."""
    constants = {n: steps.writer.constant(np.array(n), f"{steps.work.out}_n") for n in (0, 1, axis)}
    count = steps.do("Gather", steps.do("Shape", x), constants[axis])
    offsets = steps.do("Range", constants[0], count, constants[1])
    return steps.do("Unsqueeze", steps.do("Add", start, offsets), steps.int_list(0))


def _slice_last_axis(steps: OperatorSequence, x: str, start: int, end: int, step: int = 1) -> str:
    return steps.do("Slice", x, *(steps.int_list(n) for n in (start, end, 3, step)))


def _rotate(steps: OperatorSequence, x: str, rotated_size: int, cos: str, sin: str) -> str:
    half, interleaved = rotated_size // 2, steps.work.attrs["interleaved"]
    if interleaved:
        # Interleaved: pairs are neighbours x[2i], x[2i + 1]; otherwise x[i] and x[i + half].
        first, second = (_slice_last_axis(steps, x, at, rotated_size, 2) for at in (0, 1))
    else:
        first, second = (
            _slice_last_axis(steps, x, 0, half),
            _slice_last_axis(steps, x, half, rotated_size),
        )
    # (first, second) rotated by the angle: (cos f - sin s, sin f + cos s).
    rotated_first = steps.do("Sub", steps.do("Mul", cos, first), steps.do("Mul", sin, second))
    rotated_second = steps.do("Add", steps.do("Mul", sin, first), steps.do("Mul", cos, second))
    if not interleaved:
        return steps.do("Concat", rotated_first, rotated_second, axis=3)
    # Interleave the halves again: stack them on a new last axis and flatten it.
    pair = [
        steps.do("Unsqueeze", each, steps.int_list(4)) for each in (rotated_first, rotated_second)
    ]
    return steps.do(
        "Reshape", steps.do("Concat", *pair, axis=4), steps.int_list(0, 0, 0, rotated_size)
    )
