"""Converts a graph to one of the forms that a model can be written in, and records it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.int32_overflow import overflow_text
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import integer, quantization
from qir.ir.ops.graph import FREE_SLOT_OPS
from qir.ir.quantized_ops import PLAIN_INTEGER_PRODUCTS
from qir.ir.verify.step import SLOTS
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_control import FoldControl
from qir.passes.fold.fold_parameters import FoldParameters
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.lift_dynamic import LiftDynamic
from qir.passes.forms.lower_integer import LowerInteger
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.forms.raise_integer import RaiseInteger
from qir.passes.layout import Layout, channels_last
from qir.passes.loops.lower_layers import LowerLayers
from qir.reference.constants import compute_constants
from qir.rewrite.patterns.mismatch import nearest
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.free_constants import fix_defaults, restore_defaults
from qir.rewrite.scan_trimming import trim

from ..optimizer import effects, overhanging_pools
from ..optimizer.separate_additions import separate_additions
from ..writer import qonnx, where_ops
from ..writer.low_bit_products import open_failing_groups, use_matmul_nbits
from ..writer.writer import STEP
from . import constants, kept_operators, other_kernels, run_time_ranges, whole_range

_MICROSOFT_KERNELS = "onnx:com.microsoft.*"
"""Groups that are operators of onnxruntime's own domain."""
_NO_BITS = "no product here has weights in blocks of few bits; qir quantize --weights makes them"
_NO_SUMS = "no product of 8-bit integers here can be summed in integers"
_INTEGER_OPS = frozenset(op.name for op in (*quantization.OPS, *integer.OPS)) | {"fused"}
"""Ops that read or make integers: a graph without any needs no conversion."""
_FLOAT_CHAINS = "* |> *"
"""Chains of float ops in one kernel, which ONNX cannot express."""


def converted(
    graph: Graph, form: str | None, ledger: Ledger, *, standard: bool, lossy: bool = False
) -> Graph:
    """Returns a graph in the requested form.

    `standard` allows only ONNX's own operators; `lossy` allows integers to change.

    Without a form, operators of onnxruntime's own stay as they are. A float graph is returned
    itself, any other as a converted copy. Raises Refused where a form has nothing to hold.
    """
    if any("proj" in node.operands for node in graph if node.op == "lstm"):
        graph = graph.copy()
        _run_everywhere(
            LowerLayers(projected=True), graph, ledger
        )  # ONNX's LSTM does not project its state
    if form != "nbits" and _has_no_integers(graph):
        if form == "integer":
            ledger.add(Change.EXACT, STEP, graph.name, _NO_SUMS)
        return graph
    out = graph.copy()
    for each in graphs_with_bodies(out):
        run_time_ranges.use_onnx_rule(each, ledger)
    # A default may be replaced at run time, so that nothing may be folded from it: see
    # `restore_defaults`.
    defaults = fix_defaults(out, ledger)
    if channels_last(out, "onnx"):
        # ONNX's operators are NCHW; onnxruntime itself changes the layout when it loads the
        # model.
        _run_everywhere(Layout("nchw"), out, ledger)
    for each in graphs_with_bodies(out):
        constants.quantize_constants(each, ledger)
    if form in (None, "qdq", "qoperator"):
        for each in graphs_with_bodies(out):
            whole_range.widen_bounds(each, ledger)
            other_kernels.fit_kernels(each, ledger, lossy=lossy)
    _run_everywhere(OpenGroups(_FLOAT_CHAINS, chains=True), out, ledger)
    # Kernels that fail in every run are opened even without a form.
    if not standard:
        open_failing_groups(out, ledger)
    # No runtime has QONNX's operators: only a copy in the same form keeps them.
    if standard or form is not None:
        qonnx.open_qonnx_groups(out, ledger)
    if standard or form in ("qdq", "integer"):
        for each in graphs_with_bodies(out):
            effects.report_threads(each, ledger)
        with (
            nullcontext()
            if standard
            else kept_operators.keeping(out, kept_operators.is_float_group)
        ):
            _open_groups(out, ledger)
    if form in ("qdq", "qoperator"):
        # Dynamic quantization is found before raw sums are raised: both start from MatMulInteger.
        _run_everywhere(LiftDynamic(), out, ledger)
    # After groups are opened, parameters may depend on constants alone.
    _fold_parameters(out, ledger)
    if form in ("qdq", "qoperator"):
        _run_everywhere(RaiseInteger(), out, ledger)
        _report_raw_sums(out, ledger)
    if standard or form not in (None, "qoperator"):
        for each in graphs_with_bodies(out):
            overhanging_pools.pad_windows(each, ledger)
    if form == "qoperator":
        effects.report_wide_ops(out, ledger)  # before float ops are written as quantized ones
    with overhanging_pools.keeping_pools(out, ledger):
        _convert_products(out, form, ledger, standard=standard)
    for each in graphs_with_bodies(out):
        separate_additions(each, ledger)
    if form != "qoperator":
        effects.report_wide_ops(out, ledger)
    for each in graphs_with_bodies(out):
        effects.report_accuracy_levels(each, ledger)
    restore_defaults(out, defaults, ledger)
    return out


