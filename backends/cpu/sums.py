"""Means, pools and sums by methods whose results depend on sums of integers alone.

The method itself is asked for the result of every sum that a window may have. As these never fall,
255 levels hold them, and one kernel computes all such methods, however they round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.numerics import Rule, affine_of
from qir.profiles.methods import plugin_method
from qir.reference import methods
from qir.reference.products import ProductKernel

from .builder import CannotLower, ProgramBuilder, sizes
from .epilogues import bounds_after
from .kernel_types import ByteParameters, Job, byte_parameters
from .pools import mean_sizes, sizes_nhwc

OPS = frozenset({"reduce_mean", "reduce_sum", "avg_pool2d", "global_avg_pool"})
"""Ops whose results are of sums."""
_LEVELS = 255
_MOST_SUMS = 1 << 23
"""Most sums of a window that a method is asked for: 128 x 256 pixels."""
_NEVER = np.iinfo(np.int32).max


def lowers(op: str, rule: Rule) -> bool:
    """Returns whether a rule computes an op from sums alone."""
    method = plugin_method(rule.method.name) if rule.method else None
    return op in OPS and method is not None and method.of_sums is not None


def lower_sums(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean, a sum or an average pool; raises CannotLower where no kernel does."""
    value = job.operands["x"]
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    _require_sums_alone(job)
    if job.op.startswith("reduce"):
        nhwc, (outer, rows, inner) = mean_sizes(sizes(value), job.int_tuple("axes"))
        shape, kernel, stride, pad, out = (outer, rows, 1, inner), (rows, 1), (1, 1), (0, 0), (1, 1)
        counts, held, to_nhwc = np.full(1, rows), sizes(job.result), False
    else:
        nhwc = to_nhwc = job.nchw
        if value.type.rank != 4:
            raise CannotLower(f"no kernel computes {job.op} of {value.type.rank} axes")
        shape, out, held = sizes_nhwc(job)
        whole = job.op == "global_avg_pool"
        kernel = shape[1:3] if whole else job.int_pair("kernel")
        stride = (1, 1) if whole else job.int_pair("stride")
        pads = (0, 0, 0, 0) if whole else job.pads()
        pad = pads[:2]
        if not whole and job.attrs["count_pad"] is True:
            raise CannotLower("no kernel counts padding by such a method")
        counts = _counts(shape[1:3], out, kernel, stride, pad)
    numbers, kinds = np.unique(counts, return_inverse=True)
    levels = np.concatenate([_levels(job, int(count), x, y) for count in numbers])
    kinds = kinds.reshape(-1).astype(np.uint8)
    source, made = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=to_nhwc)
    b.add(
        job.name,
        "lookup_sums",
        [source],
        [made],
        held,
        lambda plan, at: plan.lookup_sums(
            job.name, at(source), at(made), shape=shape, kernel=kernel, stride=stride, pad=pad,
            out=out, levels=levels, kinds=kinds, x_type=x.kind, y_type=y.kind,
        ),
    )  # fmt: skip


def _require_sums_alone(job: Job) -> None:
    """Raises CannotLower for a call of which the method looks at more than sums."""
    assert job.rule is not None
    method = plugin_method(job.rule.method.name) if job.rule.method else None
    value = job.operands["x"]
    call = ProductKernel(job.op, job.attrs, {"x": value.type}, job.result.type, job.rule)
    if method is None or (method.sums_alone and not method.sums_alone(call, sizes(value))):
        raise CannotLower("its method looks at more than sums")


def _counts(
    size: tuple[int, int],
    out: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
) -> NDArray[np.int64]:
    """Returns how many pixels of the image each window holds."""
    along = []
    for axis in range(2):
        begin = np.arange(out[axis]) * stride[axis] - pad[axis]
        end = np.minimum(begin + kernel[axis], size[axis])
        along.append(np.maximum(end - np.maximum(begin, 0), 0))
    counts: NDArray[np.int64] = np.multiply.outer(along[0], along[1]).reshape(-1)
    if not counts.size or counts.min() < 1 or len(np.unique(counts)) > 256:
        raise CannotLower("no kernel takes windows that lie in padding")
    return counts


def _levels(job: Job, count: int, x: ByteParameters, y: ByteParameters) -> NDArray[np.int32]:
    """Returns the least sums, of integers from 0 on, that give each result but the least."""
    assert job.rule is not None
    if count * _LEVELS > _MOST_SUMS:
        raise CannotLower(f"no kernel takes a mean of {count} integers by such a method")
    lowest = x.quant.storage.bounds[0]
    sums = np.arange(count * _LEVELS + 1, dtype=np.int64) + lowest * count
    try:
        found = methods.of_sums(job.rule, sums, count, affine_of(x.quant), affine_of(y.quant))
    except QirError as error:
        raise CannotLower(str(error)) from None
    assert found is not None
    low, high = bounds_after(job, job.epilogue, y.low, y.high)
    results = np.clip(found.astype(np.int64), low, high) - y.quant.storage.bounds[0]
    if np.any(np.diff(results) < 0):
        raise CannotLower("the results of greater sums are less")
    places = np.searchsorted(results, np.arange(1, _LEVELS + 1))
    return np.asarray(np.where(places < len(results), places, _NEVER), np.int32)
