"""Float32 images in NHWC: convolutions with constant weights, pools and means.

The kernels compute the same bytes as those for NCHW. The step of a convolution also computes what
follows it: an activation, then a sum with a value that is there, then relu or clip.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qir.ir.dtype import F32
from qir.ir.node import Node, Value
from qir.records import record

from .activations import clamp_bounds, kernel_function
from .builder import (
    TO_NCHW,
    TO_NHWC,
    CannotLower,
    ProgramBuilder,
    is_noop_transpose,
    permuted,
    sizes,
)
from .kernel_types import Job

MAX_IMAGE_FLOATS = 1 << 30
"""The kernel holds the offsets of a window's values in 32 bits."""
MIN_GROUP_CHANNELS = 16
"""The kernel computes a vector of output channels at a time; a group of fewer would leave it
empty."""

ACTIVATIONS = frozenset(
    {"sigmoid", "tanh", "erf", "gelu", "silu", "hard_sigmoid", "hard_swish", "leaky_relu"}
)
"""Functions that the step of a convolution can apply to its results."""


@record
class ConvEpilogue:
    """What the step of a convolution applies to its results, and the value it computes by that."""

    result: Value
    op: str | None = None
    a: float = 0.0
    b: float = 0.0
    times: bool = False
    added: Value | None = None
    low: float | None = None
    high: float | None = None
    nodes: tuple[str, ...] = ()
    """Names of the nodes that are fused to the convolution."""

    def with_node(self, node: Node, **changes: Any) -> ConvEpilogue:
        """Returns the epilogue with one node more."""
        return replace(self, result=node.result, nodes=(*self.nodes, node.name), **changes)


