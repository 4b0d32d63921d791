"""Replaces computations of sizes that types know by constants.

    graph main as native {
      %x = input() : 2x3x4xf32
      %s = shape(%x) : 3xi64
      %a = constant(0) : i64
      %n = gather(%s, %a) : i64
      %y = cast(%n) {to = f32} : f32
      output(y=%y)
    }

By `fold-shapes` it becomes:

    graph main as native {
      %x = input() : 2x3x4xf32
      %n = constant(2) : i64
      %y = cast(%n) {to = f32} : f32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.analysis.symbolic_sizes import (
    BROADCASTING,
    broadcast_within_bounds,
    carried_bounds,
    expanded_shape,
    reshaped_shape,
    slice_bounds,
)
from qir.errors import QirError
from qir.ir import dims
from qir.ir.calls import infer_result_types
from qir.ir.dims import Dim, Shape, Sym
from qir.ir.dtype import BOOL, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.foreign_ops import read_again
from qir.rewrite.runner.filter import may

Sizes: TypeAlias = NDArray[np.object_]
"""Whole numbers, symbolic ones, truths, and None for what nobody knows."""


@dataclass(frozen=True)
class FoldShapes(Pass):
    """Folds what is computed from sizes that types know, up to `limit` elements.

    A reshape or expand to sizes of which some are symbolic gets a constant too, where copied sizes
    and one that is left open say the same; else its type says what is known. Sizes that become
    known continue to the types of what follows; those of the outputs stay as they are stated.
    """

    name = "fold-shapes"
    limit: int = 1024

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a reshape to sizes that are taken from a tensor of known ones."""
        from qir.ir.text import parse

        text = (
            "graph main as native {\n  %x = input() : (N)x8x7xf32\n  %s = shape(%x) : 3xi64\n"
            "  %zero = constant([0]) : 1xi64\n  %n = gather(%s, %zero) : 1xi64\n"
            "  %rest = constant([-1]) : 1xi64\n"
            "  %t = concat(xs.0=%n, xs.1=%rest) {axis = 0} : 2xi64\n"
            "  %a = reshape(%x, %t) : ?x?xf32\n  output(y=%a)\n}\n"
        )
        yield cls(), parse(text)

    def __post_init__(self) -> None:
        self.require_least(limit=0)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return _ShapeFolding(graph, ledger, self.name, self.limit).sweep()


