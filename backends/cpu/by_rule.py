"""Ops as the kernels of other runtimes compute them: by the rule of a profile.

A rule that quantizes becomes parameters of one kernel. An op whose method computes each element by
itself becomes a lookup table, which the reference computes for all bytes, or all pairs of bytes.
One that computes vectors of elements one way, and those that fill none another way, becomes two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dtype import F32
from qir.ir.node import Value
from qir.ir.types import TensorType
from qir.numerics import Affine, Rule, affine_of, dequantize
from qir.numerics import quantize as quantize_floats
from qir.numerics.consistency import clashes
from qir.numerics.definition import clip_range, nan_results, quantize_factor
from qir.numerics.fields import MethodField
from qir.numerics.stages import ReluStage, stage_function
from qir.profiles.methods import plugin_method
from qir.records import record
from qir.reference import methods
from qir.reference.means import divisors
from qir.reference.products import ProductKernel
from qir.reference.quantized import with_node_rounding
from qir.reference.vectors import innermost_run_length

from . import plain_elements, pools, resizing, sums
from .builder import Buffer, CannotLower, ProgramBuilder, StridedElements, sizes, strides
from .data_movement import join
from .elementwise import Broadcast, broadcast_sizes
from .epilogues import bounds_after
from .kernel_types import ByteParameters, Job, Table, all_bytes, byte_parameters
from .lookup_tables import is_pointwise
from .normalizations import SOFTMAXES, add_layer_norm, softmax_by_powers
from .pair_formulas import pair_formula
from .pools import sizes_nhwc
from .sizes import Sizes

VECTOR_METHODS = frozenset({"vectors", "product_of_codes", "prelu_of_codes", "recode_vectors"})
"""Methods with two results for an element: that of vectors of `lanes` elements, and that of the
elements which fill none, at the end of a run (`innermost_run_length`)."""
TRIED_METHODS = frozenset({"short_recode"})
"""Methods of which some types have such results too: both are computed, and compared."""
CHOICES = frozenset({"max", "min", "relu"})
"""Ops that pick one of two elements, which the method `move` compares in the result's type."""
MOVES: Mapping[str, Callable[[ProgramBuilder, Job], None]] = {
    "reduce_max": pools.reduce_max,
    "where": plain_elements.where,
}
"""Lowerings of other ops on bytes of one quantized type, which stay as they are."""
SAME_SHAPE_METHODS = frozenset({"shifted_sum"})
"""Methods of two tensors of one shape, which compute elements by themselves; of other shapes they
are other ones. The last few of a block are tried too."""
_FEW = 7
"""Fewer elements than any vector has."""
_BLOCK = 64
"""Elements that any runtime computes at once, or a multiple of these."""
MEANS = frozenset({"global_avg_pool", "avg_pool2d"})
"""Ops that the method `mean_of_steps` computes by the kernel of means."""


def lowers(op: str, rule: Rule) -> bool:
    """Returns whether this module may lower an op by a rule."""
    method = rule.method.name if rule.method else ""
    if sums.lowers(op, rule) or resizing.lowers(op, rule):
        return True
    if op == "softmax":
        return method in SOFTMAXES
    if op == "quantize":
        return not method
    if op in MEANS:
        return method == "mean_of_steps"
    if op == "concat":
        return method == "channel_vectors"
    if op == "layer_norm":
        return method == "reals"
    if method == "move":  # of other types than the result's they are brought to it first
        return op in CHOICES or op in MOVES
    by_elements = (
        method in VECTOR_METHODS | TRIED_METHODS | SAME_SHAPE_METHODS
        or methods.is_pointwise(method)
    )
    return by_elements and (is_pointwise(op) or op == "prelu")


def lower_by_rule(b: ProgramBuilder, job: Job) -> None:
    """Lowers an op by the rule of its profile; raises CannotLower where no kernel does."""
    if job.summand is not None:
        raise CannotLower(f"no kernel computes {job.op} |> add as one")
    assert job.rule is not None
    if sums.lowers(job.op, job.rule):
        sums.lower_sums(b, job)
    elif resizing.lowers(job.op, job.rule):
        resizing.lower_resize(b, job)
    elif job.op == "softmax":
        softmax_by_powers(b, job)
    elif job.op in MOVES:
        MOVES[job.op](b, job)
    elif job.op == "quantize":
        quantize(b, job)
    elif job.op in MEANS:
        mean(b, job)
    elif job.op == "concat":
        concat(b, job)
    elif job.op == "layer_norm":
        layer_norm(b, job)
    else:
        vectors(b, job)


