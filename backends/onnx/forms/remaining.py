"""Counts the ops that are not in the requested form, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from qir.ledger import Change, Ledger

from ..writer import custom
from ..writer.elements import NUMBERS
from ..writer.writer import STEP

_NAMES = {number: name for name, number in NUMBERS.items()}
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_STANDARD = "Conv MatMul"
_OWN = (
    "Conv MatMul Gemm Add Mul Sigmoid LeakyRelu Softmax Where AveragePool GlobalAveragePool Concat"
)
_MOVES = (
    "Reshape Flatten Transpose Squeeze Unsqueeze Slice Concat Pad MaxPool Gather Expand Tile "
    "DepthToSpace Resize"
).split()
_SIZES = frozenset({"Shape", "Size"})
"""Operators that compute nothing on what they read."""
_BYTES = frozenset({"u8", "i8"})
_NARROW = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_SUMS = "integer sums need u8 and i8 values on both sides of a matrix product or convolution"
_BITS = "MatMulNBits is for matrices of weights in 2, 4 or 8 bits, in blocks along the sum"


@dataclass(frozen=True, slots=True)
class _Codes:
    """What a dequantize reads: the type, and whether its scale is computed."""

    kind: str
    computed: bool
    constant: bool


def told(model: onnx.ModelProto, form: str, ledger: Ledger, *, standard: bool) -> None:
    """Adds one line a reason: how many ops stay float between quantized values, and which."""
    found: dict[str, Counter[str]] = {}
    for node, sides, ends in _everywhere(model.graph):
        why = _why(node, sides, ends, form, standard=standard)
        if why:
            found.setdefault(why, Counter())[node.op_type] += 1
    for why, ops in found.items():
        count = ops.total()
        listed = ", ".join(f"{n} {op}" for op, n in ops.items())
        said = f"{why}: {count} op{'s stay' if count > 1 else ' stays'} float ({listed})"
        ledger.add(Change.EXACT, STEP, f"format {form}", said)


def _everywhere(graph: onnx.GraphProto) -> Iterator[tuple[NodeProto, list[_Codes], bool]]:
    """Yields what is between quantized values in a graph, and in what its branches and loops
    hold."""
    yield from _between(graph)
    for node in graph.node:
        for held in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            yield from _everywhere(held)


def _between(graph: onnx.GraphProto) -> Iterator[tuple[NodeProto, list[_Codes], bool]]:
    """Ops that read dequantized integers, with these, and whether their result is quantized."""
    types = {t.name: _NAMES.get(t.data_type, "") for t in graph.initializer}
    types |= {i.name: _NAMES.get(i.type.tensor_type.elem_type, "") for i in graph.input}
    held = {t.name for t in graph.initializer}
    quantized = {n.input[0] for n in graph.node if _quantizes(n) and n.input}
    known: dict[str, _Codes] = {}
    for node in graph.node:
        if _dequantizes(node):
            known[node.output[0]] = _read(node, types, held)
            continue
        if _quantizes(node):
            types[node.output[0]] = _stored(node, types)
            continue
        sides = [known[name] for name in node.input if name in known]
        if sides and node.op_type not in _SIZES and not _narrows(node):
            yield node, sides, any(name in quantized for name in node.output)


def _narrows(node: NodeProto) -> bool:
    """Returns whether it gives floats in 16 bits, as results have them that a model says are so."""
    return node.op_type == "Cast" and any(a.name == "to" and a.i in _NARROW for a in node.attribute)


def _dequantizes(node: NodeProto) -> bool:
    return node.op_type == "DequantizeLinear" or (
        node.domain == custom.DOMAIN and node.op_type.startswith("Dequantize")
    )


def _quantizes(node: NodeProto) -> bool:
    return node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") or (
        node.domain == custom.DOMAIN and node.op_type.startswith("Quantize")
    )


def _stored(node: NodeProto, types: Mapping[str, str]) -> str:
    if node.domain == custom.DOMAIN:
        return "another map"
    zero = node.input[2] if len(node.input) > 2 else ""
    return types.get(zero, "u8")


def _read(node: NodeProto, types: Mapping[str, str], held: set[str]) -> _Codes:
    if node.domain == custom.DOMAIN:
        return _Codes("another map", False, node.input[0] in held)
    zero = node.input[2] if len(node.input) > 2 else ""
    kind = types.get(node.input[0]) or types.get(zero, "")
    return _Codes(kind, node.input[1] not in held, node.input[0] in held)


def _why(node: NodeProto, sides: list[_Codes], ends: bool, form: str, *, standard: bool) -> str:
    """Returns why an op stays as it is; empty where the form has nothing to say of it."""
    if form == "integer":
        return _SUMS if node.op_type in _PRODUCTS else ""
    if form == "nbits":
        weights = not standard and any(c.constant and c.kind != "i32" for c in sides)
        return _BITS if node.op_type in _PRODUCTS and weights else ""
    if form != "qoperator":
        return ""
    kinds = sorted({c.kind for c in sides if c.kind} - _BYTES - {"i32"})
    if kinds:
        return f"no quantized operator takes {' or '.join(kinds)}"
    if any(c.computed for c in sides):
        return "quantized operators take no scales that a model computes at run time"
    if node.op_type not in (*(_STANDARD if standard else _OWN).split(), *_MOVES):
        return f"{'ONNX' if standard else 'onnxruntime'} has no quantized operator for them"
    return "" if not ends else "no quantized operator fits their parameters, attributes or bias"
