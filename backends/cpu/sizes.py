"""Binds symbolic dimensions to known sizes: one graph for each set of input sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError, QirError, Refused, TypeRuleError, UsageError
from qir.ir import dims
from qir.ir.calls import cached_result_types, make_call
from qir.ir.dims import Dim, Shape, Sym
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import Call, spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.types import Array, TensorType
from qir.reference.control import FUNCTIONS as CONTROL
from qir.reference.interpreter import rules_of, run_node
from qir.reference.table import compute

Sizes = tuple[int, ...]


def bind_names(graph: Graph, sizes: Mapping[str, Sizes]) -> dict[str, int]:
    """Returns the size of each name in the inputs' shapes; raises DataError where a size does
    not fit."""
    size_of_name: dict[str, int] = {}
    shapes = {value.name: value.type.shape for value in graph.inputs}
    for name, shape in shapes.items():
        actual = sizes[name]
        if len(actual) != len(shape):
            raise DataError(f"input {name} has {len(actual)} axes, the model takes {len(shape)}")
        for dim, size in zip(shape, actual, strict=True):
            if isinstance(dim, Sym) and len(dims.names((dim,))) == 1 and str(dim).isidentifier():
                # Named dimensions first: a composed one, such as 2*n, is checked once all names are
                # known.
                first = size_of_name.setdefault(str(dim), size)
                if first != size:
                    raise DataError(
                        f"input {name} is {shape_text(actual)}: {dim} was {first} before"
                    )
    for name, shape in shapes.items():
        for axis, (dim, size) in enumerate(zip(shape, sizes[name], strict=True)):
            _check_size(name, axis, dim, size, sizes[name], size_of_name)
    return size_of_name


def _check_size(
    name: str, axis: int, dim: Dim, size: int, sizes: Sizes, size_of_name: dict[str, int]
) -> None:
    expected = dims.bind(dim, size_of_name)
    if isinstance(expected, int) and expected != size:
        raise DataError(
            f"input {name} is {shape_text(sizes)}: axis {axis} has {size}, "
            f"the model takes {expected}"
        )
    if size < 1:
        raise DataError(
            f"input {name} is {shape_text(sizes)}: axis {axis} is empty, it takes 1 or more"
        )


def at_sizes(graph: Graph, sizes: Mapping[str, Sizes]) -> Graph:
    """Returns the graph with every dimension a number: a copy, unless that is so already.

    Raises DataError where the graph does not accept the sizes, Refused where a shape depends on
    data.
    """
    size_of_name = bind_names(graph, sizes)
    if _is_bound(graph, size_of_name, sizes):
        return graph
    out = graph.copy()
    # In topological order: shapes of operands are known when those of results are inferred.
    for node in out:
        if node.op in ("constant", "output") or _fold(out, node):
            continue
        try:
            shapes = _inferred_shapes(node, size_of_name, sizes)
        except TypeRuleError as error:
            input_text = ", ".join(f"{n} {shape_text(s)}" for n, s in sizes.items())
            raise DataError(f"{node.name} does not take inputs of {input_text}: {error}") from None
        for value, shape in zip(node.results, shapes, strict=True):
            bound_shape = tuple(dims.bind(d, size_of_name) for d in shape)
            if dims.known_shape(bound_shape) is None:
                raise Refused(f"%{value.name}: its shape {shape_text(bound_shape)} depends on data")
            if 0 in bound_shape:
                input_text = ", ".join(f"{n} {shape_text(s)}" for n, s in sizes.items())
                raise DataError(
                    f"%{value.name} is empty, {shape_text(bound_shape)}, for inputs of {input_text}"
                )
            out.set_type(value, value.type.with_shape(bound_shape))
    return out


def _is_bound(graph: Graph, size_of_name: dict[str, int], sizes: Mapping[str, Sizes]) -> bool:
    """Returns whether every dimension is a number, and no node is left that constants decide."""
    for node in graph:
        if node.op in ("constant", "output"):
            continue
        if node.bodies or _is_decided(node):
            return False
        try:
            shapes = _inferred_shapes(node, size_of_name, sizes)
        except QirError:  # which is reported as that of a copy is
            return False
        for value, shape in zip(node.results, shapes, strict=True):
            if shape != value.type.shape or dims.known_shape(shape) is None or 0 in shape:
                return False
    return True


def _is_decided(node: Node) -> bool:
    """Returns whether constants decide what a node computes, or the sizes of its operands do."""
    if node.op in STATED_TYPE_OPS or len(node.results) != 1 or not node.operands:
        return False
    return node.op in ("shape", "size") or all(
        value.constant is not None for value in node.operands.values()
    )


def _fold(graph: Graph, node: Node) -> bool:
    """Folds a node that sizes and constants decide, so that shapes computed from them are known."""
    if node.op in STATED_TYPE_OPS or len(node.results) != 1 or node.bodies:
        return False
    arrays: dict[str, NDArray[np.generic]] = {}
    for slot, value in node.operands.items():
        operand_shape = dims.known_shape(value.type.shape)
        if operand_shape is None:
            return False
        if value.constant is not None:
            arrays[slot] = value.constant.data
        elif node.op in ("shape", "size"):
            # `shape` and `size` read no element: an array of zeros without memory will do.
            arrays[slot] = np.broadcast_to(np.zeros((), value.type.dtype.carrier), operand_shape)
        else:
            return False
    types = [value.type for value in (*node.operands.values(), node.result)]
    if not arrays or node.stages or any(kind.quant for kind in types):
        return bool(arrays) and _fold_quantized(graph, node, arrays)
    data = compute(node.op, arrays, node.attrs)
    _replace(graph, node, Array.of(np.asarray(data, order="C"), node.name))
    return True


MAX_FOLDED_ELEMENTS = 1 << 20
"""Larger dequantized constants are not folded: floats need four times the memory of the
integers."""


def _fold_quantized(graph: Graph, node: Node, arrays: Mapping[str, NDArray[np.generic]]) -> bool:
    """Folds a node of constant integers, such as a dequantized bias, to what the reference
    computes."""
    if sum(data.size for data in arrays.values()) > MAX_FOLDED_ELEMENTS or node.bodies:
        return False
    try:
        (data,) = run_node(node, arrays, rules_of(graph, node).on_processor())
    except QirError:  # a run says so if it comes to that node
        return False
    if data.size > MAX_FOLDED_ELEMENTS:
        return False
    kind = node.result.type.with_shape(data.shape)
    _replace(graph, node, Array(np.asarray(data, order="C"), kind, node.name))
    return True


def _replace(graph: Graph, node: Node, array: Array) -> None:
    name = node.name
    graph.rename(node.result, graph.fresh(f"{name}.folded"))
    constant = graph.constant(array, name=name, before=node)
    graph.replace(node.result, constant)
    graph.remove(node)


def _inferred_shapes(
    node: Node, size_of_name: dict[str, int], sizes: Mapping[str, Sizes]
) -> list[Shape]:
    """Returns the shapes of a node's results for the sizes of its operands."""
    if node.op == "input":
        return [sizes[node.name]]
    if node.bodies and node.op not in CONTROL:
        raise Refused(
            f"{node.name}: QIR's kernels run no graph within {node.op}; the reference does"
        )
    if node.op == "fused":
        return [_chain_shape(node)]
    declared = [v.type.shape for v in node.results]
    if node.op in STATED_TYPE_OPS:
        return declared
    if node.bodies:
        return [tuple(dims.bind(d, size_of_name) for d in shape) for shape in declared]
    # Float ops of equal operands were inferred when the graph was made.
    inferred = cached_result_types(node.op, node.operands, node.attrs)
    if inferred is None:
        inferred = spec(node.op).rule(make_call(node.op, node.operands, node.attrs))
    # Where the rule leaves a dimension open, the declared one is bound.
    return [
        tuple(
            inferred_dim if inferred_dim is not None else dims.bind(declared_dim, size_of_name)
            for inferred_dim, declared_dim in pairs
        )
        for pairs in (zip(t.shape, d, strict=True) for t, d in zip(inferred, declared, strict=True))
    ]


