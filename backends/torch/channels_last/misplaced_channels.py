"""Predicts kernels that write channels_last data into a tensor that is then read as NCHW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qir.ir import dims
from qir.ir.dtype import I64, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType
from qir.rewrite.axis_permutation import perm_to

_MISPLACING_OPS = frozenset(
    "max_pool2d avg_pool2d max_pool1d avg_pool1d adaptive_avg_pool max_pool3d avg_pool3d resize "
    "resize_nearest instance_norm group_norm".split()
)
"""Kernels that ask an operand's layout in one way to compute, in another way to allocate the
result."""
_IMAGE_NORMS = frozenset({"instance_norm", "group_norm"})
"""Those that do so for images alone."""
_QNNPACK_POOLS = frozenset("max_pool2d avg_pool2d max_pool1d avg_pool1d".split())
"""Those that QNNPACK computes for u8, correctly."""


@dataclass
class MisplacedKernels:
    """The kernels of a graph that read a tensor of ambiguous layout, and misplace their results."""

    graph: Graph
    u8_first: bool
    wrap: Callable[[Graph], object]
    ambiguous_nodes: set[Node] = field(default_factory=set)
    """Nodes that read such a tensor."""
    _codes: set[str] | None = None
    """The results of kernels. A graph that follows the profile says itself how its own are read."""

    def may_misplace(self, op: str, node: Node) -> bool:
        """Returns whether a node's kernel is one of these."""
        if op in _IMAGE_NORMS and node.result.type.rank != 4:
            return False
        return op in _MISPLACING_OPS and not (self.u8_first and _is_qnnpack_pool(op, node))

    def misplaces(self, node: Node) -> bool:
        """Returns whether a node makes the integers of such a kernel, if it is a kernel at all."""
        producer = node.operands["x"].node if node.op == "quantize" else node
        if (
            producer not in self.ambiguous_nodes
            or len(node.results) > 1
            or node.result.type.quant is None
        ):
            return False
        shape = dims.known_shape(node.result.type.shape[1:])
        # With one channel or one pixel both layouts have the same bytes.
        if shape is not None and (shape[0] == 1 or set(shape[1:]) == {1}):
            return False
        if self._codes is None:
            grouped = self.graph.copy()
            self.wrap(grouped)
            # Under the profile that is followed already, only kernels that grouping adds count.
            same_profile = grouped.profile == self.graph.profile
            self._codes = _kernel_results(grouped) - (
                _kernel_results(self.graph) if same_profile else set()
            )
        return node.result.name in self._codes


def _kernel_results(graph: Graph) -> set[str]:
    return {value.name for node in graph if node.op != "quantize" for value in node.results}


def _is_qnnpack_pool(op: str, node: Node) -> bool:
    """Returns whether QNNPACK computes a pool."""
    x = next(iter(node.operands.values()))
    quant = (x.node.operands["x"] if x.node.op == "dequantize" else x).type.quant
    attrs = (node.attrs, *(stage.attrs for stage in node.stages))
    ceil = op.startswith("max") and any(attributes.get("ceil") for attributes in attrs)
    return op in _QNNPACK_POOLS and not ceil and quant is not None and quant.storage == U8


def read_as_nchw(graph: Graph, value: Value) -> None:
    """Lets all consumers of a value read its channels_last bytes as if they were NCHW."""
    uses = sorted(value.uses, key=lambda use: use.node)
    perm, first_user = perm_to("nhwc", value.type.rank), uses[0].node
    name = graph.fresh(value.name)
    # NHWC bytes as an NCHW shape: transpose to memory order, then reshape to the stated sizes.
    transposed = graph.add(
        "transpose", {"x": value}, {"perm": perm}, name=name, before=first_user
    ).result
    shape = dims.known_shape(value.type.shape[1:]) or ()
    sizes = np.array((0, *shape), np.int64)
    shape_array = Array(sizes, TensorType(sizes.shape, I64), f"{name}.shape")
    shape_value = graph.constant(shape_array, name=graph.fresh(shape_array.name), before=first_user)
    misread = graph.add(
        "reshape", {"x": transposed, "shape": shape_value}, name=name, before=first_user
    ).result
    for user, slot in uses:
        graph.set_operand(user, slot, misread)


__all__ = ["MisplacedKernels", "read_as_nchw"]
