"""Ops on plain elements of any type: arithmetic, comparisons, choices, casts, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qir._kernels import _cpu
from qir.ir.node import Node, Value

from .builder import Buffer, CannotLower, ProgramBuilder, itemsize, sizes, strides
from .codes import Job
from .sizes import Sizes

APPLIED = {
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
    "bit_and": "and",
    "bit_or": "or",
    "bit_xor": "xor",
}
"""Ops whose loop has another name."""


def kind_of(value: Value) -> str:
    """Returns the element type as the kernels name it; CannotLower for quantized values and rare
    types."""
    kind = str(value.type.dtype)
    if value.type.quant is not None:
        raise CannotLower(f"%{value.name} is quantized, the kernel takes plain elements")
    if kind not in _cpu.KINDS:
        raise CannotLower(f"%{value.name} is {kind}, the kernels take {', '.join(_cpu.KINDS)}")
    return kind


def _lonely(job: Job) -> None:
    if job.tail:
        raise CannotLower(f"no kernel computes {job.op} |> {job.tail[0].op} as one")


# -- several operands -----------------------------------------------------------------------------


def meeting(result: Sizes, *operands: Sizes) -> tuple[Sizes, list[Sizes]]:
    """Sizes and each operand's steps for broadcasting, with as few axes as there can be."""
    steps = []
    for shape in operands:
        missing = len(result) - len(shape)
        own = zip(strides(shape), shape, strict=True)
        steps.append((0,) * missing + tuple(0 if size == 1 else by for by, size in own))
    sizes_of, kept = [1], [[0] for _ in operands]
    for axis, size in enumerate(result):
        if size == 1:
            continue
        inner = [by[axis] for by in steps]
        if all(k[-1] == by * size for k, by in zip(kept, inner, strict=True)) or sizes_of == [1]:
            sizes_of[-1] *= size
            for k, by in zip(kept, inner, strict=True):
                k[-1] = by
        else:
            sizes_of.append(size)
            for k, by in zip(kept, inner, strict=True):
                k.append(by)
    return tuple(sizes_of), [tuple(k) for k in kept]


def _apply(b: ProgramBuilder, name: str, op: str, kind: str, a: Value, c: Value, y: Value) -> None:
    _pair(b, name, op, kind, (b.need(a), sizes(a)), (b.need(c), sizes(c)), b.make(y), sizes(y))


def _pair(
    b: ProgramBuilder,
    name: str,
    op: str,
    kind: str,
    first: tuple[Buffer, Sizes],
    second: tuple[Buffer, Sizes],
    made: Buffer,
    result: Sizes,
) -> None:
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {op} of {kind}")
    (x, a), (z, c) = first, second
    shape, (a_steps, b_steps) = meeting(result, a, c)
    b.add(
        name,
        "apply",
        [x, z],
        [made],
        result,
        lambda plan, at: plan.apply(
            name, at(x), at(z), at(made), op=op, kind=kind, shape=shape, a_steps=a_steps,
            b_steps=b_steps,
        ),
    )  # fmt: skip


def binary(b: ProgramBuilder, job: Job) -> None:
    """Lowers an op of two operands, element by element."""
    _lonely(job)
    first, second = job.operands.values()
    kind, op = kind_of(first), APPLIED.get(job.op, job.op)
    kind_of(job.result)
    if op not in _cpu.applied() or kind_of(second) != kind:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    if op == "div" and kind != "f32" and kind != "f64":
        by = second.constant
        if by is None or not np.all(by.data):
            raise CannotLower("b may be 0, which has no quotient of integers")
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    _apply(b, job.name, op, kind, first, second, job.result)


def fold(b: ProgramBuilder, job: Job) -> None:
    """Lowers the least or greatest of several operands, or a sum of two: one after the other."""
    _lonely(job)
    values = [job.operands[slot] for slot in sorted(job.operands, key=_place)]
    kind, op = kind_of(job.result), "add" if job.op == "sum" else job.op
    if kind not in _cpu.applied()[op] or any(kind_of(v) != kind for v in values):
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    if job.op == "sum" and len(values) > 2 and kind.startswith("f"):
        raise CannotLower("no kernel rounds a sum of three or more once")
    if len(values) == 1:
        b.hold(job.result, b.need(values[0]))
        return
    held, shape = b.need(values[0]), sizes(values[0])
    for value in values[1:]:
        wider: Sizes = np.broadcast_shapes(shape, sizes(value))
        last = value is values[-1]
        made = b.make(job.result) if last else b.scratch(math.prod(wider) * itemsize(value))
        _pair(b, job.name, op, kind, (held, shape), (b.need(value), sizes(value)), made, wider)
        held, shape = made, wider