@dataclass
class _ShapeFolding:
    """The state of one run of the pass."""

    graph: Graph
    ledger: Ledger
    step: str
    limit: int
    known: dict[Value, Sizes] = field(default_factory=dict)
    changed: set[Value] = field(default_factory=set)
    """Values of which more is known than before."""
    upper_bounds: dict[Value, dict[int, Dim]] = field(default_factory=dict)
    """Sizes that unknown ones do not exceed, by axis: a broadcast of both has that size."""

    def sweep(self) -> int:
        # One sweep in graph order, since sizes follow from producers to consumers.
        count = sum(self._visit(node) for node in list(self.graph))
        return count + (self.graph.prune() if count else 0)

    def _visit(self, node: Node) -> int:
        count = 0
        # With its shapes known, a kept operator may have a converter; what it becomes is visited
        # too.
        if node.op == "foreign":
            added = read_again(self.graph, node, self.ledger, self.step)
            self.changed.update(value for new_node in added for value in new_node.results)
            return bool(added) + sum(self._visit(new_node) for new_node in added)
        if node.op in ("reshape", "expand") and not node.schemes:
            count += self._make_shape_constant(node)
        if node.op in SHAPED_BY_OPERAND or (node.op in BROADCASTING and self.upper_bounds):
            count += self._state_known_sizes(node)
        if any(value in self.changed for value in node.operands.values()):
            self._infer_again(node)
        if node.op == "slice_at" and not node.schemes and self._make_slice_static(node):
            return count + 1
        self._record_bounds(node)
        results = computed_sizes(node, self.known, self.limit)
        for value, sizes in zip(node.results, results, strict=False):
            # Large tensors of integers are data and no sizes.
            if sizes.size > self.limit:
                continue
            self.known[value] = sizes
            if node.op != "constant" and value.uses and all_integers(sizes):
                count += self._fold(value, sizes)
        return count

    def _fold(self, old: Value, sizes: Sizes) -> bool:
        node, graph = old.node, self.graph
        if node.schemes or not may(self.step, node.op, node):
            return False
        data = np.asarray(sizes.astype(old.type.dtype.carrier))
        name = old.name
        graph.rename(old, graph.fresh(f"{name}.folded"))
        elements = Array(data, TensorType(data.shape, old.type.dtype), name)
        value = graph.constant(elements, name=name, before=node)
        graph.set_origins(value.node, node.origins)
        graph.set_lineage(value, old.lineage)
        graph.replace(old, value)
        self.known[value] = sizes
        self.changed.add(value)
        self.ledger.add(Change.EXACT, self.step, name, "sizes are known")
        return True

    def _make_shape_constant(self, node: Node) -> bool:
        """Gives a reshape or expand a constant shape, where that says as much."""
        old = node.operands["shape"]
        sizes = self.known.get(old)
        if sizes is None or sizes.ndim != 1 or all_integers(sizes) or old.constant is not None:
            return False
        x = node.operands["x"].type.shape
        target = (
            _reshape_sizes(x, list(sizes), node)
            if node.op == "reshape"
            else _expand_sizes(x, list(sizes))
        )
        if target is None or not may(self.step, node.op, node):
            return False
        if node.op == "reshape" and node.attrs["allow_zero"]:
            self.graph.set_attrs(node, allow_zero=False)  # none of the sizes is written as 0
        data = np.array(target, old.type.dtype.carrier)
        value = self.graph.constant(data, name=f"{node.name}.shape", before=node)
        self.graph.set_operand(node, "shape", value)
        self.changed.add(value)
        self.ledger.add(Change.EXACT, self.step, node.name, f"{node.op} to sizes that are known")
        return True

    def _make_slice_static(self, node: Node) -> bool:
        """Makes a slice with bounds that are known an ordinary one."""
        bounds = [self.known.get(node.operands[slot]) for slot in ("starts", "ends")]
        if any(bound is None or not all_integers(bound) for bound in bounds) or not may(
            self.step, node.op, node
        ):
            return False
        axes, old_result, graph = node.attrs["axes"], node.result, self.graph
        starts, ends = (tuple(bound.tolist()) for bound in bounds if bound is not None)
        attrs = {"starts": starts, "ends": ends, "axes": axes}
        attrs["steps"] = node.attrs["steps"] or (1,) * len(starts)
        name = old_result.name
        graph.rename(old_result, graph.fresh(f"{name}.folded"))
        x = {"x": node.operands["x"]}
        replacement = graph.add("slice", x, attrs, name=name, before=node, origins=node.origins)
        # Outputs keep the type that the graph states, though more is known of it now.
        if any(use.node.op == "output" for use in old_result.uses):
            graph.set_type(replacement.result, old_result.type)
        graph.set_lineage(replacement.result, old_result.lineage)
        graph.replace(old_result, replacement.result)
        self.changed.add(replacement.result)
        self.ledger.add(Change.EXACT, self.step, name, "bounds are known")
        self._visit(replacement)
        return True

    def _state_known_sizes(self, node: Node) -> bool:
        """Writes into a type the sizes that follow from what is known while nothing runs."""
        stated_shape = node.result.type.shape
        if None not in stated_shape or any(use.node.op == "output" for use in node.result.uses):
            return False
        shape = self._requested_shape(node)
        if shape is None or len(shape) != len(stated_shape):
            return False
        merged = tuple(
            inferred if stated is None else stated
            for stated, inferred in zip(stated_shape, shape, strict=True)
        )
        if merged == stated_shape or not may(self.step, node.op, node):
            return False
        self.graph.set_type(node.result, node.result.type.with_shape(merged))
        self.changed.add(node.result)
        return True

    def _requested_shape(self, node: Node) -> Shape | None:
        """Returns the shape that a node makes; None where nothing is known of it."""
        if node.op not in SHAPED_BY_OPERAND:
            return broadcast_within_bounds(node, self.upper_bounds)
        return requested_shape(node, self.known.get(node.operands["shape"]))

    def _record_bounds(self, node: Node) -> None:
        """Keeps what the sizes of a part do not exceed."""
        if len(node.results) != 1 or None not in node.result.type.shape:
            return
        if node.op == "slice_at":
            starts, ends = (self.known.get(node.operands[slot]) for slot in ("starts", "ends"))
            bounds = slice_bounds(node, starts, ends, self.upper_bounds)
        else:
            bounds = carried_bounds(node, self.upper_bounds)
        if bounds:
            self.upper_bounds[node.result] = bounds

    def _infer_again(self, node: Node) -> None:
        """Sizes that follow from what has become known; outputs keep the type they are stated."""
        if node.op in STATED_TYPE_OPS or node.bodies or node.stages or node.op == "constant":
            return
        try:
            types = infer_result_types(node.op, node.operands, node.attrs)
        except QirError:
            return
        for value, inferred in zip(node.results, types, strict=False):
            shape = value.type.shape
            if len(inferred.shape) != len(shape) or any(u.node.op == "output" for u in value.uses):
                continue
            merged = tuple(
                size if stated is None else stated
                for stated, size in zip(shape, inferred.shape, strict=True)
            )
            if merged != shape:
                self.graph.set_type(value, value.type.with_shape(merged))
                self.changed.add(value)


