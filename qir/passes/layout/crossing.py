"""Moves a transpose past an op that removes, adds or merges axes.

A transpose is followed through all that reads it, as long as each can be said of what the transpose
read. It is taken out where nothing is left of it at every end: its axes were taken out, joined in
an order that a product's constant weights can be brought into, or another transpose is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.node import Node, Use, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.passes.layout.blocks import reshaped
from qir.rewrite.axis_permutation import (
    ALIKE,
    SPATIAL,
    Perm,
    composed,
    inverse,
    still,
    turned,
    turned_array,
    turned_type,
)

MOST = 64
"""So many nodes a transpose is followed through."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """A value whose elements are in another order along one axis: `old = take(new, index)`."""

    axis: int
    index: NDArray[np.int64]

    @property
    def back(self) -> NDArray[np.int64]:
        """Where each element stood: what weights along that axis are taken by."""
        return np.argsort(self.index)


State: TypeAlias = "Perm | Mixed"
"""How a value differs now: the transpose, or the order along an axis, that gives the old one."""
States: TypeAlias = "Mapping[str, State]"


@dataclass(frozen=True)
class Edit:
    """What becomes of one node, whose operands in some slots are others now."""

    node: Node
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    held: Mapping[str, Array] = field(default_factory=dict)
    """Constants that take the place of other constants, or of what a dequantize reads."""
    result: State | None = None
    """How its results differ; None: they are what they were."""


def plan(uses: Iterable[Use], perm: Perm) -> list[Edit] | None:
    """Returns what is to be done so that these uses may read what a transpose reads; None: they
    cannot."""
    states: dict[Value, State] = {}
    edits: list[Edit] = []
    given: dict[Node, dict[str, State]] = {}
    todo: list[Node] = []

    def read(uses: Iterable[Use], state: State) -> None:
        for node, slot in uses:
            if node not in given:
                heapq.heappush(todo, node)
            given.setdefault(node, {})[slot] = state

    read(uses, perm)
    while todo:
        node = heapq.heappop(todo)
        edit = _edit(node, given[node])
        if edit is None or len(edits) >= MOST:
            return None
        edits.append(edit)
        if edit.result is not None:
            for value in node.results:
                states[value] = edit.result
                read(value.uses, edit.result)
    return edits


def _edit(node: Node, given: States) -> Edit | None:
    """Returns what becomes of a node; None where it cannot read such operands."""
    if node.op in ("output", "foreign") or node.bodies or node.stages or node.inner:
        return None
    if any(spec(node.op).is_companion(slot) for slot in node.operands):
        return None
    first = next(iter(given.values()))
    if isinstance(first, Mixed):
        if any(not isinstance(s, Mixed) or not _alike(s, first) for s in given.values()):
            return None
        return _mixed(node, given, first)
    if any(state != first for state in given.values()):
        return None
    made = _RULES.get(node.op, _turn)(node, given, first)
    if made is None or made.result is None or isinstance(made.result, Mixed):
        return made
    if still(made.result):
        return Edit(node, made.attrs, made.held)
    back = inverse(made.result)
    fits = all(turned_type(value.type, back) is not None for value in node.results)
    return made if fits else None


def _alike(a: Mixed, b: Mixed) -> bool:
    return a.axis == b.axis and np.array_equal(a.index, b.index)


# -- after a transpose ----------------------------------------------------------------------------


def _turn(node: Node, given: States, perm: Perm) -> Edit | None:
    """Returns what is said the same, or with its axes renamed, in any order of axes."""
    back = inverse(perm)
    if node.op in SPATIAL:
        return None
    made = turned(node.op, node.attrs, node.operands, back)
    if made is None or not made.slots >= set(given):
        return None
    held: dict[str, Array] = {}
    for slot in made.slots - set(given):
        value = node.operands[slot]
        if value.type.rank == 0:
            continue
        array = None if value.constant is None else turned_array(value.constant, back)
        if array is None:
            return None
        held[slot] = array
    return Edit(node, made.attrs, held, perm)


def _compose(node: Node, given: States, perm: Perm) -> Edit | None:
    order = wholes(node.attrs["perm"])
    return None if node.schemes else Edit(node, {"perm": composed(perm, order)})


def _reduce(node: Node, given: States, perm: Perm) -> Edit | None:
    """Returns a reduction; axes that it takes out are taken out of the transpose."""
    if node.attrs["keep"] is True:
        return _turn(node, given, perm) if node.op in _TURNING else None
    name = "axes" if "axes" in node.attrs else "axis"
    said = node.attrs[name]
    gone = {a % len(perm) for a in ((said,) if isinstance(said, int) else wholes(said))}
    if name == "axes" and not gone:
        return Edit(node)
    axes = sorted(perm[a] for a in gone)
    attrs: dict[str, Attr] = {name: axes[0] if name == "axis" else tuple(axes)}
    return Edit(node, attrs, result=_without(perm, gone))


def _without(perm: Perm, gone: set[int]) -> Perm:
    """Returns the transpose without some of its result's axes."""
    left = [axis for i, axis in enumerate(perm) if i not in gone]
    return tuple(sorted(left).index(axis) for axis in left)


