"""Converts a graph to the form that is written: NHWC, with TensorFlow's kernels as groups."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.layers import CONVOLUTIONS
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.layout import Layout
from qir.passes.loops.lower_layers import LowerLayers
from qir.rewrite import run_passes

from . import fused_padding
from .fake_quantize import is_simulated
from .kernels import PROFILE, pool_attributes
from .nodes import has_inexact_range, range_from_type

STEP = "tensorflow writer"
_REGROUPING_OPS = frozenset({"flatten", "squeeze", "unsqueeze"})
"""Ops that have an int8 kernel in TensorFlow only as a reshape."""


def converted(graph: Graph, ledger: Ledger, *, kernels: bool) -> Graph:
    """Returns a copy in which TensorFlow's int8 kernels are groups.

    Without `kernels` everything computes in float, between QuantizeV2 and Dequantize, or by
    FakeQuant if the graph came from FakeQuant ops.
    """
    out = graph.copy()
    OpenGroups("* |> *", chains=True).run(out, ledger)
    if any(v.type.quant for v in out.values.values()) and (kernels or not is_simulated(out)):
        if (
            _use_tensorflow_rounding(out, ledger) or not kernels
        ):  # another runtime's kernels are made anew
            ExpandQdq().run(out, ledger)
        _clips_to_relus(out)
    bodies = [each for _, each in out.walk() if each is not out]
    if any(_has_computed_filters(node) for each in bodies for node in each):
        # A loop carries the filters of its layers.
        out = run_passes(out, [FoldConstants()], ledger)
    if kernels:
        # Pads are fused before the layout changes, while they are next to their convolution.
        fused_padding.fuse_pads(out)
    LowerLayers().run(out, ledger)  # TensorFlow has recurrent layers for GPUs alone
    Layout(to="nhwc").run(out, ledger)
    if kernels and any(v.type.quant for v in out.values.values()):
        _regroupings_to_reshapes(out)
        Group(PROFILE).run(out, ledger)
        # A pool whose attributes TensorFlow's kernel lacks is computed in float.
        for node in list(out):
            if node.op == "max_pool2d" and node.result.type.quant and pool_attributes(node) is None:
                _move_to_float(out, node)
    for _, each in out.walk():
        each.prune()  # what is not read would be an output of the model
    if not is_simulated(out):
        _report(out, ledger)
    return out


def _use_tensorflow_rounding(graph: Graph, ledger: Ledger) -> bool:
    """Replaces another runtime's profile by TensorFlow's, which rounds i8 values away from zero."""
    if graph.profile in (PROFILE, ""):
        return False
    ledger.add(Change.REGROUPED, STEP, graph.name, f"computed as {PROFILE}, not {graph.profile}")
    graph.profile = PROFILE
    for node in graph:
        quant = node.results[0].type.quant if node.op == "quantize" else None
        if quant is not None and str(quant.storage) == "i8" and not node.attrs["round"]:
            graph.set_attrs(node, **{**node.attrs, "round": "away"})
    return True


def _clips_to_relus(graph: Graph) -> None:
    """Replaces a clip from 0 by a relu, where the following quantize clamps the same maximum."""
    for node in list(graph):
        use = node.result.only_use if node.op == "clip" else None
        quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
        upper = node.attrs.get("max")
        if quant is None or node.attrs.get("min") != 0 or not _starts_at_zero(quant):
            continue
        # The quantize saturates at the same maximum, so that the clip's upper end changes nothing.
        if upper is None or (
            isinstance(upper, float) and float(range_from_type(quant)[1].max()) <= upper
        ):
            relu = graph.add(
                "relu", {"x": node.operands["x"]}, before=node, origins=node.origins
            ).result
            graph.substitute(node, relu)


def _has_computed_filters(node: Node) -> bool:
    """Returns whether an op is a convolution whose filters are no constant, quantized or not."""
    if node.op not in CONVOLUTIONS:
        return False
    return node.operands["w"].node.op not in ("constant", "dequantize")


def _starts_at_zero(quant: QuantType) -> bool:
    is_plain = quant.granularity is None and not quant.dynamic and quant.kind == "uniform"
    return is_plain and str(quant.storage) == "u8" and not np.any(quant.zeros())


def _regroupings_to_reshapes(graph: Graph) -> None:
    """Replaces ops that only regroup the sizes of a dequantized value by reshapes."""
    for node in list(graph):
        if node.op not in _REGROUPING_OPS or node.operands["x"].node.op != "dequantize":
            continue
        sizes = [size if isinstance(size, int) else -1 for size in node.result.type.shape]
        if sizes.count(-1) > 1 or 0 in sizes:
            continue
        shape = graph.constant(np.asarray(sizes, np.int64), before=node)
        reshaped = graph.add(
            "reshape",
            {"x": node.operands["x"], "shape": shape},
            types=[node.result.type],
            before=node,
            origins=node.origins,
        ).result
        graph.substitute(node, reshaped)


def _move_to_float(graph: Graph, node: Node) -> None:
    """Computes an op that moves quantized values in float: quantizing gives each value again."""
    x, kind = node.operands["x"], node.result.type
    floats = graph.add("dequantize", {"x": x}, before=node).result
    result = graph.add(node.op, {"x": floats}, node.attrs, before=node, origins=node.origins).result
    assert kind.quant is not None
    attrs = {"round": "away" if str(kind.quant.storage) == "i8" else ""}
    graph.substitute(
        node, graph.add("quantize", {"x": result}, attrs, types=[kind], before=node).result
    )


def _report(graph: Graph, ledger: Ledger) -> None:
    """Notes scales that no range gives to the bit."""
    for value in graph.values.values():
        quant = value.type.quant
        if quant is not None and str(quant.storage) in ("u8", "i8") and not quant.dynamic:
            if quant.kind == "uniform" and not quant.has_float_zero and has_inexact_range(quant):
                reason = "no range in float32 gives its scale; the nearest one is written"
                ledger.add(Change.NUDGED, STEP, value.name, reason)