def _chain_shape(node: Node) -> Shape:
    """Returns the shape of a chain's result, stage by stage."""
    flow: TensorType | None = None
    for index, stage in enumerate(node.stages):
        operands = node.stage_operands(index)
        types = {slot: value.type for slot, value in operands.items()}
        if stage.flow is not None and flow is not None:
            types[stage.flow] = flow
        call = make_call(stage.op, operands, stage.attrs)
        (flow,) = spec(stage.op).rule(Call(stage.op, types, stage.attrs, call.constants))
    assert flow is not None
    return flow.shape


def trial_sizes(graph: Graph, given: Mapping[str, int] = MappingProxyType({})) -> dict[str, Sizes]:
    """Returns input sizes in which open dimensions are 1, or as given.

    Raises UsageError for a name that no shape has.
    """
    names = (name for value in graph.inputs for name in dims.names(value.type.shape))
    assumed = dict.fromkeys(names, 1)
    for name, size in given.items():
        if name not in assumed:
            known = ", ".join(sorted(assumed)) or "none"
            raise UsageError(f"no size {name!r} is open in this model; open are {known}")
        assumed[name] = size
    return {
        value.name: tuple(
            bound if isinstance(bound := dims.bind(d, assumed), int) else 1
            for d in value.type.shape
        )
        for value in graph.inputs
    }


def shape_text(shape: Sequence[Dim]) -> str:
    """Returns a shape as it is printed: 1x3x32x32."""
    return "x".join("?" if d is None else str(d) for d in shape) or "a scalar"
