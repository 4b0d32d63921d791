"""Recorded cases of one op as QIR graphs, and what QIR computes for them under a profile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, DType, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, Granularity, QuantType, TensorType, make_param, uniform
from qir.reference.interpreter import run
from tests.oracles.tflite_cases import CaseOperand, OpCase

_OF_FILES = frozenset({"asymmetric"})
"""Of a file's options, those that are no attributes of QIR's ops."""
_RESIZES = ("resize", "resize_nearest")
_TAILS = {
    "relu": ("relu", {}),
    "relu1": ("clip", {"min": -1.0, "max": 1.0}),
    "relu6": ("clip", {"min": 0.0, "max": 6.0}),
}


def storage_of(operand: CaseOperand) -> DType:
    """Returns the element type that holds an operand."""
    return dtype("i4") if operand.bits == 4 else dtype_of(operand.data)


def kind_of(operand: CaseOperand, shape: tuple[int, ...]) -> TensorType:
    """Returns the type of quantized values, or of plain numbers."""
    storage = storage_of(operand)
    if operand.scale is None:
        return TensorType(shape, storage)
    scale = np.asarray(operand.scale, np.float32)
    if scale.ndim == 2:  # in blocks of terms
        grain = Granularity(((0, 1), (1, shape[1] // scale.shape[1])))
        scales = make_param(scale, grain, "w.scale")
        return TensorType(
            shape, QuantType(storage, F32, scales, granularity=grain, scale_dtype=F32)
        )
    axis = operand.axis if scale.ndim else None
    return TensorType(shape, uniform(storage, scale, operand.zero, axis=axis))


def graph_of(case: OpCase, profile: str) -> Graph:
    """The case as a program whose inputs are what is fed."""
    graph = Graph(profile=profile)
    attributes = {name: value for name, value in case.attrs.items() if name not in _OF_FILES}
    operands: dict[str, Value] = {}
    for slot, operand in case.operands.items():
        kind = kind_of(operand, operand.data.shape)
        if slot == "bias" and case.op != "lstm":
            kind = TensorType(operand.data.shape, dtype_of(operand.data))
        if slot in case.fed:
            operands[slot] = graph.add("input", types=[kind], name=slot.replace(".", "")).result
        else:
            operands[slot] = graph.constant(Array(operand.data, kind, slot))
    if case.op in _RESIZES:
        sizes = np.array(case.shape[1:3], np.int64)
        operands["sizes"] = graph.constant(Array(sizes, TensorType((2,), dtype_of(sizes)), "sizes"))
    if case.op in ("expand", "reshape"):
        sizes = np.array(case.shape, np.int64)
        operands["shape"] = graph.constant(
            Array(sizes, TensorType((len(sizes),), dtype_of(sizes)), "s")
        )
    result = kind_of(case.out, case.shape)
    if case.activation:
        op, attrs = _TAILS[case.activation]
        first = Stage(case.op, spec(case.op).complete_attrs(attributes), tuple(operands))
        last = Stage(op, spec(op).complete_attrs(dict(attrs)), (), "x")
        node = graph.add_chain((first, last), operands, result, name="y")
    elif case.op == "lstm":
        node = graph.add(case.op, operands, types=layer_types(case), name=("y", "h", "c"))
    else:
        node = graph.add(case.op, operands, attributes, types=[result], name="y")
    graph.add("output", {"y": node.results[0]})
    return graph


def layer_types(case: OpCase) -> list[TensorType]:
    """The types of a recurrent layer's states, its last one, and its cell."""
    steps, batch, hidden = case.shape
    cell = case.attrs["cell"]
    assert isinstance(cell, int)
    last = (1, batch, hidden)
    kinds = [kind_of(case.out, shape) for shape in ((steps, *last), last)]
    return [*kinds, TensorType(last, uniform(dtype("i16"), np.float32(2.0**cell), 0))]


def computed(case: OpCase, profile: str) -> NDArray[np.generic]:
    """What QIR computes for a case."""
    graph = graph_of(case, profile)
    feeds = {slot.replace(".", ""): case.operands[slot].data for slot in case.fed}
    return run(graph, feeds)["y"].reshape(case.shape)
