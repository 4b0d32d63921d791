"""Decomposes rotary embedding into slices, products and sums, for operator sets without it."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import F32
from qir.ir.node import Node
from qir.ledger import Change

from ..opset.decomposed import OperatorSequence
from .elements import element_type
from .writer import STEP, AttrValue, OnnxWriter, OpToWrite


def sayable(node: Node) -> bool:
    """Returns whether it is of floats, and the size of a head is known."""
    kind = node.operands["x"].type
    tables = [node.operands[slot].type for slot in ("cos", "sin")]
    return (
        kind.dtype.bits >= 16
        and all(t.dtype == kind.dtype for t in tables)
        and isinstance(kind.shape[-1], int)
        and (kind.rank == 4 or isinstance(node.attrs["heads"], int))
    )


def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Writes the parts: what is turned, in halves or in pairs, and what is not."""
    said = f"rotary, which opset {writer.opset} has not so, by operators that each round"
    writer.ledger.add(Change.REGROUPED, STEP, work.out, said)
    kind, flat = work.kind.dtype, work.operands["x"].type.rank == 3
    steps = OperatorSequence(writer, work, F32 if kind.bits == 16 else kind)
    x, cos, sin = (ins[slot] for slot in ("x", "cos", "sin"))
    if steps.kind != kind:
        x, cos, sin = (steps.do("Cast", name, to=element_type(F32)) for name in (x, cos, sin))
    wide = work.kind.shape[-1]
    assert isinstance(wide, int)
    size = wide
    if flat:
        size = wide // work.int_attr("heads")
        x = steps.do("Reshape", x, steps.int_list(0, 0, work.int_attr("heads"), size))
    turned = work.int_attr("dim") or size
    angles = [_angles(steps, ins.get("positions"), table, x, flat=flat) for table in (cos, sin)]
    parts = [_turned(steps, x, turned, *angles)]
    if turned < size:
        parts.append(_cut(steps, x, turned, size))
    last = steps.do("Concat", *parts, axis=3)
    if flat:
        last = steps.do("Reshape", last, steps.int_list(0, 0, wide))
    attrs: dict[str, AttrValue] = {"to": element_type(kind)} if steps.kind != kind else {}
    writer.emit("Cast" if attrs else "Identity", [last], [work.out], attrs, origins=work.origins)


def _angles(
    steps: OperatorSequence, positions: str | None, table: str, x: str, *, flat: bool
) -> str:
    """Returns one number a pair, where heads are after the length or before it."""
    if positions is not None:
        if steps.work.operands["positions"].type.rank == 1:
            positions = _row(steps, positions, x, 1 if flat else 2)
        table = steps.do("Gather", table, positions, axis=0)
    return steps.do("Unsqueeze", table, steps.int_list(2 if flat else 1))


def _row(steps: OperatorSequence, first: str, x: str, axis: int) -> str:
    """Writes consecutive positions from the first, the same for each of the batch."""
    numbers = {n: steps.writer.constant(np.array(n), f"{steps.work.out}_n") for n in (0, 1, axis)}
    count = steps.do("Gather", steps.do("Shape", x), numbers[axis])
    row = steps.do("Range", numbers[0], count, numbers[1])
    return steps.do("Unsqueeze", steps.do("Add", first, row), steps.int_list(0))


def _cut(steps: OperatorSequence, x: str, start: int, end: int, step: int = 1) -> str:
    return steps.do("Slice", x, *(steps.int_list(n) for n in (start, end, 3, step)))


def _turned(steps: OperatorSequence, x: str, turned: int, cos: str, sin: str) -> str:
    half, paired = turned // 2, steps.work.attrs["interleaved"]
    if paired:
        first, second = (_cut(steps, x, at, turned, 2) for at in (0, 1))
    else:
        first, second = _cut(steps, x, 0, half), _cut(steps, x, half, turned)
    left = steps.do("Sub", steps.do("Mul", cos, first), steps.do("Mul", sin, second))
    right = steps.do("Add", steps.do("Mul", sin, first), steps.do("Mul", cos, second))
    if not paired:
        return steps.do("Concat", left, right, axis=3)
    pair = [steps.do("Unsqueeze", each, steps.int_list(4)) for each in (left, right)]
    return steps.do("Reshape", steps.do("Concat", *pair, axis=4), steps.int_list(0, 0, 0, turned))
