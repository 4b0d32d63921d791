"""Infers which tensors a runtime keeps in channels_last, and rewrites the graph to that layout.

Convolutions return channels_last tensors. Other kernels return the layout of their first operand,
unless `result_strides` has a rule of their own. Where a layout changes which kernel runs, or how it
rounds, the graph has to state it.
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
from qir.passes.layout.regions import PermutedRegions
from qir.rewrite.axis_permutation import SPATIAL
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.preparation import Preparation
from qir.rewrite.resize_axes import RESIZES, name_axes

from .element_order import is_order_independent
from .misplaced_channels import MisplacedKernels, read_as_nchw
from .result_strides import (
    Operand,
    StridedKernel,
    requantized,
    result_strides,
    unpredicted_reason,
)
from .strides import (
    Sizes,
    Strides,
    contiguous_run,
    contiguous_strides,
    has_ambiguous_layout,
    is_contiguous,
    squeezed,
    suggests_channels_last,
    unsqueezed,
    viewed,
)
from .volumes import concat_as_volumes, mean_as_images

_RETURNS_CHANNELS_LAST = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm "
    "avg_pool3d".split()
)
"""Kernels that return channels_last tensors whatever they read."""
_AS_IMAGE_OPS = frozenset("max_pool1d avg_pool1d adaptive_avg_pool global_avg_pool".split())
"""Kernels of 3-D tensors that torch computes as images of height 1."""
_MEAN_OPS = frozenset("avg_pool1d global_avg_pool adaptive_avg_pool reduce_mean".split())
"""Ops that add their operand's elements: each layout has a kernel of its own."""
_NORM_OPS = frozenset({"instance_norm", "group_norm", "softmax"})
"""Ops whose kernels are wrong for some layouts."""
_WINDOW_MEANS = frozenset({"avg_pool1d", "avg_pool2d"})
"""Average pools with a kernel for each layout."""
_VIEW_OPS = frozenset({"reshape", "flatten"})
"""Ops that return a view where strides allow it."""
_BINARY_OPS = frozenset("add sub mul div".split())
"""Ops that go through two operands of different layouts by TensorIterator."""
_UNKNOWN_SIZES = "it misplaces values where sizes are not known"
_ASSUMED_SIZE = 3
"""Stands for an unknown dimension: above 1, so that its axis counts."""


def apply_layout(graph: Graph, prepared: Preparation, *, misplaced_clips: bool) -> int:
    """Converts every channels_last tensor to NHWC; returns how many ops changed."""
    ledger, name = prepared.ledger, prepared.name
    named = sum(name_axes(graph, node) for node in list(graph) if node.op in RESIZES)
    # 1-D means change the graph, so they are rewritten before the layout is inferred for good.
    image_means = _rewrite_1d_means(graph, prepared, misplaced_clips)
    layout = inferred_layout(graph, prepared, misplaced_clips)
    for node, reason in layout.unpredicted:
        ledger.add(Change.UNVERIFIED, name, node.name, reason)
    # Bytes written as channels_last but read as NCHW: the graph states the permutation.
    for node in (*layout.moved, *layout.clips):
        read_as_nchw(graph, node.result)
    for node in map(_computing_node, layout.moved):
        reason = (
            "it reads what is both ways in memory: its values are moved as channels_last to where "
        )
        ledger.add(
            Change.APPROXIMATED, name, node.name, f"{reason}they are read with channels second"
        )
    for node in map(_computing_node, layout.clips):
        reason = "it clips in memory order, and reads the result as if it were channels first"
        ledger.add(Change.APPROXIMATED, name, node.name, reason)
    count = 0
    if layout.nhwc_nodes:
        _separate_dequantizes(graph, layout)
        count = PermutedRegions(graph, name, "nhwc", ledger, frozenset(layout.nhwc_nodes)).run()
        reason = (
            f"{count} {'op reads or gives' if count == 1 else 'ops read or give'}"
            " what is channels_last in memory"
        )
        if count:
            ledger.add(Change.EXACT, name, graph.name, reason)
    return (
        named
        + image_means
        + count
        + sum(concat_as_volumes(graph, node) for node in layout.plain_concats)
    )


def _rewrite_1d_means(graph: Graph, prepared: Preparation, misplaced_clips: bool) -> int:
    """Rewrites 1-D means of channels_last tensors as means of images; returns how many."""
    if not any(
        _first_op(n) in _AS_IMAGE_OPS and n.result.type.rank == 3
        for n in graph
        if n.results
        # Images of height 1 have a kernel for channels_last; 3-D tensors have no such layout.
    ):
        return 0
    layout = inferred_layout(graph.copy(), replace(prepared, ledger=Ledger()), misplaced_clips)
    mean_names = {node.name for node in layout.image_means}
    return sum(mean_as_images(graph, node) for node in list(graph) if node.name in mean_names)


