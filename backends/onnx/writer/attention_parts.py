"""Decomposes attention into products and a softmax, for operator sets without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.dims import Dim
from qir.ir.dtype import BOOL, F32, DType
from qir.ir.node import Node
from qir.ledger import Change

from ..opset.decomposed import OperatorSequence
from .elements import element_type
from .writer import STEP, AttrValue, OnnxWriter, OpToWrite


def is_decomposable(node: Node) -> bool:
    """Returns whether products and a softmax express it: unquantized, of known sizes."""
    q = node.operands["q"].type
    if node.inner or q.dtype.bits < 16:
        return False
    counts = [_heads(node, slot) for slot in "qk"]
    wide = [node.operands[slot].type.shape[-1] for slot in "qkv"]
    # Heads of keys are repeated up to those of the queries, so the counts must be numbers or equal.
    alike = counts[0] is not None and counts[0] == counts[1]
    known = alike or all(isinstance(n, int) and n for n in counts)
    return known and all(isinstance(n, int) for n in wide)


def _heads(node: Node, slot: str) -> Dim:
    """Returns the number of heads of an operand; None where it is unknown."""
    shape, heads = node.operands[slot].type.shape, node.attrs["heads"]
    if len(shape) == 4 and shape[1] is not None:
        return shape[1]
    own = node.attrs["kv_heads"] or (heads if len(shape) == 3 else None)
    heads_of_slot = heads if slot == "q" else own
    return heads_of_slot if isinstance(heads_of_slot, int) else None


def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str], outs: Sequence[str]) -> None:
    """Writes the parts, with these names for y, keys, values and scores.

    A row that may attend to no key gives zeros, as Attention itself does.
    """
    reason = f"attention, which opset {writer.opset} has not, by operators that each round"
    writer.ledger.add(Change.REGROUPED, STEP, work.out, reason)
    kind = work.kind.dtype
    # ONNX's reference computes 16-bit attention in float32 and rounds the results once.
    steps = OperatorSequence(writer, work, F32 if kind.bits == 16 else kind)
    if steps.kind != kind:
        floats = [s for s in ins if work.operands[s].type.dtype == kind]
        ins = ins | {s: steps.do("Cast", ins[s], to=element_type(F32)) for s in floats}
    _Parts(steps, ins, kind, [*outs, *[""] * 4]).write()


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one attention."""

    steps: OperatorSequence
    ins: dict[str, str]
    kind: DType
    outs: Sequence[str]

    def write(self) -> None:
        steps, work = self.steps, self.steps.work
        flat = work.operands["q"].type.rank == 3
        q, k, v = (self._headed(s) if flat else self.ins[s] for s in "qkv")
        # New keys and values are appended to the past ones along the length axis.
        k, v = (
            steps.do("Concat", self.ins[f"past_{s}"], x, axis=2) if f"past_{s}" in self.ins else x
            for s, x in (("k", k), ("v", v))
        )
        for name, tensor in zip(self.outs[1:3], (k, v), strict=True):
            self._give(name, tensor)
        groups = self._groups()
        if groups > 1:
            k, v = (self._repeated(x, groups, s) for s, x in (("k", k), ("v", v)))
        probs = self._probs(q, steps.do("Transpose", k, perm=(0, 1, 3, 2)))
        last: tuple[str, ...] = ("MatMul", probs, v)
        # The last operator waits: it alone gets the result's name and the source's origins.
        if flat:
            rows = steps.do("Transpose", steps.do(*last), perm=(0, 2, 1, 3))
            wide = work.kind.shape[2]
            size = steps.int_list(0, 0, wide if isinstance(wide, int) else -1)
            last = ("Reshape", rows, size)
        origins = work.origins
        if steps.kind == self.kind:
            steps.writer.emit(last[0], last[1:], [work.out], origins=origins)
            return
        attrs: dict[str, AttrValue] = {"to": element_type(self.kind)}
        steps.writer.emit("Cast", [steps.do(*last)], [work.out], attrs, origins=origins)

    def _give(self, name: str, tensor: str) -> None:
        """Writes a requested result under its name, in the element type of the model."""
        if name and self.steps.kind == self.kind:
            self.steps.writer.emit("Identity", [tensor], [name])
        elif name:
            self.steps.writer.emit("Cast", [tensor], [name], {"to": element_type(self.kind)})

    def _headed(self, slot: str) -> str:
        """Reshapes [batch, length, wide] to [batch, heads, length, size]."""
        work, steps = self.steps.work, self.steps
        heads, wide = _heads(work.node, slot), work.operands[slot].type.shape[2]
        assert isinstance(heads, int)
        assert isinstance(wide, int)
        split = steps.do("Reshape", self.ins[slot], steps.int_list(0, 0, heads, wide // heads))
        return steps.do("Transpose", split, perm=(0, 2, 1, 3))

    def _groups(self) -> int:
        """Returns how many heads of q each of k and v serves."""
        own, theirs = (_heads(self.steps.work.node, s) for s in "qk")
        return own // theirs if isinstance(own, int) and isinstance(theirs, int) else 1

    def _repeated(self, x: str, groups: int, slot: str) -> str:
        """Repeats each head, one after the other."""
        steps, shape = self.steps, self.steps.work.operands[slot].type.shape
        heads, wide = (_heads(steps.work.node, s) for s in (slot, "q"))
        size = shape[-1]
        assert isinstance(heads, int)
        assert isinstance(wide, int)
        assert isinstance(size, int)
        size = size // heads if len(shape) == 3 else size
        # [batch, heads, length, size] -> [batch, heads, 1, length, size], repeated, and joined
        # again: each key head serves consecutive query heads (grouped-query attention).
        unsqueezed = steps.do("Unsqueeze", x, steps.int_list(2))
        expanded = steps.do("Expand", unsqueezed, steps.int_list(1, 1, groups, 1, 1))
        return steps.do("Reshape", expanded, steps.int_list(0, wide, -1, size))

    def _probs(self, q: str, k: str) -> str:
        """Returns the softmax of the scores, with 0 in rows that attend to no key."""
        steps, attrs = self.steps, self.steps.work.attrs
        lowest = steps.constant(-math.inf)
        stages = dict(zip(("raw", "capped", "masked", "probs"), [""] * 4, strict=True))
        stages[str(attrs["qk"])] = self.outs[3]
        # Order of the operator: scale, softcap, window and mask, softmax; `qk` names the stage to
        # output.
        scores = steps.do("Mul", steps.do("MatMul", q, k), steps.constant(_scale(steps.work)))
        self._give(stages["raw"], scores)
        if attrs["softcap"]:
            cap = steps.constant(steps.work.float_attr("softcap"))
            scores = steps.do("Mul", steps.do("Tanh", steps.do("Div", scores, cap)), cap)
        self._give(stages["capped"], scores)
        allowed, may_be_empty = _Window(steps, self.ins, q, k).allowed()
        if allowed:
            scores = steps.do("Where", allowed, scores, lowest)
        if "mask" in self.ins:
            scores, may_be_empty = self._masked(scores, k, lowest), True
        self._give(stages["masked"], scores)
        probs = self._softmax(scores)
        # Softmax of a row of -inf is NaN: such rows are those whose maximum is -inf.
        if may_be_empty:
            maxima = steps.reduced("ReduceMax", scores, (3,))
            probs = steps.do("Where", steps.do("Equal", maxima, lowest), steps.constant(0.0), probs)
        self._give(stages["probs"], probs)
        return probs

    def _softmax(self, scores: str) -> str:
        """Writes a softmax, with casts before and after where it computes in lower precision."""
        precision = self.steps.work.attrs["precision"]
        if not isinstance(precision, DType) or precision.bits >= self.kind.bits:
            return self.steps.do("Softmax", scores, axis=-1)
        return self._rounded(self.steps.do("Softmax", self._rounded(scores, precision)), precision)

    def _rounded(self, x: str, kind: DType) -> str:
        narrow = self.steps.do("Cast", x, to=element_type(kind))
        return self.steps.do("Cast", narrow, to=element_type(self.steps.kind))

    def _masked(self, scores: str, k: str, lowest: str) -> str:
        steps, mask = self.steps, self.ins["mask"]
        kind = steps.work.operands["mask"].type
        hides = kind.dtype == BOOL
        last = kind.shape[-1] if kind.rank else None
        # A mask shorter than the keys hides the rest, so it is padded with -inf or False.
        if kind.rank and (last is None or last != _total(steps.work)):
            no_padding = np.zeros(2 * kind.rank - 1, np.int64)
            front = steps.writer.constant(no_padding, f"{steps.work.out}_sizes")
            mask_length = steps.do("Gather", steps.do("Shape", mask), steps.int_list(kind.rank - 1))
            total = steps.do("Gather", steps.do("Shape", k), steps.int_list(3))
            pads = steps.do("Concat", front, steps.do("Sub", total, mask_length), axis=0)
            filler = lowest
            if hides:
                filler = steps.writer.constant(np.array(False), f"{steps.work.out}_hidden")
            mask = steps.do("Pad", mask, pads, filler)
        if hides:
            return steps.do("Where", mask, scores, lowest)
        return steps.do("Add", scores, mask)


@dataclass(frozen=True, slots=True)
class _Window:
    """The keys that each query may attend to, by their positions alone."""

    steps: OperatorSequence
    ins: dict[str, str]
    q: str
    k: str

    def allowed(self) -> tuple[str, bool]:
        """Returns a tensor of bools, empty where all positions are allowed, and whether a row may
        have none.
        """
        attrs, steps = self.steps.work.attrs, self.steps
        bounds = [attrs["left"], attrs["right"]]
        if not attrs["causal"] and bounds == [-1, -1] and "lengths" not in self.ins:
            return "", False
        plain = bounds == [-1, -1] and "lengths" not in self.ins
        if (known := self._known()) is not None:
            return steps.writer.constant(known, f"{steps.work.out}_shown"), not plain
        rows, total = self._count(self.q, 2), self._count(self.k, 3)
        zero, one = (steps.writer.constant(np.array(n), f"{steps.work.out}_n") for n in (0, 1))
        # Positions of keys and of queries; a query's position counts past keys too.
        keys = steps.do("Range", zero, total, one)
        at = steps.do("Unsqueeze", steps.do("Range", zero, rows, one), steps.int_list(1))
        tests = []
        if "lengths" in self.ins:
            lengths = steps.do("Unsqueeze", self.ins["lengths"], steps.int_list(1, 2, 3))
            tests.append(("Less", keys, lengths))
            at = steps.do("Add", at, steps.do("Sub", lengths, rows))
        elif "past_k" in self.ins:
            at = steps.do("Add", at, self._count(self.ins["past_k"], 2))
        if attrs["causal"]:
            tests.append(("LessOrEqual", keys, at))
        for name, op, test in (("left", "Sub", "GreaterOrEqual"), ("right", "Add", "LessOrEqual")):
            bound = steps.work.int_attr(name)
            if bound != -1:
                far = steps.writer.constant(np.array(bound), f"{steps.work.out}_{name}")
                tests.append((test, keys, steps.do(op, at, far)))
        conditions = [steps.do(*test) for test in tests]
        while len(conditions) > 1:
            conditions.append(steps.do("And", conditions.pop(), conditions.pop()))
        return conditions[0], not plain

    def _count(self, x: str, axis: int) -> str:
        place = self.steps.writer.constant(np.array(axis), f"{self.steps.work.out}_axis")
        return self.steps.do("Gather", self.steps.do("Shape", x), place)

    def _known(self) -> np.ndarray | None:
        """Returns the same mask as a constant, where all lengths are known."""
        work = self.steps.work
        rows, total, attrs = _length(work, "q"), _total(work), work.attrs
        own = _length(work, "k")
        if "lengths" in self.ins or not isinstance(rows, int):
            return None
        if not isinstance(total, int) or not isinstance(own, int):
            return None
        at, keys = np.arange(rows)[:, None] + total - own, np.arange(total)
        allowed = np.ones((rows, total), bool)
        left, right = work.int_attr("left"), work.int_attr("right")
        if attrs["causal"]:
            allowed &= keys <= at
        if left != -1:
            allowed &= keys >= at - left
        if right != -1:
            allowed &= keys <= at + right
        return allowed


def _length(work: OpToWrite, slot: str) -> Dim:
    shape = work.operands[slot].type.shape
    return shape[1 if len(shape) == 3 else 2]


def _total(work: OpToWrite) -> Dim:
    """Returns the number of keys, past ones included; None where it is unknown."""
    own = _length(work, "k")
    if "past_k" not in work.operands:
        return own
    before = work.operands["past_k"].type.shape[2]
    return own + before if isinstance(own, int) and isinstance(before, int) else None


def _scale(work: OpToWrite) -> float:
    scale = work.attrs["scale"]
    if isinstance(scale, float):
        return scale
    wide = work.operands["q"].type.shape[-1]
    assert isinstance(wide, int)
    flat = work.operands["q"].type.rank == 3
    return 1 / math.sqrt((wide // work.int_attr("heads") if flat else wide) or 1)