# From here on a default may be replaced at run time again.


def _open_groups(graph: Graph, ledger: Ledger) -> None:
    """Opens groups of onnxruntime's own domain; scans that come out of them are trimmed to what
    is read."""
    existing = {node for each in graphs_with_bodies(graph) for node in each}
    _run_everywhere(OpenGroups(_MICROSOFT_KERNELS), graph, ledger)
    for each in graphs_with_bodies(graph):
        if trim(each, [n for n in each if n.op == "scan" and n not in existing]):
            each.prune()


def _has_no_integers(graph: Graph) -> bool:
    """Returns whether a graph has no quantized value, no group, and no op on quantized types."""
    return not any(
        node.op in _INTEGER_OPS or any(v.type.quant for v in node.results) or node.inner
        for _, each in graph.walk()
        for node in each
    )


def _convert_products(out: Graph, form: str | None, ledger: Ledger, *, standard: bool) -> None:
    """Converts products to the form's operators: QLinear, integer sums, or low-bit weights."""
    if form == "qoperator":
        for each in [] if standard else graphs_with_bodies(out):
            where_ops.quantize_branches(each, ledger)
        _run_everywhere(
            ExpandQdq(sums=True), out, ledger
        )  # no operator adds another tensor to its sums
        _run_everywhere(FuseQdq(), out, ledger)
        _report_overflowing(out, ledger, biased=True)
        return
    with _keeping(out, form, standard=standard):
        _run_everywhere(ExpandQdq(), out, ledger)
    if form == "integer":
        if not _run_everywhere(LowerInteger(), out, ledger) and not _has_raw_sums(out):
            ledger.add(Change.EXACT, STEP, out.name, _NO_SUMS)
        _report_overflowing(out, ledger, biased=False)
    if form == "nbits":
        counts = [
            use_matmul_nbits(each, ledger, standard=standard) for each in graphs_with_bodies(out)
        ]
        if not any(count for count, _ in counts):
            reasons = [why for _, each in counts for why in each]
            why = f"no product here becomes few bits; {reasons[0]}" if reasons else _NO_BITS
            raise Refused(f"{out.name}: {why}")


def _report_raw_sums(graph: Graph, ledger: Ledger) -> None:
    """Reports which raw integer sums stay as they are, and why."""
    reported = {e.subject for e in ledger if e.step == RaiseInteger.name}
    patterns = list(LiftDynamic().patterns.values())
    for each in graphs_with_bodies(graph):
        for node in each:
            if node.op in PLAIN_INTEGER_PRODUCTS and node.name not in reported:
                near_match = nearest(patterns, node)
                at = f"at %{near_match.at.name} " if near_match.at else ""
                why = (
                    near_match.reason
                    if near_match.match is None
                    else "its profile rounds in other places"
                )
                ledger.add(Change.EXACT, STEP, node.name, f"stays a sum of raw integers: {at}{why}")


def _report_overflowing(graph: Graph, ledger: Ledger, *, biased: bool) -> None:
    """Reports which quantized products stay float because the int32 accumulator would wrap."""
    for each in graphs_with_bodies(graph):
        for node in each:
            if _is_float_product_of_bytes(node) and (
                reason := overflow_text(each, node, biased=biased)
            ):
                ledger.add(Change.EXACT, STEP, node.name, f"stays float: {reason}")


def _is_float_product_of_bytes(node: Node) -> bool:
    """Returns whether a node is a float product of dequantized 8-bit values."""
    if node.op not in SLOTS:
        return False
    producers = [node.operands[slot].node for slot in SLOTS[node.op][:2]]
    quants = [m.operands["x"].type.quant for m in producers if m.op == "dequantize"]
    return len(quants) == 2 and all(q is not None and q.storage.bits <= 8 for q in quants)


