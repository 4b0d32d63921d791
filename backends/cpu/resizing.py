"""Resizes of quantized values by the rule of a profile: bilinear in whole numbers, and nearest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.numerics import Rule
from qir.profiles.methods import Taps, plugin_method
from qir.reference.resize import STEPPED, resized

from .builder import TO_NHWC, CannotLower, ProgramBuilder, permuted, sizes
from .data_movement import keeps_elements
from .gathers import add_gathers
from .kernel_types import Job, byte_parameters

NEAREST = frozenset({"nearest_by_step"})
"""Methods that pick the nearest element along each axis."""


def lowers(op: str, rule: Rule) -> bool:
    """Returns whether a rule computes an op by the kernels of resizes."""
    method = plugin_method(rule.method.name) if rule.method else None
    if op == "resize_nearest":
        return rule.method is not None and rule.method.name in NEAREST
    return op == "resize" and method is not None and method.taps is not None


def lower_resize(b: ProgramBuilder, job: Job) -> None:
    """Lowers a resize; raises CannotLower where no kernel does."""
    if job.epilogue:
        raise CannotLower(f"no kernel computes {job.op} |> {job.epilogue[0].op} as one")
    if job.op == "resize":
        _linear(b, job)
    else:
        _nearest(b, job)


def _constant_sizes(job: Job) -> NDArray[np.generic] | None:
    """Returns the sizes of a result that are an operand; raises CannotLower for computed ones."""
    if "sizes" not in job.operands:
        return None
    constant = job.operands["sizes"].constant
    if constant is None:
        raise CannotLower("sizes are no constant")
    return constant.data


def _linear(b: ProgramBuilder, job: Job) -> None:
    """Lowers a bilinear resize of images, channels first or last."""
    value, rule = job.operands["x"], job.rule
    assert rule is not None
    assert rule.method is not None
    method = plugin_method(rule.method.name)
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    if method is None or method.taps is None or not x.same(y):
        raise CannotLower("the result has another map")
    scales = job.attrs["scales"]
    assert isinstance(scales, tuple)
    axes, _ = resized(
        np.zeros(sizes(value), np.bool_),
        _constant_sizes(job),
        [float(s) for s in scales if isinstance(s, int | float)],
        job.int_tuple("axes"),
    )
    if value.type.rank != 4 or sorted(axes) not in ([1, 2], [2, 3]):
        raise CannotLower("no kernel resizes but along two axes of images")
    if job.attrs["mode"] != "linear" or job.attrs["policy"] != "stretch":
        raise CannotLower(f"no kernel resizes by mode {job.attrs['mode']!s}")
    nhwc = sorted(axes) == [2, 3]
    shape, out = sizes(value), sizes(job.result)
    if nhwc:
        shape, out = permuted(shape, TO_NHWC), permuted(out, TO_NHWC)
    coordinates = job.attrs["coordinates"]
    rows, columns = (
        method.taps(shape[a], out[a], coordinates, **rule.method.params) for a in (1, 2)
    )
    source, made = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=nhwc)
    n, h, w, c = shape
    b.add(
        job.name,
        "resize_linear",
        [source],
        [made],
        out,
        lambda plan, at: plan.resize_linear(
            job.name, at(source), at(made), shape=(n, h, w, c), rows=_arrays(rows),
            columns=_arrays(columns), shift=rows.bits + columns.bits, away=rows.away, x_type=x.kind,
        ),
    )  # fmt: skip


def _arrays(taps: Taps) -> tuple[NDArray[np.int32], ...]:
    return tuple(a.astype(np.int32) for a in (*taps.neighbours, *taps.weights))


def _nearest(b: ProgramBuilder, job: Job) -> None:
    """Lowers a nearest resize as gathers along one axis at a time."""
    value = job.operands["x"]
    if not keeps_elements(value, job.result):
        raise CannotLower("the result has another map")
    if job.attrs["policy"] != "stretch" or job.attrs["coordinates"] == "tf_crop_and_resize":
        raise CannotLower("no kernel resizes but by a stretch")
    sizes_of_result = _constant_sizes(job)
    given = {} if sizes_of_result is None else {"sizes": sizes_of_result}
    shape, picked = sizes(value), {}
    for axis, size in enumerate(shape):
        if size == sizes(job.result)[axis]:
            continue
        # Along an axis all rows pick alike: the reference is asked for the places of one.
        places = np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        found = STEPPED(x=np.broadcast_to(places, shape), **given, **job.attrs)
        rows = np.moveaxis(np.asarray(found), axis, 0)
        if not rows.size:
            raise CannotLower("an empty result")
        picked[axis] = np.ascontiguousarray(rows.reshape(len(rows), -1)[:, 0], np.int64)
    add_gathers(b, job, picked)
