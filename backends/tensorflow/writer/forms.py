"""The form in which a graph is written: channels last, and TensorFlow's kernels as groups."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.layout import Layout
from qir.passes.loops.lower_layers import LowerLayers

from . import padded
from .kernels import PROFILE, pooled
from .nodes import range_of, rebuilt
from .simulated import is_simulated

STEP = "tensorflow writer"
_REGROUPS = frozenset({"flatten", "squeeze", "unsqueeze"})
"""Ops that TensorFlow has on quantized values as a reshape."""


def formed(graph: Graph, ledger: Ledger, *, kernels: bool) -> Graph:
    """Returns a copy in which TensorFlow's int8 kernels are groups; without `kernels` all computes
    in float between Dequantize and QuantizeV2, or by FakeQuant where that made the graph."""
    out = graph.copy()
    OpenGroups("* |> *", chains=True).run(out, ledger)
    if any(v.type.quant for v in out.values.values()) and (kernels or not is_simulated(out)):
        if _rules(out, ledger) or not kernels:  # another runtime's kernels are made anew
            ExpandQdq().run(out, ledger)
        _relus(out)
    if kernels:
        padded.join(out)
    LowerLayers().run(out, ledger)  # TensorFlow has recurrent layers for GPUs alone
    Layout(to="nhwc").run(out, ledger)
    if kernels and any(v.type.quant for v in out.values.values()):
        _reshapes(out)
        Group(PROFILE).run(out, ledger)
        for node in list(out):
            if node.op == "max_pool2d" and node.result.type.quant and pooled(node) is None:
                _in_float(out, node)
    for _, each in out.walk():
        each.prune()  # what is not read would be an output of the model
    if not is_simulated(out):
        _tell(out, ledger)
    return out


def _rules(graph: Graph, ledger: Ledger) -> bool:
    """Makes a graph of another runtime's one of TensorFlow's, whose kernels round its values."""
    if graph.profile in (PROFILE, ""):
        return False
    ledger.add(Change.REGROUPED, STEP, graph.name, f"computed as {PROFILE}, not {graph.profile}")
    graph.profile = PROFILE
    for node in graph:
        quant = node.results[0].type.quant if node.op == "quantize" else None
        if quant is not None and str(quant.storage) == "i8" and not node.attrs["round"]:
            graph.set_attrs(node, **{**node.attrs, "round": "away"})
    return True


def _relus(graph: Graph) -> None:
    """Makes a clip from 0 a relu, where it cuts nothing above that the next quantize would not."""
    for node in list(graph):
        use = node.result.only_use if node.op == "clip" else None
        quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
        most = node.attrs.get("max")
        if quant is None or node.attrs.get("min") != 0 or not _from_zero(quant):
            continue
        if most is None or (isinstance(most, float) and float(range_of(quant)[1].max()) <= most):
            made = graph.add(
                "relu", {"x": node.operands["x"]}, before=node, origins=node.origins
            ).result
            graph.substitute(node, made)


def _from_zero(quant: QuantType) -> bool:
    plain = quant.granularity is None and not quant.dynamic and quant.kind == "uniform"
    return plain and str(quant.storage) == "u8" and not np.any(quant.zeros())


def _reshapes(graph: Graph) -> None:
    """Says ops that only regroup sizes of what was quantized as reshapes."""
    for node in list(graph):
        if node.op not in _REGROUPS or node.operands["x"].node.op != "dequantize":
            continue
        row = [size if isinstance(size, int) else -1 for size in node.result.type.shape]
        if row.count(-1) > 1 or 0 in row:
            continue
        shape = graph.constant(np.asarray(row, np.int64), before=node)
        made = graph.add(
            "reshape",
            {"x": node.operands["x"], "shape": shape},
            types=[node.result.type],
            before=node,
            origins=node.origins,
        ).result
        graph.substitute(node, made)


def _in_float(graph: Graph, node: Node) -> None:
    """Computes an op that moves quantized values in float: quantizing gives each value again."""
    x, kind = node.operands["x"], node.result.type
    real = graph.add("dequantize", {"x": x}, before=node).result
    made = graph.add(node.op, {"x": real}, node.attrs, before=node, origins=node.origins).result
    assert kind.quant is not None
    attrs = {"round": "away" if str(kind.quant.storage) == "i8" else ""}
    graph.substitute(
        node, graph.add("quantize", {"x": made}, attrs, types=[kind], before=node).result
    )


def _tell(graph: Graph, ledger: Ledger) -> None:
    """Notes scales that no range gives to the bit."""
    for value in graph.values.values():
        quant = value.type.quant
        if quant is not None and str(quant.storage) in ("u8", "i8") and not quant.dynamic:
            if quant.kind == "uniform" and not quant.has_float_zero and rebuilt(quant):
                said = "no range in float32 gives its scale; the nearest one is written"
                ledger.add(Change.NUDGED, STEP, value.name, said)
