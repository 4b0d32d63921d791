"""Rows of a table by their numbers, one for each or bags of them together."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Shape
from qir.ir.ops.elementwise import require_floats, require_same_express
from qir.ir.ops.granularity import permute_axes
from qir.ir.ops.index import require_integers
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

MODES = ("sum", "mean", "max")


def _table(call: Call) -> Shape:
    w, padding = call.shape("w"), call.attrs["padding"]
    if len(w) != 2:
        raise call.fail(f"w has {len(w)} axes, it takes 2")
    count = w[0]
    if isinstance(padding, int) and isinstance(count, int) and not -count <= padding < count:
        raise call.fail(f"padding = {padding}, but w has {count} rows")
    return w


def _embedding(call: Call) -> tuple[TensorType, ...]:
    w, shape = _table(call), require_integers(call, "indices").shape
    return (TensorType((*shape, w[1]), call.express("w")),)


def _move(call: Call, element: QuantType) -> QuantType | None:
    rank = call.types["indices"].rank
    # Scales along rows (axis 0) have no place in the result: an index picks any row.
    return permute_axes(element, call.shape("w"), {1: rank}, rank + 1)


def _bag(call: Call) -> tuple[TensorType, ...]:
    require_floats(call, "w")
    w, kind = _table(call), require_integers(call, "indices")
    mode, offsets = call.text_attr("mode"), call.types.get("offsets")
    if mode not in MODES:
        raise call.fail(f"mode {mode!r} is none of {', '.join(MODES)}")
    if "weights" in call.types:
        require_same_express(call, "w", "weights")
        weights_shape = call.shape("weights")
        if mode != "sum":
            raise call.fail(f"weights go with mode sum, not {mode}")
        if len(weights_shape) != kind.rank or not all(
            map(dims.may_be_equal, weights_shape, kind.shape)
        ):
            raise call.fail(
                f"weights {list(weights_shape)} are not shaped as indices {list(kind.shape)}"
            )
    if (kind.rank, offsets is None) not in ((2, True), (1, False)):
        raise call.fail("it takes indices of 2 axes, or of 1 with offsets")
    if offsets is None:
        return (TensorType((kind.shape[0], w[1]), call.express("w")),)
    if require_integers(call, "offsets").rank != 1:
        raise call.fail(f"offsets have {offsets.rank} axes, they take 1")
    if offsets.shape[0] == 0 and call.bool_attr("last"):
        raise call.fail("offsets that end with the last one have one at least")
    bags = dims.add(offsets.shape[0], -1 if call.bool_attr("last") else 0)
    return (TensorType((bags, w[1]), call.express("w")),)


_PADDING = AttrSpec("padding", "int")

OPS = (
    OpSpec(
        "embedding",
        (Slot("w"), Slot("indices")),
        _embedding,
        (_PADDING,),
        Traits(value_preserving=True),
        _move,
        doc="the rows of w that the indices name; training leaves the row `padding` alone",
    ),
    OpSpec(
        "embedding_bag",
        (
            Slot("w"),
            Slot("indices"),
            Slot("offsets", optional=True),
            Slot("weights", optional=True),
        ),
        _bag,
        (AttrSpec("mode", "text", "mean"), AttrSpec("last", "bool", False), _PADDING),
        doc="rows of w summed, averaged or the greatest of each bag: the rows of indices, or runs "
        "from each offset to the next; `last` says that the offsets end with the end of the last "
        "bag; rows named `padding` do not count",
    ),
)
