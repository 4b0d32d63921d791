"""Where the extension quantizes: what a layer reads, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.open_groups import OpenGroups
from qir.rewrite import run_passes

from .calls import RecipeCall, calls, float_source, quantized_type

READERS = frozenset(
    "conv2d conv3d linear matmul add relu max_pool2d avg_pool2d adaptive_avg_pool"
    " global_avg_pool flatten".split()
)
"""Ops whose data the extension quantizes."""
_STORAGES = ("u8", "i8")
_POOL_FUNCTION = "IPEX fails on the function max_pool2d without a stride; nn.MaxPool2d is quantized"
_OVERWRITTEN_DATA = "its summand stays float: IPEX overwrites it where the convolution reads it"
_SUM_WITH_ITSELF = "IPEX does not end compiling the sum of a tensor with itself"
_MISREAD_AVERAGE = (
    "IPEX gives its integers to the next layer, which reads them by a scale of its own"
)
_LINEAR_ATTRS = {"trans_a": False, "alpha": 1.0, "beta": 1.0}
"""Attributes of a gemm that is a linear layer."""


_MODULE = "qir.build(graph, target='ipex-onednn', format='module') makes a module of it"
DYNAMIC = f"recipes of IPEX hold no data that are quantized while the model runs; {_MODULE}"


def is_dynamic(graph: Graph) -> bool:
    """Returns whether data are quantized while the model runs."""
    return any(node.op == "choose_qparams" for _, each in graph.walk() for node in each)


def only_read_by_layers(graph: Graph, ledger: Ledger) -> Graph:
    """Returns a graph in QDQ form where only what a quantized layer reads is quantized.

        %q = quantize(%y); %d = dequantize(%q); %z = softmax(%d)

    becomes `%z = softmax(%y)`, as no recipe quantizes what a softmax reads. Refused for integers
    that no quantize makes, and for types that the extension does not have.
    """
    result = graph.copy()
    _gemms_to_linear(result)
    dropped: list[str] = []
    pools: list[str] = []
    for node in list(result):
        if node.op == "dequantize":
            _require_supported_type(node)
            float_value = float_source(node.result)
            # A reader that the extension does not quantize takes the float value before the pair.
            for use in list(node.result.uses):
                is_pool = _is_pool_function(use.node)
                if (use.node.op not in READERS or is_pool) and float_value is not node.result:
                    result.set_operand(use.node, use.slot, float_value)
                    (pools if is_pool else dropped).append(float_value.name)
    _keep_own_data_float(result, ledger)
    result.prune()
    # Each opened op may make another pool or sum unreadable, so sums come first.
    _read_floats(result, _sums_with_itself(result))
    _read_floats(result, _misread_averages(result))
    for names, why in (
        (dropped, "no quantized layer reads it"),
        (
            pools,
            _POOL_FUNCTION,
        ),
    ):
        if names:
            reason = f"not quantized, as {why}: {', '.join(dict.fromkeys(names))}"
            ledger.add(Change.REGROUPED, "write ipex", graph.name, reason)
    return result


def _read_floats(graph: Graph, names: Iterable[str]) -> None:
    """Lets ops read floats."""
    for name in names:
        node = graph[name].node
        for slot, value in list(node.operands.items()):
            graph.set_operand(node, slot, float_source(value))
    graph.prune()


def carried(graph: Graph, ledger: Ledger, *, nested: bool) -> tuple[Graph, dict[str, str]]:
    """Returns a graph in QDQ form as a recipe carries it, and why ops are float there.

    What a call reads that recipes do not number stays float, though a module could quantize it.
    Refused for a graph that was read from no module, and where nothing quantized is left.
    """
    qdq = run_passes(graph, [ExpandQdq(), OpenGroups(chains=True)], ledger)
    reduced = only_read_by_layers(qdq, ledger)
    defect_reasons = _sums_with_itself(reduced) | _misread_averages(reduced)
    # Without anything quantized, a recipe would change nothing: that is refused.
    numbered = _quantized_readers(reduced)
    reasons = {
        name: defect_reasons.get(name)
        or (_POOL_FUNCTION if reduced[name].node.op == "max_pool2d" else _OVERWRITTEN_DATA)
        for name in sorted(_quantized_readers(qdq) - numbered)
        if name in reduced.values
    }
    reasons.update(_keep_unnumbered_float(reduced, ledger, nested=nested))
    if numbered and not numbered - reasons.keys():
        reason_text = "; ".join(dict.fromkeys(reasons[name] for name in sorted(numbered)))
        raise Refused(f"{graph.name}: a recipe quantizes nothing of it: {reason_text}; {_MODULE}")
    return reduced, reasons


def recipe_defects(graph: Graph, *, nested: bool) -> dict[str, str]:
    """Returns by op of a float graph why a recipe leaves it float, where a module does not.

    Refused for a graph that was read from no module.
    """
    reasons = {
        node.name: _unnumbered_reason(call)
        for call in calls(graph, nested=nested)
        if not call.numbered
        for node in call.nodes
        if node.op in READERS or node.op == "gemm"  # others are computed in a layer's kernel
    }
    return reasons | defects(graph)


def defects(graph: Graph) -> dict[str, str]:
    """Returns by op of a float graph why it stays float in modules and recipes."""
    reasons = {node.name: _POOL_FUNCTION for node in graph if _is_pool_function(node)}
    reasons.update((node.name, _OVERWRITTEN_DATA) for node, _, _ in _sums_with_own_data(graph))
    reasons.update(_sums_with_itself(graph))
    return reasons | _misread_averages(graph, reasons)


def _sums_with_itself(graph: Graph) -> dict[str, str]:
    """Returns the sums of a tensor with itself, and why they stay float."""
    sums = (node for node in graph if node.op == "add")
    return {
        n.name: _SUM_WITH_ITSELF
        for n in sums
        if float_source(n.operands["a"]) is float_source(n.operands["b"])
    }


def _misread_averages(graph: Graph, spared: Collection[str] = ()) -> dict[str, str]:
    """Returns pools whose results no layer reads by the scale of their data, and why they stay
    float; of a float graph those that no layer reads but these. Means, which recipes do not
    number, are left out."""
    return {
        node.name: _MISREAD_AVERAGE
        for node in graph
        if node.op in ("global_avg_pool", "adaptive_avg_pool")
        and not any(origin.op.startswith("aten.mean") for origin in node.origins)
        and not _is_read_by_same_scale(node, quantized_type(node.operands["x"]), spared)
    }


def _is_read_by_same_scale(node: Node, quant: QuantType | None, spared: Collection[str]) -> bool:
    """Returns whether all that reads a pool is quantized as its data are, or would be."""
    for user in (use.node for use in node.result.uses):
        if user.op == "quantize":
            if user.result.type.quant != quant:
                return False
        elif user.op == "flatten":
            if not _is_read_by_same_scale(user, quant, spared):
                return False
        elif quant or user.name in spared or user.op not in {*READERS, "gemm"}:
            return False
    return True


def _quantized_readers(graph: Graph) -> set[str]:
    """Returns the names of layers that read quantized data."""
    return {
        node.name
        for node in graph
        if node.op in READERS and any(float_source(v) is not v for v in node.operands.values())
    }


def _keep_unnumbered_float(graph: Graph, ledger: Ledger, *, nested: bool) -> dict[str, str]:
    """Leaves float what calls read that recipes do not number; returns why, by op."""
    reasons: dict[str, str] = {}
    for call in calls(graph, nested=nested):
        if call.numbered:
            continue
        for node in call.nodes:
            for slot, value in list(node.operands.items()):
                if float_source(value) is not value:
                    graph.set_operand(node, slot, float_source(value))
                    reasons[node.name] = _unnumbered_reason(call)
    graph.prune()
    for reason in dict.fromkeys(reasons.values()):
        names = ", ".join(
            name for name, reason_of_name in reasons.items() if reason_of_name == reason
        )
        ledger.add(Change.REGROUPED, "write ipex", graph.name, f"stays float: {reason}: {names}")
    return reasons


def _unnumbered_reason(call: RecipeCall) -> str:
    layer = call.origin.layer.rpartition(".")[2]
    if layer:
        return f"recipes of IPEX do not reach into nn.{layer}"
    return f"recipes of IPEX do not quantize {call.origin.op}"


def _is_pool_function(node: Node) -> bool:
    """Returns whether a max pool is a call of the function, which may leave its stride out."""
    pools = [o for o in node.origins if o.framework == "torch" and o.op.startswith("aten.max_pool")]
    return node.op == "max_pool2d" and any(not origin.layer for origin in pools)


def _keep_own_data_float(graph: Graph, ledger: Ledger) -> None:
    """Leaves a summand float that is also the data of the convolution that it is added to.

    IPEX 2.8 writes such a sum in the place of the data: from the second run on it is wrong.
    """
    for node, slot, value in list(_sums_with_own_data(graph)):
        if value.node.op == "dequantize":
            ledger.add(Change.UNVERIFIED, "write ipex", node.results[0].name, _OVERWRITTEN_DATA)
            graph.set_operand(node, slot, float_source(value))


def _sums_with_own_data(graph: Graph) -> Iterator[tuple[Node, str, Value]]:
    """Yields sums with a summand that is also the data of the convolution that it is added to."""
    for node in graph:
        if node.op != "add":
            continue
        # A sum's operands in both orders: either of them may be the convolution.
        for slot, other in (("a", "b"), ("b", "a")):
            value, product = node.operands[slot], node.operands[other].node
            if product.op in ("conv2d", "conv3d") and (
                float_source(product.operands["x"]) is float_source(value)
            ):
                yield node, slot, value


def _gemms_to_linear(graph: Graph) -> None:
    """Replaces gemms that are linear layers by linear, PyTorch's own name for them."""
    for node in [node for node in graph if node.op == "gemm" and not node.stages]:
        slots = {"x": "a", "w": "b", "bias": "c"}
        if not node.attrs["trans_b"] or any(node.attrs[k] != v for k, v in _LINEAR_ATTRS.items()):
            continue
        operands = {new: node.operands[old] for new, old in slots.items() if old in node.operands}
        linear = graph.add("linear", operands, before=node, origins=node.origins)
        name, lineage = node.result.name, node.result.lineage
        graph.replace(node.result, linear.result)
        graph.remove(node)
        graph.rename(linear.result, name)
        graph.set_lineage(linear.result, lineage)


def _require_supported_type(node: Node) -> None:
    quant = node.operands["x"].type.quant
    producer = node.operands["x"].node.op
    if producer not in ("quantize", "constant"):
        raise Refused(f"{node.name}: its integers come from {producer}; IPEX quantizes floats")
    if quant is None or quant.kind != "uniform" or quant.dynamic or quant.plus is not None:
        raise Refused(f"{node.name}: IPEX has no type {quant}")
    is_full_range = (
        str(quant.storage) in _STORAGES and (quant.low, quant.high) == quant.storage.bounds
    )
    if producer == "quantize" and (not is_full_range or quant.granularity is not None):
        raise Refused(f"{node.name}: IPEX has no data of type {quant}; it has u8 and i8 per tensor")


__all__ = [
    "DYNAMIC",
    "READERS",
    "carried",
    "defects",
    "is_dynamic",
    "only_read_by_layers",
    "recipe_defects",
]
