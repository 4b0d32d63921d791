"""Writes QONNX's operators, which no runtime of ONNX has: decomposed, or reported."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.passes.forms.open_groups import OpenGroups

from .writer import STEP

_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
_ADVICE = "no runtime of ONNX has a kernel for it"


def opened(graph: Graph, ledger: Ledger) -> None:
    """Puts what such an operator does in its place."""
    for domain in _DOMAINS:
        OpenGroups(f"onnx:{domain}.*").run(graph, ledger)


def told(graph: Graph, ledger: Ledger) -> None:
    """Says of those that are written as they are that they do not run."""
    for _, each in graph.walk():
        for node in each:
            domain, op = named(node)
            if domain in _DOMAINS:
                more = "" if node.op == "foreign" else "; --format qdq writes what it does"
                said = f"{domain}'s {op} is kept, {_ADVICE}{more}"
                ledger.add(Change.EXACT, STEP, node.name, said)


def named(node: Node) -> tuple[str, str]:
    """Returns the domain and name of the operator that a node is of."""
    if node.op == "foreign":
        return str(node.attrs["domain"]), str(node.attrs["op"])
    if node.op != "fused" or not node.bodies:
        return "", ""
    domain, _, op = str(node.attrs["kernel"]).removeprefix("onnx:").rpartition(".")
    return domain, op
