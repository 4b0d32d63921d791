"""Whether a program is well formed: small named rules, each with located findings."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np

from qir.errors import VerifyError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import OPS
from qir.ir.ops.plugin import ops_with
from qir.ir.quantized_ops import PLAIN_INTEGER_PRODUCTS
from qir.ir.verify.agreement import bias_scale, one_number, one_tensor, same_map
from qir.ir.verify.parameters import (
    axes,
    codes_in_bounds,
    companions,
    positive_scale,
    zero_in_bounds,
)
from qir.ir.verify.producers import Compute
from qir.ir.verify.products import overflow, static_weights, summed_axis
from qir.ir.verify.rule import Find, Finding, Look, NodeContext, Severity, VerifierRule
from qir.ir.verify.step import SLOTS
from qir.ir.verify.structure import (
    bodies,
    call,
    default,
    kept,
    output,
    slots,
    structure,
    types,
    unused,
)

_PRODUCTS = frozenset({*SLOTS, "fused"})
_BIASED = ops_with(OPS.values(), lambda row: row.traits.bias, "fused")
_MOVING = ops_with(OPS.values(), lambda row: row.traits.same_params)
_STORING = frozenset({"quantize", "constant", "recode"})
_HOLDING = ops_with(OPS.values(), lambda row: row.bodies, "foreign")

RULES: tuple[VerifierRule, ...] = (
    VerifierRule("output", "error", find_in_graph=output),
    VerifierRule("structure", "error", structure),
    VerifierRule("bodies", "error", bodies, ops=_HOLDING),
    VerifierRule("default", "error", default, ops=frozenset({"constant"})),
    VerifierRule("slots", "error", slots),
    VerifierRule("types", "error", types),
    VerifierRule("companions", "error", companions),
    VerifierRule("positive-scale", "error", positive_scale, quantized_only=True),
    VerifierRule("zero-in-bounds", "error", zero_in_bounds, quantized_only=True),
    VerifierRule("axes", "error", axes, quantized_only=True),
    VerifierRule("codes-in-bounds", "error", codes_in_bounds, ops=frozenset({"constant"})),
    VerifierRule("same-map", "error", same_map, quantized_only=True, ops=_MOVING),
    VerifierRule("one-tensor", "warning", one_tensor, quantized_only=True, ops=_STORING),
    VerifierRule("one-number", "warning", one_number, quantized_only=True),
    VerifierRule("bias-scale", "warning", bias_scale, quantized_only=True, ops=_BIASED),
    VerifierRule("static-weights", "warning", static_weights, quantized_only=True, ops=_PRODUCTS),
    VerifierRule("summed-axis", "warning", summed_axis, quantized_only=True, ops=_PRODUCTS),
    VerifierRule(
        "overflow",
        "warning",
        overflow,
        quantized_only=True,
        ops=_PRODUCTS,
        also_unquantized=PLAIN_INTEGER_PRODUCTS,
    ),
    VerifierRule("kept", "warning", kept, ops=frozenset({"foreign"})),
    VerifierRule("call", "warning", find_in_graph=call),
    VerifierRule("unused", "note", unused),
)
"""Every rule, in the order in which a node's findings are reported."""


def _quiet() -> np.errstate:
    """Silences NumPy's warnings about NaN and infinities, which findings report."""
    return np.errstate(all="ignore")


def verify(graph: Graph, compute: Compute | None = None) -> list[Finding]:
    """Returns every finding of every rule, in the order of the nodes, each before those of its
    bodies.

    Weights that constants make are known where `compute` is given, which computes one node.
    """
    with _quiet():
        return list(_findings(graph, RULES, compute))


def errors(graph: Graph, among: Container[Node] | None = None) -> list[Finding]:
    """Returns the findings that make a graph no program, without looking for warnings and notes.

    Where some nodes are given, only what is wrong with those of them, and with the whole.
    """
    with _quiet():
        return list(_findings(graph, [r for r in RULES if r.severity == "error"], among=among))


def check(graph: Graph) -> None:
    """Raises VerifyError at the first error, with the nodes around it as a note."""
    for finding in errors(graph):
        error = VerifyError(str(finding))
        error.add_note(_around(graph, finding))
        raise error


def walk(graph: Graph, compute: Compute | None = None) -> Iterator[NodeContext]:
    """Yields every node of a graph and of the bodies within it, as rules see it."""
    yield from _walk(Look(graph, graph.name, compute=compute), None)


def _walk(look: Look, among: Container[Node] | None) -> Iterator[NodeContext]:
    for node in look.graph:
        look.pass_by(node)
        if among is None or node in among:
            yield NodeContext(look, node)
        for name, body in node._bodies.items():
            if isinstance(body, Graph):
                look.bind(node, body)
                yield from _walk(Look(body, f"{look.path}/{node.name}/{name}", look), among)


def _findings(
    graph: Graph,
    rules: Sequence[VerifierRule],
    compute: Compute | None = None,
    among: Container[Node] | None = None,
) -> Iterator[Finding]:
    # First what concerns a graph as a whole, inner graphs first.
    for path, part in graph.walk():
        for rule in rules:
            for fault in rule.find_in_graph(part) if rule.find_in_graph else ():
                yield Finding(rule.name, rule.severity, part.name, fault.message, path=path)
    rules_by_kind: dict[tuple[str, bool], list[tuple[str, Severity, bool, Find]]] = {}
    for context in _walk(Look(graph, graph.name, compute=compute), among):
        has_error, key = False, (context.node.op, context.is_near_quantized)
        # Which rules look at a node depends on its op and on whether quantized values are near it
        # alone: large graphs repeat a few such pairs.
        if key not in rules_by_kind:
            rules_by_kind[key] = [
                (r.name, r.severity, r.quantized_only, r.find)
                for r in rules
                if r.find
                and (
                    context.is_near_quantized
                    or not r.quantized_only
                    or key[0] in r.also_unquantized
                )
                and (not r.ops or key[0] in r.ops)
            ]
        for name, severity, quantized_only, find in rules_by_kind[key]:
            if has_error and quantized_only and severity != "error":
                continue  # it reads what an error says is not there
            for fault in find(context):
                has_error = has_error or severity == "error"
                node, path = context.node, context.look.path
                origin = str(node.origins[0]) if node.origins else ""
                message, slot, value = fault
                yield Finding(name, severity, node.name, message, origin, slot, value, path)


def _around(graph: Graph, finding: Finding, count: int = 5) -> str:
    """Returns the nodes next to the one that a finding is about."""
    part = next((g for path, g in graph.walk() if path == finding.path), graph)
    nodes = list(part)
    at = next((i for i, n in enumerate(nodes) if n.name == finding.node), 0)
    lines = [
        f"{'->' if i == at else '  '} {node!r}"
        for i, node in enumerate(nodes)
        if abs(i - at) <= count
    ]
    return "\n".join(lines)


__all__ = [
    "RULES",
    "Compute",
    "Finding",
    "NodeContext",
    "VerifierRule",
    "check",
    "errors",
    "verify",
    "walk",
]
