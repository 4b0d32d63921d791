"""From QDQ form to integer form: dequantize, op, quantize become the op on codes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from qir.ir.array import Array
from qir.ir.dtype import I32
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import Pass

INTEGER = frozenset(
    "conv2d gemm matmul linear add mul avg_pool2d global_avg_pool sigmoid softmax concat "
    "max_pool2d reshape flatten transpose pad relu clip".split()
)
"""Ops that have an integer form."""
TAILS = frozenset({"relu", "clip"})
"""Ops that a kernel does before it rounds."""


@dataclass(frozen=True, slots=True)
class Match:
    """Ops in a row between dequantize and quantize."""

    ops: tuple[Node, ...]
    codes: tuple[tuple[str, Value], ...]
    """Slots of the whole chain, as a group names them, with the codes that stand behind them."""
    quantize: Node

    @property
    def result(self) -> QuantType:
        quant = self.quantize.result.type.quant
        assert quant is not None
        return quant


@dataclass(frozen=True)
class Fusing(Pass):
    """What passes share that wrap QDQ form into kernels; `allows` says which ones exist."""

    @abstractmethod
    def allows(self, match: Match, graph: Graph) -> bool:
        """Whether these ops are one kernel."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op != "quantize" or node not in graph:
                continue
            match = self._best(node, graph)
            if match is not None:
                _fuse(graph, match)
                ledger.add(
                    Change.REGROUPED,
                    self.name,
                    match.ops[0].name,
                    " |> ".join(n.op for n in match.ops) + " rounds once, on codes",
                )
                count += 1
        return count + (graph.prune() if count else 0)

    def _best(self, quantize: Node, graph: Graph) -> Match | None:
        """The longest allowed chain that ends in this quantize."""
        for ops in reversed(_rows(quantize)):
            match = _match(ops, quantize)
            if match is not None and self.allows(match, graph):
                return match
        return None


@dataclass(frozen=True)
class FuseQdq(Fusing):
    """Fuses every op that has an integer form, with the activations that follow it."""

    name = "fuse-qdq"

    def allows(self, match: Match, graph: Graph) -> bool:
        return True


def _rows(quantize: Node) -> list[tuple[Node, ...]]:
    """Rows of ops that end in a quantize and are read by nothing else, shortest first."""
    out: list[tuple[Node, ...]] = []
    row: tuple[Node, ...] = ()
    value = quantize.operands["x"]
    while value.only_use is not None and value.node.op in INTEGER and not value.node.stages:
        row = (value.node, *row)
        out.append(row)
        if value.node.op not in TAILS:
            break
        value = value.node.operands["x"]
    return out


def _match(ops: tuple[Node, ...], quantize: Node) -> Match | None:
    quant = quantize.result.type.quant
    if quant is None or quant.dynamic or quant.grain is not None:
        return None
    codes: list[tuple[str, Value]] = []
    for slot, value in ops[0].operands.items():
        source = _codes(ops[0], slot, value)
        if source is None:
            return None
        codes.append((slot, source))
    match = Match(ops, tuple(codes), quantize)
    return match if _maps_fit(match) and _bias_fits(match) else None


def _codes(node: Node, slot: str, value: Value) -> Value | None:
    """The codes that an operand dequantizes; the operand itself where codes are not asked for."""
    if node.op == "reshape" and slot == "shape":
        return value
    if value.node.op != "dequantize":
        return None
    source = value.node.operands["x"]
    quant = source.type.quant
    weight = slot == spec(node.op).traits.weight and source.constant is not None
    if quant is None or quant.dynamic or quant.kind != "uniform" or quant.real_zero:
        return None
    if quant.grain is not None and not weight and slot != spec(node.op).traits.bias:
        return None
    return source


def _maps_fit(match: Match) -> bool:
    """What only moves codes must find and leave one map; concat may convert."""
    head = match.ops[0]
    traits = spec(head.op).traits
    if not traits.same_params or head.op == "concat":
        return True
    if len(match.ops) > 1:
        return False
    return all(
        v.type.quant is not None and v.type.quant.same_map(match.result)
        for s, v in match.codes
        if s in traits.same_params
    )


def _bias_fits(match: Match) -> bool:
    """A bias can be added to the accumulator only if it counts in the accumulator's unit."""
    head = match.ops[0]
    codes = dict(match.codes)
    slot = spec(head.op).traits.bias
    if slot is None or slot not in codes:
        return True
    if head.op == "gemm" and (head.attrs["alpha"], head.attrs["beta"]) != (1.0, 1.0):
        return False
    bias = codes[slot]
    quant = bias.type.quant
    if bias.constant is None or quant is None or quant.storage != I32 or np.any(quant.zeros()):
        return False
    wanted = accumulator_scale(head, codes)
    return wanted is not None and np.array_equal(
        np.broadcast_to(wanted, np.broadcast_shapes(wanted.shape, np.shape(quant.scales()))),
        np.broadcast_to(
            quant.scales(), np.broadcast_shapes(wanted.shape, np.shape(quant.scales()))
        ),
    )


def accumulator_scale(node: Node | Stage, codes: dict[str, Value]) -> np.ndarray | None:
    """fl32(input scale x weight scale): what one step of an accumulator means."""
    traits = spec(node.op).traits
    x, w = codes[traits.data].type.quant, codes[traits.weight or ""].type.quant
    if x is None or w is None:
        return None
    return np.asarray(np.float32(x.scales()) * np.asarray(w.scales(), np.float32))


def _fuse(graph: Graph, match: Match) -> None:
    head, quantize = match.ops[0], match.quantize
    operands = {slot: _raw(graph, head, slot, value) for slot, value in match.codes}
    kind = quantize.result.type
    if len(match.ops) == 1:
        node = graph.add(
            head.op,
            operands,
            head.attrs,
            types=[kind],
            before=quantize,
            origins=head.origins,
            profile=head.profile,
        )
    else:
        stages = [
            Stage(
                n.op,
                n.attrs,
                tuple(n.operands) if i == 0 else (),
                "x" if i else None,
                None,
                n.name,
                n.origins,
            )
            for i, n in enumerate(match.ops)
        ]
        node = graph.add_chain(stages, operands, kind, before=quantize, profile=head.profile)
    for slot, value in head.operands.items():
        if value.node.op == "dequantize":
            node.slot_origins[slot] = value.node.origins
    node.slot_origins["result"] = quantize.origins
    old = quantize.result
    name, lineage = old.name, old.lineage
    graph.replace(old, node.result)
    graph.remove(quantize)
    graph.rename(node.result, name)
    graph.set_lineage(node.result, lineage)


def _raw(graph: Graph, node: Node, slot: str, value: Value) -> Value:
    """A bias in accumulator units is plain i32: its slot says what it means."""
    if slot != spec(node.op).traits.bias or value.constant is None:
        return value
    data = value.constant
    raw = Array(data.data, TensorType(data.type.shape, I32), data.name)
    made = graph.constant(raw, name=graph.fresh(f"{value.name}.raw"), before=node)
    graph.set_origins(made.node, value.node.origins)
    graph.set_lineage(made, value.lineage)
    return made
