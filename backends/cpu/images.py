"""Float32 images channels last: convolutions by constant weights, pools and means.

The kernels give the bytes of those for images channels first. What follows a convolution alone is
computed by its step: an activation, then a sum with a value that is there, then relu or clip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qir.ir.dtype import F32
from qir.ir.node import Node, Value

from .activations import bounds, function_of
from .builder import FIRST, LAST, CannotLower, ProgramBuilder, moved, sizes, still
from .codes import Job

LARGEST = 1 << 30
"""Most floats of an image that is read by offsets."""
NARROW = 16
"""Output channels of a group that are too few to be columns."""

ACTIVATIONS = frozenset(
    {"sigmoid", "tanh", "erf", "gelu", "silu", "hard_sigmoid", "hard_swish", "leaky_relu"}
)
"""Functions that a convolution's step computes of its results."""


@dataclass(frozen=True, slots=True)
class After:
    """What a step does to the results of a convolution, and the value that it makes of them."""

    result: Value
    op: str | None = None
    a: float = 0.0
    b: float = 0.0
    times: bool = False
    added: Value | None = None
    low: float | None = None
    high: float | None = None
    nodes: tuple[str, ...] = ()
    """Names of the nodes that are computed with it."""

    def then(self, node: Node, **how: Any) -> After:
        """The same and one node more."""
        return replace(self, result=node.result, nodes=(*self.nodes, node.name), **how)


