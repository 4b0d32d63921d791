"""Formats types, parameters and nodes for prompts, notebooks and drawings."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import DType
from qir.ir.node import GraphLike, Node, Value, escape_name
from qir.ir.types import Array, Param, QuantType, TensorType
from qir.query.facts import value_quant_type

FAMILIES = ("int4", "int8", "int16", "int32", "float8", "float16", "float32", "other")
"""Storage types as they are coloured, fewest bits first."""


def family(kind: DType) -> str:
    """Returns the family of a storage type: `int8` for u8 and i7, `float16` for bf16."""
    if kind.is_integer:
        return next((f"int{bits}" for bits in (4, 8, 16) if kind.bits <= bits), "int32")
    if kind.is_float:
        return next((f"float{bits}" for bits in (8, 16) if kind.bits <= bits), "float32")
    return "other"


def storage(value: Value) -> DType:
    """Returns what a value is in memory as, in either form of a program."""
    quant = value_quant_type(value)
    return quant.storage if quant else value.type.dtype


def node_family(node: Node) -> str:
    """Returns the family of what a node makes; of its only operand for an output."""
    values = node.results or tuple(node.operands.values())
    return family(storage(values[0])) if values else "other"


def op_name(node: Node) -> str:
    """Returns what a node computes: its op, the ops of its chain, or its framework's own name for
    it."""
    if node.stages:
        return " |> ".join(stage.op for stage in node.stages)
    if node.op == "foreign":
        return f"{node.attrs['framework']!s} {node.attrs['op']!s}"
    if node.op == "fused" and (kernel := str(node.attrs["kernel"])):
        framework, _, name = kernel.partition(":")
        return f"{framework} {name.rpartition('.')[2]}" if name else kernel
    return node.op


def why_foreign(node: Node) -> str:
    """Returns why a foreign op is no op of the language: its form may be unknown where others are
    read."""
    return str(node.attrs["why"]) or f"{node.attrs['op']!r} as it stands is not known to QIR"


def shape(kind: TensorType) -> str:
    """Formats a shape: `Nx64x7x7`; `scalar` where there are no axes."""
    sizes = ("?" if d is None else str(d) if str(d).isalnum() else f"({d})" for d in kind.shape)
    return "x".join(sizes) or "scalar"


def span(value: Param) -> str:
    """Formats numbers in short: one, or their count with the least and the greatest."""
    if value is None:
        return "?"
    values = np.asarray(value.data if isinstance(value, Array) else value)
    if values.size == 0:
        return "0"
    if values.dtype.kind in "iu":  # zero points: all their figures
        low, high = str(values.min()), str(values.max())
    else:
        numbers = values.astype(np.float64)
        if values.size == 1:
            return f"{numbers.item():.6g}"
        low, high = f"{numbers.min():.4g}", f"{numbers.max():.4g}"
    if values.size == 1:
        return low
    return f"{values.size} of {low}" if low == high else f"{values.size} in {low}..{high}"


def parameters_text(quant: QuantType) -> str:
    """Formats parameters: `u8 0.0235:128`; `i8 axis 0, 64 in 0.0012..0.02`."""
    bounds = f"<{quant.bounds[0]}:{quant.bounds[1]}>" if quant.bounds else ""
    if quant.kind == "lut":
        return f"{quant.storage}{bounds} table, {span(quant.scale)}"
    if quant.granularity is None:
        granularity = ""
    elif quant.axis is not None:
        granularity = f" axis {quant.axis},"
    else:
        granularity = (
            " blocks " + " ".join(f"{axis}:{size}" for axis, size in quant.granularity.blocks) + ","
        )
    zero = "" if quant.zero == () else f":{span(quant.zero)}"
    return f"{quant.storage}{bounds}{granularity} {span(quant.scale)}{zero}"


def element(value: Value) -> str:
    """Returns what the elements are: quantized values with their numbers, else the type."""
    quant = value_quant_type(value)
    if quant is None:
        return str(value.type.dtype)
    return parameters_text(quant) + ("" if value.type.quant else f" as {value.type.dtype}")


def brief_graph(graph: GraphLike) -> str:
    """Returns one line for a prompt: how many nodes, what it takes and gives, how much is
    quantized."""
    nodes = list(graph)
    ends = [list(v.name for v in graph.inputs)]
    ends.append([name for node in nodes if node.op == "output" for name in node.operands])
    takes, gives = (", ".join([*e[:3], *([".."] if len(e) > 3 else [])]) or "nothing" for e in ends)
    quantized_count = sum(value.type.quant is not None for node in nodes for value in node.results)
    quantized_text = f", {quantized_count:,} quantized values" if quantized_count else ""
    count = f"{len(nodes):,} node{'' if len(nodes) == 1 else 's'}"
    text = f"<graph {graph.name} as {graph.profile}: {takes} -> {gives}, {count}{quantized_text}>"
    return escape_name(text)