def inferred_layout(graph: Graph, prepared: Preparation, misplaced_clips: bool) -> LayoutInference:
    """Returns the layout of every tensor of a graph."""
    convertible = PermutedRegions(graph, prepared.name, "nhwc", prepared.ledger).turnable()
    layout = LayoutInference(graph, convertible, misplaced_clips, prepared.wrap)
    layout.infer()
    return layout


@dataclass
class LayoutInference:
    """The strides of a graph's values, and the nodes that change for them."""

    graph: Graph
    convertible: Mapping[Node, frozenset[str]]
    """The nodes that can be NHWC, with the slots that change with them."""
    has_misplaced_clips: bool
    """Whether clips write integers to other positions, as QNNPACK's do."""
    wrap: Callable[[Graph], object]
    strides: dict[Value, Strides] = field(default_factory=dict)
    nhwc_nodes: set[Node] = field(default_factory=set)
    clips: list[Node] = field(default_factory=list)
    """Nodes that make the integers of such clips."""
    moved: list[Node] = field(default_factory=list)
    """Nodes that make integers which are written in one layout and read in another."""
    plain_concats: list[Node] = field(default_factory=list)
    """Concats that do not join the channels of channels_last tensors."""
    image_means: list[Node] = field(default_factory=list)
    """1-D means of channels_last tensors, which torch computes as images."""
    unpredicted: list[tuple[Node, str]] = field(default_factory=list)
    """Nodes whose result is not predicted, and why."""

    def infer(self) -> None:
        """Computes the strides of all values, in one pass over the graph."""
        states_nhwc = any(map(_states_nhwc, self.graph))
        misplaced = MisplacedKernels(self.graph, self.has_misplaced_clips, self.wrap)
        # One pass in topological order: operands' strides are known before those of results.
        for node in list(self.graph):
            may_misplace = misplaced.may_misplace(_first_op(node), node)
            # A tensor that both layouts describe: the kernel chosen for it may write its result
            # as the other one.
            if (
                may_misplace or _first_op(node) == "global_avg_pool"
            ) and self._reads_ambiguous_layout(node):
                misplaced.ambiguous_nodes |= {node} if may_misplace else set()
                self._use_channels_last_kernel(node)
            for value in node.results:
                if value.type.rank:
                    self.strides[value] = self._result_strides(node, value)
            is_channels_last = bool(node.results) and all(map(self._is_channels_last, node.results))
            if is_channels_last and node in self.convertible and self._becomes_nhwc(node):
                self.nhwc_nodes.add(node)
            if is_channels_last and self.has_misplaced_clips and _is_clipped(node):
                self._add_misplaced_clip(node)
                self.strides[node.result] = contiguous_strides(_sizes(node.result))
            if misplaced.misplaces(node):
                self._add_misplaced(node, self.moved)
            if self._has_other_runs(node) and not is_order_independent(node, self.wrap):
                self.unpredicted.append((node, self._why_unpredicted(node)))
            if reason := self._why_mean_unpredicted(node) or self._why_norm_unpredicted(node):
                self.unpredicted.append((node, reason))
            if (
                _first_op(node) == "concat"
                and not states_nhwc
                and not self._joins_channels_as_stated(node)
            ):
                self.plain_concats.append(node)

    def _becomes_nhwc(self, node: Node) -> bool:
        """Returns whether a node with a channels_last result is stated as NHWC, too."""
        if _first_op(node) in _RETURNS_CHANNELS_LAST:
            return _first_op(node) in SPATIAL
        return all(_is_quantized(v) or v.node in self.nhwc_nodes for v in _data_operands(node))

    def _is_channels_last(self, value: Value) -> bool:
        """Returns whether a value is channels_last."""
        strides = self.strides.get(value)
        return strides is not None and suggests_channels_last(_sizes(value), strides)

    def _strides_of(self, value: Value) -> Strides:
        """Returns the strides of an operand; constants are contiguous."""
        return self.strides.get(value) or contiguous_strides(_sizes(value))

    def _result_strides(self, node: Node, value: Value) -> Strides:
        """Returns the strides of a result."""
        sizes, tensors = _sizes(value), [v for v in node.operands.values() if v.type.rank]
        # Views come first, as their strides follow from the operand's alone.
        if tensors and (view := self._view_strides(node, tensors[0], sizes)) is not None:
            return view
        if not tensors or _states_nhwc(node):
            return contiguous_strides(sizes)  # such a graph says it already
        if spec(_first_op(node)).traits.elementwise or _first_op(node) in _BINARY_OPS:
            # The first float operand of the result's shape gives the layout: a float op ends the
            # kernel there.
            for operand in tensors:
                if (
                    not _is_quantized(operand)
                    and not _is_constant(operand)
                    and operand.type.shape == value.type.shape
                ):
                    return self._strides_of(operand)  # what ends a kernel
        return result_strides(self._kernel(node, value))

    def _kernel(self, node: Node, value: Value) -> StridedKernel:
        """Returns the kernel of a node. Constants of one element are no tensors for it, but
        scalars."""
        op, tensors = _first_op(node), [v for v in node.operands.values() if v.type.rank]
        data = [v for v in tensors if not _is_constant(v) or prod(_sizes(v)) > 1] or tensors
        attrs = node.stages[0].attrs if node.stages else node.attrs
        return StridedKernel(
            op,
            attrs,
            [Operand(_sizes(v), self._strides_of(v)) for v in data],
            _sizes(value),
            self.has_misplaced_clips and _storage(data[0]) == U8,
            _has_softmax_type(value),
        )

    def _view_strides(self, node: Node, x: Value, sizes: Sizes) -> Strides | None:
        """Returns the strides of a view; None for ops that allocate their result."""
        strides, attrs = self._strides_of(x), node.attrs
        if node.op == "quantize" and x.node.op == "dequantize":
            return requantized(sizes, strides)
        if node.op in ("quantize", "dequantize", "split", "identity", "dropout"):
            return strides
        if node.op == "flatten" and attrs["axis"] == 1 and len(strides) == 2:
            return strides
        if node.op == "unsqueeze":
            return unsqueezed(_sizes(x), strides, _int_tuple(attrs["axes"]))
        if node.op == "squeeze":
            return squeezed(_sizes(x), strides, _int_tuple(attrs["axes"]))
        if node.op in _VIEW_OPS:
            return viewed(_sizes(x), strides, sizes)
        if node.op == "transpose" and isinstance(perm := attrs["perm"], tuple):
            return tuple(strides[axis] for axis in perm if isinstance(axis, int))
        if node.op == "slice":
            # A view's stride is the operand's, times the step, along each sliced axis.
            step_by_axis = dict(
                zip(_int_tuple(attrs["axes"]), _int_tuple(attrs["steps"]), strict=True)
            )
            rank = len(strides)
            return tuple(
                s * step_by_axis.get(a, step_by_axis.get(a - rank, 1))
                for a, s in enumerate(strides)
            )
        return None

    def _has_other_runs(self, node: Node) -> bool:
        """Returns whether an elementwise kernel computes other vectors than the graph states.

        Elements left over after vectors may be rounded differently.
        """
        op = _first_op(node)
        data = [
            v for v in node.operands.values() if v.type.rank and (_is_quantized(v) or op != "prelu")
        ]
        data = data[:1] if op == "prelu" else data
        # PReLU's slope is no operand that the vector loop reads.
        is_pointwise = op in _BINARY_OPS or spec(op).traits.elementwise
        if node.stages or op in ACTIVATIONS or not is_pointwise:
            return False
        if not data or not all(map(_is_quantized, data)) or op == "quantize":
            return False
        sizes, channels_last = _sizes(node.result), node in self.nhwc_nodes
        stated = [
            (n, contiguous_strides(n, channels_last=channels_last and len(n) == len(sizes)))
            for n in map(_sizes, data)
        ]
        actual = [(_sizes(v), self._strides_of(v)) for v in data]
        run = contiguous_run(sizes, self.strides[node.result], actual)
        # Vectors run along the contiguous elements; another run length means other left-over
        # elements.
        return run != contiguous_run(
            sizes, contiguous_strides(sizes, channels_last=channels_last), stated
        )

    def _why_mean_unpredicted(self, node: Node) -> str:
        """Returns why a mean of data in another layout is not predicted; empty where it is."""
        op = _first_op(node)
        x = next(iter(node.operands.values()), None)
        if op not in _MEAN_OPS or _states_nhwc(node) or x is None or not _is_quantized(x):
            return ""
        sizes, strides = _sizes(x), self._strides_of(x)
        u8_first = self.has_misplaced_clips and _storage(x) == U8
        if op == "reduce_mean":
            is_plain = is_contiguous(sizes, strides) or (
                u8_first and node.attrs.get("axes") == (2, 3)
            )
            return "" if is_plain else "it adds floats of another layout: not predicted"
        channels_last = is_contiguous(sizes, strides, channels_last=True)
        if len(sizes) == 5 and set(_sizes(node.result)[2:]) == {1}:
            is_known = is_contiguous(sizes, strides) or (channels_last and op == "global_avg_pool")
            return "" if is_known else "it adds floats of another layout: not predicted"
        has_other_kernel = channels_last and not is_contiguous(sizes, strides)
        parts = op == "adaptive_avg_pool"
        own = u8_first and (not parts or _are_equal_parts(node))
        states_other_kernel = len(sizes) > 4 or (len(sizes) == 4 and node in self.nhwc_nodes)
        if own or not has_other_kernel or (states_other_kernel and not parts):
            return ""
        if len(sizes) == 3 and not self.has_misplaced_clips:
            self.image_means.append(node)
        return "its data have channels last, for which there is another kernel: not predicted"

    def _why_norm_unpredicted(self, node: Node) -> str:
        """Returns why a norm or softmax is not predicted; empty where it is."""
        data = [v for v in node.operands.values() if v.type.rank]
        if (
            _first_op(node) not in _NORM_OPS
            or _states_nhwc(node)
            or not data
            or not _is_quantized(data[0])
        ):
            return ""
        return unpredicted_reason(self._kernel(node, node.result))

    def _why_unpredicted(self, node: Node) -> str:
        data = _data_operands(node)
        if len({self._is_channels_last(v) for v in data}) > 1:
            return "its operands have two layouts: not predicted"
        if any(map(self._is_channels_last, data)) and not self._is_channels_last(node.result):
            return "it reads channels last and writes channels first: not predicted"
        return "its operand has another layout, or gaps: not predicted"

    def _joins_channels_as_stated(self, node: Node) -> bool:
        """Returns whether a concat of images is the kernel that the graph states.

        The kernel for channels_last joins the last axis; so does the second axis, of one channel or
        one pixel.
        """
        (value,), axis = node.results, node.attrs["axis"] if not node.stages else 0
        if value.type.rank != 4 or not isinstance(axis, int):
            return True
        axis, is_nhwc = axis % 4, node in self.nhwc_nodes
        operands = [Operand(_sizes(v), self._strides_of(v)) for v in node.operands.values()]
        joins_in_memory = axis == 1 and all(x.is_channels_last for x in operands)
        # Where the axis is in memory: NHWC moves axis 1 to the end.
        stated_axis = (0, 3, 1, 2)[axis] if is_nhwc else axis
        stated_sizes = [
            tuple(x.sizes[a] for a in ((0, 2, 3, 1) if is_nhwc else range(4))) for x in operands
        ]
        states_joining = stated_axis == 3 or (
            stated_axis == 1 and all(n[1] == 1 or prod(n[2:]) == 1 for n in stated_sizes)
        )
        if joins_in_memory and not states_joining:
            self.unpredicted.append((node, "it joins channels in memory order: not predicted"))
        return joins_in_memory or not states_joining

    def _add_misplaced_clip(self, node: Node) -> None:
        """Records a clip whose result is read from other positions than it was written to."""
        if node in self.nhwc_nodes:
            self._add_misplaced(node, self.clips)
        else:
            self.unpredicted.append((_computing_node(node), _UNKNOWN_SIZES))

    def _reads_ambiguous_layout(self, node: Node) -> bool:
        """Returns whether both layouts describe the data that an op reads."""
        data = [] if _states_nhwc(node) else _data_operands(node)[:1]
        return any(
            _is_quantized(v) and has_ambiguous_layout(_sizes(v), self._strides_of(v)) for v in data
        )

    def _use_channels_last_kernel(self, node: Node) -> None:
        """States NHWC where data have both layouts, and torch selects the channels_last kernel."""
        op, (x, *_), use = _first_op(node), _data_operands(node), node.result.only_use
        has_own_kernel = op in _WINDOW_MEANS and _sizes(x)[1] > 1
        has_own_kernel = has_own_kernel or (
            op == "resize" and _int_tuple(node.attrs["axes"]) in ((), (2, 3))
        )
        has_own_kernel = has_own_kernel or (
            op == "global_avg_pool" and not is_contiguous(_sizes(x), self._strides_of(x))
        )
        quantize = use.node if use is not None and node.result.type.quant is None else node
        if not has_own_kernel or (quantize is not node and quantize.op != "quantize"):
            return
        if x.type.rank == 3:
            self.image_means.append(node)
        elif {node, quantize} <= self.convertible.keys():
            self.nhwc_nodes |= {node, quantize}
        else:
            reason = "its operand has both layouts, and another kernel reads it: not predicted"
            self.unpredicted.append((node, reason))

    def _add_misplaced(self, node: Node, recorded: list[Node]) -> None:
        """Records integers that are read as if they were NCHW, if their sizes are known."""
        if dims.known_shape(node.result.type.shape[1:]) is None or not node.result.uses:
            self.unpredicted.append((_computing_node(node), _UNKNOWN_SIZES))
            return
        self.strides[node.result] = contiguous_strides(_sizes(node.result))
        recorded.append(node)


