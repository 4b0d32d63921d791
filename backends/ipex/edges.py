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

from .calls import RecipeCall, calls, numbers, plain

READERS = frozenset(
    "conv2d conv3d linear matmul add relu max_pool2d avg_pool2d adaptive_avg_pool"
    " global_avg_pool flatten".split()
)
"""Ops whose data the extension quantizes."""
_STORAGES = ("u8", "i8")
_POOLS = "IPEX fails on the function max_pool2d without a stride; nn.MaxPool2d is quantized"
_OWN_DATA = "its summand stays float: IPEX overwrites it where the convolution reads it"
_ITSELF = "IPEX does not end compiling the sum of a tensor with itself"
_AVERAGES = "IPEX gives its integers to the next layer, which reads them by a scale of its own"
_PLAIN = {"trans_a": False, "alpha": 1.0, "beta": 1.0}
"""Attributes of a gemm that is a linear layer."""


_MODULE = "qir.build(graph, target='ipex-onednn', format='module') makes a module of it"
DYNAMIC = f"recipes of IPEX hold no data that are quantized while the model runs; {_MODULE}"


def is_dynamic(graph: Graph) -> bool:
    """Returns whether data are quantized while the model runs."""
    return any(node.op == "choose_qparams" for _, each in graph.walk() for node in each)


def kept(graph: Graph, ledger: Ledger) -> Graph:
    """Returns a graph in QDQ form where only what a quantized layer reads is quantized.

        %q = quantize(%y); %d = dequantize(%q); %z = softmax(%d)

    becomes `%z = softmax(%y)`, as no recipe quantizes what a softmax reads. Refused for integers
    that no quantize makes, and for types that the extension does not have.
    """
    made = graph.copy()
    _linear(made)
    dropped: list[str] = []
    pools: list[str] = []
    for node in list(made):
        if node.op == "dequantize":
            _check(node)
            float_value = plain(node.result)
            for use in list(node.result.uses):
                pool = _is_pool_function(use.node)
                if (use.node.op not in READERS or pool) and float_value is not node.result:
                    made.set_operand(use.node, use.slot, float_value)
                    (pools if pool else dropped).append(float_value.name)
    _spare_own_data(made, ledger)
    made.prune()
    _open(made, _doubled(made))
    _open(made, _averaged(made))
    for names, why in (
        (dropped, "no quantized layer reads it"),
        (
            pools,
            _POOLS,
        ),
    ):
        if names:
            said = f"not quantized, as {why}: {', '.join(dict.fromkeys(names))}"
            ledger.add(Change.REGROUPED, "write ipex", graph.name, said)
    return made


def _open(graph: Graph, names: Iterable[str]) -> None:
    """Lets ops read floats."""
    for name in names:
        node = graph[name].node
        for slot, value in list(node.operands.items()):
            graph.set_operand(node, slot, plain(value))
    graph.prune()


def carried(graph: Graph, ledger: Ledger, *, nested: bool) -> tuple[Graph, dict[str, str]]:
    """Returns a graph in QDQ form as a recipe carries it, and why ops are float there.

    What a call reads that recipes do not number stays float, though a module could quantize it.
    Refused for a graph that was read from no module, and where nothing quantized is left.
    """
    flat = run_passes(graph, [ExpandQdq(), OpenGroups(chains=True)], ledger)
    made = kept(flat, ledger)
    alone = _doubled(made) | _averaged(made)
    numbered = _quantized_readers(made)
    why = {
        name: alone.get(name) or (_POOLS if made[name].node.op == "max_pool2d" else _OWN_DATA)
        for name in sorted(_quantized_readers(flat) - numbered)
        if name in made.values
    }
    why.update(_spare_unnumbered(made, ledger, nested=nested))
    if numbered and not numbered - why.keys():
        said = "; ".join(dict.fromkeys(why[name] for name in sorted(numbered)))
        raise Refused(f"{graph.name}: a recipe quantizes nothing of it: {said}; {_MODULE}")
    return made, why


def spared(graph: Graph, *, nested: bool) -> dict[str, str]:
    """Returns by op of a float graph why a recipe leaves it float, where a module does not.

    Refused for a graph that was read from no module.
    """
    why = {
        node.name: _unnumbered(call)
        for call in calls(graph, nested=nested)
        if not call.numbered
        for node in call.nodes
        if node.op in READERS or node.op == "gemm"  # others are computed in a layer's kernel
    }
    return why | defects(graph)


def defects(graph: Graph) -> dict[str, str]:
    """Returns by op of a float graph why it stays float in modules and recipes."""
    why = {node.name: _POOLS for node in graph if _is_pool_function(node)}
    why.update((node.name, _OWN_DATA) for node, _, _ in _own_data(graph))
    why.update(_doubled(graph))
    return why | _averaged(graph, why)


def _doubled(graph: Graph) -> dict[str, str]:
    """Returns the sums of a tensor with itself, and why they stay float."""
    sums = (node for node in graph if node.op == "add")
    return {n.name: _ITSELF for n in sums if plain(n.operands["a"]) is plain(n.operands["b"])}


