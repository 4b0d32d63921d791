"""Softmax and layer norm along rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.numerics import affine_of
from qir.profiles.methods import plugin_method

from .builder import Buffer, CannotLower, ProgramBuilder, sizes
from .kernel_types import ByteParameters, Job, byte_parameters


def softmax(b: ProgramBuilder, job: Job) -> None:
    """Lowers softmax along the innermost axis, in the layout of the type or in NHWC."""
    value = job.operands["x"]
    if value.type.element == job.result.type.element == F32:
        _float_softmax(b, job)
        return
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    # The kernel rounds and saturates at once, so the bounds of an activation have no place.
    job.require_no_clamp(y)
    options = {"x_scale": float(x.scale), "wide": job.params.get("quotient") == "f64"}
    _add_softmax(b, job, x, y, options)


SOFTMAXES = frozenset({"share_table"})
"""Methods of softmax whose terms a table holds, and of which one quotient a row makes shares."""
_LEAST_SCALE = 1e-30
"""Of results of such a method: the quotient of smaller ones may be infinite."""


def softmax_by_powers(b: ProgramBuilder, job: Job) -> None:
    """Lowers softmax by a method that has a term for each distance from a row's greatest
    integer."""
    assert job.rule is not None
    assert job.rule.method is not None
    x, y = byte_parameters(job.operands["x"], "x"), byte_parameters(job.result, "the result")
    method = plugin_method(job.rule.method.name)
    if job.epilogue or float(y.scale) < _LEAST_SCALE or method is None or method.terms is None:
        raise CannotLower("no kernel computes such a softmax")
    # The kernel's table ends with the term of the greatest integer.
    powers = np.ascontiguousarray(method.terms(affine_of(x.quant))[::-1], np.float32)
    _add_softmax(b, job, x, y, {"powers": powers})


def _add_softmax(
    b: ProgramBuilder, job: Job, x: ByteParameters, y: ByteParameters, options: Mapping[str, Any]
) -> None:
    """Adds a step of softmax along the innermost axis, in the layout of the type or in NHWC."""
    value = job.operands["x"]
    shape = sizes(value)
    axis = job.int_attr("axis") % len(shape)
    # Channels of an NCHW image are innermost in NHWC, in which the kernel then reads it.
    is_innermost = math.prod(shape[axis + 1 :]) == 1
    if not is_innermost and not (len(shape) == 4 and axis == 1):
        raise CannotLower(f"no kernel takes softmax along axis {axis} of {len(shape)}")
    width = shape[axis]
    rows = math.prod(shape) // width
    source, target = (
        b.buffer(value, nhwc=not is_innermost),
        b.allocate(job.result, nhwc=not is_innermost),
    )
    b.add(
        job.name,
        "softmax",
        [source],
        [target],
        shape,
        lambda plan, at: plan.softmax(
            job.name,
            at(source),
            at(target),
            rows=rows,
            width=width,
            y_scale=float(y.scale),
            y_zero=y.zero,
            x_type=x.kind,
            y_type=y.kind,
            **options,
        ),
    )


def _float_softmax(b: ProgramBuilder, job: Job) -> None:
    """Lowers softmax of float32; an axis that is not innermost is transposed there and back."""
    value = job.operands["x"]
    shape = sizes(value)
    axis = job.int_attr("axis") % len(shape)
    width = shape[axis]
    rows = math.prod(shape) // width
    source, target = b.buffer(value), b.allocate(job.result)
    is_innermost = math.prod(shape[axis + 1 :]) == 1
    order = (*(a for a in range(len(shape)) if a != axis), axis)
    result, operand = target, source
    # Two transposes cost less than a kernel that strides over memory.
    if not is_innermost:
        source, target = b.scratch(operand.size), b.scratch(operand.size)
        b.transpose(f"{value.name} for {job.name}", operand, source, shape, order, 4)
    b.add(
        job.name,
        "real_softmax",
        [source],
        [target],
        shape,
        lambda plan, at: plan.real_softmax(
            job.name, at(source), at(target), rows=rows, width=width, in_f32=b.is_float
        ),
    )
    if not is_innermost:
        inverse = tuple(order.index(a) for a in range(len(shape)))
        transposed = tuple(shape[a] for a in order)
        b.transpose(f"{job.name} in order", target, result, transposed, inverse, 4)


def layer_norm(b: ProgramBuilder, job: Job) -> None:
    """Lowers layer norm of float32 with constant parameters."""
    value = job.operands["x"]
    element_types = [value.type.element for value in (*job.operands.values(), job.result)]
    if any(kind != F32 for kind in element_types):
        raise CannotLower("no kernel normalizes but float32")
    add_layer_norm(b, job, b.buffer(value), lambda: b.allocate(job.result))


def add_layer_norm(
    b: ProgramBuilder, job: Job, source: Buffer, result_buffer: Callable[[], Buffer]
) -> None:
    """Adds a step that normalizes float32; `result_buffer` allocates the result."""
    shape = sizes(job.operands["x"])
    axis = job.int_attr("axis") % len(shape)
    inner = shape[axis:]
    gamma = _per_row_constant(job.operands["gamma"], inner)
    beta = None if "beta" not in job.operands else _per_row_constant(job.operands["beta"], inner)
    eps = job.attrs["eps"]
    assert isinstance(eps, float)
    target = result_buffer()
    b.add(
        job.name,
        "layer_norm",
        [source],
        [target],
        shape,
        lambda plan, at: plan.layer_norm(
            job.name,
            at(source),
            at(target),
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
