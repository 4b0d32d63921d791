"""Predicts which ops onnxruntime computes on integers: by its profile's groups, or as written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from qir.analysis.bodies import graphs_with_bodies
from qir.capability import COMPUTES_IN_FLOAT, Capability, Verdict, verdicts
from qir.errors import QirError
from qir.inspect.left_float import ops_left_float
from qir.ir.dtype import U8
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS, MATRIX_PRODUCTS
from qir.ir.origin import Origin
from qir.ir.quantized_ops import (
    CONVERSION_OPS,
    PLAIN_INTEGER_PRODUCTS,
    STRUCTURAL_OPS,
    source_quant_type,
    stored_quant_type,
)
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.profiles import profile_in
from qir.rewrite.fusing import CONVOLUTIONS_1D_3D, is_fusible_activation, match_chain

from .separate_additions import separate_additions

Write = Callable[[Graph, Ledger], object]
_WRITTEN_AS_FLOAT = " on quantized values is written as float ops between quantized values"
"""The ledger's words of `OnnxWriter.report_float_form`."""
_NO_KERNEL_OPS = CONVERSION_OPS | STRUCTURAL_OPS | {"foreign"}


def kernel_verdicts(
    table: Capability, graph: Graph, profile_name: str, write: Write
) -> Iterator[Verdict]:
    """Yields a verdict for every op: by the profile where it groups, else by the capability table.

    An op on quantized types is integer where it is written as a quantized operator. Bodies are
    judged as the graph is. A graph that the verifier rejects is judged by the table alone.
    """
    table_verdicts = list(verdicts(table, graph))
    parts = _graphs_with_integers(graph)
    # An invalid graph cannot be grouped, so only the table has an answer.
    if parts and errors(graph):
        parts = {}
    written = _WrittenModel(graph, write)
    judges = {
        path: _GraphVerdicts(part, _PredictedKernels(part, profile_name), written)
        for path, part in parts.items()
    }
    for verdict in table_verdicts:
        judge = judges.get(verdict.path)
        yield verdict if judge is None or verdict.defect else judge.verdict_of(verdict)


def _graphs_with_integers(graph: Graph) -> dict[str, Graph]:
    """Returns the graph and those of its bodies that have quantized values, by path."""
    quantized = {id(each) for each in graphs_with_bodies(graph) if any(map(_is_quantized, each))}
    return {path: part for path, part in graph.walk() if id(part) in quantized}


class _GraphVerdicts:
    """The verdicts of one graph's ops."""

    def __init__(self, graph: Graph, kernels: _PredictedKernels, written: _WrittenModel) -> None:
        self.nodes = {n.name: n for n in graph}
        self.kernels = kernels
        self.written = written

    def verdict_of(self, verdict: Verdict) -> Verdict:
        """Returns the verdict on an op, given that of the capability table."""
        node = self.nodes.get(verdict.node)
        if node is None or node.bodies:
            return verdict
        if _is_where_with_scalar(node):
            return replace(verdict, taken="integer", reason="")
        if not _is_quantized(node):
            return self.kernels.verdict_of(node, verdict)
        # What the table refuses or has no entry for may still be written as a quantized operator.
        known = verdict.taken != "refused" and node.op not in PLAIN_INTEGER_PRODUCTS
        if known or not (
            self.written.is_written_quantized(node) or self.kernels.kernel_of(node) is not None
        ):
            return verdict
        return replace(verdict, taken="integer", reason="")


def _is_quantized(node: Node) -> bool:
    has_quantized = any(v.type.quant for v in (*node.operands.values(), *node.results))
    return has_quantized or node.op in PLAIN_INTEGER_PRODUCTS


def _is_where_with_scalar(node: Node) -> bool:
    """Returns whether a where chooses between integers and one float scalar, which the optimizer
    quantizes."""
    if node.op != "where":
        return False
    sides = [node.operands[slot] for slot in ("a", "b")]
    types = [
        source_quant_type(v)
        for v in sides
        if v.constant is None or v.type.rank or v.type.quant is not None
    ]
    types.append(stored_quant_type(node.result))
    are_plain_bytes = (m is not None and m.storage == U8 and m.granularity is None for m in types)
    return len(types) == 2 and all(are_plain_bytes)


def _has_float_weights(node: Node) -> bool:
    """Returns whether a product has float weights: the writer keeps the optimizer from
    quantizing them."""
    weight = node.operands.get(spec(node.op).traits.weight or "")
    return weight is not None and weight.constant is not None and weight.type.quant is None


def _is_product_of_integers(node: Node) -> bool:
    """Returns whether a product's data and weights are both read from integers."""
    traits = spec(node.op).traits
    sides = [node.operands.get(slot or "") for slot in (traits.data, traits.weight)]
    return node.op in INTEGER_SUM_LAYERS | CONVOLUTIONS_1D_3D and all(
        v is not None and source_quant_type(v) for v in sides
    )


def _why_float(node: Node) -> str:
    """Returns why a product of integers with a float result is no quantized kernel."""
    use = node.result.only_use
    if node.op in MATRIX_PRODUCTS:
        bias = node.operands.get(spec(node.op).traits.bias or "")
        if bias is not None or (use is not None and use.node.op == "add"):
            return "its bias is float"
        if use is not None and is_fusible_activation(use.node):
            return f"no quantized kernel fuses the {use.node.op} after it with a float result"
    return "no quantized kernel gives a float result here"


