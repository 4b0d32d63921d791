"""Ops that onnxruntime computes on integers: by its profile's groups, or as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from qir.analysis.bodies import bodies
from qir.capability import REAL, Capability, Verdict, verdicts
from qir.errors import QirError
from qir.inspect.left_float import left_float
from qir.ir.dtype import U8
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS, MATRIX_PRODUCTS
from qir.ir.origin import Origin
from qir.ir.quantized_ops import (
    CONVERSION_OPS,
    PLAIN_INTEGER_PRODUCTS,
    source_quant_type,
    stored_quant_type,
)
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.profiles import profile
from qir.rewrite.fusing import LINES, is_tail, match_of

from .separate_additions import add_apart

Write = Callable[[Graph, Ledger], object]
_ON_REALS = " on quantized values is written as float ops between quantized values"
_OTHER = CONVERSION_OPS | {"input", "constant", "output", "foreign"}


def judged(table: Capability, graph: Graph, named: str, write: Write) -> Iterator[Verdict]:
    """Yields a verdict for every op: by the profile where it groups, else by the table.

    An op that holds quantized values itself is taken where it is written as a quantized operator
    too. What branches and loops hold is judged as the graph is; a graph that is no program by the
    table.
    """
    found = list(verdicts(table, graph))
    parts = _parts(graph)
    if parts and errors(graph):
        parts = {}
    written = _Written(graph, write)
    judges = {path: _Judge(part, _Kernels(part, named), written) for path, part in parts.items()}
    for verdict in found:
        judge = judges.get(verdict.path)
        yield verdict if judge is None or verdict.defect else judge.judged(verdict)


def _parts(graph: Graph) -> dict[str, Graph]:
    """Returns the graphs that have to do with integers, of a graph and of what its branches and
    loops hold."""
    wanted = {id(each) for each in bodies(graph) if any(map(_on_codes, each))}
    return {path: part for path, part in graph.walk() if id(part) in wanted}


class _Judge:
    """What is known of one graph."""

    def __init__(self, graph: Graph, kernels: _Kernels, written: _Written) -> None:
        self.nodes = {n.name: n for n in graph}
        self.kernels = kernels
        self.written = written

    def judged(self, verdict: Verdict) -> Verdict:
        """Returns what becomes of an op of which the table says so."""
        node = self.nodes.get(verdict.node)
        if node is None or node.bodies:
            return verdict
        if _one_number(node):
            return replace(verdict, taken="integer", reason="")
        if not _on_codes(node):
            return self.kernels.judged(node, verdict)
        known = verdict.taken != "refused" and node.op not in PLAIN_INTEGER_PRODUCTS
        if known or not (self.written.on_codes(node) or self.kernels.head(node) is not None):
            return verdict
        return replace(verdict, taken="integer", reason="")


def _on_codes(node: Node) -> bool:
    coded = any(v.type.quant for v in (*node.operands.values(), *node.results))
    return coded or node.op in PLAIN_INTEGER_PRODUCTS


def _one_number(node: Node) -> bool:
    """Returns whether a where chooses between quantized values and one float value, of which the
    optimizer makes quantized values too."""
    if node.op != "where":
        return False
    sides = [node.operands[slot] for slot in ("a", "b")]
    maps = [
        source_quant_type(v)
        for v in sides
        if v.constant is None or v.type.rank or v.type.quant is not None
    ]
    maps.append(stored_quant_type(node.result))
    kept = (m is not None and m.storage == U8 and m.granularity is None for m in maps)
    return len(maps) == 2 and all(kept)


def _kept_real(node: Node) -> bool:
    """Returns whether a product has float weights, which are written so that no optimizer quantizes
    them."""
    weight = node.operands.get(spec(node.op).traits.weight or "")
    return weight is not None and weight.constant is not None and weight.type.quant is None


def _of_codes(node: Node) -> bool:
    """Returns whether a product's data and weights are both read from quantized values."""
    traits = spec(node.op).traits
    sides = [node.operands.get(slot or "") for slot in (traits.data, traits.weight)]
    return node.op in INTEGER_SUM_LAYERS | LINES and all(
        v is not None and source_quant_type(v) for v in sides
    )


def _why_real(node: Node) -> str:
    """Returns why an integer product that gives floats is no quantized kernel."""
    use = node.result.only_use
    if node.op in MATRIX_PRODUCTS:
        bias = node.operands.get(spec(node.op).traits.bias or "")
        if bias is not None or (use is not None and use.node.op == "add"):
            return "its bias is float"
        if use is not None and is_tail(use.node):
            return f"no quantized kernel fuses the {use.node.op} after it with a float result"
    return "no quantized kernel gives a float result here"