# -- quantize -------------------------------------------------------------------------------------

_FAR = {"end": {}, "clip_32": {"wraps": True}}


def quantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers float32 to 8 bits."""
    value, rule = job.operands["x"], job.rule
    assert rule is not None
    if value.type.element != F32 or len(job.operands) != 1:
        raise CannotLower(f"x is {value.type.element}, the kernels quantize f32 by static types")
    y = byte_parameters(job.result, "the result")
    if job.epilogue or job.attrs["saturate"] is not True:
        raise CannotLower("no kernel computes a quantize with another op as one")
    options = _quantizer(affine_of(y.quant), with_node_rounding(rule, job.attrs))
    source, made = b.buffer(value), b.allocate(job.result)
    shape = sizes(value)
    b.add(
        job.name,
        "quantize_by",
        [source],
        [made],
        shape,
        lambda plan, at: plan.quantize_by(
            job.name, at(source), at(made), size=math.prod(shape), y_type=y.kind, **options
        ),
    )


def layer_norm(b: ProgramBuilder, job: Job) -> None:
    """Lowers a norm of float32 between dequantize and quantize, by the rule of the norm."""
    value, rule = job.operands["x"], job.rule
    assert rule is not None
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    how = rule.dequantize
    if job.epilogue or (how.by, how.compute, rule.params.round) != ("(q-z)*s", "f32", "none"):
        raise CannotLower(f"no kernel dequantizes by dequantize.by = {how.by}")
    if any(v.type.element != F32 for slot, v in job.operands.items() if slot != "x"):
        raise CannotLower("gamma or beta is quantized")
    options, shape = _quantizer(affine_of(y.quant), rule), sizes(value)
    size = math.prod(shape)
    floats, normalized = b.scratch(4 * size), b.scratch(4 * size)
    source = b.buffer(value)
    dequantized = _dequantized(b, job, source, floats, x, shape)
    add_layer_norm(b, job, dequantized, lambda: normalized)
    made = b.allocate(job.result)
    b.add(
        job.name,
        "quantize_by",
        [normalized],
        [made],
        shape,
        lambda plan, at: plan.quantize_by(
            job.name, at(normalized), at(made), size=size, y_type=y.kind, **options
        ),
    )


def _dequantized(
    b: ProgramBuilder, job: Job, source: Buffer, floats: Buffer, x: ByteParameters, shape: Sizes
) -> Buffer:
    """Adds a step that dequantizes bytes; returns the buffer of the floats."""
    b.add(
        job.name,
        "dequantize",
        [source],
        [floats],
        shape,
        lambda plan, at: plan.dequantize(
            job.name, at(source), at(floats), shape=shape, scale=float(x.scale), zero=x.zero,
            x_type=x.kind,
        ),
    )  # fmt: skip
    return floats


def _quantizer(to: Affine, rule: Rule) -> dict[str, Any]:
    """Returns the options of the plan's `quantize_by`; raises CannotLower where it has none."""
    q, numbers = rule.quantize, to.over((1,))
    if q.by not in ("divide", "reciprocal", "gain") or q.compute not in ("f32", "f64_reciprocal"):
        raise CannotLower(f"no kernel quantizes by quantize.by = {q.by} in {q.compute}")
    if q.zero not in ("after", "before", "fused", "none") or q.round not in ("even", "away"):
        raise CannotLower(f"no kernel adds zero points by quantize.zero = {q.zero}, {q.round}")
    if q.far not in _FAR or q.sum != "whole" or next(clashes(rule), None):
        raise CannotLower(f"no kernel saturates by quantize.far = {q.far}")
    if q.zero == "fused" and q.by == "divide":
        raise CannotLower("no kernel divides and adds in one rounding")
    # Some kernels saturate at the ends of the type, though the quantized type is narrower.
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    by, zero = quantize_factor(numbers, to, rule), int(to.zero)
    inside = q.zero in ("before", "fused")
    options: dict[str, Any] = {
        "factor": float(by.reshape(())),
        "divide": q.by == "divide",
        "fused": q.zero == "fused",
        "before": float(zero) if inside else 0.0,
        "zero": 0 if inside or q.zero == "none" else zero,
        "low": low,
        "high": high,
        "away": q.round == "away",
        **_FAR[q.far],
    }
    if q.clip == "range_first":
        # The definition clips infinities to the bounds that the kernel then clips all floats to.
        ends = np.array([-np.inf, np.inf], np.float32)
        with np.errstate(all="ignore"):
            least, most = clip_range(ends, by.reshape(-1), to.over((2,)), to, rule)
        options |= {"least": float(least), "most": float(most)}
    if q.nan == "far":
        return {**options, "nan": "far"}
    if q.nan != "unspecified":
        zeros = np.zeros(()) if q.zero == "none" else to.zero
        options["nan"] = int(nan_results(np.asarray(zeros), low, high, to.carrier, rule))
    return options


