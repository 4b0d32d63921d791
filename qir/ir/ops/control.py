"""Control: ops that run the closed graphs they hold.

A body sees its own inputs and nothing else; what it uses from outside comes in by the slots `xs`.
Its inputs and outputs are bound by their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.dtype import I64, join_dtypes
from qir.ir.ops.granularity import permute_axes
from qir.ir.ops.spec import AttrSpec, BodySignature, Call, OpSpec, Slot
from qir.ir.types import Element, QuantType, TensorType


def _carried_types(call: Call, body: str, operands: Sequence[TensorType]) -> BodySignature:
    """Returns the body's signature; raises TypeRuleError unless it takes what is given."""
    signature = call.bodies[body]
    if len(signature.inputs) != len(operands):
        raise call.fail(
            f"the body {body} takes {len(signature.inputs)} values, it gets {len(operands)}"
        )
    for i, (expected, actual) in enumerate(zip(signature.inputs, operands, strict=True)):
        if not _fits(expected, actual):
            raise call.fail(f"the body {body} takes {expected} as input {i}, it gets {actual}")
    return signature


def _fits(a: TensorType, b: TensorType) -> bool:
    same = _common_element(a, b) is not None and a.rank == b.rank
    return same and all(map(dims.may_be_equal, a.shape, b.shape))


def _merge_types(call: Call, what: str, *kinds: TensorType) -> TensorType:
    """Returns the type that holds all of these: sizes that differ are unknown."""
    merged = kinds[0]
    for kind in kinds[1:]:
        element = _common_element(merged, kind)
        if element is None or kind.rank != merged.rank:
            raise call.fail(f"{what} is {merged} here and {kind} there")
        merged = merged.with_element(element)
    sizes = zip(*(kind.shape for kind in kinds), strict=True)
    return merged.with_shape(tuple(_common_size(s) for s in sizes))


def _common_element(a: TensorType, b: TensorType) -> Element | None:
    """Returns the element of both; None where they differ."""
    if a.quant or b.quant:
        return a.element if a.element == b.element else None
    return join_dtypes(a.dtype, b.dtype)


def _common_size(sizes: tuple[Dim, ...]) -> Dim:
    return sizes[0] if all(size == sizes[0] for size in sizes) else None


def _check_scalar(call: Call, slot: str, kind: str) -> None:
    type_ = call.types.get(slot)
    if type_ is not None and (type_.quant or type_.dtype.name != kind or type_.rank > 1):
        raise call.fail(f"{slot} is {type_}, it takes one {kind}")


def _if(call: Call) -> tuple[TensorType, ...]:
    _check_scalar(call, "cond", "bool")
    captured = call.variadic("xs")
    branches = [_carried_types(call, name, captured).outputs for name in ("then", "else")]
    if len(branches[0]) != len(branches[1]):
        raise call.fail(f"then gives {len(branches[0])} values, else {len(branches[1])}")
    pairs = zip(*branches, strict=True)
    return tuple(_merge_types(call, f"result {i}", *pair) for i, pair in enumerate(pairs))


def _loop(call: Call) -> tuple[TensorType, ...]:
    _check_scalar(call, "count", "i64")
    _check_scalar(call, "cond", "bool")
    carried, captured = call.variadic("vs"), call.variadic("xs")
    signature = call.bodies["body"]
    if len(signature.inputs) < 2 or not signature.outputs:
        raise call.fail("the body takes a count and a condition first and gives a condition first")
    # The iteration number and the condition have the body's own types: they are checked below.
    _carried_types(call, "body", (*signature.inputs[:2], *carried, *captured))
    index, cond = signature.inputs[:2]
    if (
        index.element != I64
        or cond.element != signature.outputs[0].element
        or cond.dtype.name != "bool"
    ):
        raise call.fail(f"the body takes an i64 and a bool first, here {index} and {cond}")
    outputs = signature.outputs[1:]
    if len(outputs) < len(carried):
        raise call.fail(f"{len(carried)} values are carried, the body gives {len(outputs)}")
    carried_count = len(carried)
    # A carried value has one type before the loop, inside it and after it; sizes that differ
    # between these are unknown in the result.
    final_types = tuple(
        _merge_types(call, f"carried value {i}", before, signature.inputs[2 + i], after)
        for i, (before, after) in enumerate(zip(carried, outputs[:carried_count], strict=True))
    )
    return (*final_types, *(_stacked_type(call, kind, None, 0) for kind in outputs[carried_count:]))


