"""Ops on plain (not quantized) elements of any type: arithmetic, comparisons, where, casts,
reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qir._kernels import _cpu
from qir.ir.node import Node, Value

from .builder import Buffer, CannotLower, ProgramBuilder, itemsize, sizes, strides
from .data_movement import keeps_elements
from .kernel_types import Job
from .sizes import Sizes

KERNEL_NAMES = {
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "bit_and": "and",
    "bit_or": "or",
    "bit_xor": "xor",
}
"""The name of an op's loop, where it has another one. Bitwise loops also compute on bool."""


def kind_of(value: Value) -> str:
    """Returns the element type as the kernels name it; raises CannotLower for types they have
    not."""
    kind = str(value.type.dtype)
    if value.type.quant is not None:
        raise CannotLower(f"%{value.name} is quantized, the kernel takes plain elements")
    if kind not in _cpu.KINDS:
        raise CannotLower(f"%{value.name} is {kind}, the kernels take {', '.join(_cpu.KINDS)}")
    return kind


def _refuse_epilogue(job: Job) -> None:
    """Raises CannotLower for a chain: these kernels apply no activation."""
    if job.epilogue:
        raise CannotLower(f"no kernel computes {job.op} |> {job.epilogue[0].op} as one")


# -- several operands -----------------------------------------------------------------------------


def broadcast_strides(result: Sizes, *operands: Sizes) -> tuple[Sizes, list[Sizes]]:
    """Returns the sizes of a loop and each operand's strides, with as few axes as possible."""
    steps = []
    for shape in operands:
        missing = len(result) - len(shape)
        own_strides = zip(strides(shape), shape, strict=True)
        steps.append(
            (0,) * missing + tuple(0 if size == 1 else stride for stride, size in own_strides)
        )
    sizes_of, strides_of = [1], [[0] for _ in operands]
    for axis, size in enumerate(result):
        if size == 1:
            continue
        axis_strides = [stride[axis] for stride in steps]
        # Two axes become one where every operand steps over them as over one axis.
        if all(
            merged[-1] == stride * size
            for merged, stride in zip(strides_of, axis_strides, strict=True)
        ) or sizes_of == [1]:
            sizes_of[-1] *= size
            for merged, stride in zip(strides_of, axis_strides, strict=True):
                merged[-1] = stride
        else:
            sizes_of.append(size)
            for merged, stride in zip(strides_of, axis_strides, strict=True):
                merged.append(stride)
    return tuple(sizes_of), [tuple(merged) for merged in strides_of]


def _add_binary_step(
    b: ProgramBuilder, name: str, op: str, kind: str, a: Value, c: Value, y: Value
) -> None:
    _add_buffer_step(
        b, name, op, kind, (b.buffer(a), sizes(a)), (b.buffer(c), sizes(c)), b.allocate(y), sizes(y)
    )


def _add_buffer_step(
    b: ProgramBuilder,
    name: str,
    op: str,
    kind: str,
    left: tuple[Buffer, Sizes],
    right: tuple[Buffer, Sizes],
    target: Buffer,
    result: Sizes,
) -> None:
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {op} of {kind}")
    (left_buffer, left_sizes), (right_buffer, right_sizes) = left, right
    shape, (a_steps, b_steps) = broadcast_strides(result, left_sizes, right_sizes)
    b.add(
        name,
        "apply",
        [left_buffer, right_buffer],
        [target],
        result,
        lambda plan, at: plan.apply(
            name, at(left_buffer), at(right_buffer), at(target), op=op, kind=kind,
            shape=shape, a_steps=a_steps, b_steps=b_steps,
        ),
    )  # fmt: skip


def binary(b: ProgramBuilder, job: Job) -> None:
    """Lowers an elementwise op of two operands."""
    _refuse_epilogue(job)
    left, right = job.operands.values()
    kind, op = kind_of(left), KERNEL_NAMES.get(job.op, job.op)
    kind_of(job.result)
    if op not in _cpu.applied() or kind_of(right) != kind:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    if op == "div" and kind != "f32" and kind != "f64":
        # The reference reports a division of integers by 0; the kernel would divide blindly.
        divisor = right.constant
        if divisor is None or not np.all(divisor.data):
            raise CannotLower("b may be 0, which has no quotient of integers")
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    _add_binary_step(b, job.name, op, kind, left, right, job.result)


def n_ary(b: ProgramBuilder, job: Job) -> None:
    """Lowers min, max or sum of any number of operands, two at a time."""
    _refuse_epilogue(job)
    values = [job.operands[slot] for slot in sorted(job.operands, key=_slot_index)]
    kind, op = kind_of(job.result), "add" if job.op == "sum" else job.op
    if kind not in _cpu.applied()[op] or any(kind_of(v) != kind for v in values):
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    if job.op == "sum" and len(values) > 2 and kind.startswith("f"):
        # The reference adds float operands in float64 and rounds once.
        raise CannotLower("no kernel rounds a sum of three or more once")
    if len(values) == 1:
        b.set_buffer(job.result, b.buffer(values[0]))
        return
    partial, shape = b.buffer(values[0]), sizes(values[0])
    for value in values[1:]:
        new_sizes: Sizes = np.broadcast_shapes(shape, sizes(value))
        last = value is values[-1]
        target = (
            b.allocate(job.result) if last else b.scratch(math.prod(new_sizes) * itemsize(value))
        )
        _add_buffer_step(
            b,
            job.name,
            op,
            kind,
            (partial, shape),
            (b.buffer(value), sizes(value)),
            target,
            new_sizes,
        )
        partial, shape = target, new_sizes