def _is_clipped(node: Node) -> bool:
    """Returns whether a node makes the result of a u8 clip kernel, which keeps the scale.

    A clip between two scales is computed in float.
    """
    if len(node.results) > 1:
        return False
    quant = node.result.type.quant
    clip = _computing_node(node)
    if quant is None or _first_op(clip) != "clip" or len(clip.stages) > 1:
        return False
    return quant.storage == U8 and _integers_of(_data_operands(clip)[0]).type.quant == quant


def _computing_node(node: Node) -> Node:
    """Returns the node whose result a quantize quantizes; other nodes themselves."""
    return node.operands["x"].node if node.op == "quantize" else node


def _first_op(node: Node) -> str:
    """Returns what a node computes first."""
    return node.stages[0].op if node.stages else node.op


def _is_quantized(value: Value) -> bool:
    """Returns whether a kernel reads a value as integers."""
    return value.type.quant is not None or value.node.op == "dequantize"


def _storage(value: Value) -> DType | None:
    integers = _integers_of(value)
    return integers.type.quant.storage if integers.type.quant else None


def _integers_of(value: Value) -> Value:
    """Returns what a dequantize reads, or the value itself."""
    return value.node.operands["x"] if value.node.op == "dequantize" else value


def _has_softmax_type(value: Value) -> bool:
    """Returns whether the integers of a value have scale 1/256 and zero point 0."""
    use = value.only_use
    quantized = use.node.result if use is not None and use.node.op == "quantize" else value
    quant = quantized.type.quant
    if quant is None or quant.scale is None or quant.zero is None:
        return False
    return bool(np.all(quant.scales() == 1 / 256)) and not np.any(quant.zeros())