def _keeping(graph: Graph, form: str | None, *, standard: bool) -> AbstractContextManager[None]:
    """Protects quantized operators that the form has too, or, without a form, those of the
    source file."""
    if form == "integer":
        return kept_operators.keeping(graph, kept_operators.feeds_raw_sums)
    if form is not None:
        return nullcontext()
    return kept_operators.keeping(
        graph,
        kept_operators.is_standard_quantized_operator
        if standard
        else kept_operators.is_quantized_operator,
    )


def _has_raw_sums(graph: Graph) -> bool:
    """Returns whether a graph has a raw integer sum."""
    return any(n.op in PLAIN_INTEGER_PRODUCTS for _, each in graph.walk() for n in each)


def _run_everywhere(step: Pass, graph: Graph, ledger: Ledger) -> int:
    """Runs a pass on a graph and on its bodies."""
    return sum(step.run(each, ledger) for each in graphs_with_bodies(graph))


# -- parameters that turn out constant ------------------------------------------------------------


def _fold_parameters(graph: Graph, ledger: Ledger) -> None:
    """Folds scales and zero points that depend on constants alone into the types."""
    any_constant = False
    for _, each in graph.walk():
        if any(_computed_parameters(n) for n in each):
            _fold_parameter_branches(each, ledger)
            parameters = {v: None for n in each for v in _computed_parameters(n)}
            _replace_by_constants(each, _producers(parameters, _constant_floats(each)))
            any_constant |= any(
                v.constant is not None for n in each for v in _computed_parameters(n)
            )
    if any_constant:
        FoldParameters().run(graph, ledger)


def _fold_parameter_branches(graph: Graph, ledger: Ledger) -> None:
    """Inlines the constant branches on which scales and zero points depend."""
    visited: set[Node] = set()
    # A depth-first walk to all nodes on which some parameter depends.
    waiting = [v.node for n in graph for v in _computed_parameters(n)]
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            waiting += [v.node for v in node.operands.values()]
    branches = [n for n in graph if n in visited and n.op == "if"]
    if branches:
        conditions = [n.operands["cond"] for n in branches]
        _replace_by_constants(graph, _producers(conditions, _constant_floats(graph)))
        FoldControl().fold(graph, branches, ledger)


def _computed_parameters(node: Node) -> list[Value]:
    """Returns the operands that carry scales and zero points of a node's types."""
    if node.op in FREE_SLOT_OPS or not _is_dynamic(node):
        return []
    return [v for s, v in node.operands.items() if s.rpartition(".")[2] in ("scale", "zero")]


def _is_dynamic(node: Node) -> bool:
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    return any(q is not None and q.dynamic for q in quants)


def _constant_floats(graph: Graph) -> set[Value]:
    """Returns the plain values that depend on constants alone."""
    constants: set[Value] = set()
    for node in graph:
        is_unquantized = not any(v.type.quant for v in node.results)
        if node.op == "constant" or (
            node.op not in ("input", "foreign", "fused", "output")
            and not node.bodies
            and node.operands
            and all(v in constants for v in node.operands.values())
        ):
            constants.update(node.results if is_unquantized else ())
    return constants


def _producers(parameters: Iterable[Value], constants: set[Value]) -> set[Node]:
    """Returns the nodes that compute the constant ones of some parameters."""
    out: set[Node] = set()
    waiting = [v.node for v in parameters if v in constants and v.constant is None]
    while waiting:
        node = waiting.pop()
        if node not in out and node.op != "constant":
            out.add(node)
            waiting += [v.node for v in node.operands.values()]
    return out


def _replace_by_constants(graph: Graph, nodes: set[Node]) -> None:
    """Replaces nodes of constant operands by what the reference computes."""
    for node in [n for n in graph if n in nodes]:
        arrays = {s: a.data for s, v in node.operands.items() if (a := v.constant) is not None}
        if len(arrays) < len(node.operands):
            continue
        results = compute_constants(node, arrays, node.profile or graph.profile)
        if len(results) != len(node.results):
            continue
        for old, data in zip(list(node.results), results, strict=True):
            new = graph.constant(data, name=graph.fresh(f"{old.name}.known"), before=node)
            graph.set_lineage(new, old.lineage)
            graph.replace(old, new)