def _averaged(graph: Graph, spared: Collection[str] = ()) -> dict[str, str]:
    """Returns pools whose results no layer reads by the scale of their data, and why they stay
    float; of a float graph those that no layer reads but these. Means, which recipes do not
    number, are left out."""
    return {
        node.name: _AVERAGES
        for node in graph
        if node.op in ("global_avg_pool", "adaptive_avg_pool")
        and not any(origin.op.startswith("aten.mean") for origin in node.origins)
        and not _reads_on(node, numbers(node.operands["x"]), spared)
    }


def _reads_on(node: Node, quant: QuantType | None, spared: Collection[str]) -> bool:
    """Returns whether all that reads a pool is quantized as its data are, or would be."""
    for user in (use.node for use in node.result.uses):
        if user.op == "quantize":
            if user.result.type.quant != quant:
                return False
        elif user.op == "flatten":
            if not _reads_on(user, quant, spared):
                return False
        elif quant or user.name in spared or user.op not in {*READERS, "gemm"}:
            return False
    return True


def _quantized_readers(graph: Graph) -> set[str]:
    """Returns the names of layers that read quantized data."""
    return {
        node.name
        for node in graph
        if node.op in READERS and any(plain(v) is not v for v in node.operands.values())
    }


def _spare_unnumbered(graph: Graph, ledger: Ledger, *, nested: bool) -> dict[str, str]:
    """Leaves float what calls read that recipes do not number; returns why, by op."""
    why: dict[str, str] = {}
    for call in calls(graph, nested=nested):
        if call.numbered:
            continue
        for node in call.nodes:
            for slot, value in list(node.operands.items()):
                if plain(value) is not value:
                    graph.set_operand(node, slot, plain(value))
                    why[node.name] = _unnumbered(call)
    graph.prune()
    for reason in dict.fromkeys(why.values()):
        names = ", ".join(name for name, said in why.items() if said == reason)
        ledger.add(Change.REGROUPED, "write ipex", graph.name, f"stays float: {reason}: {names}")
    return why


def _unnumbered(call: RecipeCall) -> str:
    layer = call.origin.layer.rpartition(".")[2]
    if layer:
        return f"recipes of IPEX do not reach into nn.{layer}"
    return f"recipes of IPEX do not quantize {call.origin.op}"


def _is_pool_function(node: Node) -> bool:
    """Returns whether a max pool is a call of the function, which may leave its stride out."""
    pools = [o for o in node.origins if o.framework == "torch" and o.op.startswith("aten.max_pool")]
    return node.op == "max_pool2d" and any(not origin.layer for origin in pools)


def _spare_own_data(graph: Graph, ledger: Ledger) -> None:
    """Leaves a summand float that is also the data of the convolution that it is added to.

    IPEX 2.8 writes such a sum in the place of the data: from the second run on it is wrong.
    """
    for node, slot, value in list(_own_data(graph)):
        if value.node.op == "dequantize":
            ledger.add(Change.UNVERIFIED, "write ipex", node.results[0].name, _OWN_DATA)
            graph.set_operand(node, slot, plain(value))


def _own_data(graph: Graph) -> Iterator[tuple[Node, str, Value]]:
    """Yields sums with a summand that is also the data of the convolution that it is added to."""
    for node in graph:
        if node.op != "add":
            continue
        for slot, other in (("a", "b"), ("b", "a")):
            value, product = node.operands[slot], node.operands[other].node
            if product.op in ("conv2d", "conv3d") and (
                plain(product.operands["x"]) is plain(value)
            ):
                yield node, slot, value


def _linear(graph: Graph) -> None:
    """Makes linear layers of gemms that are these under ONNX's name."""
    for node in [node for node in graph if node.op == "gemm" and not node.stages]:
        slots = {"x": "a", "w": "b", "bias": "c"}
        if not node.attrs["trans_b"] or any(node.attrs[k] != v for k, v in _PLAIN.items()):
            continue
        operands = {new: node.operands[old] for new, old in slots.items() if old in node.operands}
        made = graph.add("linear", operands, before=node, origins=node.origins)
        name, lineage = node.result.name, node.result.lineage
        graph.replace(node.result, made.result)
        graph.remove(node)
        graph.rename(made.result, name)
        graph.set_lineage(made.result, lineage)


def _check(node: Node) -> None:
    quant = node.operands["x"].type.quant
    held = node.operands["x"].node.op
    if held not in ("quantize", "constant"):
        raise Refused(f"{node.name}: its integers come from {held}; IPEX quantizes floats")
    if quant is None or quant.kind != "uniform" or quant.dynamic or quant.plus is not None:
        raise Refused(f"{node.name}: IPEX has no type {quant}")
    whole = str(quant.storage) in _STORAGES and (quant.low, quant.high) == quant.storage.bounds
    if held == "quantize" and (not whole or quant.granularity is not None):
        raise Refused(f"{node.name}: IPEX has no data of type {quant}; it has u8 and i8 per tensor")


__all__ = ["DYNAMIC", "READERS", "carried", "defects", "is_dynamic", "kept", "spared"]
