"""The forms that a model can be written in, made of one another with the proof in the ledger."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.passes.expand_qdq import ExpandQdq
from qir.passes.fold_parameters import FoldParameters
from qir.passes.fuse_qdq import FuseQdq
from qir.passes.lift_dynamic import LiftDynamic
from qir.passes.lower_integer import LowerInteger
from qir.passes.open_groups import OpenGroups
from qir.passes.raise_integer import RaiseInteger
from qir.reference.constants import computed

from . import hanging, qonnx, told
from .nbits import to_nbits
from .writer import STEP

FORMATS = ("qdq", "qoperator", "integer", "nbits")
"""Reals between codes; onnxruntime's operators on codes; sums of raw integers; few-bit weights."""
_WEIGHTED = "onnx:com.microsoft.*"
_ROWS = "* |> *"
"""Reals in a row that one kernel would compute: no file says that."""


def formed(graph: Graph, form: str | None, ledger: Ledger, *, standard: bool) -> Graph:
    """A copy in the form asked for; `standard` has no operators but ONNX's own.

    Nothing asked for is the first form, in which operators of onnxruntime's own stay. Raises
    Refused where a form has nothing to hold.
    """
    out = graph.copy()
    OpenGroups(_ROWS, chains=True).run(out, ledger)
    if standard or form is not None:
        qonnx.opened(out, ledger)
    if standard or form in ("qdq", "integer"):
        told.threads(out, ledger)
        OpenGroups(_WEIGHTED).run(out, ledger)
    if form in ("qdq", "qoperator"):
        LiftDynamic().run(out, ledger)
    _settle(out, ledger)
    if form in ("qdq", "qoperator"):
        RaiseInteger().run(out, ledger)
    if standard or form != "qoperator":
        hanging.padded(out, ledger)
    with hanging.kept(ledger):
        _made(out, form, ledger, standard=standard)
    told.level(out, ledger)
    return out


def _made(out: Graph, form: str | None, ledger: Ledger, *, standard: bool) -> None:
    match form:
        case "qoperator":
            FuseQdq().run(out, ledger)
        case "integer":
            ExpandQdq().run(out, ledger)
            if not LowerInteger().run(out, ledger) and not _sums(out):
                said = "no product of 8-bit codes here can be summed in integers"
                ledger.add(Change.EXACT, STEP, out.name, said)
        case "nbits":
            ExpandQdq().run(out, ledger)
            to_nbits(out, ledger, standard=standard)
        case _:
            ExpandQdq().run(out, ledger)


def _sums(graph: Graph) -> bool:
    return any(n.op in ("matmul_integer", "conv_integer") for _, each in graph.walk() for n in each)


# -- numbers that turn out constant ---------------------------------------------------------------

Known = dict[Value, bool]
"""Whether a value hangs on constants alone; what does is one by then."""


def _settle(graph: Graph, ledger: Ledger) -> None:
    """Computes scales and zero points that hang on constants alone, and folds them into types."""
    wanted = False
    for _, each in graph.walk():
        known: Known = {}
        for value in {v: None for n in each for v in _numbers(n)}:
            wanted |= value.constant is not None or _constant(each, value, known)
    if wanted:
        FoldParameters().run(graph, ledger)


def _numbers(node: Node) -> list[Value]:
    """What gives a node's types their numbers."""
    if node.op in ("foreign", "output", "fused") or not _dynamic(node):
        return []
    return [v for s, v in node.operands.items() if s.rpartition(".")[2] in ("scale", "zero")]


def _dynamic(node: Node) -> bool:
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    return any(q is not None and q.dynamic for q in quants)


def _constant(graph: Graph, value: Value, known: Known) -> bool:
    """Makes a value a constant where all that it hangs on are."""
    if value.constant is not None:
        return True
    if value not in known:
        known[value] = False  # until it is found otherwise
        known[value] = _computed(graph, value.node, known)
    return known[value]


def _computed(graph: Graph, node: Node, known: Known) -> bool:
    if node.op in ("input", "foreign", "fused") or node.bodies or not node.operands:
        return False
    if not all([_constant(graph, each, known) for each in list(node.operands.values())]):
        return False
    held = {s: v.constant for s, v in node.operands.items()}
    arrays = {s: a.data for s, a in held.items() if a is not None and a.type.quant is None}
    if len(arrays) < len(held) or any(v.type.quant for v in node.results):
        return False
    results = computed(node, arrays, node.profile or graph.profile)
    if len(results) != len(node.results):
        return False
    for old, data in zip(list(node.results), results, strict=True):
        new = graph.constant(data, name=graph.fresh(f"{old.name}.known"), before=node)
        graph.set_lineage(new, old.lineage)
        graph.replace(old, new)
    return True