def _place(slot: str) -> int:
    return int(slot.partition(".")[2])


def where(b: ProgramBuilder, job: Job) -> None:
    """Lowers a choice by a condition."""
    _lonely(job)
    values = [job.operands[slot] for slot in ("condition", "a", "b")]
    if any(v.type.quant is not None for v in (*values, job.result)):
        raise CannotLower("no kernel chooses between quantized values")
    sources, made, item = [b.need(v) for v in values], b.make(job.result), itemsize(job.result)
    if item not in (1, 2, 4, 8):
        raise CannotLower(f"no kernel chooses between elements of {item} bytes")
    shape, steps = meeting(sizes(job.result), *map(sizes, values))
    b.add(
        job.name,
        "where",
        sources,
        [made],
        sizes(job.result),
        lambda plan, at: plan.where(
            job.name, at(sources[0]), at(sources[1]), at(sources[2]), at(made),
            shape=shape, condition_steps=steps[0], a_steps=steps[1],
            b_steps=steps[2], itemsize=item,
        ),
    )  # fmt: skip


def is_nan(b: ProgramBuilder, job: Job) -> None:
    """Lowers whether each element is unlike itself."""
    _lonely(job)
    value = job.operands["x"]
    kind = kind_of(value)
    if not kind.startswith("f"):
        raise CannotLower(f"x is {kind}, which has no NaN")
    _apply(b, job.name, "not_equal", kind, value, value, job.result)


def inverted(b: ProgramBuilder, job: Job) -> None:
    """Lowers a negation: of bool whether it is false, of bits and numbers by another operand."""
    _lonely(job)
    value = job.operands["x"]
    kind, dtype = kind_of(value), value.type.dtype.carrier
    if job.op == "neg" and kind.startswith("f"):
        function(b, job)
        return
    op, other = {"neg": ("sub", 0), "bit_not": ("xor", -1), "logical_not": ("equal", 0)}[job.op]
    if kind not in _cpu.applied()[op]:
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    with np.errstate(over="ignore"):
        data = np.array([other]).astype(dtype)
    by, own = (Buffer(data.nbytes, data=data), (1,)), (b.need(value), sizes(value))
    first, second = (by, own) if op == "sub" else (own, by)
    _pair(b, job.name, op, kind, first, second, b.make(job.result), sizes(job.result))


# -- one operand ----------------------------------------------------------------------------------


def function(b: ProgramBuilder, job: Job) -> None:
    """Lowers a function of each float32, computed in float64 by the C library."""
    _lonely(job)
    value = job.operands["x"]
    if kind_of(value) != "f32":
        raise CannotLower(f"x is {value.type.dtype}, the kernel takes f32")
    op, low, high = job.op, 0.0, 0.0
    if op == "gelu" and job.attrs["approximate"] == "tanh":
        op = "gelu_tanh"
    elif op in ("silu", "elu", "selu", "hard_sigmoid"):
        low = _number(job, "alpha")
        second = {"selu": "gamma", "hard_sigmoid": "beta"}.get(op)
        high = 0.0 if second is None else _number(job, second)
    source, made, size = b.need(value), b.make(job.result), math.prod(sizes(value))
    b.add(
        job.name,
        "function",
        [source],
        [made],
        sizes(value),
        lambda plan, at: plan.function(
            job.name, at(source), at(made), op=op, size=size, a=low, b=high
        ),
    )


def _number(job: Job, name: str) -> float:
    value = job.attrs[name]
    assert isinstance(value, float)
    return value


def cast(b: ProgramBuilder, job: Job) -> None:
    """Lowers another element type; the same one is no step."""
    _lonely(job)
    value = job.operands["x"]
    x, y = kind_of(value), kind_of(job.result)
    held = b.need(value)
    if x == y:
        b.hold(job.result, held)
        return
    cast_step(b, job.name, held, b.make(job.result), sizes(value), x, y)


def cast_step(
    b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes, of: str, to: str
) -> None:
    """Adds a step that gives elements another type."""
    size = math.prod(shape)
    b.add(
        name,
        "cast",
        [x],
        [y],
        shape,
        lambda plan, at: plan.cast(name, at(x), at(y), size=size, x_kind=of, y_kind=to),
    )


# -- along axes -----------------------------------------------------------------------------------


