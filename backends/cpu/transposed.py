"""Transposed convolutions of quantized values, as one convolution for all places between strides.

With a stride of s, results whose places have one remainder by s are a convolution by each s-th tap.
All of these read the same windows, so they are one convolution with s * s times the channels, whose
results are then put in order. A sum has the products of the transposed one, and zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, Element, QuantType, TensorType, uniform

from .builder import Buffer, CannotLower, ProgramBuilder, StridedElements, sizes, strides
from .kernel_types import Job, constant_weight
from .products import Images, Requantization, add_conv2d, rounding_of
from .sizes import Sizes

METHODS = frozenset({"transposed", "transposed_vectors"})
"""Methods that compute a transposed convolution as the convolution that it is."""


@dataclass(frozen=True, slots=True)
class _Phases:
    """How results along an axis come from elements of the operand."""

    stride: int
    taps: tuple[NDArray[np.int64], ...]
    """For each remainder, the tap of the kernel at each place of the window, or -1."""
    before: int
    after: int
    count: int
    """How many windows there are."""

    @property
    def window(self) -> int:
        return len(self.taps[0])


def _phases(size: int, out: int, kernel: int, stride: int, pad: int) -> _Phases:
    """Returns the windows along an axis: result r + stride * m is the sum over j of
    x[m + quotient - j] * w[rest + stride * j], where r + pad = quotient * stride + rest."""
    quotients, rests = np.divmod(np.arange(stride) + pad, stride)
    counts = np.maximum(-(-(kernel - rests) // stride), 0)
    low = min(0, *(int(q - n + 1) for q, n in zip(quotients, counts, strict=True) if n))
    high = int(quotients.max())
    taps = []
    for quotient, rest, n in zip(quotients, rests, counts, strict=True):
        found = np.full(high - low + 1, -1)
        steps = np.arange(n)
        found[quotient - steps - low] = rest + stride * steps
        taps.append(found)
    windows = -(-out // stride)
    after = max(0, windows + high - size)
    return _Phases(stride, tuple(taps), -low, after, size + after - high)


def conv_transpose2d(b: ProgramBuilder, job: Job) -> None:
    """Lowers a transposed convolution of images; raises CannotLower where no kernel does."""
    value, rule = job.operands["x"], job.rule
    if rule is None or rule.method is None or rule.method.params.get("misread"):
        raise CannotLower("no kernel reads weights as other ones")
    if job.int_attr("groups") != 1 or job.int_pair("dilation") != (1, 1):
        raise CannotLower("no kernel computes transposed convolutions in groups or with dilation")
    (n, channels, h, w), (_, out_channels, oh, ow) = sizes(value), sizes(job.result)
    kernel, stride = sizes(job.operands["w"])[2:], job.int_pair("stride")
    pad = job.pads()
    rows, columns = (
        _phases((h, w)[i], (oh, ow)[i], kernel[i], stride[i], pad[i]) for i in range(2)
    )
    plain = _as_convolution(job, rows, columns)
    weights = constant_weight(plain.operands["w"], 0, "w")
    rounding = _rounded_in_vectors(job, rounding_of(plain, weights), out_channels)
    held = (n, rows.count, columns.count, len(weights.data))
    images = Images((n, h, w, channels), (1, 1), plain.pads(), (1, 1), weights.data, weights.offset)
    source, target = b.buffer(value, nhwc=True), b.allocate(job.result, nhwc=True)
    sums = b.scratch(math.prod(held))
    add_conv2d(b, plain, source, sums, images, rounding, held)
    _in_order(b, job, sums, target, rows, columns)


def _as_convolution(job: Job, rows: _Phases, columns: _Phases) -> Job:
    """Returns the job of the convolution."""
    w = job.operands["w"]
    if w.constant is None or w.type.quant is None:
        raise CannotLower("w is no quantized constant")
    if w.type.quant.granularity is not None and w.type.quant.axis != 1:
        raise CannotLower("w has scales along another axis than its output channels")
    zero = w.constant.data.dtype.type(0)
    if w.type.quant.zeros().any():
        (zero,) = np.unique(w.type.quant.zeros()).astype(w.constant.data.dtype)
    # A tap that a place does not have is the zero point.
    taps = np.pad(
        w.constant.data, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=zero
    ).transpose(1, 0, 2, 3)
    parts = [taps[:, :, r][:, :, :, c] for r in rows.taps for c in columns.taps]
    copies = len(parts)
    held = Graph("transposed", job.rules.name)
    operands = {**job.operands, "w": _constant(held, np.concatenate(parts), w, copies)}
    bias = job.operands.get("bias")
    if bias is not None:
        if bias.constant is None:
            raise CannotLower("bias is no constant")
        operands["bias"] = _constant(held, np.tile(bias.constant.data, copies), bias, copies)
    pads = (rows.before, columns.before, rows.after, columns.after)
    attrs: dict[str, Attr] = {
        "stride": (1, 1),
        "pad": pads,
        "dilation": (1, 1),
        "groups": 1,
        "layout": "NCHW",
    }
    rule = None if job.rule is None else replace(job.rule, method=None)
    return replace(job, op="conv2d", attrs=attrs, operands=operands, rule=rule)


def _constant(graph: Graph, data: NDArray[np.generic], like: Value, copies: int) -> Value:
    """Returns a constant whose first axis has the channels of another one several times."""
    kind: Element = like.type.element
    quant = like.type.quant
    if isinstance(quant, QuantType) and quant.granularity is not None:
        scales, zeros = (np.tile(np.asarray(a), copies) for a in (quant.scales(), quant.zeros()))
        kind = uniform(quant.storage, scales, zeros, axis=0)
    array = Array(np.ascontiguousarray(data), TensorType(data.shape, kind))
    return graph.constant(array)


def _rounded_in_vectors(job: Job, rounding: Requantization, channels: int) -> Requantization:
    """Returns the rounding of channels that fill vectors, and of those that are left over."""
    assert job.rule is not None
    assert job.rule.method is not None
    lanes = job.rule.method.params.get("lanes")
    if not isinstance(lanes, int):
        return rounding
    if rounding.epilogue is None or job.rule.requant.round != "double":
        raise CannotLower("no kernel rounds vectors otherwise")
    if job.rule.method.params.get("rows"):
        away = np.arange(channels) >= channels // lanes * lanes
    elif math.prod(sizes(job.result)) % lanes == 0:
        away = np.zeros(channels, np.bool_)
    else:
        raise CannotLower("the last sums fill no vector")
    parameters = dict(rounding.epilogue.parameters)
    copies = np.asarray(parameters["fixed"]).size // channels
    parameters["away"] = np.tile(away, copies).astype(np.int32)
    return replace(rounding, epilogue=replace(rounding.epilogue, parameters=parameters))


def _in_order(
    b: ProgramBuilder, job: Job, sums: Buffer, target: Buffer, rows: _Phases, columns: _Phases
) -> None:
    """Adds the steps that put results in order: of each window, and without those beyond the
    image."""
    n, channels, oh, ow = sizes(job.result)
    apart = (n, rows.count, columns.count, rows.stride, columns.stride, channels)
    whole = (n, rows.count * rows.stride, columns.count * columns.stride, channels)
    is_whole = whole == (n, oh, ow, channels)
    ordered = target if is_whole else b.scratch(math.prod(whole))
    b.transpose(job.name, sums, ordered, apart, (0, 1, 3, 2, 4, 5), 1)
    if not is_whole:
        shape: Sizes = (n, oh, ow, channels)
        b.add_strided_copy(
            job.result, ordered, target, shape, StridedElements(job.result, strides(whole))
        )
