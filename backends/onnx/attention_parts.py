"""Attention by products and a softmax, for operator sets that have it not."""

from __future__ import annotations

import math

import numpy as np

from qir.ir.dtype import BOOL, F32
from qir.ir.node import Node
from qir.ledger import Change

from .earlier import Steps
from .elements import number
from .writer import STEP, Wire, Work, Writer

_PLAIN = {"left": -1, "right": -1, "softcap": 0, "precision": None, "present": False, "qk": "none"}


def sayable(node: Node) -> bool:
    """Whether products and a softmax say it: no past, all heads alike, and sizes known."""
    slots, q = set(node.operands), node.operands["q"].type
    if not slots <= {"q", "k", "v", "mask"} or node.inner or q.dtype.bits < 16:
        return False
    if any(node.attrs[name] != usual for name, usual in _PLAIN.items()):
        return False
    shapes = [node.operands[s].type.shape for s in "qkv"]
    alike = node.attrs["kv_heads"] in (None, node.attrs["heads"])
    if q.rank == 4:
        alike = shapes[0][1] is not None and shapes[0][1] == shapes[1][1]
    if not alike or any(not isinstance(s[-1], int) for s in shapes):
        return False
    lengths = [s[1 if q.rank == 3 else 2] for s in shapes]
    if node.attrs["causal"] and not all(isinstance(n, int) for n in lengths[:2]):
        return False
    mask = node.operands.get("mask")
    if mask is None:
        return True
    last = mask.type.shape[-1] if mask.type.rank else None
    return last is not None and last == lengths[1]


def write(writer: Writer, work: Work, ins: dict[str, str]) -> None:
    """Writes the parts; rows that look at nothing give zeros, as the one operator has it."""
    said = f"attention, which opset {writer.opset} has not, by operators that each round"
    writer.ledger.add(Change.REGROUPED, STEP, work.out, said)
    kind = work.kind.dtype
    steps = Steps(writer, work, F32 if kind.bits == 16 else kind)
    if steps.kind != kind:
        real = [s for s in ins if work.operands[s].type.dtype == kind]
        ins = ins | {s: steps.do("Cast", ins[s], to=number(F32)) for s in real}
    flat = work.operands["q"].type.rank == 3
    q, k, v = (_headed(steps, ins[s], s) if flat else ins[s] for s in "qkv")
    last = _seen(steps, q, steps.do("Transpose", k, perm=(0, 1, 3, 2)), v, ins.get("mask"))
    if flat:
        side_by_side = steps.do("Transpose", steps.do(*last), perm=(0, 2, 1, 3))
        wide = work.kind.shape[2]
        size = steps.listed(0, 0, wide if isinstance(wide, int) else -1)
        last = ("Reshape", side_by_side, size)
    if steps.kind == kind:
        writer.emit(last[0], last[1:], [work.out], origins=work.origins)
        return
    attrs: dict[str, Wire] = {"to": number(kind)}
    writer.emit("Cast", [steps.do(*last)], [work.out], attrs, origins=work.origins)


def _headed(steps: Steps, x: str, slot: str) -> str:
    """[batch, length, wide] as [batch, heads, length, size]."""
    heads, wide = steps.work.whole("heads"), steps.work.operands[slot].type.shape[2]
    assert isinstance(wide, int)
    apart = steps.do("Reshape", x, steps.listed(0, 0, heads, wide // heads))
    return steps.do("Transpose", apart, perm=(0, 2, 1, 3))


def _seen(steps: Steps, q: str, k: str, v: str, mask: str | None) -> tuple[str, ...]:
    work = steps.work
    scores = steps.do("Mul", steps.do("MatMul", q, k), steps.held(_scale(work)))
    lowest = steps.held(-math.inf)
    if work.attrs["causal"]:
        shapes = [work.operands[s].type.shape for s in "qk"]
        rows, columns = (s[1 if len(s) == 3 else 2] for s in shapes)
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        shown = steps.writer.constant(np.tri(rows, columns, dtype=bool), f"{work.out}_shown")
        scores = steps.do("Where", shown, scores, lowest)
    if mask is None:
        return "MatMul", steps.do("Softmax", scores, axis=-1), v
    if work.operands["mask"].type.dtype == BOOL:
        scores = steps.do("Where", mask, scores, lowest)
    else:
        scores = steps.do("Add", scores, mask)
    most = steps.reduced("ReduceMax", scores, (3,))
    probs = steps.do("Softmax", scores, axis=-1)
    probs = steps.do("Where", steps.do("Equal", most, lowest), steps.held(0.0), probs)
    return "MatMul", probs, v


def _scale(work: Work) -> float:
    scale = work.attrs["scale"]
    if isinstance(scale, float):
        return scale
    wide = work.operands["q"].type.shape[-1]
    assert isinstance(wide, int)
    flat = work.operands["q"].type.rank == 3
    return 1 / math.sqrt(wide // work.whole("heads") if flat else wide)