def computed_sizes(node: Node, known: Mapping[Value, Sizes], limit: int) -> list[Sizes]:
    """What is known of a node's results, one after another, from sizes and what is `known`."""
    if node.op == "constant":
        array = node.result.constant
        is_small = array is not None and array.contents.size <= limit
        return (
            [array.data.astype(object)]
            if array and is_small and _is_integer_or_bool(array.type)
            else []
        )
    rule = _RULES.get(node.op)
    if rule is None or node.stages or not all(_is_integer_or_bool(v.type) for v in node.results):
        return []
    operands = {slot: known.get(value) for slot, value in node.operands.items()}
    if node.op not in SHAPE_QUERIES and any(
        operand_sizes is None for operand_sizes in operands.values()
    ):
        return []
    try:
        results = rule(node, {s: x for s, x in operands.items() if x is not None})
    except (IndexError, ValueError, TypeError, ZeroDivisionError):
        return []  # no program, or nothing that is known
    pairs = zip(results, node.results, strict=False)
    return [
        _without_overflow(np.asarray(sizes, object), value.type.dtype) for sizes, value in pairs
    ]


def requested_shape(node: Node, sizes: Sizes | None) -> Shape | None:
    """Returns the shape that a reshape, expand or constant of so many elements makes by known
    sizes."""
    if sizes is None or sizes.ndim != 1 or node.schemes:
        return None
    if node.op == "constant_of_shape":
        return tuple(sizes)
    x = node.operands["x"].type.shape
    return (
        reshaped_shape(x, list(sizes), node)
        if node.op == "reshape"
        else expanded_shape(x, list(sizes))
    )


def all_integers(sizes: Sizes) -> bool:
    """Returns whether every one of them is a number."""
    return all(isinstance(size, int) for size in sizes.flat)


def _is_integer_or_bool(tensor_type: TensorType) -> bool:
    return tensor_type.quant is None and (tensor_type.dtype.is_integer or tensor_type.dtype == BOOL)


def _without_overflow(sizes: Sizes, element: DType) -> Sizes:
    """Returns what does not fit the type is not known: it wraps."""
    if element == BOOL:
        return sizes
    low, high = element.bounds

    def unless_overflow(size: Dim) -> Dim:
        # An overflow wraps at run time, so the size is not what exact arithmetic says.
        return None if isinstance(size, int) and not low <= size <= high else size

    return _elementwise(unless_overflow, sizes)