def can_convolve_nhwc(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether the NHWC kernel computes a convolution."""
    x, w = job.operands["x"], job.operands["w"]
    if b.watched or w.constant is None or x.type.rank != 4 or job.epilogue:
        return False
    bias = job.operands.get("bias")
    if bias is not None and bias.constant is None:
        return False
    oc, depth, _, _ = sizes(w)
    groups = job.int_attr("groups")
    _, c, h, width = sizes(x) if job.nchw else permuted(sizes(x), TO_NCHW)
    top, left, bottom, right = job.pads()
    if not depth or c * (h + top + bottom) * (width + left + right) > MAX_IMAGE_FLOATS:
        return False
    # Dense, depthwise, or with groups wide enough for a vector of output channels.
    return groups == 1 or groups == c == oc or oc // groups >= MIN_GROUP_CHANNELS


def convolution(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution with constant weights, and fuses what follows it."""
    x, w = job.operands["x"], job.operands["w"]
    assert w.constant is not None
    oc, _, kh, kw = sizes(w)
    weights = np.ascontiguousarray(w.constant.data, np.float32).reshape(-1)
    bias_value = job.operands.get("bias")
    bias = None
    if bias_value is not None and bias_value.constant is not None:
        bias = np.ascontiguousarray(bias_value.constant.data, np.float32).reshape(-1)
    epilogue = fused_epilogue(b, job.result)
    shape = sizes(x) if job.nchw else permuted(sizes(x), TO_NCHW)
    stride, pad, dilation = job.int_pair("stride"), job.pads(), job.int_pair("dilation")
    groups = job.int_attr("groups")
    depthwise = groups == shape[1] > 1
    # Depthwise kernels read NHWC alone.
    reads_nchw = job.nchw and not depthwise and not b.has_buffer(x, nhwc=True)
    # A kernel reads an image of few channels in NCHW directly: the first layer saves a transpose.
    reads_nchw = (
        reads_nchw and groups * shape[1] < MIN_GROUP_CHANNELS
    )  # others are put in order once
    source = b.buffer(x, nhwc=job.nchw and not reads_nchw)
    added = None if epilogue.added is None else b.buffer(epilogue.added, nhwc=job.nchw)
    target = b.allocate(epilogue.result, nhwc=job.nchw)
    result_sizes = sizes(epilogue.result)
    b.add(
        job.name,
        "float_conv2d",
        [source] if added is None else [source, added],
        [target],
        permuted(result_sizes, TO_NHWC) if job.nchw else result_sizes,
        lambda plan, at: plan.float_last_conv2d(
            job.name,
            at(source),
            at(target),
            weights,
            bias,
            shape=shape,
            kernel=(oc, kh, kw),
            stride=stride,
            pad=pad,
            dilation=dilation,
            groups=groups,
            first=reads_nchw,
            op=epilogue.op,
            a=epilogue.a,
            b=epilogue.b,
            times=epilogue.times,
            added=None if added is None else at(added),
            low=epilogue.low,
            high=epilogue.high,
        ),
    )


# -- what follows ---------------------------------------------------------------------------------


def fused_epilogue(b: ProgramBuilder, result: Value) -> ConvEpilogue:
    """Returns what can be fused after a convolution, and marks those nodes as fused."""
    epilogue = _with_clamp(_with_sum(b, _with_activation(ConvEpilogue(result))))
    b.fused.update(epilogue.nodes)
    return epilogue


def _sole_user(value: Value) -> Node | None:
    """Returns the node that is the only consumer of a value, if it computes float32 by one plain
    op."""
    if len(value.uses) != 1:
        return None
    (node,) = value.users
    return node if _is_float_node(node) else None


def _is_float_node(node: Node) -> bool:
    return (
        node.op != "output"
        and not node.stages
        and len(node.results) == 1
        and node.result.type.element == F32
    )


def _with_activation(epilogue: ConvEpilogue) -> ConvEpilogue:
    """Fuses an activation, or the two nodes of x * sigmoid(x)."""
    gate = _swish(epilogue.result)
    if gate is not None:
        (product,) = gate.result.users
        return epilogue.with_node(gate).with_node(product, op="sigmoid", times=True)
    node = _sole_user(epilogue.result)
    if node is None or node.op not in ACTIVATIONS:
        return epilogue
    # An activation that no kernel computes is left to its own step.
    try:
        op, low, high = kernel_function(node.op, node.attrs)
    except CannotLower:
        return epilogue
    return epilogue.with_node(node, op=op, a=low, b=high)


def _swish(value: Value) -> Node | None:
    """Returns the sigmoid of x * sigmoid(x), where nothing else uses x or the sigmoid."""
    users = {node.op: node for node in value.users}
    if len(value.uses) != 2 or users.keys() != {"sigmoid", "mul"}:
        return None
    gate, product = users["sigmoid"], users["mul"]
    if (
        not _is_float_node(gate)
        or not _is_float_node(product)
        or _sole_user(gate.result) is not product
    ):
        return None
    return gate if {*product.operands.values()} == {value, gate.result} else None


def _with_sum(b: ProgramBuilder, epilogue: ConvEpilogue) -> ConvEpilogue:
    """Fuses the sum with another tensor of the same shape, as at the end of a residual block."""
    node = _sole_user(epilogue.result)
    if node is None or node.op != "add":
        return epilogue
    (other,) = (v for v in node.operands.values() if v is not epilogue.result)
    # The other operand must have been computed by earlier steps: steps run in their order.
    is_available = any(b.has_buffer(other, nhwc=nhwc) for nhwc in (True, False))
    if not is_available or other.type.element != F32 or sizes(other) != sizes(node.result):
        return epilogue
    # Fused additions read both tensors in NHWC, so that the shapes must be equal.
    if sizes(node.result) != sizes(epilogue.result) or is_noop_transpose(sizes(other), TO_NHWC):
        return epilogue
    return epilogue.with_node(node, added=other)


def _with_clamp(epilogue: ConvEpilogue) -> ConvEpilogue:
    """Fuses relu or clip."""
    node = _sole_user(epilogue.result)
    if node is None or node.op not in ("relu", "clip"):
        return epilogue
    try:
        low, high = clamp_bounds(node.op, node.attrs)
    except CannotLower:
        return epilogue
    return epilogue.with_node(node, low=low, high=high)


# -- pools and means ------------------------------------------------------------------------------


def is_held_nhwc(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an image is held in NHWC, as the pools here read it."""
    x = job.operands["x"]
    if x.type.rank != 4 or b.watched:
        return False
    return b.has_buffer(x, nhwc=True) if job.nchw else True


def pool(b: ProgramBuilder, job: Job, *, average: bool) -> None:
    """Lowers a max or average pool."""
    x = job.operands["x"]
    shape = sizes(x) if job.nchw else permuted(sizes(x), TO_NCHW)
    out = sizes(job.result)[2:] if job.nchw else sizes(job.result)[1:3]
    kernel, stride, pad = job.int_pair("kernel"), job.int_pair("stride"), job.pads()
    dilation = (1, 1) if average else job.int_pair("dilation")
    count_pad = job.attrs.get("count_pad") is True
    source, target = b.buffer(x, nhwc=job.nchw), b.allocate(job.result, nhwc=job.nchw)
    b.add(
        job.name,
        "float_avg_pool2d" if average else "float_max_pool2d",
        [source],
        [target],
        (shape[0], *out, shape[1]),
        lambda plan, at: plan.float_last_pool2d(
            job.name,
            at(source),
            at(target),
            shape=shape,
            kernel=kernel,
            stride=stride,
            pad=pad,
            dilation=dilation,
            out=out,
            average=average,
            count_pad=count_pad,
        ),
    )


def mean(b: ProgramBuilder, job: Job, is_nchw: bool) -> None:
    """Lowers a mean over all pixels."""
    x = job.operands["x"]
    n, c, h, w = sizes(x) if is_nchw else permuted(sizes(x), TO_NCHW)
    source, target = b.buffer(x, nhwc=is_nchw), b.allocate(job.result)
    b.add(
        job.name,
        "float_mean",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.float_last_mean(
            job.name, at(source), at(target), images=n, pixels=h * w, channels=c
        ),
    )
