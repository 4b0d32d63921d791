"""Reports the ops of a written model that are not in the requested form, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from qir.ledger import Change, Ledger

from ..writer import custom
from ..writer.elements import ELEMENT_TYPES
from ..writer.writer import STEP

_ELEMENT_TYPES = {number: name for name, number in ELEMENT_TYPES.items()}
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_STANDARD_QLINEAR = "Conv MatMul"
"""Operators with a quantized counterpart in ONNX itself."""
_MICROSOFT_QLINEAR = (
    "Conv MatMul Gemm Add Mul Sigmoid LeakyRelu Softmax Where AveragePool GlobalAveragePool Concat"
)
"""Operators with a quantized counterpart in onnxruntime's domain."""
_MOVE_OPERATORS = (
    "Reshape Flatten Transpose Squeeze Unsqueeze Slice Concat Pad MaxPool Gather Expand Tile "
    "DepthToSpace Resize"
).split()
"""Operators that also accept integers."""
_SIZE_OPERATORS = frozenset({"Shape", "Size"})
"""Operators that compute nothing on what they read."""
_BYTE_STORAGES = frozenset({"u8", "i8"})
_FLOATS_OF_16_BITS = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_NEEDS_BYTES = "integer sums need u8 and i8 values on both sides of a matrix product or convolution"
_NEEDS_LOW_BITS = (
    "MatMulNBits is for matrices of weights in 2, 4 or 8 bits, in blocks along the sum"
)


@dataclass(frozen=True, slots=True)
class _DequantizeSource:
    """What a DequantizeLinear reads: the storage, and whether scale or integers are constant."""

    kind: str
    computed: bool
    constant: bool


def report_remaining(model: onnx.ModelProto, form: str, ledger: Ledger, *, standard: bool) -> None:
    """Adds an entry per reason to the ledger: which ops stay float between quantized values, and
    how many."""
    counts: dict[str, Counter[str]] = {}
    for node, sources, is_quantized_after in _float_ops_in_bodies(model.graph):
        why = _reason(node, sources, is_quantized_after, form, standard=standard)
        if why:
            counts.setdefault(why, Counter())[node.op_type] += 1
    for why, ops in counts.items():
        count = ops.total()
        listed = ", ".join(f"{n} {op}" for op, n in ops.items())
        message = f"{why}: {count} op{'s stay' if count > 1 else ' stays'} float ({listed})"
        ledger.add(Change.EXACT, STEP, f"format {form}", message)


def _float_ops_in_bodies(
    graph: onnx.GraphProto,
) -> Iterator[tuple[NodeProto, list[_DequantizeSource], bool]]:
    """Yields the float ops of a graph and its subgraphs."""
    yield from _float_ops(graph)
    for node in graph.node:
        for subgraph in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            yield from _float_ops_in_bodies(subgraph)


def _float_ops(graph: onnx.GraphProto) -> Iterator[tuple[NodeProto, list[_DequantizeSource], bool]]:
    """Yields the ops that read dequantized values, with these, and whether their result is
    quantized."""
    types = {t.name: _ELEMENT_TYPES.get(t.data_type, "") for t in graph.initializer}
    types |= {i.name: _ELEMENT_TYPES.get(i.type.tensor_type.elem_type, "") for i in graph.input}
    constants = {t.name for t in graph.initializer}
    quantized = {n.input[0] for n in graph.node if _is_quantize(n) and n.input}
    dequantized: dict[str, _DequantizeSource] = {}
    for node in graph.node:
        if _is_dequantize(node):
            dequantized[node.output[0]] = _dequantize_source(node, types, constants)
            continue
        if _is_quantize(node):
            types[node.output[0]] = _storage_of(node, types)
            continue
        sources = [dequantized[name] for name in node.input if name in dequantized]
        # Shape and Size read no elements, so they are no float op that a form could change.
        if sources and node.op_type not in _SIZE_OPERATORS and not _is_cast_to_16_bits(node):
            yield node, sources, any(name in quantized for name in node.output)


def _is_cast_to_16_bits(node: NodeProto) -> bool:
    """Returns whether a node casts to float16 or bfloat16, as for an output of that type."""
    return node.op_type == "Cast" and any(
        a.name == "to" and a.i in _FLOATS_OF_16_BITS for a in node.attribute
    )


def _is_dequantize(node: NodeProto) -> bool:
    return node.op_type == "DequantizeLinear" or (
        node.domain == custom.DOMAIN and node.op_type.startswith("Dequantize")
    )


def _is_quantize(node: NodeProto) -> bool:
    return node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") or (
        node.domain == custom.DOMAIN and node.op_type.startswith("Quantize")
    )


def _storage_of(node: NodeProto, types: Mapping[str, str]) -> str:
    if node.domain == custom.DOMAIN:
        return "another map"
    zero = node.input[2] if len(node.input) > 2 else ""
    return types.get(zero, "u8")


def _dequantize_source(
    node: NodeProto, types: Mapping[str, str], constants: set[str]
) -> _DequantizeSource:
    if node.domain == custom.DOMAIN:
        return _DequantizeSource("another map", False, node.input[0] in constants)
    zero = node.input[2] if len(node.input) > 2 else ""
    kind = types.get(node.input[0]) or types.get(zero, "")
    return _DequantizeSource(kind, node.input[1] not in constants, node.input[0] in constants)


def _reason(
    node: NodeProto,
    sources: list[_DequantizeSource],
    is_quantized_after: bool,
    form: str,
    *,
    standard: bool,
) -> str:
    """Returns why an op is not in the form; empty where the form does not concern it."""
    if form == "integer":
        return _NEEDS_BYTES if node.op_type in _PRODUCTS else ""
    if form == "nbits":
        weights = not standard and any(c.constant and c.kind != "i32" for c in sources)
        return _NEEDS_LOW_BITS if node.op_type in _PRODUCTS and weights else ""
    if form != "qoperator":
        return ""
    kinds = sorted({c.kind for c in sources if c.kind} - _BYTE_STORAGES - {"i32"})
    if kinds:
        return f"no quantized operator takes {' or '.join(kinds)}"
    if any(c.computed for c in sources):
        return "quantized operators take no scales that a model computes at run time"
    if node.op_type not in (
        *(_STANDARD_QLINEAR if standard else _MICROSOFT_QLINEAR).split(),
        *_MOVE_OPERATORS,
    ):
        return f"{'ONNX' if standard else 'onnxruntime'} has no quantized operator for them"
    return (
        ""
        if not is_quantized_after
        else "no quantized operator fits their parameters, attributes or bias"
    )