def _elementwise(function: Callable[..., object], *parts: Sizes) -> Sizes:
    return np.asarray(np.frompyfunc(function, len(parts), 1)(*parts), object)


# -- constant shapes that say as much -------------------------------------------------------------


def _reshape_sizes(x: Shape, sizes: list[Dim], node: Node) -> list[int] | None:
    """Sizes for a reshape: 0 copies one of x, -1 stands for the one that is left."""
    target: list[int] = []
    for i, size in enumerate(sizes):
        if isinstance(size, int):
            if size == 0 and node.attrs["allow_zero"]:
                return None
            target.append(size)
        else:
            target.append(0 if size is not None and i < len(x) and x[i] == size else -1)
    opens_more = target.count(-1) > list(sizes).count(-1)
    if target.count(-1) > 1 or (opens_more and 0 in target):
        return None  # next to a copied size that may be 0, nothing follows from the count
    return target


def _expand_sizes(x: Shape, sizes: list[Dim]) -> list[int] | None:
    """Sizes for an expand: 1 leaves one of x as it is."""
    target: list[int] = []
    for i, size in enumerate(reversed(sizes), 1):
        if isinstance(size, int):
            target.append(size)
        elif size is not None and i <= len(x) and x[-i] == size:
            target.append(1)
        else:
            return None
    return target[::-1]


# -- rules ----------------------------------------------------------------------------------------

OperandSizes: TypeAlias = Mapping[str, Sizes]
"""What is known of the operands, by slot."""


def _int(node: Node, name: str) -> int:
    value = node.attrs[name]
    if not isinstance(value, int):
        raise TypeError(name)
    return value


def _ints(node: Node, name: str) -> tuple[int, ...]:
    value = node.attrs[name]
    if not isinstance(value, tuple):
        raise TypeError(name)
    return tuple(v for v in value if isinstance(v, int))


def _as_sizes(shape: Shape) -> Sizes:
    sizes = np.empty(len(shape), object)
    sizes[:] = shape
    return sizes


def _shape(node: Node, known: OperandSizes) -> list[Sizes]:
    end = node.attrs["end"]
    stop = end if isinstance(end, int) else None
    return [_as_sizes(node.operands["x"].type.shape[_int(node, "start") : stop])]


def _size(node: Node, known: OperandSizes) -> list[Sizes]:
    return [np.asarray(dims.product(node.operands["x"].type.shape), object)]


def _gather(node: Node, known: OperandSizes) -> list[Sizes]:
    return [np.take(known["x"], known["indices"].astype(np.int64), axis=_int(node, "axis"))]


def _slice(node: Node, known: OperandSizes) -> list[Sizes]:
    x = known["x"]
    lists = (_ints(node, n) for n in ("axes", "starts", "ends", "steps"))
    for axis, start, end, step in zip(*lists, strict=True):
        if step < 1:
            raise ValueError("backwards")
        index: list[slice] = [slice(None)] * x.ndim
        index[axis] = slice(start, end, step)
        x = x[tuple(index)]
    return [x]


def _split(node: Node, known: OperandSizes) -> list[Sizes]:
    ends = np.cumsum(_ints(node, "sizes"))[:-1]
    return list(np.split(known["x"], ends, axis=_int(node, "axis")))


def _concat(node: Node, known: OperandSizes) -> list[Sizes]:
    parts = [known[f"xs.{i}"] for i in range(len(known))]
    return [np.concatenate(parts, axis=_int(node, "axis"))]


def _same_elements(node: Node, known: OperandSizes) -> list[Sizes]:
    """Squeeze, unsqueeze, reshape, flatten, identity: the same elements in the result's shape."""
    sizes = dims.known_shape(node.result.type.shape)
    if sizes is None:
        raise ValueError("its shape is not known")
    return [known["x"].reshape(sizes)]


def _transpose(node: Node, known: OperandSizes) -> list[Sizes]:
    return [known["x"].transpose(_ints(node, "perm"))]


