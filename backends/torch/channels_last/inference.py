"""Rewrites a graph to the memory layout of a runtime whose convolutions return channels_last.

What a kernel gives is as its first operand does, unless the kernel brings its own order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ledger import Change, Ledger
from qir.passes.layout.regions import Turning
from qir.rewrite.axis_permutation import SPATIAL
from qir.rewrite.preparation import Preparation
from qir.rewrite.resize_axes import RESIZES, name_axes

from .element_order import in_any_order
from .misplaced_channels import Misplaced, read_plain
from .result_strides import (
    Read,
    StridedKernel,
    requantized,
    result_steps,
    unpredicted,
)
from .strides import (
    Sizes,
    Steps,
    both,
    dense,
    fills,
    run,
    squeezed,
    suggests_last,
    unsqueezed,
    viewed,
)
from .volumes import as_images, as_volumes

_LAST = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm "
    "avg_pool3d".split()
)
"""Kernels that give channels-last tensors, whatever they read."""
_LINES = frozenset("max_pool1d avg_pool1d adaptive_avg_pool global_avg_pool".split())
"""Those on rows, which are images of one row."""
_MEANS = frozenset("avg_pool1d global_avg_pool adaptive_avg_pool reduce_mean".split())
"""Ops that add what they read, each order by a kernel of its own."""
_NORMS = frozenset({"instance_norm", "group_norm", "softmax"})
"""Ops whose kernels go wrong on some orders."""
_WINDOWS = frozenset({"avg_pool1d", "avg_pool2d"})
"""Pools of which each order has a kernel."""
_VECTOR = 16
"""Means of fewer channels, no vector, are alike in either order."""
_SAME = frozenset({"relu", "clip"})
"""Ops that give the same in any order."""
_VIEWS = frozenset({"reshape", "flatten"})
"""Ops that give other shapes to what is where it is, if that can be."""
_PAIRS = frozenset("add sub mul div".split())
"""Ops that go from element to element where their operands are in two orders."""
_OPEN = "it misplaces values where sizes are not known"
_SOME = 3
"""What stands for a size that nobody knows."""


def lay_out(graph: Graph, prepared: Preparation, *, misplaced_clips: bool) -> int:
    """Turns all that is channels_last to NHWC; says how many ops changed."""
    ledger, name = prepared.ledger, prepared.name
    named = sum(name_axes(graph, node) for node in list(graph) if node.op in RESIZES)
    rows = _as_images(graph, prepared, misplaced_clips)
    order = found(graph, prepared, misplaced_clips)
    for node, said in order.unknown:
        ledger.add(Change.UNVERIFIED, name, node.name, said)
    for node in (*order.moved, *order.clips):
        read_plain(graph, node.result)
    for node in map(_computes, order.moved):
        said = (
            "it reads what is both ways in memory: its values are moved as channels_last to where "
        )
        ledger.add(
            Change.APPROXIMATED, name, node.name, f"{said}they are read with channels second"
        )
    for node in map(_computes, order.clips):
        said = "it clips in memory order, and reads the result as if it were channels first"
        ledger.add(Change.APPROXIMATED, name, node.name, said)
    count = 0
    if order.turned:
        _part(graph, order)
        count = Turning(graph, name, "nhwc", ledger, frozenset(order.turned)).run()
        said = (
            f"{count} {'op reads or gives' if count == 1 else 'ops read or give'}"
            " what is channels_last in memory"
        )
        if count:
            ledger.add(Change.EXACT, name, graph.name, said)
    return named + rows + count + sum(as_volumes(graph, node) for node in order.joined)


def _as_images(graph: Graph, prepared: Preparation, misplaced_clips: bool) -> int:
    """Says means along lines that are channels_last of images, which turn; how many."""
    if not any(_op(n) in _LINES and n.result.type.rank == 3 for n in graph if n.results):
        return 0
    order = found(graph.copy(), replace(prepared, ledger=Ledger()), misplaced_clips)
    rows = {node.name for node in order.rows}
    return sum(as_images(graph, node) for node in list(graph) if node.name in rows)


def found(graph: Graph, prepared: Preparation, misplaced_clips: bool) -> LayoutInference:
    """Returns where all of a graph is."""
    can = Turning(graph, prepared.name, "nhwc", prepared.ledger).turnable()
    order = LayoutInference(graph, can, misplaced_clips, prepared.wrap)
    order.find()
    return order


@dataclass
class LayoutInference:
    """Where the elements of a graph's values are, and what turns for it."""

    graph: Graph
    can: Mapping[Node, frozenset[str]]
    """What can turn, and the slots that turn with it."""
    misplaces: bool
    """Whether clips write quantized values to other places, as QNNPACK's do."""
    wrap: Callable[[Graph], object]
    steps: dict[Value, Steps] = field(default_factory=dict)
    turned: set[Node] = field(default_factory=set)
    clips: list[Node] = field(default_factory=list)
    """What gives the quantized values of those that did."""
    moved: list[Node] = field(default_factory=list)
    """What gives quantized values that are written in another order than they are read in."""
    joined: list[Node] = field(default_factory=list)
    """What joins no channels of tensors that are channels_last."""
    rows: list[Node] = field(default_factory=list)
    """Means along lines that are channels_last: torch's of images of one row."""
    unknown: list[tuple[Node, str]] = field(default_factory=list)
    """What is not predicted, and why."""

    def find(self) -> None:
        """Goes through the graph once."""
        said = any(map(_says, self.graph))
        both_ways = Misplaced(self.graph, self.misplaces, self.wrap)
        for node in list(self.graph):
            makes = both_ways.makes(_op(node), node)
            if (makes or _op(node) == "global_avg_pool") and self._both(node):
                both_ways.off |= {node} if makes else set()
                self._take_last(node)
            for value in node.results:
                if value.type.rank:
                    self.steps[value] = self._made(node, value)
            lies = bool(node.results) and all(map(self._last, node.results))
            if lies and node in self.can and self._turns(node):
                self.turned.add(node)
            if lies and self.misplaces and _clipped(node):
                self._misplace(node)
                self.steps[node.result] = dense(_sizes(node.result))
            if both_ways.writes(node):
                self._read_plain(node, self.moved)
            if self._apart(node) and not in_any_order(node, self.wrap):
                self.unknown.append((node, self._why(node)))
            if said_why := self._mean(node) or self._norm(node):
                self.unknown.append((node, said_why))
            if _op(node) == "concat" and not said and not self._channels(node):
                self.joined.append(node)

    def _turns(self, node: Node) -> bool:
        """Returns whether a node whose result is so is said in that order too."""
        if _op(node) in _LAST:
            return _op(node) in SPATIAL
        return all(_coded(v) or v.node in self.turned for v in _data(node))

    def _last(self, value: Value) -> bool:
        """Returns whether a value is channels_last."""
        steps = self.steps.get(value)
        return steps is not None and suggests_last(_sizes(value), steps)

    def _where(self, value: Value) -> Steps:
        """Where the elements of an operand are; constants are as they are said."""
        return self.steps.get(value) or dense(_sizes(value))

    def _made(self, node: Node, value: Value) -> Steps:
        """Returns where the elements of a result are."""
        sizes, read = _sizes(value), [v for v in node.operands.values() if v.type.rank]
        if read and (found := self._view(node, read[0], sizes)) is not None:
            return found
        if not read or _says(node):
            return dense(sizes)  # such a graph says it already
        if spec(_op(node)).traits.elementwise or _op(node) in _PAIRS:
            for real in read:
                if not _coded(real) and not _held(real) and real.type.shape == value.type.shape:
                    return self._where(real)  # what ends a kernel
        return result_steps(self._kernel(node, value))

    def _kernel(self, node: Node, value: Value) -> StridedKernel:
        """Returns what torch's kernel is asked; numbers are no tensors there."""
        op, every = _op(node), [v for v in node.operands.values() if v.type.rank]
        data = [v for v in every if not _held(v) or prod(_sizes(v)) > 1] or every
        attrs = node.stages[0].attrs if node.stages else node.attrs
        return StridedKernel(
            op,
            attrs,
            [Read(_sizes(v), self._where(v)) for v in data],
            _sizes(value),
            self.misplaces and _storage(data[0]) == U8,
            _units(value),
        )

    def _view(self, node: Node, x: Value, sizes: Sizes) -> Steps | None:
        """Where what an op only views is; None for what it makes."""
        steps, attrs = self._where(x), node.attrs
        if node.op == "quantize" and x.node.op == "dequantize":
            return requantized(sizes, steps)
        if node.op in ("quantize", "dequantize", "split", "identity", "dropout"):
            return steps
        if node.op == "flatten" and attrs["axis"] == 1 and len(steps) == 2:
            return steps
        if node.op == "unsqueeze":
            return unsqueezed(_sizes(x), steps, _ints(attrs["axes"]))
        if node.op == "squeeze":
            return squeezed(_sizes(x), steps, _ints(attrs["axes"]))
        if node.op in _VIEWS:
            return viewed(_sizes(x), steps, sizes)
        if node.op == "transpose" and isinstance(perm := attrs["perm"], tuple):
            return tuple(steps[axis] for axis in perm if isinstance(axis, int))
        if node.op == "slice":
            by = dict(zip(_ints(attrs["axes"]), _ints(attrs["steps"]), strict=True))
            rank = len(steps)
            return tuple(s * by.get(a, by.get(a - rank, 1)) for a, s in enumerate(steps))
        return None

    def _apart(self, node: Node) -> bool:
        """Returns whether a kernel that goes element by element makes other runs than the graph
        says."""
        op = _op(node)
        data = [v for v in node.operands.values() if v.type.rank and (_coded(v) or op != "prelu")]
        data = data[:1] if op == "prelu" else data
        if node.stages or op in _SAME or not (op in _PAIRS or spec(op).traits.elementwise):
            return False
        if not data or not all(map(_coded, data)) or op == "quantize":
            return False
        sizes, last = _sizes(node.result), node in self.turned
        said = [(n, dense(n, last=last and len(n) == len(sizes))) for n in map(_sizes, data)]
        lie = [(_sizes(v), self._where(v)) for v in data]
        found = run(sizes, self.steps[node.result], lie)
        return found != run(sizes, dense(sizes, last=last), said)

    def _mean(self, node: Node) -> str:
        """Returns why a mean is not predicted, if it is not, of data that are in another order."""
        op = _op(node)
        x = next(iter(node.operands.values()), None)
        if op not in _MEANS or _says(node) or x is None or not _coded(x):
            return ""
        sizes, steps = _sizes(x), self._where(x)
        u8_first = self.misplaces and _storage(x) == U8
        if op == "reduce_mean":
            plain = fills(sizes, steps) or (u8_first and node.attrs.get("axes") == (2, 3))
            return "" if plain else "it adds floats of another layout: not predicted"
        last = fills(sizes, steps, last=True)
        if len(sizes) == 5 and set(_sizes(node.result)[2:]) == {1}:
            known = fills(sizes, steps) or (last and op == "global_avg_pool")
            return "" if known else "it adds floats of another layout: not predicted"
        other = last and not fills(sizes, steps)
        if u8_first or not other or (len(sizes) > 3 and op != "adaptive_avg_pool"):
            return ""
        if len(sizes) == 3 and not self.misplaces:
            self.rows.append(node)
        return "its data have channels last, for which there is another kernel: not predicted"

    def _norm(self, node: Node) -> str:
        """Returns why a norm or a softmax is not predicted, if it is not."""
        data = [v for v in node.operands.values() if v.type.rank]
        if _op(node) not in _NORMS or _says(node) or not data or not _coded(data[0]):
            return ""
        return unpredicted(self._kernel(node, node.result))

    def _why(self, node: Node) -> str:
        data = _data(node)
        if len({self._last(v) for v in data}) > 1:
            return "its operands have two layouts: not predicted"
        if any(map(self._last, data)) and not self._last(node.result):
            return "it reads channels last and writes channels first: not predicted"
        return "its operand has another layout, or gaps: not predicted"

    def _channels(self, node: Node) -> bool:
        """Returns whether a concat of images joins channels by their kernel as the graph says of
        them, who takes the last axis for channels, and the second of one channel or element."""
        (value,), axis = node.results, node.attrs["axis"] if not node.stages else 0
        if value.type.rank != 4 or not isinstance(axis, int):
            return True
        axis, turned = axis % 4, node in self.turned
        read = [Read(_sizes(v), self._where(v)) for v in node.operands.values()]
        taken = axis == 1 and all(x.last for x in read)
        at = (0, 3, 1, 2)[axis] if turned else axis
        many = [tuple(x.sizes[a] for a in ((0, 2, 3, 1) if turned else range(4))) for x in read]
        said = at == 3 or (at == 1 and all(n[1] == 1 or prod(n[2:]) == 1 for n in many))
        if taken and not said:
            self.unknown.append((node, "it joins channels in memory order: not predicted"))
        return taken or not said

    def _misplace(self, node: Node) -> None:
        """Puts integers that were clipped in one order to where the other has those places."""
        if node in self.turned:
            self._read_plain(node, self.clips)
        else:
            self.unknown.append((_computes(node), _OPEN))

    def _both(self, node: Node) -> bool:
        """Returns whether what an op reads is both ways in memory."""
        data = [] if _says(node) else _data(node)[:1]
        return any(_coded(v) and both(_sizes(v), self._where(v)) for v in data)

    def _take_last(self, node: Node) -> None:
        """Says what computes with another kernel for channels last so, where data are both ways:
        torch takes that one."""
        op, (x, *_), use = _op(node), _data(node), node.result.only_use
        other = op in _WINDOWS and _sizes(x)[1] >= _VECTOR
        other = other or (op == "resize" and _ints(node.attrs["axes"]) in ((), (2, 3)))
        other = other or (op == "global_avg_pool" and not fills(_sizes(x), self._where(x)))
        codes = use.node if use is not None and node.result.type.quant is None else node
        if not other or (codes is not node and codes.op != "quantize"):
            return
        if x.type.rank == 3:
            self.rows.append(node)
        elif {node, codes} <= self.can.keys():
            self.turned |= {node, codes}
        else:
            said = "its operand has both layouts, and another kernel reads it: not predicted"
            self.unknown.append((node, said))

    def _read_plain(self, node: Node, found: list[Node]) -> None:
        """Notes integers that are read as if channels stood second, where sizes are known."""
        if dims.known_shape(node.result.type.shape[1:]) is None or not node.result.uses:
            self.unknown.append((_computes(node), _OPEN))
            return
        self.steps[node.result] = dense(_sizes(node.result))
        found.append(node)


