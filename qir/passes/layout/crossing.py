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
    is_identity,
    permuted_array,
    permuted_op,
    permuted_type,
)

MAX_NODES = 64
"""So many nodes a transpose is followed through."""


@dataclass(frozen=True, slots=True)
class Reordered:
    """A value whose elements are in another order along one axis: `old = take(new, index)`."""

    axis: int
    index: NDArray[np.int64]

    @property
    def back(self) -> NDArray[np.int64]:
        """Where each element stood: what weights along that axis are taken by."""
        return np.argsort(self.index)


State: TypeAlias = "Perm | Reordered"
"""How a value differs now: the transpose, or the order along an axis, that gives the old one."""
States: TypeAlias = "Mapping[str, State]"


@dataclass(frozen=True)
class Edit:
    """What becomes of one node, whose operands in some slots are others now."""

    node: Node
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Constants that take the place of other constants, or of what a dequantize reads."""
    result: State | None = None
    """How its results differ; None: they are what they were."""


def plan(uses: Iterable[Use], perm: Perm) -> list[Edit] | None:
    """Plans the edits by which these uses read the operand of a transpose; None if one cannot."""
    states: dict[Value, State] = {}
    edits: list[Edit] = []
    operand_states: dict[Node, dict[str, State]] = {}
    pending: list[Node] = []

    def read(uses: Iterable[Use], state: State) -> None:
        for node, slot in uses:
            if node not in operand_states:
                heapq.heappush(pending, node)
            operand_states.setdefault(node, {})[slot] = state

    read(uses, perm)
    while pending:
        node = heapq.heappop(pending)
        # The heap gives nodes in topological order, so all operands of a node are decided before
        # it.
        edit = _edit(node, operand_states[node])
        if edit is None or len(edits) >= MAX_NODES:
            return None
        edits.append(edit)
        if edit.result is not None:
            for value in node.results:
                states[value] = edit.result
                read(value.uses, edit.result)
    return edits


def _edit(node: Node, operand_states: States) -> Edit | None:
    """Returns what becomes of a node; None where it cannot read such operands."""
    if node.op in ("output", "foreign") or node.bodies or node.stages or node.inner:
        return None
    # Scales next to a value may be along an axis, which would have to move with it.
    if any(spec(node.op).is_companion(slot) for slot in node.operands):
        return None
    first = next(iter(operand_states.values()))
    if isinstance(first, Reordered):
        if any(
            not isinstance(s, Reordered) or not _is_same_order(s, first)
            for s in operand_states.values()
        ):
            return None
        return _reordered_edit(node, operand_states, first)
    # Operands that differ in more than one way have no common form.
    if any(state != first for state in operand_states.values()):
        return None
    edit = _RULES.get(node.op, _permuted_edit)(node, operand_states, first)
    if edit is None or edit.result is None or isinstance(edit.result, Reordered):
        return edit
    if is_identity(edit.result):
        return Edit(node, edit.attrs, edit.constants)
    restoring = inverse(edit.result)
    fits = all(permuted_type(value.type, restoring) is not None for value in node.results)
    return edit if fits else None


def _is_same_order(a: Reordered, b: Reordered) -> bool:
    return a.axis == b.axis and np.array_equal(a.index, b.index)


# -- after a transpose ----------------------------------------------------------------------------


def _permuted_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    """Edits an op that works in any order of axes: its attributes name the moved axes."""
    restoring = inverse(perm)
    if node.op in SPATIAL:
        return None
    moved = permuted_op(node.op, node.attrs, node.operands, restoring)
    if moved is None or not moved.slots >= set(operand_states):
        return None
    constants: dict[str, Array] = {}
    for slot in moved.slots - set(operand_states):
        value = node.operands[slot]
        # A scalar is the same in any order of axes.
        if value.type.rank == 0:
            continue
        array = None if value.constant is None else permuted_array(value.constant, restoring)
        if array is None:
            return None
        constants[slot] = array
    return Edit(node, moved.attrs, constants, perm)


def _transpose_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    order = int_list(node.attrs["perm"])
    # The two transposes become one, whose result is what it was: nothing has to be followed
    # further.
    return None if node.schemes else Edit(node, {"perm": composed(perm, order)})


def _reduce_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    """Renames the axes of a reduction, and removes them from the transpose."""
    if node.attrs["keep"] is True:
        return (
            _permuted_edit(node, operand_states, perm)
            if node.op in _PERMUTABLE_REDUCTIONS
            else None
        )
    name = "axes" if "axes" in node.attrs else "axis"
    listed_axes = node.attrs[name]
    reduced = {
        a % len(perm)
        for a in ((listed_axes,) if isinstance(listed_axes, int) else int_list(listed_axes))
    }
    # No axes means all: one element is left, however they stood.
    if name == "axes" and not reduced:
        return Edit(node)
    axes = sorted(perm[a] for a in reduced)
    attrs: dict[str, Attr] = {name: axes[0] if name == "axis" else tuple(axes)}
    return Edit(node, attrs, result=_without_axes(perm, reduced))


def _without_axes(perm: Perm, removed: set[int]) -> Perm:
    """Returns the transpose without some of its result's axes."""
    remaining = [axis for i, axis in enumerate(perm) if i not in removed]
    return tuple(sorted(remaining).index(axis) for axis in remaining)