def _data_operands(node: Node) -> list[Value]:
    """Returns the operands that are activations: not constant, and of the result's rank."""
    rank = node.results[0].type.rank
    return [v for v in node.operands.values() if v.type.rank == rank and not _is_constant(v)]


def _sizes(value: Value) -> Sizes:
    """Returns the shape, with an assumed size for each unknown dimension."""
    names = dict.fromkeys(dims.names(value.type.shape), _ASSUMED_SIZE)
    bound = (dims.bind(size, names) for size in value.type.shape)
    return tuple(size if isinstance(size, int) else _ASSUMED_SIZE for size in bound)


def _are_equal_parts(node: Node) -> bool:
    """Returns whether the means of parts are of as many elements each, as QNNPACK computes them."""
    parts = _int_tuple(node.attrs["size"])
    sides = node.operands["x"].type.shape[-len(parts) :]
    return all(isinstance(n, int) and n % m == 0 for n, m in zip(sides, parts, strict=True))


def _int_tuple(value: Attr) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _states_nhwc(node: Node) -> bool:
    """Returns whether a node's own layout attribute is NHWC."""
    attrs = (node.attrs, *(stage.attrs for stage in node.stages))
    return any(attributes.get("layout") == "NHWC" for attributes in attrs)


def _is_constant(value: Value) -> bool:
    source = value.node.operands["x"] if value.node.op == "dequantize" else value
    return source.constant is not None


def _separate_dequantizes(graph: Graph, layout: LayoutInference) -> None:
    """Gives nodes that become NHWC a dequantize of their own, and the others the existing one."""
    for node in [n for n in graph if n.op == "dequantize" and n.result.type.rank in (4, 5)]:
        uses = sorted(node.result.uses, key=lambda use: use.node)
        turning = [
            u for u in uses if u.node in layout.nhwc_nodes and u.slot in layout.convertible[u.node]
        ]
        layout.nhwc_nodes.discard(node)
        if not turning or node not in layout.convertible:
            continue
        separate = node
        if len(turning) < len(uses):
            name = graph.fresh(node.result.name)
            separate = graph.add("dequantize", node.operands, node.attrs, name=name, before=node)
            graph.set_origins(separate, node.origins)
            graph.set_lineage(separate.result, node.result.lineage)
            for reader, slot in turning:
                graph.set_operand(reader, slot, separate.result)
        layout.nhwc_nodes.add(separate)
