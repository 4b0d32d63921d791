"""Softmax and layer norm along rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Value

from .builder import Buffer, CannotLower, ProgramBuilder, sizes
from .kernel_types import Job, byte_parameters


def softmax(b: ProgramBuilder, job: Job) -> None:
    """Lowers softmax along the innermost axis, in the layout of the type or in NHWC."""
    value = job.operands["x"]
    if value.type.element == job.result.type.element == F32:
        _float_softmax(b, job)
        return
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    job.require_no_clamp(y)
    shape = sizes(value)
    axis = job.int_attr("axis") % len(shape)
    inner = math.prod(shape[axis + 1 :]) == 1
    if not inner and not (len(shape) == 4 and axis == 1):
        raise CannotLower(f"no kernel takes softmax along axis {axis} of {len(shape)}")
    width = shape[axis]
    rows = math.prod(shape) // width
    source, made = b.buffer(value, nhwc=not inner), b.allocate(job.result, nhwc=not inner)
    b.add(
        job.name,
        "softmax",
        [source],
        [made],
        shape,
        lambda plan, at: plan.softmax(
            job.name,
            at(source),
            at(made),
            rows=rows,
            width=width,
            x_scale=float(x.scale),
            y_scale=float(y.scale),
            y_zero=y.zero,
            x_type=x.kind,
            y_type=y.kind,
            wide=job.params.get("quotient") == "f64",
        ),
    )


def _float_softmax(b: ProgramBuilder, job: Job) -> None:
    """Lowers softmax of float32; an axis that is not innermost is transposed there and back."""
    value = job.operands["x"]
    shape = sizes(value)
    axis = job.int_attr("axis") % len(shape)
    width = shape[axis]
    rows = math.prod(shape) // width
    source, made = b.buffer(value), b.allocate(job.result)
    inner = math.prod(shape[axis + 1 :]) == 1
    order = (*(a for a in range(len(shape)) if a != axis), axis)
    result, given = made, source
    if not inner:
        source, made = b.scratch(given.size), b.scratch(given.size)
        b.transpose(f"{value.name} for {job.name}", given, source, shape, order, 4)
    b.add(
        job.name,
        "real_softmax",
        [source],
        [made],
        shape,
        lambda plan, at: plan.real_softmax(job.name, at(source), at(made), rows=rows, width=width),
    )
    if not inner:
        back = tuple(order.index(a) for a in range(len(shape)))
        transposed = tuple(shape[a] for a in order)
        b.transpose(f"{job.name} in order", made, result, transposed, back, 4)


def layer_norm(b: ProgramBuilder, job: Job) -> None:
    """Lowers layer norm of float32 with constant parameters."""
    value = job.operands["x"]
    kinds = [value.type.element for value in (*job.operands.values(), job.result)]
    if any(kind != F32 for kind in kinds):
        raise CannotLower("no kernel normalizes but float32")
    add_layer_norm(b, job, b.buffer(value), lambda: b.allocate(job.result))


def add_layer_norm(
    b: ProgramBuilder, job: Job, source: Buffer, target: Callable[[], Buffer]
) -> None:
    """Adds a step that normalizes float32; `target` gives the buffer of the result."""
    shape = sizes(job.operands["x"])
    axis = job.int_attr("axis") % len(shape)
    inner = shape[axis:]
    gamma = _per_row_constant(job.operands["gamma"], inner)
    beta = None if "beta" not in job.operands else _per_row_constant(job.operands["beta"], inner)
    eps = job.attrs["eps"]
    assert isinstance(eps, float)
    made = target()
    b.add(
        job.name,
        "layer_norm",
        [source],
        [made],
        shape,
        lambda plan, at: plan.layer_norm(
            job.name,
            at(source),
            at(made),
            rows=math.prod(shape[:axis]),
            gamma=gamma,
            beta=beta,
            eps=eps,
        ),
    )


def _per_row_constant(value: Value, inner: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns a constant of the normalized axes, which has to be the same for every row."""
    if value.constant is None:
        raise CannotLower(f"%{value.name} is no constant")
    data = np.asarray(value.constant.data, np.float32)
    if math.prod(data.shape[: data.ndim - len(inner)]) != 1:
        raise CannotLower(f"%{value.name} has another value for each row")
    data = data.reshape(data.shape[-len(inner) :])
    return np.ascontiguousarray(np.broadcast_to(data, inner)).reshape(-1)