def _squeeze(node: Node, given: States, perm: Perm) -> Edit | None:
    shape = node.operands["x"].type.shape
    gone = {a % len(perm) for a in wholes(node.attrs["axes"])}
    gone = gone or {i for i, size in enumerate(shape) if size == 1}
    axes = tuple(sorted(perm[a] for a in gone))
    return Edit(node, {"axes": axes}, result=_without(perm, gone))


def _unsqueeze(node: Node, given: States, perm: Perm) -> Edit | None:
    rank = node.result.type.rank
    new = {a % rank for a in wholes(node.attrs["axes"])}
    places = [i for i in range(rank) if i not in new]
    at = iter(perm)
    return Edit(node, result=tuple(i if i in new else places[next(at)] for i in range(rank)))


def _reshape(node: Node, given: States, perm: Perm) -> Edit | None:
    x, out = node.operands["x"], node.result.type
    if "x" not in given or (x.type.quant and x.type.quant.granularity):
        return None
    found = reshaped(x.type.shape, out.shape, perm)
    if found is None:
        return None
    lying = tuple(x.type.shape[axis] for axis in inverse(perm))
    state: State = found.perm if found.axis is None else Mixed(found.axis, found.index)
    if node.op == "flatten":
        ends = [(dims.product(lying[:i]), dims.product(lying[i:])) for i in range(len(lying) + 1)]
        if found.shape not in ends:
            return None
        return Edit(node, {"axis": ends.index(found.shape)}, result=state)
    constant = node.operands["shape"].constant
    if constant is not None and found.shape == out.shape:
        zeros = np.flatnonzero(constant.data == 0)
        copied = () if node.attrs["allow_zero"] else tuple(int(i) for i in zeros)
        if all(lying[i] == x.type.shape[i] for i in copied):
            return Edit(node, result=state)
    array = sizes_of(found.shape)
    return None if array is None else Edit(node, held={"shape": array}, result=state)