# -- vectors and the elements that fill none ------------------------------------------------------


@record
class _Tables:
    """What the elements of vectors become, and those at the ends of runs."""

    body: Table
    tail: Table
    lanes: int

    @property
    def is_one(self) -> bool:
        """Whether both are the same."""
        return np.array_equal(self.body, self.tail)

    def options(self, run: int) -> dict[str, Any]:
        """Returns the options of a step for runs of a length."""
        whole = run // self.lanes * self.lanes if self.lanes else 0
        if self.is_one:
            whole = run
        return {"table": self.body, "tail": self.tail, "run": max(run, 1), "body": whole}


def vectors(b: ProgramBuilder, job: Job) -> None:
    """Lowers an op on each element alone, of one or two tensors of 8 bits."""
    y = byte_parameters(job.result, "the result")
    varying = {
        slot: v
        for slot, v in job.operands.items()
        if v.constant is None or math.prod(sizes(v)) != 1
    }
    if not 1 <= len(varying) <= 2:
        raise CannotLower(f"no kernel looks up {len(varying)} operands")
    held = {slot: byte_parameters(value, slot) for slot, value in varying.items()}
    tables = _tables(job, held, y)
    run = innermost_run_length([sizes(v) for v in job.operands.values()], sizes(job.result))
    if len(varying) == 1:
        ((value),) = varying.values()
        if math.prod(sizes(value)) != math.prod(sizes(job.result)):
            raise CannotLower("the operand is broadcast")
        source, made = b.buffer(value), b.allocate(job.result)
        add_lookup_runs(b, job.name, source, made, sizes(job.result), tables.options(run))
        return
    first, second = varying.values()
    formula = None
    if tables.is_one:
        formula = pair_formula(job, tuple(held.values()), y, tables.body)
    options = tables.options(run) if formula is None else formula.options
    _add_pairs(b, job, (first, second), formula.step if formula else "lookup_pairs", options)


