"""Graph properties that passes may require and ensure, evaluated at run time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from qir.errors import PassError
from qir.ir.graph import Graph
from qir.ir.node import Node

Fault: TypeAlias = "tuple[Node | None, str]"
"""The node that lacks the property, and why; no node where the whole graph lacks it."""
Find: TypeAlias = Callable[[Graph], "Fault | None"]
"""Looks for what a graph lacks; None where it has the property."""


@dataclass(frozen=True, slots=True)
class Property:
    """Something that is true of a graph or not, its bodies included."""

    name: str
    doc: str
    find: Find


def _no_node(graph: Graph, fault_of: Callable[[Node], str]) -> Fault | None:
    """Returns the first node of a graph or of its bodies that something is wrong with."""
    for _, part in graph.walk():
        for node in part:
            if reason := fault_of(node):
                return node, reason
    return None


_QDQ = frozenset({"quantize", "dequantize", "recode", "choose_qparams", "qparams"})


# Results are enough: an operand is the result of another node.
def _quantized_result(node: Node) -> str:
    quantized = next((v.name for v in node.results if v.type.quant), "")
    return f"%{quantized} is quantized" if quantized else ""


def _integer_op(node: Node) -> str:
    # Inputs and constants hold what is given; of a node with bodies the bodies are looked at.
    if node.op in _QDQ or node.op in ("input", "constant", "output", "requantize") or node.bodies:
        return ""
    quantized = [v for v in (*node.operands.values(), *node.results) if v.type.quant]
    return f"{node.op} is quantized, %{quantized[0].name}" if quantized else ""


def _open_type(node: Node) -> str:
    opened = next((v.name for v in node.results if v.type.quant and v.type.quant.dynamic), "")
    return f"the type of %{opened} leaves its numbers open" if opened else ""


PROPERTIES: dict[str, Property] = {
    row.name: row
    for row in (
        Property(
            "no-qdq",
            "no quantize and no dequantize stands in it",
            lambda graph: _no_node(
                graph, lambda n: f"it is a {n.op}" if n.op in ("quantize", "dequantize") else ""
            ),
        ),
        Property(
            "float", "no value is quantized", lambda graph: _no_node(graph, _quantized_result)
        ),
        Property(
            "qdq-form",
            "only quantization ops have quantized operands and results",
            lambda graph: _no_node(graph, _integer_op),
        ),
        Property(
            "no-dynamic",
            "every quantized type has its parameters",
            lambda graph: _no_node(graph, _open_type),
        ),
        Property(
            "ungrouped",
            "no node is a group of several ops",
            lambda graph: _no_node(graph, lambda n: "it is a group" if n.op == "fused" else ""),
        ),
        Property(
            "no-schemes",
            "no slot has a plan",
            lambda graph: _no_node(
                graph, lambda n: f"its slot {next(iter(n.schemes))} has a plan" if n.schemes else ""
            ),
        ),
        Property(
            "pruned",
            "every node but an input is used",
            lambda graph: _no_node(
                graph,
                # Inputs are part of the signature of a model, so pruning leaves them.
                lambda n: (
                    "nobody uses it" if n.op not in ("input", "output") and not n.used else ""
                ),
            ),
        ),
        Property(
            "no-foreign",
            "every op is one that QIR knows",
            lambda graph: _no_node(
                graph, lambda n: f"it is {n.attrs['op']!s}, kept" if n.op == "foreign" else ""
            ),
        ),
        Property(
            "no-batch-norm",
            "no batch normalization stands by itself",
            lambda graph: _no_node(
                graph, lambda n: "it normalizes" if n.op == "batch_norm" else ""
            ),
        ),
    )
}
"""Every property by name."""


def find_property(name: str, by: str) -> Property:
    """Returns the property of a name; PassError, naming who asks, where there is none."""
    if name in PROPERTIES:
        return PROPERTIES[name]
    close = difflib.get_close_matches(name, PROPERTIES, 1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    raise PassError(f"{by}: no property {name!r}; {suggestion}known: {', '.join(PROPERTIES)}")


def first_missing(graph: Graph, names: Iterable[str], by: str) -> tuple[str, Fault] | None:
    """Returns the first of these properties that a graph has not, with the node that shows it."""
    for name in names:
        if (fault := find_property(name, by).find(graph)) is not None:
            return name, fault
    return None