def _scan(call: Call) -> tuple[TensorType, ...]:
    carried, sequences, captured = call.variadic("vs"), call.variadic("ss"), call.variadic("xs")
    if not sequences:
        raise call.fail("it takes a sequence or more in ss")
    axes, _ = _sequence_axes(call, "axes", "reverse", [p.rank for p in sequences])
    steps = [part.shape[axis] for part, axis in zip(sequences, axes, strict=True)]
    # All sequences advance together, one entry of each in every round.
    numbers = {step for step in steps if isinstance(step, int)}
    if len(numbers) > 1:
        raise call.fail(f"the sequences are of different lengths: {sorted(numbers)}")
    slices = [_entry_type(call, part, axis) for part, axis in zip(sequences, axes, strict=True)]
    signature = _carried_types(call, "body", (*carried, *slices, *captured))
    carried_count = len(carried)
    outputs = signature.outputs[carried_count:]
    if len(signature.outputs) < carried_count:
        raise call.fail(
            f"{carried_count} values are carried, the body gives {len(signature.outputs)}"
        )
    final_types = tuple(
        _merge_types(call, f"carried value {i}", before, signature.inputs[i], after)
        for i, (before, after) in enumerate(
            zip(carried, signature.outputs[:carried_count], strict=True)
        )
    )
    count = numbers.pop() if numbers else steps[0]
    out_axes, _ = _sequence_axes(
        call, "out_axes", "out_reverse", [kind.rank + 1 for kind in outputs]
    )
    return (
        *final_types,
        *(_stacked_type(call, k, count, axis) for k, axis in zip(outputs, out_axes, strict=True)),
    )


def _sequence_axes(
    call: Call, axes: str, reverse: str, ranks: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axis of each sequence, and whether it runs backwards; none given: axis 0,
    forwards."""
    axis_list = call.int_list_attr(axes) or (0,) * len(ranks)
    directions = call.int_list_attr(reverse) or (0,) * len(ranks)
    if len(axis_list) != len(ranks) or len(directions) != len(ranks):
        raise call.fail(
            f"{axes} {axis_list} and {reverse} {directions} are for {len(ranks)} sequences"
        )
    for axis, rank in zip(axis_list, ranks, strict=True):
        if not -rank <= axis < rank:
            raise call.fail(f"{axes} {axis_list}: a sequence has {rank} axes")
    return tuple(a % r for a, r in zip(axis_list, ranks, strict=True)), directions


def _entry_type(call: Call, kind: TensorType, axis: int) -> TensorType:
    """Returns one entry of a sequence."""
    shape = (*kind.shape[:axis], *kind.shape[axis + 1 :])
    new_axes = {at: at - (at > axis) for at in range(kind.rank) if at != axis}
    return _move_axes(call, kind, new_axes, shape)


def _stacked_type(call: Call, kind: TensorType, count: Dim, axis: int) -> TensorType:
    """So many of them along a new axis."""
    shape = (*kind.shape[:axis], count, *kind.shape[axis:])
    return _move_axes(call, kind, {at: at + (at >= axis) for at in range(kind.rank)}, shape)


def _move_axes(call: Call, kind: TensorType, new_axes: dict[int, int], shape: Shape) -> TensorType:
    """Returns the type with its axes at other places; raises TypeRuleError where its quantized type
    does not get there."""
    if not isinstance(kind.element, QuantType):
        return TensorType(shape, kind.element)
    element = permute_axes(kind.element, kind.shape, new_axes, len(shape))
    if element is None:
        raise call.fail(f"the map of {kind} does not survive as {list(shape)}")
    return TensorType(shape, element)


_XS = Slot("xs", variadic=True)
_VS = Slot("vs", variadic=True)

OPS = (
    OpSpec(
        "if",
        (Slot("cond"), _XS),
        _if,
        results=None,
        bodies=("then", "else"),
        doc="what then gives of xs where cond is true, else what else gives",
    ),
    OpSpec(
        "loop",
        (Slot("count", optional=True), Slot("cond", optional=True), _VS, _XS),
        _loop,
        results=None,
        bodies=("body",),
        doc="vs carried around the body (i, cond, vs, xs) -> (cond, vs, parts), while cond holds "
        "and i is less than count; then the parts of all rounds, stacked",
    ),
    OpSpec(
        "scan",
        (_VS, Slot("ss", variadic=True), _XS),
        _scan,
        tuple(AttrSpec(n, "ints", ()) for n in ("axes", "reverse", "out_axes", "out_reverse")),
        results=None,
        bodies=("body",),
        doc="vs carried around the body (vs, one entry of each of ss, xs) -> (vs, parts); "
        "then the parts of all rounds, stacked",
    ),
)