def _binary_rule(
    function: Callable[[Dim, Dim], object],
) -> Callable[[Node, OperandSizes], list[Sizes]]:
    return lambda node, known: [_elementwise(function, known["a"], known["b"])]


def _quotient(a: Dim, b: Dim) -> Dim:
    """Returns a quotient that is the same rounded down and toward zero."""
    if not isinstance(b, int) or b < 1:
        return None
    if isinstance(a, int):
        return a // b if a >= 0 else None
    # Sizes are not negative, so rounding down and rounding toward zero agree.
    positive = isinstance(a, Sym) and all(count > 0 for _, count in a.terms)
    return dims.divide(a, b) if positive else None


def _remainder(node: Node, known: OperandSizes) -> list[Sizes]:
    """Returns what floor division leaves; C's remainder is the same where nothing is negative."""

    def left(a: Dim, b: Dim) -> Dim:
        if not isinstance(b, int) or b < 1:
            return None
        if node.attrs["fmod"]:
            return dims.subtract(a, dims.multiply(b, _quotient(a, b)))
        return dims.subtract(a, dims.multiply(b, dims.divide(a, b)))

    return [_elementwise(left, known["a"], known["b"])]


def _equal(a: Dim, b: Dim) -> bool | None:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    for symbol, number in ((a, b), (b, a)):
        if isinstance(symbol, Sym) and isinstance(number, int) and number < 0:
            if all(count > 0 for _, count in symbol.terms):
                return False  # a size is not negative
    return True if a is not None and a == b else None


def _where(node: Node, known: OperandSizes) -> list[Sizes]:
    def pick(cond: bool | None, a: Dim, b: Dim) -> Dim:
        return a if a == b else None if cond is None else a if cond else b

    return [_elementwise(pick, known["condition"], known["a"], known["b"])]


def _prod(node: Node, known: OperandSizes) -> list[Sizes]:
    shape = dims.known_shape(node.result.type.shape)
    if shape is None or known["x"].size == 0 or np.prod(shape) != 1:
        raise ValueError("not all of them")
    return [np.asarray(dims.product(tuple(known["x"].reshape(-1).tolist())), object).reshape(shape)]


def _cast(node: Node, known: OperandSizes) -> list[Sizes]:
    if not node.operands["x"].type.dtype.is_integer or not node.result.type.dtype.is_integer:
        raise TypeError("no whole numbers")
    return [known["x"]]


def _constant_of_shape(node: Node, known: OperandSizes) -> list[Sizes]:
    value = node.attrs["value"]
    shape = dims.known_shape(tuple(known["shape"]))
    # The elements are written out before the limit is looked at.
    if not isinstance(value, Array) or shape is None or np.prod(shape) > 1 << 16:
        raise ValueError("its shape is not known")
    return [np.full(shape, value.data.reshape(()).item(), object)]


SHAPED_BY_OPERAND = frozenset({"reshape", "expand", "constant_of_shape"})
"""Ops that make what has the shape that they are given."""
SHAPE_QUERIES = frozenset({"shape", "size"})
"""Ops whose result follows from the shape of their operand alone."""
SIZED_BY_OPERANDS = SHAPED_BY_OPERAND - {"reshape"} | {"range", "tile"}
"""Ops that may make a large result of few elements: the elements of an operand say how large."""
_RULES: Mapping[str, Callable[[Node, OperandSizes], list[Sizes]]] = {
    "shape": _shape,
    "size": _size,
    "gather": _gather,
    "slice": _slice,
    "split": _split,
    "concat": _concat,
    **dict.fromkeys(("squeeze", "unsqueeze", "reshape", "flatten", "identity"), _same_elements),
    "transpose": _transpose,
    "add": _binary_rule(dims.add),
    "sub": _binary_rule(dims.subtract),
    "mul": _binary_rule(dims.multiply),
    "div": _binary_rule(_quotient),
    "floor_div": _binary_rule(_quotient),
    "mod": _remainder,
    "equal": _binary_rule(_equal),
    "where": _where,
    "reduce_prod": _prod,
    "cast": _cast,
    "constant_of_shape": _constant_of_shape,
}
