"""Everything that is known of one node."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import UsageError
from qir.inspect.summary import InterfaceTensor, QuantizedStorage
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import quantized_nodes, source_quant_type, stored_quant_type
from qir.query.cost import macs, one_sample
from qir.query.display import op_name


@dataclass(frozen=True, slots=True)
class ConstantContents:
    """What is in a constant."""

    low: float
    high: float
    zeros: float
    """Share of the elements that are zero (the zero point, where they are quantized)."""
    at_bounds: float | None
    """Share of the integers that are the least or the greatest; None where there are none."""


@dataclass(frozen=True, slots=True)
class OperandSummary:
    """What is in a slot."""

    slot: str
    tensor: InterfaceTensor
    made_by: str
    contents: ConstantContents | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One node; `to_json` has the keys of the fields."""

    name: str
    op: str
    doc: str
    text: str
    attributes: dict[str, str]
    operands: tuple[OperandSummary, ...]
    results: tuple[InterfaceTensor, ...]
    used_by: tuple[str, ...]
    origins: tuple[str, ...]
    source_names: dict[str, str]
    """What the source calls the tensors in its slots."""
    profile: str
    plans: dict[str, str]
    macs: int | None
    in_codes: bool

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        return asdict(self)


def find(graph: Graph, name: str) -> Node:
    """Returns the node that makes a value of that name, or comes from a source op of that name.

    Raises UsageError where there is none, naming what is near, or where several came from it.
    """
    if graph.has(name):
        return graph[name].node
    matching = [node for node in graph if any(o.name == name for o in node.origins)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(node.name for node in matching[:4])
        raise UsageError(f"{name} became {len(matching)} nodes, name one of them: {names}")
    known = [n for node in graph for n in (node.name, *(o.name for o in node.origins)) if n]
    suggestions = difflib.get_close_matches(name, dict.fromkeys(known), 3, 0.5)
    suggestions = suggestions or [n for n in known if name.lower() in n.lower()][:3]
    hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
    raise UsageError(f"no node {name!r} among {len(graph)}{hint}")


def explain(graph: Graph, name: str) -> Explanation:
    """Returns what one node is, reads and makes; raises UsageError if no node has that name."""
    node = find(graph, name)
    return Explanation(
        node.name,
        op_name(node),
        spec(node.op).doc,
        repr(node),
        {key: _text(value) for key, value in node.attrs.items() if key != "data"},
        tuple(_operand(slot, value) for slot, value in node.operands.items()),
        tuple(_tensor(value) for value in node.results),
        tuple(user.name for value in node.results for user in value.users),
        tuple(dict.fromkeys(map(str, node.origins))),
        {slot: tensor for o in node.origins for slot, tensor in o.operands},
        node.profile or graph.profile,
        {slot: str(scheme) for slot, scheme in node.schemes.items()},
        macs(node, one_sample(graph)),
        quantized_nodes(graph).get(node, False),
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _tensor(value: Value) -> InterfaceTensor:
    plain = InterfaceTensor.of(value.name, value.type)
    return InterfaceTensor(
        plain.name, plain.shape, plain.dtype, QuantizedStorage.of(stored_quant_type(value))
    )


def _operand(slot: str, value: Value) -> OperandSummary:
    plain = InterfaceTensor.of(value.name, value.type)
    tensor = InterfaceTensor(
        plain.name, plain.shape, plain.dtype, QuantizedStorage.of(source_quant_type(value))
    )
    source = value.node.operands["x"] if value.node.op == "dequantize" else value
    return OperandSummary(slot, tensor, value.node.op, _contents(source))


def _contents(value: Value) -> ConstantContents | None:
    array = value.constant
    if array is None or array.contents.size == 0 or array.contents.dtype.kind not in "iufV":
        return None
    is_integer = array.contents.dtype.kind in "iu"
    data = array.data if is_integer else array.data.astype(np.float64)
    quant = array.type.quant or value.type.quant
    if quant is None or quant.dynamic:
        bounds, zeros = None, data == 0
    else:
        bounds = float(((data == quant.low) | (data == quant.high)).mean())
        zeros = data == _along(np.asarray(quant.zeros()), quant.axis, data.ndim)
    return ConstantContents(float(data.min()), float(data.max()), float(np.mean(zeros)), bounds)


def _along(zeros: NDArray[np.generic], axis: int | None, rank: int) -> NDArray[np.generic]:
    """Zero points shaped to be next to quantized values; those of blocks count as 0."""
    if axis is not None and zeros.ndim == 1:
        return zeros.reshape([-1 if i == axis else 1 for i in range(rank)])
    return zeros if zeros.ndim == 0 else np.zeros((), np.int64)