def _slot_index(slot: str) -> int:
    return int(slot.partition(".")[2])


def where(b: ProgramBuilder, job: Job) -> None:
    """Lowers a choice between two values by a condition."""
    _refuse_epilogue(job)
    values = [job.operands[slot] for slot in ("condition", "a", "b")]
    if not all(keeps_elements(v, job.result) for v in values[1:]):
        raise CannotLower("no kernel chooses between values of several quantized types")
    sources, target, item = (
        [b.buffer(v) for v in values],
        b.allocate(job.result),
        itemsize(job.result),
    )
    if item not in (1, 2, 4, 8):
        raise CannotLower(f"no kernel chooses between elements of {item} bytes")
    shape, steps = broadcast_strides(sizes(job.result), *map(sizes, values))
    b.add(
        job.name,
        "where",
        sources,
        [target],
        sizes(job.result),
        lambda plan, at: plan.where(
            job.name, at(sources[0]), at(sources[1]), at(sources[2]), at(target),
            shape=shape, condition_steps=steps[0], a_steps=steps[1],
            b_steps=steps[2], itemsize=item,
        ),
    )  # fmt: skip


def is_nan(b: ProgramBuilder, job: Job) -> None:
    """Lowers is_nan: only a NaN differs from itself."""
    _refuse_epilogue(job)
    value = job.operands["x"]
    kind = kind_of(value)
    if not kind.startswith("f"):
        raise CannotLower(f"x is {kind}, which has no NaN")
    _add_binary_step(b, job.name, "not_equal", kind, value, value, job.result)


_NEGATIONS = {"neg": ("sub", 0), "bit_not": ("xor", -1), "logical_not": ("equal", 0)}
"""Ops of one operand, as an op of two and its constant operand."""


def negation(b: ProgramBuilder, job: Job) -> None:
    """Lowers neg, bit_not and logical_not as 0 - x, x xor -1 and x == 0."""
    _refuse_epilogue(job)
    value = job.operands["x"]
    kind, dtype = kind_of(value), value.type.dtype.carrier
    if job.op == "neg" and kind.startswith("f"):
        float64_function(b, job)
        return
    op, number = _NEGATIONS[job.op]
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    with np.errstate(over="ignore"):
        # -1 wraps to all ones in unsigned types, which is what xor needs.
        data = np.array([number]).astype(dtype)
    constant, operand = (Buffer(data.nbytes, data=data), (1,)), (b.buffer(value), sizes(value))
    left, right = (constant, operand) if op == "sub" else (operand, constant)
    _add_buffer_step(b, job.name, op, kind, left, right, b.allocate(job.result), sizes(job.result))


# -- one operand ----------------------------------------------------------------------------------


def float64_function(b: ProgramBuilder, job: Job) -> None:
    """Lowers a function of each float32, computed in float64 by the C library."""
    _refuse_epilogue(job)
    value = job.operands["x"]
    if kind_of(value) != "f32":
        raise CannotLower(f"x is {value.type.dtype}, the kernel takes f32")
    op, low, high = job.op, 0.0, 0.0
    if op == "gelu" and job.attrs["approximate"] == "tanh":
        op = "gelu_tanh"
    elif op in ("silu", "elu", "selu", "hard_sigmoid"):
        low = _number(job, "alpha")
        second_attr = {"selu": "gamma", "hard_sigmoid": "beta"}.get(op)
        high = 0.0 if second_attr is None else _number(job, second_attr)
    nhwc = b.is_nhwc(value)
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=nhwc)
    size = math.prod(sizes(value))
    b.add(
        job.name,
        "function",
        [source],
        [target],
        sizes(value),
        lambda plan, at: plan.function(
            job.name, at(source), at(target), op=op, size=size, a=low, b=high
        ),
    )


def _number(job: Job, name: str) -> float:
    value = job.attrs[name]
    assert isinstance(value, float)
    return value


def cast(b: ProgramBuilder, job: Job) -> None:
    """Lowers a change of the element type; none where both are the same."""
    _refuse_epilogue(job)
    value = job.operands["x"]
    x, y = kind_of(value), kind_of(job.result)
    source = b.buffer(value)
    if x == y:
        b.set_buffer(job.result, source)
        return
    cast_step(b, job.name, source, b.allocate(job.result), sizes(value), x, y)


def cast_step(
    b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes, x_kind: str, y_kind: str
) -> None:
    """Adds a step that casts elements."""
    size = math.prod(shape)
    b.add(
        name,
        "cast",
        [x],
        [y],
        shape,
        lambda plan, at: plan.cast(name, at(x), at(y), size=size, x_kind=x_kind, y_kind=y_kind),
    )


