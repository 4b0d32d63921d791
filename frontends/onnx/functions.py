"""Local functions that stand for quantize and dequantize by types that ONNX lacks.

`backends/onnx` writes them, with the quantized type in their metadata and a hash of their
operators. If the hash of one does not match, somebody edited it: then all are inlined like any
other function, since quantized values that one makes another reads.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import onnx

from qir.ir.types import Array, QuantType
from qir.ir.typetext import parse_type
from qir.records import record

from .op import subgraphs_of

QIR_DOMAIN = "qir"
_TYPE, _ARRAYS, _HASH, _ROUND = "qir.type", "qir.arrays", "qir.hash", "qir.round"
_PROFILE = "qir.rules"


@record
class QuantFunction:
    """A function that stands for quantize or dequantize, and the quantized type in its metadata."""

    op: str
    type_text: str
    arrays: tuple[tuple[str, str], ...]
    """Arrays that the type names (scales, tables), and their element types."""
    rounding: str
    profile: str | None = None
    """The numerics profile of the node, if it is not the model's."""

    def quant_type(self, arrays: Mapping[str, Array], rank: int) -> QuantType:
        """Returns the quantized type for tensors of that rank.

        It has the arrays that a call gives.
        """
        quant = parse_type("?x" * rank + self.type_text, lambda name: arrays[name]).quant
        if quant is None:
            raise ValueError(f"{self.type_text!r} is no quantized type")
        return quant


def quant_functions(functions: Iterable[onnx.FunctionProto]) -> dict[str, QuantFunction]:
    """Returns the functions that stand for quantize and dequantize, by name.

    There are none if one was edited.
    """
    functions_by_name: dict[str, QuantFunction] = {}
    for function in functions:
        properties = {p.key: p.value for p in function.metadata_props}
        texts = [
            function.name,
            *function.input,
            *function.output,
            *properties,
            *properties.values(),
        ]
        if not all(isinstance(text, str) for text in texts):
            continue  # bytes that are no UTF-8: inlining the function reports that
        op = function.name.partition("_")[0]
        if function.domain != QIR_DOMAIN or op not in ("Quantize", "Dequantize"):
            continue
        if not {_TYPE, _ARRAYS, _HASH, _ROUND} <= properties.keys():
            continue
        names = [*function.input][1:]
        stated = [
            properties[key] for key in (_TYPE, _ARRAYS, _ROUND, _PROFILE) if key in properties
        ]
        has_signature = list(function.input)[:1] == ["x"] and list(function.output) == ["y"]
        if not has_signature or properties[_HASH] != _digest(op, function.node, names, stated):
            return {}
        pairs = [p.partition(":") for p in properties[_ARRAYS].split(",") if p]
        arrays = tuple((name, kind) for name, _, kind in pairs)
        # Operands after x are the arrays that the type names, in order.
        if [name for name, _ in arrays] == names:
            functions_by_name[function.name] = QuantFunction(
                op, properties[_TYPE], arrays, properties[_ROUND], properties.get(_PROFILE)
            )
    return functions_by_name


MAX_CALL_DEPTH = 100
"""Nested calls; ONNX's inliner supports no more."""


def inlined_size(proto: onnx.ModelProto, quant_names: Container[str]) -> tuple[int, int]:
    """Returns the count and the bytes of a model's operators once its functions are inlined.

    Computed before inlining, so that functions that double at each level cannot fill the memory.
    """
    functions = {function_key(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}

    def size_of_call(key: tuple[str, str, str], depth: int) -> tuple[int, int]:
        if key not in sizes:
            sizes[key] = 0, 0  # for a recursive function, which `specialize_calls` reports
            sizes[key] = (
                (0, 0) if depth > MAX_CALL_DEPTH else size_of_nodes(functions[key].node, depth)
            )
        return sizes[key]

    def size_of_nodes(nodes: Iterable[onnx.NodeProto], depth: int) -> tuple[int, int]:
        count = size = 0
        for node in nodes:
            key = function_key(node.domain, node.op_type, node.overload)
            is_inlined = key in functions and not (key[0] == QIR_DOMAIN and key[1] in quant_names)
            parts = [size_of_call(key, depth + 1) if is_inlined else (1, node.ByteSize())]
            parts += [size_of_nodes(g.node, depth) for a in node.attribute for g in subgraphs_of(a)]
            count += sum(part[0] for part in parts)
            size += sum(part[1] for part in parts)
        return count, size

    return size_of_nodes(proto.graph.node, 0)


def function_key(domain: str, name: str, overload: str) -> tuple[str, str, str]:
    """Returns the identity of a function: domain, name and overload."""
    return "" if domain == "ai.onnx" else domain, name, overload


def _digest(
    op: str, nodes: Iterable[onnx.NodeProto], arrays: list[str], texts: Iterable[str]
) -> str:
    # The hash covers what the type says, too: neither can be edited alone.
    import hashlib  # with it comes OpenSSL

    state = hashlib.sha256("\0".join([op, *arrays, *texts]).encode())
    for node in nodes:
        state.update(node.SerializeToString(deterministic=True))
    return state.hexdigest()
