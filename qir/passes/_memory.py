"""Turns a graph as a runtime's tensors lie in memory, where its convolutions put channels last.

What a kernel gives lies as its first operand does, unless the kernel brings its own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from qir.ir import dims
from qir.ir.dtype import I64, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.numerics import Profile
from qir.passes.layout.regions import Turning
from qir.rewrite.resizing import RESIZES, name_axes
from qir.rewrite.turning import SPATIAL, perm_to

_LAST = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm "
    "avg_pool3d".split()
)
"""Kernels that give channels-last tensors, whatever they read."""
_ALIKE = frozenset(
    "quantize dequantize requantize identity dropout cast add sub mul div min max prelu pad concat "
    "max_pool1d avg_pool1d max_pool2d avg_pool2d global_avg_pool adaptive_avg_pool max_pool3d "
    "resize resize_nearest instance_norm group_norm".split()
)
"""Ops whose results lie as what they read, beside all that work element by element."""
_PLAIN = frozenset({"elu", "celu"})
"""Ops that read any order and write the plain one, one element after the other."""
_SAME = frozenset({"relu", "clip"})
"""Ops that give the same in any order."""
_PARTS = frozenset({"split", "slice"})
"""Ops whose results are parts of what they read, with gaps: kernels write them anew in the plain
order, those that go element by element may not."""
_PAIRS = frozenset("add sub mul div".split())
"""Ops that go from element to element where their operands lie in two orders."""


def lay_out(graph: Graph, profile: Profile, ledger: Ledger, name: str) -> int:
    """Turns all that lies with channels last to NHWC; says how many ops changed."""
    named = sum(name_axes(graph, node) for node in list(graph) if node.op in RESIZES)
    can = Turning(graph, name, "nhwc", ledger).turnable()
    order = _Order(graph, can, profile.clips == "misplaced")
    order.find()
    for node, said in order.unknown:
        ledger.add(Change.UNVERIFIED, name, node.name, said)
    for node in order.clips:
        said = "its codes are clipped where they lie, and then read as if channels stood second"
        ledger.add(Change.APPROXIMATED, name, node.name, said)
    if not order.turned:
        return named
    _part(graph, order)
    count = Turning(graph, name, "nhwc", ledger, frozenset(order.turned)).run()
    said = f"{count} ops from its convolutions on lie with channels last in memory: NHWC"
    ledger.add(Change.EXACT, name, graph.name, said)
    return named + count


@dataclass
class _Order:
    """Which values of a graph lie with channels last, and what turns for it."""

    graph: Graph
    can: Mapping[Node, frozenset[str]]
    """What can turn, and the slots that turn with it."""
    misplaces: bool
    """Whether clips write codes to other places."""
    last: dict[Value, bool] = field(default_factory=dict)
    turned: set[Node] = field(default_factory=set)
    clips: list[Node] = field(default_factory=list)
    """Clips that did."""
    unknown: list[tuple[Node, str]] = field(default_factory=list)
    """What is not foreseen, and why."""

    def find(self) -> None:
        """Goes through the graph once."""
        for node in list(self.graph):
            ranks = {value.type.rank for value in node.results}
            if len(ranks) != 1 or ranks.isdisjoint((3, 4, 5)):
                continue
            lies = self._lies(node)
            for value in node.results:
                self.last[value] = lies
            if lies and 3 not in ranks and node in self.can and self._turns(node):
                self.turned.add(node)
            if lies and self.misplaces and _clipped(node):
                self._misplace(node)

    def _turns(self, node: Node) -> bool:
        """Whether a node whose result lies so is said in that order too."""
        if _op(node) in _LAST:
            return _op(node) in SPATIAL
        return all(_coded(v) or v.node in self.turned for v in _data(node))

    def _lies(self, node: Node) -> bool:
        op, data = _op(node), _data(node)
        attrs = (node.attrs, *(stage.attrs for stage in node.stages))
        if not data or any(held.get("layout") == "NHWC" for held in attrs):
            return False  # such a graph says it already
        found = [self.last.get(value, False) for value in data]
        if op in _LAST and _coded(data[0]):
            return True
        apart = {lies for value, lies in zip(data, found, strict=True) if not _either(value)}
        if op in _PAIRS and len(apart) > 1 and all(map(_coded, data)):
            self.unknown.append((node, "its operands lie in two orders in memory: not foreseen"))
        lines = node.results[0].type.rank == 3 and (op in _PAIRS or spec(op).traits.elementwise)
        if op in _PLAIN or (lines and _coded(data[0])):
            if any(found) and _coded(data[0]) and op not in _SAME:
                said = "it reads channels last in memory and writes them second: not foreseen"
                self.unknown.append((node, said))
            return False
        if op in _PARTS:
            if found[0] and any(map(_each, _readers(node))):
                said = "it is a part of what lies with channels last, read one by one: not foreseen"
                self.unknown.append((node, said))
            return False
        if op == "concat":
            return all(lies or _either(v) for v, lies in zip(data, found, strict=True))
        within = (lies for value, lies in zip(data, found, strict=True) if not _coded(value))
        return next(within, found[0]) and (op in _ALIKE | _LAST or spec(op).traits.elementwise)

    def _misplace(self, node: Node) -> None:
        """Puts codes that were clipped in one order to where the other has those places."""
        value, graph = node.result, self.graph
        shape = dims.known(value.type.shape[1:])
        clip = node.operands["x"].node if node.op == "quantize" else node
        uses = sorted(value.uses, key=lambda use: use.node)
        if shape is None or node not in self.turned or not uses:
            self.unknown.append((clip, "it misplaces codes where sizes are not known"))
            return
        perm, at = perm_to("nhwc", value.type.rank), uses[0].node
        name = graph.fresh(value.name)
        moved = graph.add("transpose", {"x": value}, {"perm": perm}, name=name, before=at).result
        sizes = np.array((0, *shape), np.int64)
        held = Array(sizes, TensorType(sizes.shape, I64), f"{name}.shape")
        wanted = graph.constant(held, name=graph.fresh(held.name), before=at)
        read = graph.add("reshape", {"x": moved, "shape": wanted}, name=name, before=at).result
        for user, slot in uses:
            graph.set_operand(user, slot, read)
        self.clips.append(clip)


def _clipped(node: Node) -> bool:
    """Whether a node gives what a clip made of u8 codes."""
    if len(node.results) > 1:
        return False
    quant = node.result.type.quant
    clip = node.operands["x"].node if node.op == "quantize" else node
    if quant is None or _op(clip) != "clip" or len(clip.stages) > 1:
        return False
    return quant.storage == U8 and _coded(_data(clip)[0])


def _readers(node: Node) -> Iterator[Node]:
    """What reads the results of a node, as codes or not."""
    for use in (use for value in node.results for use in value.uses):
        if use.node.op in ("quantize", "dequantize"):
            yield from _readers(use.node)
        else:
            yield use.node


def _each(node: Node) -> bool:
    """Whether a kernel goes element by element, and not the same in any order."""
    op = _op(node)
    return op not in _SAME and (op in _PAIRS or spec(op).traits.elementwise)


def _op(node: Node) -> str:
    """What a node computes first."""
    return node.stages[0].op if node.stages else node.op


def _coded(value: Value) -> bool:
    """Whether a kernel reads it as codes."""
    return value.type.quant is not None or value.node.op == "dequantize"


def _data(node: Node) -> list[Value]:
    """The operands that lie in memory as tensors of data do: no constants, of the result's rank."""
    rank = node.results[0].type.rank
    return [v for v in node.operands.values() if v.type.rank == rank and not _held(v)]


def _either(value: Value) -> bool:
    """Whether channels last and second are one order: of one channel, or of images of one place."""
    sizes = value.type.shape
    return sizes[1] == 1 or set(sizes[2:]) == {1}


def _held(value: Value) -> bool:
    made = value.node.operands["x"] if value.node.op == "dequantize" else value
    return made.constant is not None


def _part(graph: Graph, order: _Order) -> None:
    """Gives kernels that turn a dequantize of their own, and all others the one that was there."""
    for node in [n for n in graph if n.op == "dequantize" and n.result.type.rank in (4, 5)]:
        uses = sorted(node.result.uses, key=lambda use: use.node)
        turning = [u for u in uses if u.node in order.turned and u.slot in order.can[u.node]]
        order.turned.discard(node)
        if not turning or node not in order.can:
            continue
        own = node
        if len(turning) < len(uses):
            name = graph.fresh(node.result.name)
            own = graph.add("dequantize", node.operands, node.attrs, name=name, before=node)
            graph.set_origins(own, node.origins)
            graph.set_lineage(own.result, node.result.lineage)
            for reader, slot in turning:
                graph.set_operand(reader, slot, own.result)
        order.turned.add(own)