def _tables(job: Job, held: Mapping[str, ByteParameters], y: ByteParameters) -> _Tables:
    """Returns the tables that the reference computes, activations included."""
    rule = job.rule
    assert rule is not None
    assert rule.method is not None
    if job.epilogue and stage_function(ReluStage, rule.stage.relu).apart is not None:
        raise CannotLower("an activation is computed apart")
    lanes = rule.method.params.get("lanes", 0)
    count = 256 ** len(held)
    if not isinstance(lanes, int) or (lanes and count % lanes):
        raise CannotLower(f"no table has vectors of {lanes} elements")
    # A method may compute its relu on floats, before it rounds: that one must be in the tables.
    own = job.epilogue[:1] if job.epilogue and methods.applies_relu(rule) else ()
    own = own if own and own[0].op == "relu" else ()
    low, high = bounds_after(job, job.epilogue[len(own) :], y.low, y.high)
    types = {slot: value.type for slot, value in job.operands.items()}
    types |= {slot: TensorType((count,), of.quant) for slot, of in held.items()}
    arrays = {
        slot: v.constant.data
        for slot, v in job.operands.items()
        if v.constant is not None and slot not in held
    }
    first, *others = held
    arrays[first] = np.repeat(all_bytes(held[first]), count // 256)
    arrays |= {slot: np.tile(all_bytes(held[slot]), 256) for slot in others}

    name, tails = rule.method.name, tuple(stage.op for stage in own)

    def computed(by: Rule, begin: int, end: int) -> NDArray[np.generic]:
        part = types | {slot: TensorType((end - begin,), of.quant) for slot, of in held.items()}
        kind = TensorType((end - begin,), y.quant)
        kernel = ProductKernel(job.op, job.attrs, part, kind, by, tails=tails)
        given = {s: arrays[s][begin:end] if s in held else arrays[s] for s in job.operands}
        return methods.run(kernel, given)

    def made(lanes: int) -> Table:
        given = {**rule.method.params} if rule.method else {}
        given |= {"lanes": lanes} if "lanes" in given else {}
        codes = computed(replace(rule, method=MethodField(name, given)), 0, count)
        table: Table = np.ascontiguousarray(np.clip(codes, low, high).astype(codes.dtype))
        return table.reshape(-1)

    try:
        if name in SAME_SHAPE_METHODS:
            table = made(lanes)
            if len({sizes(v) for v in job.operands.values()}) != 1:
                raise CannotLower("its operands have two shapes")
            end = count - _BLOCK + _FEW
            if not np.array_equal(np.clip(computed(rule, 0, end), low, high), table[:end]):
                raise CannotLower("its results depend on places")
            return _Tables(table, table, 0)
        if not lanes:
            table = made(0)
            if name in TRIED_METHODS:
                pieces = [computed(rule, at, min(at + _FEW, count)) for at in range(0, count, _FEW)]
                if not np.array_equal(np.clip(np.concatenate(pieces), low, high), table):
                    raise CannotLower("its results depend on places")
            return _Tables(table, table, 0)
        # A runtime computes what fills no vector by scalar code, which rounds otherwise: two
        # tables. No vector has more lanes than there are entries.
        least = plugin_method(name)
        none = 0 if least is None or least.params["lanes"].least == 0 else count + 1
        return _Tables(made(lanes), made(none), lanes)
    except QirError as error:
        raise CannotLower(str(error)) from None


def _add_pairs(
    b: ProgramBuilder,
    job: Job,
    operands: tuple[Value, Value],
    step: str,
    options: Mapping[str, Any],
) -> None:
    """Adds a step of two operands, each of which may be broadcast."""
    first, second = operands
    x, z = b.buffer(first), b.buffer(second)
    try:
        shape, wide = broadcast_sizes(first, second, job.result.type.rank, nhwc=False)
    except CannotLower:  # each repeats along an axis of the other
        x, z = (_repeated(b, job, value) for value in (first, second))
        shape, wide = (1, 1, math.prod(sizes(job.result))), None
    made = b.allocate(job.result)
    broadcast: Broadcast = wide
    b.add(
        job.name,
        step,
        [x, z],
        [made],
        sizes(job.result),
        lambda plan, at: getattr(plan, step)(
            job.name, at(x), at(z), at(made), shape=shape, broadcast=broadcast, **options
        ),
    )


def _repeated(b: ProgramBuilder, job: Job, value: Value) -> Buffer:
    """Returns a buffer of bytes that are repeated as the result of a job needs it."""
    source, shape = b.buffer(value), sizes(job.result)
    if sizes(value) == shape:
        return source
    of = (1,) * (len(shape) - value.type.rank) + sizes(value)
    steps = tuple(0 if size == 1 else step for size, step in zip(of, strides(of), strict=True))
    repeated = b.scratch(math.prod(shape))
    b.add_strided_copy(value, source, repeated, shape, StridedElements(value, steps))
    return repeated


def add_lookup_runs(
    b: ProgramBuilder, name: str, x: Buffer, y: Buffer, shape: Sizes, options: dict[str, Any]
) -> None:
    """Adds a step that looks up each byte, by another table at the ends of runs."""
    size = math.prod(shape)
    if options["body"] == options["run"]:
        entries = options["table"]
        b.add(
            name, "lookup", [x], [y], shape,
            lambda plan, at: plan.lookup(name, at(x), at(y), size=size, table=entries),
        )  # fmt: skip
        return
    b.add(
        name,
        "lookup_runs",
        [x],
        [y],
        shape,
        lambda plan, at: plan.lookup_runs(name, at(x), at(y), size=size, **options),
    )


def concat(b: ProgramBuilder, job: Job) -> None:
    """Lowers a concat; operands of another type than the result's go through tables first."""
    rule, axis = job.rule, job.int_attr("axis") % job.result.type.rank
    assert rule is not None
    parts = [job.operands[s] for s in sorted(job.operands, key=lambda s: int(s.split(".")[1]))]
    y = byte_parameters(job.result, "the result")
    rank = job.result.type.rank
    by_channels = rank == 4 and axis == 3
    # torch takes such images for contiguous and for channels last at once, and decides by strides.
    if rank == 4 and axis == 1 and all(
        sizes(v)[1] == 1 or math.prod(sizes(v)[2:]) == 1 for v in parts
    ):  # fmt: skip
        raise CannotLower("no kernel joins images of one channel or one pixel as channels last")
    tables = [_recoded(job, byte_parameters(v), y, by_channels) for v in parts]
    if not by_channels and any(t is not None and t.lanes for t in tables):
        raise CannotLower("no kernel joins vectors along this axis")
    sources = []
    for value, table in zip(parts, tables, strict=True):
        source = b.buffer(value)
        if table is not None:
            looked_up = b.scratch(source.size)
            run = sizes(value)[axis] if by_channels else math.prod(sizes(value))
            name = f"{value.name} in the type of {job.name}"
            add_lookup_runs(b, name, source, looked_up, sizes(value), table.options(run))
            source = looked_up
        sources.append(source)
    join(b, job, parts, sources)


def _recoded(job: Job, of: ByteParameters, y: ByteParameters, by_channels: bool) -> _Tables | None:
    """Returns the tables for an operand; None where its bytes stay as they are."""
    rule, codes = job.rule, all_bytes(of)
    assert rule is not None
    assert rule.method is not None
    if by_channels and affine_of(of.quant).same_map(affine_of(y.quant)):
        return None
    if not by_channels:
        floats = dequantize(codes, affine_of(of.quant), rule)
        table = cast("Table", quantize_floats(floats, affine_of(y.quant), rule))
        return _Tables(table, table, 0)
    lanes = rule.method.params["lanes"]
    assert isinstance(lanes, int)

    def made(count: int) -> Table:
        shape = (1, 1, 256 // count, count)
        kernel = ProductKernel(
            "concat", job.attrs, {"xs.0": TensorType(shape, of.quant)},
            TensorType(shape, y.quant), rule,
        )  # fmt: skip
        found = methods.run(kernel, {"xs.0": codes.reshape(shape)})
        return cast("Table", found.reshape(-1))

    return _Tables(made(256), made(1), lanes)


# -- means ----------------------------------------------------------------------------------------


def mean(b: ProgramBuilder, job: Job) -> None:
    """Lowers a mean of windows, or of whole images, by the method `mean_of_steps`."""
    value, rule = job.operands["x"], job.rule
    assert rule is not None
    assert rule.method is not None
    how: dict[str, Any] = {
        "lanes": 0, "fused": False, "raw": False, "divide": False, "after": False,
        **rule.method.params,
    }  # fmt: skip
    x, y = byte_parameters(value, "x"), byte_parameters(job.result, "the result")
    if value.type.rank != 4 or not x.same(y) or job.epilogue:
        raise CannotLower("no kernel computes such a mean in another type than its operand's")
    shape, out, held = sizes_nhwc(job)
    whole, plain = job.op == "global_avg_pool", sizes(value)
    raw = how["raw"] and plain[1] > 1
    if raw and not whole:
        raise CannotLower("no kernel adds zero points to the sums of windows")
    kernel = shape[1:3] if whole else job.int_pair("kernel")
    stride = (1, 1) if whole else job.int_pair("stride")
    pad = (0, 0, 0, 0) if whole else job.pads()
    call = ProductKernel(job.op, job.attrs, {"x": value.type}, job.result.type, rule)
    number = np.broadcast_to(divisors(call, plain).reshape(-1), out[0] * out[1]).astype(np.float32)
    sides = [np.float32(side) for side in shape[1:3]] if raw else [number]
    divide = bool(how["divide"])
    if divide and np.unique(number).size != 1:
        raise CannotLower("no kernel divides sums of windows of several sizes")
    factor = np.ones(len(number), np.float32)
    if not divide:
        factor = factor * reduce(np.divide, sides, np.ones((), np.float32))
    last = float(number[0]) if divide else 1.0
    placed = how["after"] and not raw and _zero_comes_last(job, plain)
    after, before = (0.0, False, y.zero, divide, last), (float(y.zero), False, 0, divide, last)
    tail = (0.0, False, 0, divide, last) if raw else after if placed else before
    body = (float(y.zero), True, 0, False, 1.0) if how["fused"] else after
    lanes = int(how["lanes"])
    vectors = shape[3] // lanes * lanes if lanes else 0
    source, made = b.buffer(value, nhwc=job.nchw), b.allocate(job.result, nhwc=job.nchw)
    b.add(
        job.name,
        "code_means",
        [source],
        [made],
        held,
        lambda plan, at: plan.code_means(
            job.name, at(source), at(made), shape=shape, kernel=kernel, stride=stride,
            pad=pad[:2], out=out, factor=factor, body=vectors, ends=(body, tail),
            x_zero=0 if raw else x.zero, x_type=x.kind, y_type=y.kind, low=y.low, high=y.high,
        ),
    )  # fmt: skip


def _zero_comes_last(job: Job, shape: Sizes) -> bool:
    """Returns whether single elements add the zero point after rounding, as the method has it."""
    if job.op == "avg_pool2d":
        return not job.nchw or shape[1] == 1
    return True
