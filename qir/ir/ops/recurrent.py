"""Recurrent layers, with the weights laid out as ONNX has them.

w is [directions, gates * hidden, in] and r [directions, gates * hidden, out], where `out` is what a
step hands on: hidden, or what proj makes of it. The gates of lstm are in the order i, o, f, c and
its peepholes in the order i, o, f; the gates of gru are in the order z, r, h.

bias is [directions, gates * hidden], or twice that: first what is added to the product with w,
then what is added to the product with r. x is [steps, batch, in]; y is [steps, directions, batch,
out], h and c are [directions, batch, out or hidden]. Where batch_first says so, batch comes first
in all of these. A sequence that is shorter than the steps gives zeros for the rest of them, and h
and c of its own last step; one of no steps gives zeros. clip bounds the sums that gates read, as
onnxruntime has it, and not what the last activation reads.

Inner slots name the places where a value is rounded, in each step and direction, on [batch, size]:
`h` is the state as the products with r read it, `gate.i` (and its like) the sum that an activation
reads, `act.i` what it gives, `c` the new cell, `hidden` what is projected.
"""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import require_floats, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType
from qir.records import record

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction of a layer runs from the end."""

ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "affine": (1.0, 0.0),
    "leaky_relu": (0.01, None),
    "thresholded_relu": (1.0, None),
    "scaled_tanh": (1.0, 1.0),
    "hard_sigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}
"""The activations, with the alpha and beta of those that have them."""

DEFAULT_ACTIVATIONS = {
    "rnn": ("tanh",),
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
}
"""The default activations of each layer, for one direction."""

GATE_COUNTS = {"rnn": "h", "lstm": "iofc", "gru": "zrh"}
"""The gates of each layer, in the order in which the weights hold them."""


@record
class RecurrentSizes:
    """The sizes of one layer."""

    steps: Dim
    batch: Dim
    ways: int
    hidden: Dim
    out: Dim


def _sizes(call: Call) -> RecurrentSizes:
    """Returns the sizes; raises TypeRuleError where operands do not agree on them."""
    direction, gates = call.text_attr("direction"), len(GATE_COUNTS[call.op])
    if direction not in DIRECTIONS:
        raise call.fail(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    for slot, rank in (("x", 3), ("w", 3), ("r", 3)):
        if len(call.shape(slot)) != rank:
            raise call.fail(f"{slot} has {len(call.shape(slot))} axes, it takes {rank}")
    # ONNX's `layout` 1 puts the batch first, in x, y and the states.
    first, second, _ = call.shape("x")
    steps, batch = (second, first) if call.bool_attr("batch_first") else (first, second)
    rows = call.shape("w")[1]
    if isinstance(rows, int) and rows % gates:
        raise call.fail(f"w has {rows} rows, which are not {gates} gates of one size")
    hidden = dims.divide(rows, gates)
    proj = call.types.get("proj")
    if proj is not None and proj.rank != 3:
        raise call.fail(f"proj has {proj.rank} axes, it takes 3")
    out = hidden if proj is None else proj.shape[1]
    return RecurrentSizes(steps, batch, len(DIRECTIONS[direction]), hidden, out)


def _expect(call: Call, slot: str, *expected: Dim) -> None:
    shape = call.shape(slot)
    if len(shape) != len(expected) or not all(map(dims.may_be_equal, shape, expected)):
        raise call.fail(f"{slot} is {_shape_text(shape)}, it should be {_shape_text(expected)}")


def _shape_text(shape: Shape) -> str:
    return "x".join("?" if d is None else str(d) for d in shape) or "a scalar"


def _layer(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    require_same_express(call, "x", "w", "r", "bias", "h0", "c0", "peephole", "proj")
    _check_activations(call)
    sizes = _sizes(call)
    rows, kind = call.shape("w")[1], call.express("x")
    _expect(call, "w", sizes.ways, rows, call.shape("x")[2])
    _expect(call, "r", sizes.ways, rows, sizes.out)
    _check_bias(call, sizes.ways, rows)
    state = {"h0": sizes.out, "c0": sizes.hidden}
    for slot, size in state.items():
        if slot in call.types:
            _expect(call, slot, *_state_shape(call, sizes, size))
    if "peephole" in call.types:
        _expect(call, "peephole", sizes.ways, dims.multiply(sizes.hidden, 3))
    if "proj" in call.types:
        _expect(call, "proj", sizes.ways, sizes.out, sizes.hidden)
    if "lengths" in call.types:
        _expect(call, "lengths", sizes.batch)
        if call.types["lengths"].quant or not call.express("lengths").is_integer:
            raise call.fail(f"lengths are {call.types['lengths']}, they must be whole numbers")
    y: Shape = (sizes.steps, sizes.ways, sizes.batch, sizes.out)
    if call.bool_attr("batch_first"):
        y = (sizes.batch, sizes.steps, sizes.ways, sizes.out)
    shapes = (y, _state_shape(call, sizes, sizes.out), _state_shape(call, sizes, sizes.hidden))
    # Only an LSTM returns a cell state.
    return tuple(TensorType(shape, kind) for shape in shapes[: 3 if call.op == "lstm" else 2])


def _state_shape(call: Call, sizes: RecurrentSizes, size: Dim) -> Shape:
    return (
        (sizes.batch, sizes.ways, size)
        if call.bool_attr("batch_first")
        else (sizes.ways, sizes.batch, size)
    )


def _check_bias(call: Call, ways: int, rows: Dim) -> None:
    """Raises TypeRuleError unless there is one number a row, or two."""
    if "bias" not in call.types:
        return
    shape = call.shape("bias")
    # One bias a gate, or two as in ONNX and cuDNN: one for each of the two products.
    lengths = (rows, dims.multiply(rows, 2))
    if len(shape) != 2 or not any(dims.may_be_equal(shape[1], n) for n in lengths):
        expected = " or ".join(_shape_text((ways, n)) for n in lengths)
        raise call.fail(f"bias is {_shape_text(shape)}, it should be {expected}")
    _expect(call, "bias", ways, shape[1])


def _check_activations(call: Call) -> None:
    """Raises TypeRuleError for activations that nobody knows, or too few or many of them."""
    names, count = call.text_list_attr("activations"), len(DEFAULT_ACTIVATIONS[call.op])
    ways = len(DIRECTIONS.get(call.text_attr("direction"), ()))
    for name in names:
        if name not in ACTIVATIONS:
            raise call.fail(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    if len(names) not in (0, count * ways):
        raise call.fail(f"{len(names)} activations, it takes {count} a direction")
    for which in ("alpha", "beta"):
        if len(call.float_list_attr(which)) not in (0, count * ways):
            raise call.fail(
                f"{which} has {len(call.float_list_attr(which))} numbers, one an activation"
            )
    clip = call.attrs["clip"]
    if isinstance(clip, float) and not clip > 0:
        raise call.fail(f"clip = {clip!r}, it must be greater than 0")


def _macs(call: Call, result: Shape) -> int:
    """Products with w, r and proj; not those of single elements."""
    layer = _sizes(call)
    known = dims.known_shape(
        (layer.steps, layer.batch, layer.hidden, layer.out, *call.shape("w")[1:])
    )
    if known is None:
        return 0
    steps, batch, hidden, out, rows, input_size = known
    per_step = rows * (input_size + out) + (hidden * out if "proj" in call.types else 0)
    return steps * batch * layer.ways * per_step


def _optional(*names: str) -> tuple[Slot, ...]:
    return tuple(Slot(name, optional=True) for name in names)


def _inner(gates: str, *more: str) -> tuple[str, ...]:
    return ("h", *(f"{at}.{gate}" for at in ("gate", "act") for gate in gates), *more)


_X = (Slot("x"), Slot("w"), Slot("r"), *_optional("bias", "lengths", "h0"))
_ATTRS = (
    AttrSpec("direction", "text", "forward"),
    AttrSpec("batch_first", "bool", False),
    AttrSpec("activations", "texts", ()),
    AttrSpec("alpha", "floats", ()),
    AttrSpec("beta", "floats", ()),
    AttrSpec("clip", "float"),
)
_TRAITS = Traits(weight="w", weight_axis=lambda call: 1)

OPS = (
    OpSpec(
        "rnn",
        _X,
        _layer,
        _ATTRS,
        _TRAITS,
        cost=_macs,
        results=2,
        inner=_inner("h"),
        doc="y, h of h' = f(x @ w.T + h @ r.T + bias), step by step; f is tanh",
    ),
    OpSpec(
        "lstm",
        (*_X, *_optional("c0", "peephole", "proj")),
        _layer,
        (*_ATTRS, AttrSpec("input_forget", "bool", False)),
        _TRAITS,
        cost=_macs,
        results=3,
        inner=_inner("iofc", "c", "hidden"),
        doc="y, h, c of c' = f * c + i * g and h' = proj @ (o * tanh(c')), step by step; gates "
        "i, o, f, c in this order; peepholes look at c, o's at c'; input_forget: f is 1 - i",
    ),
    OpSpec(
        "gru",
        _X,
        _layer,
        (*_ATTRS, AttrSpec("linear_before_reset", "bool", False)),
        _TRAITS,
        cost=_macs,
        results=2,
        inner=_inner("zrh"),
        doc="y, h of h' = (1 - z) * n + z * h, step by step; gates z, r, h in this order; r "
        "multiplies h, or h's product and bias where linear_before_reset",
    ),
)