def _squeeze_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    shape = node.operands["x"].type.shape
    removed = {a % len(perm) for a in int_list(node.attrs["axes"])}
    removed = removed or {i for i, size in enumerate(shape) if size == 1}
    axes = tuple(sorted(perm[a] for a in removed))
    return Edit(node, {"axes": axes}, result=_without_axes(perm, removed))


def _unsqueeze_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    rank = node.result.type.rank
    added = {a % rank for a in int_list(node.attrs["axes"])}
    places = [i for i in range(rank) if i not in added]
    remaining = iter(perm)
    return Edit(
        node, result=tuple(i if i in added else places[next(remaining)] for i in range(rank))
    )


def _reshape_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    x, out = node.operands["x"], node.result.type
    if "x" not in operand_states or (x.type.quant and x.type.quant.granularity):
        return None
    reshaped_x = reshaped(x.type.shape, out.shape, perm)
    if reshaped_x is None:
        return None
    source_shape = tuple(x.type.shape[axis] for axis in inverse(perm))
    state: State = (
        reshaped_x.perm if reshaped_x.axis is None else Reordered(reshaped_x.axis, reshaped_x.index)
    )
    if node.op == "flatten":
        matrix_shapes = [
            (dims.product(source_shape[:i]), dims.product(source_shape[i:]))
            for i in range(len(source_shape) + 1)
        ]
        if reshaped_x.shape not in matrix_shapes:
            return None
        return Edit(node, {"axis": matrix_shapes.index(reshaped_x.shape)}, result=state)
    constant = node.operands["shape"].constant
    if constant is not None and reshaped_x.shape == out.shape:
        # A 0 in a reshape's sizes copies the size of that axis of what it reads, which may be
        # another now.
        zeros = np.flatnonzero(constant.data == 0)
        copied = () if node.attrs["allow_zero"] else tuple(int(i) for i in zeros)
        if all(source_shape[i] == x.type.shape[i] for i in copied):
            return Edit(node, result=state)
    array = sizes_of(reshaped_x.shape)
    return None if array is None else Edit(node, constants={"shape": array}, result=state)