# -- along axes -----------------------------------------------------------------------------------


def _reduced_axes_together(
    b: ProgramBuilder, name: str, value: Value, reduced: Sequence[int]
) -> tuple[Buffer, Sizes]:
    """Returns a buffer in which the `reduced` axes are adjacent, and its (outer, rows, inner)
    sizes."""
    shape, source = sizes(value), b.buffer(value)
    # Axes that are not adjacent are transposed to the end.
    if list(reduced) != list(range(reduced[0], reduced[-1] + 1)):
        kept = tuple(axis for axis in range(len(shape)) if axis not in reduced)
        order, transposed = (*kept, *reduced), b.scratch(source.size)
        b.transpose(f"{value.name} for {name}", source, transposed, shape, order, itemsize(value))
        rows = math.prod(shape[axis] for axis in reduced)
        return transposed, (math.prod(shape) // rows, rows, 1)
    first, end = reduced[0], reduced[-1] + 1
    axis_groups = (shape[:first], shape[first:end], shape[end:])
    outer, rows, inner = (math.prod(part) for part in axis_groups)
    return source, (outer, rows, inner)


def reduction(b: ProgramBuilder, job: Job) -> None:
    """Lowers a reduction over some axes."""
    _refuse_epilogue(job)
    value = job.operands["x"]
    kind, op = kind_of(value), job.op.removeprefix("reduce_")
    if kind != "f32" and (kind not in _cpu.ORDERED or op not in ("sum", "prod", "max", "min")):
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    rank = value.type.rank
    reduced = sorted({axis % rank for axis in job.int_tuple("axes")}) or list(range(rank))
    if not reduced:
        raise CannotLower("x is a scalar")
    source, shape = _reduced_axes_together(b, job.name, value, reduced)
    target = b.allocate(job.result)
    b.add(
        job.name,
        "reduce",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.reduce(
            job.name, at(source), at(target), op=op, shape=shape, kind=kind
        ),
    )


def _orderable_kind(value: Value) -> str:
    """Returns the element type of a value that the kernels can compare."""
    kind = kind_of(value)
    if kind not in _cpu.ORDERED:
        raise CannotLower(f"x is {kind}, the kernel orders {', '.join(_cpu.ORDERED)}")
    return kind


def global_max_pool(b: ProgramBuilder, job: Job) -> None:
    """Lowers the maximum of each channel."""
    rank = job.operands["x"].type.rank
    axes = tuple(range(2, rank) if job.nchw else range(1, rank - 1))
    reduction(b, replace(job, op="reduce_max", attrs={"axes": axes, "keep": True}))


def arg_extreme(b: ProgramBuilder, job: Job) -> None:
    """Lowers arg_max and arg_min."""
    value = job.operands["x"]
    kind, axis = _orderable_kind(value), job.int_attr("axis") % value.type.rank
    source, shape = _reduced_axes_together(b, job.name, value, [axis])
    target, least, last = b.allocate(job.result), job.op == "arg_min", job.attrs["last"] is True
    b.add(
        job.name,
        "place",
        [source],
        [target],
        sizes(job.result),
        lambda plan, at: plan.place(
            job.name, at(source), at(target), shape=shape, kind=kind, least=least, last=last
        ),
    )


def top_k(b: ProgramBuilder, node: Node) -> None:
    """Lowers top_k: the largest or smallest elements along an axis, and their indices."""
    value, axis = node.operands["x"], node.attrs["axis"]
    assert isinstance(axis, int)
    kind = _orderable_kind(value)
    source, shape = _reduced_axes_together(b, node.name, value, [axis % value.type.rank])
    targets = [b.allocate(result) for result in node.results]
    k, least = node.attrs["k"], node.attrs["largest"] is not True
    assert isinstance(k, int)
    b.add(
        node.name,
        "top_k",
        [source],
        targets,
        sizes(node.results[0]),
        lambda plan, at: plan.top_k(
            node.name,
            at(source),
            at(targets[0]),
            at(targets[1]),
            shape=shape,
            k=k,
            kind=kind,
            least=least,
        ),
    )


def _lowerings() -> dict[str, Callable[[ProgramBuilder, Job], None]]:
    """Returns the lowerings of all ops for which the compiled code has a loop, function or
    reduction."""
    lowerings: dict[str, Callable[[ProgramBuilder, Job], None]] = dict.fromkeys(
        _cpu.OPERATIONS, binary
    )
    lowerings |= dict.fromkeys(KERNEL_NAMES, binary)
    lowerings |= dict.fromkeys(_cpu.FUNCTIONS, float64_function)
    lowerings |= dict.fromkeys((f"reduce_{op}" for op in _cpu.REDUCTIONS), reduction)
    lowerings |= dict.fromkeys(("arg_max", "arg_min"), arg_extreme)
    lowerings |= dict.fromkeys(_NEGATIONS, negation)
    return (
        lowerings
        | {"min": n_ary, "max": n_ary, "sum": n_ary, "where": where, "cast": cast}
        | {
            "is_nan": is_nan,
            "global_max_pool": global_max_pool,
        }
    )


LOWERINGS = _lowerings()
