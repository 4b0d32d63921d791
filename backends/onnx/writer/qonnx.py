"""Writes QONNX's operators, which no runtime of ONNX has: decomposed, or reported."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.passes.forms.open_groups import OpenGroups

from .writer import STEP

_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
_ADVICE = "no runtime of ONNX has a kernel for it"


def open_qonnx_groups(graph: Graph, ledger: Ledger) -> None:
    """Replaces groups of QONNX operators by their ops."""
    for domain in _DOMAINS:
        OpenGroups(f"onnx:{domain}.*").run(graph, ledger)


def report_qonnx(graph: Graph, ledger: Ledger) -> None:
    """Reports that no runtime of ONNX runs QONNX operators that are kept."""
    for _, each in graph.walk():
        for node in each:
            domain, op = domain_and_operator(node)
            if domain in _DOMAINS:
                remedy = "" if node.op == "foreign" else "; --format qdq writes what it does"
                reason = f"{domain}'s {op} is kept, {_ADVICE}{remedy}"
                ledger.add(Change.EXACT, STEP, node.name, reason)


def domain_and_operator(node: Node) -> tuple[str, str]:
    """Returns the domain and name of the operator that a node stands for."""
    if node.op == "foreign":
        return str(node.attrs["domain"]), str(node.attrs["op"])
    if node.op != "fused" or not node.bodies:
        return "", ""
    domain, _, op = str(node.attrs["kernel"]).removeprefix("onnx:").rpartition(".")
    return domain, op