class _WrittenModel:
    """Which ops of an integer form the writer expresses in float, by writing the model once."""

    def __init__(self, graph: Graph, write: Write) -> None:
        self.graph = graph
        self.write = write
        self.names: set[str] | None = None
        self.failed = False

    def is_written_quantized(self, node: Node) -> bool:
        """Returns whether a node is written as a quantized operator."""
        if self.names is None:
            self.names = self._names_written_as_float()
        # An output of the model names the tensor in the ledger, in the place of the node.
        outputs = {u.slot for v in node.results for u in v.uses if u.node.op == "output"}
        return not self.failed and not self.names & {node.name, *outputs}

    def _names_written_as_float(self) -> set[str]:
        ledger = Ledger()
        try:
            self.write(self.graph.copy(), ledger)
        except QirError:  # reported when it is written
            self.failed = True
        return {entry.subject for entry in ledger if _WRITTEN_AS_FLOAT in entry.reason}


class _PredictedKernels:
    """The kernels that onnxruntime fuses of a graph, and the ops that it leaves in float."""

    def __init__(self, graph: Graph, profile_name: str) -> None:
        self.profile = profile_in(graph, profile_name)
        self.grouped = graph.copy()
        try:
            # The steps by which onnxruntime sees the model: QDQ form, additions apart, then its
            # groups.
            ExpandQdq().run(self.grouped, Ledger())
            separate_additions(self.grouped, Ledger())
            Group(profile_name).run(self.grouped, Ledger())
        except QirError:  # reported when it is grouped; else the table decides
            self.grouped = Graph(graph.name)
        self.names: dict[str, Node] = {}
        self.origins: dict[tuple[str, Origin], Node] = {}
        kept_float = {n.name for n in graph if _has_float_weights(n)}
        for node in self.grouped:
            if kept_float.intersection((node.name, *(stage.name for stage in node.stages))):
                continue
            if node.op not in _NO_KERNEL_OPS and not node.bodies and _is_quantized(node):
                self._keep(node)
            elif node.op in INTEGER_SUM_LAYERS and not node.stages:
                self._keep_dynamic_product(node, Group(profile_name))
        self.float_reasons = {
            float_op.node: float_op.reason for float_op in ops_left_float(self.grouped)
        }
        self.grouped_ops = {op for group in self.profile.groups for op in group.chain}

    def _keep_dynamic_product(self, node: Node, group: Group) -> None:
        """Records a product whose parameters a run computes, with the activations fused to it."""
        chains: list[tuple[tuple[Node, ...], Node | None]] = [((node,), None)]
        ops: tuple[Node, ...] = (node,)
        # With its activations and the quantize after them, or the product alone with a float
        # result.
        use = node.result.only_use
        while use is not None and is_fusible_activation(use.node):
            ops, use = (*ops, use.node), use.node.result.only_use
        if use is not None and use.node.op == "quantize":
            chains.append((ops, use.node))
        for chain, last in chains:
            match = match_chain(chain, last, computed_parameters=True)
            if match is not None and group.allows(match, self.grouped):
                for each in chain:
                    self._keep(each)

    def _keep(self, node: Node) -> None:
        self.names[node.name] = node
        for stage in node.stages:
            self.names.setdefault(stage.name, node)
            self.origins |= {(stage.op, o): node for o in stage.origins}
        self.origins |= {(node.op, o): node for o in node.origins}

    def kernel_of(self, node: Node) -> Node | None:
        """Returns the kernel that computes an op; None for float ops."""
        readers = (use.node for v in node.results for use in v.uses if use.node.op == "quantize")
        names = [node.name, f"{node.name}.codes", *(reader.name for reader in readers)]
        for kernel in (self.names[name] for name in names if name in self.names):
            # A name may be of another op that the kernel absorbed; a gemm absorbs matmul and add.
            if kernel.op == node.op or kernel.stages or kernel.op == "gemm":
                return kernel
        ops = (node.op, "gemm") if node.op in ("matmul", "add", "transpose") else (node.op,)
        kernels = [self.origins.get((op, o)) for op in ops for o in node.origins]
        return next((kernel for kernel in kernels if kernel is not None), None)

    def verdict_of(self, node: Node, verdict: Verdict) -> Verdict:
        """Returns the verdict on an op between dequantize and quantize."""
        kernel = None if _has_float_weights(node) else self.kernel_of(node)
        if kernel is not None:
            kernel_reason = verdict.reason if verdict.reason.startswith("in the kernel of ") else ""
            return replace(verdict, taken="integer", reason=kernel_reason)
        if verdict.reason == COMPUTES_IN_FLOAT and _is_product_of_integers(node):
            reason_text = f"{self.profile.name} has it in float32: {_why_float(node)}"
            return replace(verdict, reason=reason_text)
        reason = self.float_reasons.get(node.name)
        if reason is None or verdict.reason == COMPUTES_IN_FLOAT or node.op not in self.grouped_ops:
            return verdict
        product = spec(node.op).traits.weight is not None
        reason_text = f"{self.profile.name} has it in float32: {reason}"
        return replace(verdict, taken="refused" if product else "float", reason=reason_text)