def _along(b: ProgramBuilder, name: str, value: Value, over: Sequence[int]) -> tuple[Buffer, Sizes]:
    """Returns a value with the axes `over` next to each other, and (outer, rows, inner)."""
    shape, source = sizes(value), b.need(value)
    if list(over) != list(range(over[0], over[-1] + 1)):
        kept = tuple(axis for axis in range(len(shape)) if axis not in over)
        order, turned = (*kept, *over), b.scratch(source.size)
        b.transpose(f"{value.name} for {name}", source, turned, shape, order, itemsize(value))
        rows = math.prod(shape[axis] for axis in over)
        return turned, (math.prod(shape) // rows, rows, 1)
    first, end = over[0], over[-1] + 1
    ends = (shape[:first], shape[first:end], shape[end:])
    outer, rows, inner = (math.prod(part) for part in ends)
    return source, (outer, rows, inner)


def reduction(b: ProgramBuilder, job: Job) -> None:
    """Lowers one number of all along some axes."""
    _lonely(job)
    value = job.operands["x"]
    kind, op = kind_of(value), job.op.removeprefix("reduce_")
    if kind != "f32" and (kind not in _cpu.ORDERED or op not in ("sum", "prod", "max", "min")):
        raise CannotLower(f"no kernel computes {job.op} of {kind}")
    rank = value.type.rank
    over = sorted({axis % rank for axis in job.ints("axes")}) or list(range(rank))
    if not over:
        raise CannotLower("x is a scalar")
    source, shape = _along(b, job.name, value, over)
    made = b.make(job.result)
    b.add(
        job.name,
        "reduce",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.reduce(job.name, at(source), at(made), op=op, shape=shape, kind=kind),
    )


def _ordered(value: Value) -> str:
    kind = kind_of(value)
    if kind not in _cpu.ORDERED:
        raise CannotLower(f"x is {kind}, the kernel orders {', '.join(_cpu.ORDERED)}")
    return kind


def global_max_pool(b: ProgramBuilder, job: Job) -> None:
    """Lowers the greatest element of each channel."""
    rank = job.operands["x"].type.rank
    axes = tuple(range(2, rank) if job.nchw else range(1, rank - 1))
    reduction(b, replace(job, op="reduce_max", attrs={"axes": axes, "keep": True}))


def place(b: ProgramBuilder, job: Job) -> None:
    """Lowers where the greatest or least number of an axis is."""
    value = job.operands["x"]
    kind, axis = _ordered(value), job.number("axis") % value.type.rank
    source, shape = _along(b, job.name, value, [axis])
    made, least, last = b.make(job.result), job.op == "arg_min", job.attrs["last"] is True
    b.add(
        job.name,
        "place",
        [source],
        [made],
        sizes(job.result),
        lambda plan, at: plan.place(
            job.name, at(source), at(made), shape=shape, kind=kind, least=least, last=last
        ),
    )


def top_k(b: ProgramBuilder, node: Node) -> None:
    """Lowers the greatest or least numbers of an axis and their places."""
    value, axis = node.operands["x"], node.attrs["axis"]
    assert isinstance(axis, int)
    kind = _ordered(value)
    source, shape = _along(b, node.name, value, [axis % value.type.rank])
    made = [b.make(result) for result in node.results]
    k, least = node.attrs["k"], node.attrs["largest"] is not True
    assert isinstance(k, int)
    b.add(
        node.name,
        "top_k",
        [source],
        made,
        sizes(node.results[0]),
        lambda plan, at: plan.top_k(
            node.name,
            at(source),
            at(made[0]),
            at(made[1]),
            shape=shape,
            k=k,
            kind=kind,
            least=least,
        ),
    )


def _names() -> dict[str, Callable[[ProgramBuilder, Job], None]]:
    """Returns the lowering of every op that a loop, a function or a reduction of the kernels
    computes."""
    known: dict[str, Callable[[ProgramBuilder, Job], None]] = dict.fromkeys(_cpu.OPERATIONS, binary)
    known |= dict.fromkeys(APPLIED, binary)
    known |= dict.fromkeys(_cpu.FUNCTIONS, function)
    known |= dict.fromkeys((f"reduce_{op}" for op in _cpu.REDUCTIONS), reduction)
    known |= dict.fromkeys(("arg_max", "arg_min"), place)
    known |= dict.fromkeys(("neg", "bit_not", "logical_not"), inverted)
    return (
        known
        | {"min": fold, "max": fold, "sum": fold, "where": where, "cast": cast}
        | {
            "is_nan": is_nan,
            "global_max_pool": global_max_pool,
        }
    )


LOWERINGS = _names()