def sizes_of(shape: dims.Shape) -> Array | None:
    """Returns the constant that makes a reshape make this shape; None where two sizes are no
    numbers."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1 or 0 in sizes:
        return None
    return Array.of(np.array(sizes, np.int64))


def _shape(node: Node, given: States, perm: Perm) -> Edit | None:
    """Sizes of axes that are where they stood."""
    start, end = node.attrs["start"], node.attrs["end"]
    assert isinstance(start, int)
    plain = range(len(perm))[slice(start, end if isinstance(end, int) else None)]
    return Edit(node) if all(perm[i] == i for i in plain) else None


def _linear(node: Node, given: States, perm: Perm) -> Edit | None:
    """Returns a product along the last axis, which stays the last."""
    fits = set(given) == {"x"} and perm[-1] == len(perm) - 1
    return Edit(node, result=perm) if fits else None


# -- elements in another order along an axis ------------------------------------------------------


def _mixed(node: Node, given: States, state: Mixed) -> Edit | None:
    """Returns what reads elements in another order along one axis."""
    if any(value.type.quant and value.type.quant.granularity for value in node.results):
        return None
    if node.op in _WEIGHTS:
        return _product(node, given, state)
    if node.op == "shape":
        return Edit(node)
    if node.op == "batch_norm" and set(given) == {"x"}:
        at = node.attrs["axis"]
        rank = node.result.type.rank
        if not isinstance(at, int) or at % rank != state.axis:
            return None
        slots = {slot: 0 for slot in node.operands if slot != "x"}
        return _taken(node, slots, state)
    rank = node.result.type.rank
    if any(node.operands[slot].type.rank != rank for slot in given):
        return None
    found = turned(node.op, node.attrs, node.operands, tuple(range(rank)))
    single = spec(node.op).traits.elementwise or node.op in ALIKE
    if found is None or not (single or node.op in _PAIRS):
        return None
    slots = {}
    for slot in set(node.operands) - set(given):
        value = node.operands[slot]
        at = state.axis - rank + value.type.rank
        if at >= 0 and value.type.shape[at] != 1:
            slots[slot] = at
    return _taken(node, slots, state)


def _taken(node: Node, slots: Mapping[str, int], state: Mixed) -> Edit | None:
    held: dict[str, Array] = {}
    for slot, axis in slots.items():
        array = _take(node.operands[slot].constant, axis, state)
        if array is None:
            return None
        held[slot] = array
    return Edit(node, held=held, result=state)


def _take(array: Array | None, axis: int, state: Mixed) -> Array | None:
    """Returns a constant in the order in which the elements stand now; None where its quantized
    type is in the way."""
    if array is None or array.type.shape[axis] != len(state.index):
        return None
    grain = array.type.quant.granularity if array.type.quant else None
    if grain is not None and (array.type.quant is None or array.type.quant.axis in (None, axis)):
        return None
    data = np.ascontiguousarray(array.data.take(state.back, axis=axis))
    return Array(data, array.type, array.name)


def _product(node: Node, given: States, state: Mixed) -> Edit | None:
    """Returns a product that sums along the axis: its weights come into the order."""
    x, w = _WEIGHTS[node.op]
    value, rank = node.operands[w], node.operands[x].type.rank
    if set(given) != {x} or state.axis != rank - 1 or node.attrs.get("trans_a") is True:
        return None
    if value.type.rank != 2:
        return None
    if value.node.op == "dequantize" and set(value.node.operands) == {"x"}:
        value = value.node.operands["x"]
    turned_over = node.op == "linear" or node.attrs.get("trans_b") is True
    array = _take(value.constant, 1 if turned_over else 0, state)
    return None if array is None else Edit(node, held={w: array})


def wholes(value: Attr) -> tuple[int, ...]:
    """Returns a list of whole numbers."""
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


_WEIGHTS = {"linear": ("x", "w"), "gemm": ("a", "b"), "matmul": ("a", "b")}
_PAIRS = frozenset("add sub mul div pow min max where prelu equal less greater".split())
_TURNING = frozenset(
    f"reduce_{how}" for how in "mean sum prod max min l1 l2 sum_square".split()
) | {"arg_max", "arg_min"}
_Rule: TypeAlias = "Callable[[Node, States, Perm], Edit | None]"
_RULES: Mapping[str, _Rule] = {
    **{f"reduce_{how}": _reduce for how in "log_sum log_sum_exp".split()},
    **dict.fromkeys(_TURNING, _reduce),
    "transpose": _compose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "reshape": _reshape,
    "flatten": _reshape,
    "shape": _shape,
    "linear": _linear,
}
