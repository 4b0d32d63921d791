"""Makes the forms that a model can be written in from one another, and records the proof."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from qir.analysis.bodies import bodies
from qir.analysis.int32_overflow import wrapping
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import integer, quantization
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
from qir.rewrite.patterns.why import nearest
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.free_constants import fix_defaults, give_back
from qir.rewrite.scan_trimming import trim

from ..optimizer import effects, overhanging_pools
from ..optimizer.separate_additions import add_apart
from ..writer import qonnx, where_ops
from ..writer.low_bit_products import opened, to_nbits
from ..writer.writer import STEP
from . import constants, kept_operators, other_kernels, run_time_ranges, whole_range

_WEIGHTED = "onnx:com.microsoft.*"
_NO_BITS = "no product here has weights in blocks of few bits; qir quantize --weights makes them"
_NO_SUMS = "no product of 8-bit integers here can be summed in integers"
_ABOUT_CODES = frozenset(op.name for op in (*quantization.OPS, *integer.OPS)) | {"fused"}
_RAW = frozenset(op.name for op in integer.OPS)
_ROWS = "* |> *"
"""Reals in a row that one kernel would compute: no file says that."""


def formed(
    graph: Graph, form: str | None, ledger: Ledger, *, standard: bool, lossy: bool = False
) -> Graph:
    """Returns a graph in the form asked for.

    `standard` has no operators but ONNX's own; `lossy` allows quantized values to move.

    Nothing asked for is the first form, in which operators of onnxruntime's own stay. Reals alone
    have that form as they are; all else is a copy. Raises Refused where a form has nothing to hold.
    """
    if any("proj" in node.operands for node in graph if node.op == "lstm"):
        graph = graph.copy()
        _run(LowerLayers(projected=True), graph, ledger)  # ONNX's LSTM does not project its state
    if form != "nbits" and _bare(graph):
        if form == "integer":
            ledger.add(Change.EXACT, STEP, graph.name, _NO_SUMS)
        return graph
    out = graph.copy()
    for each in bodies(out):
        run_time_ranges.by_onnx(each, ledger)
    held = fix_defaults(out, ledger)
    if channels_last(out, "onnx"):
        _run(Layout("nchw"), out, ledger)
    for each in bodies(out):
        constants.quantized(each, ledger)
    if form in (None, "qdq", "qoperator"):
        for each in bodies(out):
            whole_range.widen(each, ledger)
            other_kernels.fit(each, ledger, lossy=lossy)
    _run(OpenGroups(_ROWS, chains=True), out, ledger)
    if not standard:
        opened(out, ledger)
    if standard or form is not None:
        qonnx.opened(out, ledger)
    if standard or form in ("qdq", "integer"):
        for each in bodies(out):
            effects.threads(each, ledger)
        with nullcontext() if standard else kept_operators.kept(kept_operators.on_reals):
            _open(out, ledger)
    if form in ("qdq", "qoperator"):
        _run(LiftDynamic(), out, ledger)
    _settle(out, ledger)
    if form in ("qdq", "qoperator"):
        _run(RaiseInteger(), out, ledger)
        _left_raw(out, ledger)
    if standard or form not in (None, "qoperator"):
        for each in bodies(out):
            overhanging_pools.padded(each, ledger)
    if form == "qoperator":
        effects.wide(out, ledger)  # before float ops are written as quantized ones
    with overhanging_pools.kept(ledger):
        _made(out, form, ledger, standard=standard)
    for each in bodies(out):
        add_apart(each, ledger)
    if form != "qoperator":
        effects.wide(out, ledger)
    for each in bodies(out):
        effects.level(each, ledger)
    give_back(out, held, ledger)
    return out


def _open(graph: Graph, ledger: Ledger) -> None:
    """Opens groups of onnxruntime's own; a scan that was in one keeps what is read of it."""
    before = {node for each in bodies(graph) for node in each}
    _run(OpenGroups(_WEIGHTED), graph, ledger)
    for each in bodies(graph):
        if trim(each, [n for n in each if n.op == "scan" and n not in before]):
            each.prune()


def _bare(graph: Graph) -> bool:
    """Returns whether a graph has no quantized value, group, or op on quantized types."""
    return not any(
        node.op in _ABOUT_CODES or any(v.type.quant for v in node.results) or node.inner
        for _, each in graph.walk()
        for node in each
    )


def _made(out: Graph, form: str | None, ledger: Ledger, *, standard: bool) -> None:
    if form == "qoperator":
        for each in [] if standard else bodies(out):
            where_ops.coded(each, ledger)
        _run(ExpandQdq(sums=True), out, ledger)  # no operator adds another tensor to its sums
        _run(FuseQdq(), out, ledger)
        _left_real(out, ledger, biased=True)
        return
    with _left(form, standard=standard):
        _run(ExpandQdq(), out, ledger)
    if form == "integer":
        if not _run(LowerInteger(), out, ledger) and not _sums(out):
            ledger.add(Change.EXACT, STEP, out.name, _NO_SUMS)
        _left_real(out, ledger, biased=False)
    if form == "nbits":
        made = [to_nbits(each, ledger, standard=standard) for each in bodies(out)]
        if not any(count for count, _ in made):
            left = [why for _, each in made for why in each]
            why = f"no product here becomes few bits; {left[0]}" if left else _NO_BITS
            raise Refused(f"{out.name}: {why}")