class _Written:
    """What of an integer form is written in float between quantized values."""

    def __init__(self, graph: Graph, write: Write) -> None:
        self.graph = graph
        self.write = write
        self.names: set[str] | None = None
        self.failed = False

    def on_codes(self, node: Node) -> bool:
        """Returns whether a node is written as a quantized operator."""
        if self.names is None:
            self.names = self._look()
        outputs = {u.slot for v in node.results for u in v.uses if u.node.op == "output"}
        return not self.failed and not self.names & {node.name, *outputs}

    def _look(self) -> set[str]:
        ledger = Ledger()
        try:
            self.write(self.graph.copy(), ledger)
        except QirError:  # reported when it is written
            self.failed = True
        return {entry.subject for entry in ledger if _ON_REALS in entry.reason}


class _Kernels:
    """The kernels that a runtime makes of a graph, and what it leaves in float."""

    def __init__(self, graph: Graph, named: str) -> None:
        self.profile = profile(named)
        self.grouped = graph.copy()
        try:
            ExpandQdq().run(self.grouped, Ledger())
            add_apart(self.grouped, Ledger())
            Group(named).run(self.grouped, Ledger())
        except QirError:  # reported when it is grouped; else the table decides
            self.grouped = Graph(graph.name)
        self.names: dict[str, Node] = {}
        self.origins: dict[tuple[str, Origin], Node] = {}
        kept = {n.name for n in graph if _kept_real(n)}
        for node in self.grouped:
            if kept.intersection((node.name, *(stage.name for stage in node.stages))):
                continue
            if node.op not in _OTHER and not node.bodies and _on_codes(node):
                self._keep(node)
            elif node.op in INTEGER_SUM_LAYERS and not node.stages:
                self._keep_row(node, Group(named))
        self.left = {left.node: left.reason for left in left_float(self.grouped)}
        self.known = {op for row in self.profile.groups for op in row.chain}

    def _keep_row(self, node: Node, group: Group) -> None:
        """Keeps an integer product whose numbers are chosen while it runs, and what ends it."""
        rows: list[tuple[tuple[Node, ...], Node | None]] = [((node,), None)]
        ops: tuple[Node, ...] = (node,)
        use = node.result.only_use
        while use is not None and is_tail(use.node):
            ops, use = (*ops, use.node), use.node.result.only_use
        if use is not None and use.node.op == "quantize":
            rows.append((ops, use.node))
        for row, end in rows:
            match = match_of(row, end, given=True)
            if match is not None and group.allows(match, self.grouped):
                for each in row:
                    self._keep(each)

    def _keep(self, node: Node) -> None:
        self.names[node.name] = node
        for stage in node.stages:
            self.names.setdefault(stage.name, node)
            self.origins |= {(stage.op, o): node for o in stage.origins}
        self.origins |= {(node.op, o): node for o in node.origins}

    def head(self, node: Node) -> Node | None:
        """Returns the kernel that computes an op."""
        readers = (use.node for v in node.results for use in v.uses if use.node.op == "quantize")
        names = [node.name, f"{node.name}.codes", *(reader.name for reader in readers)]
        for kernel in (self.names[name] for name in names if name in self.names):
            if kernel.op == node.op or kernel.stages or kernel.op == "gemm":
                return kernel
        ops = (node.op, "gemm") if node.op in ("matmul", "add", "transpose") else (node.op,)
        found = [self.origins.get((op, o)) for op in ops for o in node.origins]
        return next((kernel for kernel in found if kernel is not None), None)

    def judged(self, node: Node, verdict: Verdict) -> Verdict:
        """Returns what becomes of an op between dequantize and quantize."""
        kernel = None if _kept_real(node) else self.head(node)
        if kernel is not None:
            inside = verdict.reason if verdict.reason.startswith("in the kernel of ") else ""
            return replace(verdict, taken="integer", reason=inside)
        if verdict.reason == REAL and _of_codes(node):
            said = f"{self.profile.name} has it in float32: {_why_real(node)}"
            return replace(verdict, reason=said)
        reason = self.left.get(node.name)
        if reason is None or verdict.reason == REAL or node.op not in self.known:
            return verdict
        product = spec(node.op).traits.weight is not None
        said = f"{self.profile.name} has it in float32: {reason}"
        return replace(verdict, taken="refused" if product else "float", reason=said)