def sizes_of(shape: dims.Shape) -> Array | None:
    """Returns the constant that makes a reshape make this shape; None where two sizes are no
    numbers."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    # Next to a size of 0 any number would fit where -1 asks for one.
    if sizes.count(-1) > 1 or 0 in sizes:
        return None
    return Array.of(np.array(sizes, np.int64))


def _shape_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    """Keeps a shape op whose axes the transpose does not move."""
    start, end = node.attrs["start"], node.attrs["end"]
    assert isinstance(start, int)
    axes = range(len(perm))[slice(start, end if isinstance(end, int) else None)]
    return Edit(node) if all(perm[i] == i for i in axes) else None


def _linear_edit(node: Node, operand_states: States, perm: Perm) -> Edit | None:
    """Keeps a product along the last axis, if that axis stays the last."""
    fits = set(operand_states) == {"x"} and perm[-1] == len(perm) - 1
    return Edit(node, result=perm) if fits else None


# -- elements in another order along an axis ------------------------------------------------------


def _reordered_edit(node: Node, operand_states: States, state: Reordered) -> Edit | None:
    """Edits an op that reads elements in another order along one axis."""
    if any(value.type.quant and value.type.quant.granularity for value in node.results):
        return None
    if node.op in _WEIGHT_SLOTS:
        return _product_edit(node, operand_states, state)
    # The order of elements changes no size.
    if node.op == "shape":
        return Edit(node)
    if node.op == "batch_norm" and set(operand_states) == {"x"}:
        axis = node.attrs["axis"]
        rank = node.result.type.rank
        if not isinstance(axis, int) or axis % rank != state.axis:
            return None
        # gamma, beta, mean and var have the axis of channels alone.
        slots = {slot: 0 for slot in node.operands if slot != "x"}
        return _with_reordered_constants(node, slots, state)
    if len(node.results) != 1:  # such as split, whose parts have orders of their own
        return None
    rank = node.result.type.rank
    if any(node.operands[slot].type.rank != rank for slot in operand_states):
        return None
    unmoved = permuted_op(node.op, node.attrs, node.operands, tuple(range(rank)))
    is_elementwise = spec(node.op).traits.elementwise or node.op in ALIKE
    if unmoved is None or not (is_elementwise or node.op in _BINARY_OPS):
        return None
    slots = {}
    for slot in set(node.operands) - set(operand_states):
        value = node.operands[slot]
        axis = state.axis - rank + value.type.rank
        # A size of 1 is broadcast, so that its order does not matter.
        if axis >= 0 and value.type.shape[axis] != 1:
            slots[slot] = axis
    return _with_reordered_constants(node, slots, state)


def _with_reordered_constants(
    node: Node, slots: Mapping[str, int], state: Reordered
) -> Edit | None:
    constants: dict[str, Array] = {}
    for slot, axis in slots.items():
        array = _reordered_constant(node.operands[slot].constant, axis, state)
        if array is None:
            return None
        constants[slot] = array
    return Edit(node, constants=constants, result=state)


def _reordered_constant(array: Array | None, axis: int, state: Reordered) -> Array | None:
    """Returns a constant in the order in which the elements stand now; None where its quantized
    type is in the way."""
    if array is None or array.type.shape[axis] != len(state.index):
        return None
    granularity = array.type.quant.granularity if array.type.quant else None
    if granularity is not None and (
        array.type.quant is None or array.type.quant.axis in (None, axis)
    ):
        return None
    data = np.ascontiguousarray(array.data.take(state.back, axis=axis))
    return Array(data, array.type, array.name)


def _product_edit(node: Node, operand_states: States, state: Reordered) -> Edit | None:
    """Reorders the weights of a product that sums along the axis."""
    x, w = _WEIGHT_SLOTS[node.op]
    value, rank = node.operands[w], node.operands[x].type.rank
    if set(operand_states) != {x} or state.axis != rank - 1 or node.attrs.get("trans_a") is True:
        return None
    if value.type.rank != 2:
        return None
    if value.node.op == "dequantize" and set(value.node.operands) == {"x"}:
        value = value.node.operands["x"]
    transposed = node.op == "linear" or node.attrs.get("trans_b") is True
    array = _reordered_constant(value.constant, 1 if transposed else 0, state)
    return None if array is None else Edit(node, constants={w: array})


def int_list(value: Attr) -> tuple[int, ...]:
    """Returns a list of whole numbers."""
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))


_WEIGHT_SLOTS = {"linear": ("x", "w"), "gemm": ("a", "b"), "matmul": ("a", "b")}
_BINARY_OPS = frozenset("add sub mul div pow min max where prelu equal less greater".split())
_PERMUTABLE_REDUCTIONS = frozenset(
    f"reduce_{how}" for how in "mean sum prod max min l1 l2 sum_square".split()
) | {"arg_max", "arg_min"}
_Rule: TypeAlias = "Callable[[Node, States, Perm], Edit | None]"
_RULES: Mapping[str, _Rule] = {
    **{f"reduce_{how}": _reduce_edit for how in "log_sum log_sum_exp".split()},
    **dict.fromkeys(_PERMUTABLE_REDUCTIONS, _reduce_edit),
    "transpose": _transpose_edit,
    "squeeze": _squeeze_edit,
    "unsqueeze": _unsqueeze_edit,
    "reshape": _reshape_edit,
    "flatten": _reshape_edit,
    "shape": _shape_edit,
    "linear": _linear_edit,
}