def _clipped(node: Node) -> bool:
    """Whether a node gives what a kernel clipped, whose u8 values keep their scale; a clip between
    two scales is computed in float."""
    if len(node.results) > 1:
        return False
    quant = node.result.type.quant
    clip = _computes(node)
    if quant is None or _op(clip) != "clip" or len(clip.stages) > 1:
        return False
    return quant.storage == U8 and _quantized(_data(clip)[0]).type.quant == quant


def _computes(node: Node) -> Node:
    """Returns what gives the quantized values that a quantize makes, or another node does."""
    return node.operands["x"].node if node.op == "quantize" else node


def _op(node: Node) -> str:
    """Returns what a node computes first."""
    return node.stages[0].op if node.stages else node.op


def _coded(value: Value) -> bool:
    """Returns whether a kernel reads it as quantized values."""
    return value.type.quant is not None or value.node.op == "dequantize"


def _storage(value: Value) -> DType | None:
    made = _quantized(value)
    return made.type.quant.storage if made.type.quant else None


def _quantized(value: Value) -> Value:
    """What a dequantize reads, or the value itself."""
    return value.node.operands["x"] if value.node.op == "dequantize" else value


def _units(value: Value) -> bool:
    """Returns whether integers are parts of 256 from 0 on, those that a quantize makes of it or its
    own."""
    use = value.only_use
    coded = use.node.result if use is not None and use.node.op == "quantize" else value
    quant = coded.type.quant
    if quant is None or quant.scale is None or quant.zero is None:
        return False
    return bool(np.all(quant.scales() == 1 / 256)) and not np.any(quant.zeros())


def _data(node: Node) -> list[Value]:
    """Returns the operands that are in memory as tensors of data do: no constants, of the result's
    rank."""
    rank = node.results[0].type.rank
    return [v for v in node.operands.values() if v.type.rank == rank and not _held(v)]


def _sizes(value: Value) -> Sizes:
    """Returns the shape, with some number in the place of each that nobody knows."""
    names = dict.fromkeys(dims.names(value.type.shape), _SOME)
    bound = (dims.bind(size, names) for size in value.type.shape)
    return tuple(size if isinstance(size, int) else _SOME for size in bound)


def _ints(value: Attr) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _says(node: Node) -> bool:
    """Returns whether a node says by itself that it has channels last."""
    attrs = (node.attrs, *(stage.attrs for stage in node.stages))
    return any(held.get("layout") == "NHWC" for held in attrs)


def _held(value: Value) -> bool:
    made = value.node.operands["x"] if value.node.op == "dequantize" else value
    return made.constant is not None


def _part(graph: Graph, order: LayoutInference) -> None:
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