def _left_raw(graph: Graph, ledger: Ledger) -> None:
    """Says which sums of raw integers stay as they are, and why."""
    told = {e.subject for e in ledger if e.step == RaiseInteger.name}
    wanted = list(LiftDynamic().patterns.values())
    for each in bodies(graph):
        for node in each:
            if node.op in _RAW and node.name not in told:
                found = nearest(wanted, node)
                at = f"at %{found.at.name} " if found.at else ""
                why = found.reason if found.match is None else "its profile rounds in other places"
                ledger.add(Change.EXACT, STEP, node.name, f"stays a sum of raw integers: {at}{why}")


def _left_real(graph: Graph, ledger: Ledger, *, biased: bool) -> None:
    """Records which quantized products stay float since the int32 accumulator would wrap."""
    for each in bodies(graph):
        for node in each:
            if _of_bytes(node) and (said := wrapping(each, node, biased=biased)):
                ledger.add(Change.EXACT, STEP, node.name, f"stays float: {said}")


def _of_bytes(node: Node) -> bool:
    """Returns whether a node is a float product of dequantized 8-bit values."""
    if node.op not in SLOTS:
        return False
    made = [node.operands[slot].node for slot in SLOTS[node.op][:2]]
    quants = [m.operands["x"].type.quant for m in made if m.op == "dequantize"]
    return len(quants) == 2 and all(q is not None and q.storage.bits <= 8 for q in quants)


def _left(form: str | None, *, standard: bool) -> AbstractContextManager[None]:
    """Keeps quantized operators that the form has, or, without a form, that the file had."""
    if form == "integer":
        return kept_operators.kept(kept_operators.fed_to_sums)
    if form is not None:
        return nullcontext()
    return kept_operators.kept(
        kept_operators.same_and_standard if standard else kept_operators.same
    )


def _sums(graph: Graph) -> bool:
    return any(n.op in _RAW for _, each in graph.walk() for n in each)


def _run(step: Pass, graph: Graph, ledger: Ledger) -> int:
    """Runs a pass on a graph and on what its branches and loops hold."""
    return sum(step.run(each, ledger) for each in bodies(graph))


# -- numbers that turn out constant ---------------------------------------------------------------


def _settle(graph: Graph, ledger: Ledger) -> None:
    """Computes scales and zero points that hang on constants alone, and folds them into types."""
    wanted = False
    for _, each in graph.walk():
        if any(_numbers(n) for n in each):
            _choose(each, ledger)
            numbers = {v: None for n in each for v in _numbers(n)}
            _compute(each, _needed(numbers, _fixed(each)))
            wanted |= any(v.constant is not None for n in each for v in _numbers(n))
    if wanted:
        FoldParameters().run(graph, ledger)


def _choose(graph: Graph, ledger: Ledger) -> None:
    """Puts in place the branches that choose such numbers by conditions that are constant."""
    seen: set[Node] = set()
    waiting = [v.node for n in graph for v in _numbers(n)]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [v.node for v in node.operands.values()]
    chosen = [n for n in graph if n in seen and n.op == "if"]
    if chosen:
        asked = [n.operands["cond"] for n in chosen]
        _compute(graph, _needed(asked, _fixed(graph)))
        FoldControl().fold(graph, chosen, ledger)


def _numbers(node: Node) -> list[Value]:
    """Returns what gives a node's types their numbers."""
    if node.op in ("foreign", "output", "fused") or not _dynamic(node):
        return []
    return [v for s, v in node.operands.items() if s.rpartition(".")[2] in ("scale", "zero")]


def _dynamic(node: Node) -> bool:
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    return any(q is not None and q.dynamic for q in quants)


def _fixed(graph: Graph) -> set[Value]:
    """Returns the float values that depend on constants alone."""
    out: set[Value] = set()
    for node in graph:
        plain = not any(v.type.quant for v in node.results)
        if node.op == "constant" or (
            node.op not in ("input", "foreign", "fused", "output")
            and not node.bodies
            and node.operands
            and all(v in out for v in node.operands.values())
        ):
            out.update(node.results if plain else ())
    return out


def _needed(numbers: Iterable[Value], fixed: set[Value]) -> set[Node]:
    """Returns what computes those of some numbers that are fixed."""
    out: set[Node] = set()
    waiting = [v.node for v in numbers if v in fixed and v.constant is None]
    while waiting:
        node = waiting.pop()
        if node not in out and node.op != "constant":
            out.add(node)
            waiting += [v.node for v in node.operands.values()]
    return out


def _compute(graph: Graph, nodes: set[Node]) -> None:
    """Puts constants in the places of what nodes give, where the reference computes it."""
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