def taken_last(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether a convolution is computed channels last."""
    x, w = job.operands["x"], job.operands["w"]
    if b.watched or w.constant is None or x.type.rank != 4 or job.tail:
        return False
    bias = job.operands.get("bias")
    if bias is not None and bias.constant is None:
        return False
    oc, depth, _, _ = sizes(w)
    groups = job.number("groups")
    _, c, h, width = sizes(x) if job.nchw else moved(sizes(x), FIRST)
    if not depth or c * (h + sum(job.pads()[::2])) * (width + sum(job.pads()[1::2])) > LARGEST:
        return False
    return groups == 1 or groups == c == oc or oc // groups >= NARROW


def convolution(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution by constant weights, with what follows it."""
    x, w = job.operands["x"], job.operands["w"]
    assert w.constant is not None
    oc, _, kh, kw = sizes(w)
    weights = np.ascontiguousarray(w.constant.data, np.float32).reshape(-1)
    given = job.operands.get("bias")
    bias = None
    if given is not None and given.constant is not None:
        bias = np.ascontiguousarray(given.constant.data, np.float32).reshape(-1)
    after = following(b, job.result)
    shape = sizes(x) if job.nchw else moved(sizes(x), FIRST)
    stride, pad, dilation = job.pair("stride"), job.pads(), job.pair("dilation")
    groups = job.number("groups")
    depthwise = groups == shape[1] > 1
    first = job.nchw and not depthwise and not b.holds(x, last=True)
    first = first and groups * shape[1] < NARROW  # others are put in order once
    source = b.need(x, last=job.nchw and not first)
    added = None if after.added is None else b.need(after.added, last=job.nchw)
    made = b.make(after.result, last=job.nchw)
    held = sizes(after.result)
    b.add(
        job.name,
        "float_conv2d",
        [source] if added is None else [source, added],
        [made],
        moved(held, LAST) if job.nchw else held,
        lambda plan, at: plan.float_last_conv2d(
            job.name,
            at(source),
            at(made),
            weights,
            bias,
            shape=shape,
            kernel=(oc, kh, kw),
            stride=stride,
            pad=pad,
            dilation=dilation,
            groups=groups,
            first=first,
            op=after.op,
            a=after.a,
            b=after.b,
            times=after.times,
            added=None if added is None else at(added),
            low=after.low,
            high=after.high,
        ),
    )


# -- what follows ---------------------------------------------------------------------------------


def following(b: ProgramBuilder, result: Value) -> After:
    """Finds what uses a result alone and is computed with it; its nodes are left out."""
    after = _bounded(_summed(b, _activated(After(result))))
    b.fused.update(after.nodes)
    return after


def _only(value: Value) -> Node | None:
    """The plain node of one float32 result that alone uses a value."""
    if len(value.uses) != 1:
        return None
    (node,) = value.users
    return node if _plain(node) else None


def _plain(node: Node) -> bool:
    return (
        node.op != "output"
        and not node.stages
        and len(node.results) == 1
        and node.result.type.element == F32
    )


def _activated(after: After) -> After:
    gate = _swish(after.result)
    if gate is not None:
        (product,) = gate.result.users
        return after.then(gate).then(product, op="sigmoid", times=True)
    node = _only(after.result)
    if node is None or node.op not in ACTIVATIONS:
        return after
    try:
        op, low, high = function_of(node.op, node.attrs)
    except CannotLower:
        return after
    return after.then(node, op=op, a=low, b=high)


def _swish(value: Value) -> Node | None:
    """The sigmoid of x * sigmoid(x), where nothing else uses x or it."""
    users = {node.op: node for node in value.users}
    if len(value.uses) != 2 or users.keys() != {"sigmoid", "mul"}:
        return None
    gate, product = users["sigmoid"], users["mul"]
    if not _plain(gate) or not _plain(product) or _only(gate.result) is not product:
        return None
    return gate if {*product.operands.values()} == {value, gate.result} else None


def _summed(b: ProgramBuilder, after: After) -> After:
    node = _only(after.result)
    if node is None or node.op != "add":
        return after
    (other,) = (v for v in node.operands.values() if v is not after.result)
    there = any(b.holds(other, last=last) for last in (True, False))
    if not there or other.type.element != F32 or sizes(other) != sizes(node.result):
        return after
    if sizes(node.result) != sizes(after.result) or still(sizes(other), LAST):
        return after
    return after.then(node, added=other)


def _bounded(after: After) -> After:
    node = _only(after.result)
    if node is None or node.op not in ("relu", "clip"):
        return after
    try:
        low, high = bounds(node.op, node.attrs)
    except CannotLower:
        return after
    return after.then(node, low=low, high=high)


# -- pools and means ------------------------------------------------------------------------------


def held_last(b: ProgramBuilder, job: Job) -> bool:
    """Returns whether an image is held channels last, as the kernels here read it."""
    x = job.operands["x"]
    if x.type.rank != 4 or b.watched:
        return False
    return b.holds(x, last=True) if job.nchw else True


def pool(b: ProgramBuilder, job: Job, *, average: bool) -> None:
    """Lowers the greatest or the mean of each window."""
    x = job.operands["x"]
    shape = sizes(x) if job.nchw else moved(sizes(x), FIRST)
    out = sizes(job.result)[2:] if job.nchw else sizes(job.result)[1:3]
    kernel, stride, pad = job.pair("kernel"), job.pair("stride"), job.pads()
    dilation = (1, 1) if average else job.pair("dilation")
    count_pad = job.attrs.get("count_pad") is True
    source, made = b.need(x, last=job.nchw), b.make(job.result, last=job.nchw)
    b.add(
        job.name,
        "float_avg_pool2d" if average else "float_max_pool2d",
        [source],
        [made],
        (shape[0], *out, shape[1]),
        lambda plan, at: plan.float_last_pool2d(
            job.name,
            at(source),
            at(made),
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


def mean(b: ProgramBuilder, job: Job, typed_first: bool) -> None:
    """Lowers a mean over all pixels."""
    x = job.operands["x"]
    n, c, h, w = sizes(x) if typed_first else moved(sizes(x), FIRST)
    source, made = b.need(x, last=typed_first), b.make(job.result)
    b.add(
        job.name,
        "float_mean",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.float_last_mean(
            job.name, at(source), at(made), images=n, pixels=h * w, channels=c
        ),
    )
