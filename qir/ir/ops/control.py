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


def _carried_types(call: Call, body: str, given: Sequence[TensorType]) -> BodySignature:
    """Returns the body's signature; raises TypeRuleError unless it takes what is given."""
    held = call.bodies[body]
    if len(held.inputs) != len(given):
        raise call.fail(f"the body {body} takes {len(held.inputs)} values, it gets {len(given)}")
    for i, (wanted, got) in enumerate(zip(held.inputs, given, strict=True)):
        if not _fits(wanted, got):
            raise call.fail(f"the body {body} takes {wanted} as input {i}, it gets {got}")
    return held


def _fits(a: TensorType, b: TensorType) -> bool:
    same = _one_element(a, b) is not None and a.rank == b.rank
    return same and all(map(dims.may_be_equal, a.shape, b.shape))


def _meet(call: Call, what: str, *kinds: TensorType) -> TensorType:
    """Returns the type that holds all of these: sizes that differ are unknown."""
    first = kinds[0]
    for kind in kinds[1:]:
        element = _one_element(first, kind)
        if element is None or kind.rank != first.rank:
            raise call.fail(f"{what} is {first} here and {kind} there")
        first = first.with_element(element)
    sizes = zip(*(kind.shape for kind in kinds), strict=True)
    return first.with_shape(tuple(_same(s) for s in sizes))


def _one_element(a: TensorType, b: TensorType) -> Element | None:
    """Returns the element of both; None where they differ."""
    if a.quant or b.quant:
        return a.element if a.element == b.element else None
    return join_dtypes(a.dtype, b.dtype)


def _same(sizes: tuple[Dim, ...]) -> Dim:
    return sizes[0] if all(size == sizes[0] for size in sizes) else None


def _one(call: Call, slot: str, kind: str) -> None:
    found = call.types.get(slot)
    if found is not None and (found.quant or found.dtype.name != kind or found.rank > 1):
        raise call.fail(f"{slot} is {found}, it takes one {kind}")


def _if(call: Call) -> tuple[TensorType, ...]:
    _one(call, "cond", "bool")
    given = call.variadic("xs")
    branches = [_carried_types(call, name, given).outputs for name in ("then", "else")]
    if len(branches[0]) != len(branches[1]):
        raise call.fail(f"then gives {len(branches[0])} values, else {len(branches[1])}")
    pairs = zip(*branches, strict=True)
    return tuple(_meet(call, f"result {i}", *pair) for i, pair in enumerate(pairs))


def _loop(call: Call) -> tuple[TensorType, ...]:
    _one(call, "count", "i64")
    _one(call, "cond", "bool")
    carried, given = call.variadic("vs"), call.variadic("xs")
    held = call.bodies["body"]
    if len(held.inputs) < 2 or not held.outputs:
        raise call.fail("the body takes a count and a condition first and gives a condition first")
    _carried_types(call, "body", (*held.inputs[:2], *carried, *given))
    index, cond = held.inputs[:2]
    if index.element != I64 or cond.element != held.outputs[0].element or cond.dtype.name != "bool":
        raise call.fail(f"the body takes an i64 and a bool first, here {index} and {cond}")
    made = held.outputs[1:]
    if len(made) < len(carried):
        raise call.fail(f"{len(carried)} values are carried, the body gives {len(made)}")
    n = len(carried)
    kept = tuple(
        _meet(call, f"carried value {i}", before, held.inputs[2 + i], after)
        for i, (before, after) in enumerate(zip(carried, made[:n], strict=True))
    )
    return (*kept, *(_stacked(call, kind, None, 0) for kind in made[n:]))


def _scan(call: Call) -> tuple[TensorType, ...]:
    carried, parts, given = call.variadic("vs"), call.variadic("ss"), call.variadic("xs")
    if not parts:
        raise call.fail("it takes a sequence or more in ss")
    axes, _ = _ways(call, "axes", "reverse", [p.rank for p in parts])
    steps = [part.shape[axis] for part, axis in zip(parts, axes, strict=True)]
    numbers = {step for step in steps if isinstance(step, int)}
    if len(numbers) > 1:
        raise call.fail(f"the sequences are of different lengths: {sorted(numbers)}")
    slices = [_slice(call, part, axis) for part, axis in zip(parts, axes, strict=True)]
    held = _carried_types(call, "body", (*carried, *slices, *given))
    n = len(carried)
    made = held.outputs[n:]
    if len(held.outputs) < n:
        raise call.fail(f"{n} values are carried, the body gives {len(held.outputs)}")
    kept = tuple(
        _meet(call, f"carried value {i}", before, held.inputs[i], after)
        for i, (before, after) in enumerate(zip(carried, held.outputs[:n], strict=True))
    )
    count = numbers.pop() if numbers else steps[0]
    out_axes, _ = _ways(call, "out_axes", "out_reverse", [kind.rank + 1 for kind in made])
    return (
        *kept,
        *(_stacked(call, k, count, axis) for k, axis in zip(made, out_axes, strict=True)),
    )


def _ways(
    call: Call, axes: str, reverse: str, ranks: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the axis of each sequence, and whether it runs backwards; none given: axis 0,
    forwards."""
    along = call.int_list_attr(axes) or (0,) * len(ranks)
    back = call.int_list_attr(reverse) or (0,) * len(ranks)
    if len(along) != len(ranks) or len(back) != len(ranks):
        raise call.fail(f"{axes} {along} and {reverse} {back} are for {len(ranks)} sequences")
    for axis, rank in zip(along, ranks, strict=True):
        if not -rank <= axis < rank:
            raise call.fail(f"{axes} {along}: a sequence has {rank} axes")
    return tuple(a % r for a, r in zip(along, ranks, strict=True)), back


def _slice(call: Call, kind: TensorType, axis: int) -> TensorType:
    """Returns one entry of a sequence."""
    shape = (*kind.shape[:axis], *kind.shape[axis + 1 :])
    places = {at: at - (at > axis) for at in range(kind.rank) if at != axis}
    return _moved(call, kind, places, shape)


def _stacked(call: Call, kind: TensorType, count: Dim, axis: int) -> TensorType:
    """So many of them along a new axis."""
    shape = (*kind.shape[:axis], count, *kind.shape[axis:])
    return _moved(call, kind, {at: at + (at >= axis) for at in range(kind.rank)}, shape)


def _moved(call: Call, kind: TensorType, places: dict[int, int], shape: Shape) -> TensorType:
    """Returns the type with its axes at other places; raises TypeRuleError where its quantized type
    does not get there."""
    if not isinstance(kind.element, QuantType):
        return TensorType(shape, kind.element)
    element = permute_axes(kind.element, kind.shape, places, len(shape))
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
