"""Ops between floats and quantized values, what chooses and reads their numbers; and `cast`.

The result type says which quantized type is meant. Where it says `?`, companion operands give the
numbers.
"""

from __future__ import annotations

from qir import registry
from qir.ir.dims import Dim, Shape
from qir.ir.dtype import F32, I32, DType
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import Array, Granularity, Param, QuantType, TensorType

ROUND_MODES = (
    "",
    "even",
    "away",
    "half_up",
    "half_down",
    "up",
    "down",
    "zero",
    "floor",
    "ceil",
)
"""What `round` may say; nothing: as the profile does."""
MODES = ("", "scaled", "min_combined", "min_first")
GIVES = ("numbers", "range")
_RANGES = "qir.ranges"
"""The entry points of scale rules, which `qir.numerics` executes."""


def scale_rule_names() -> tuple[str, ...]:
    """Returns what `rule` of `choose_qparams` may say."""
    return ("profile", *registry.entries(_RANGES, object))


def _express(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.shape("x"), call.express("x")),)


def _quantize(call: Call) -> tuple[TensorType, ...]:
    if call.types["x"].quant is not None:
        raise call.fail("x is quantized already; requantize converts it")
    _one_of(call, "round", ROUND_MODES)
    _one_of(call, "mode", MODES)
    return _express(call)


def _one_of(call: Call, name: str, known: tuple[str, ...]) -> None:
    if call.text_attr(name) not in known:
        choices = ", ".join(k for k in known if k)
        raise call.fail(f"{name} = {call.text_attr(name)!r} is none of {choices}")


def _require_quantized(call: Call) -> tuple[TensorType, ...]:
    if call.types["x"].quant is None:
        raise call.fail(f"x is {call.types['x']} and is not quantized")
    return _express(call)


def _requantize(call: Call) -> tuple[TensorType, ...]:
    _one_of(call, "round", ROUND_MODES)
    return _require_quantized(call)


def _cast(call: Call) -> tuple[TensorType, ...]:
    to = call.attrs["to"]
    if not isinstance(to, DType):
        raise call.fail("to is no element type")
    return (TensorType(call.shape("x"), to),)


def _recode(call: Call) -> tuple[TensorType, ...]:
    """Returns the raw integers; a stated type of the same width may give them a meaning."""
    return (TensorType(call.shape("x"), call.types["x"].dtype),)


# -- quantization parameters as values of their own -----------------------------------------------


def parameter_shape(shape: Shape, axes: tuple[int, ...], blocks: tuple[int, ...]) -> Shape:
    """Returns the shape of one number a block of the kept axes; other axes have one index."""
    if not axes:
        return ()
    sizes = dict(zip(axes, blocks or (1,) * len(axes), strict=True))

    def count(i: int, dim: Dim) -> Dim:
        if i not in sizes:
            return 1
        if sizes[i] == 1:
            return dim
        return -(-dim // sizes[i]) if isinstance(dim, int) else None

    return tuple(count(i, dim) for i, dim in enumerate(shape))


def _choose(call: Call) -> tuple[TensorType, ...]:
    if not call.express("x").is_float:
        raise call.fail(f"x is {call.types['x']}; it takes floats, or quantized values of floats")
    rule = call.text_attr("rule")
    if rule != "profile" and registry.entry(_RANGES, object, rule) is None:
        _one_of(call, "rule", scale_rule_names())
    storage, scale = call.attrs["storage"], call.attrs["scale_type"]
    zero = call.attrs["zero_type"] or storage
    assert isinstance(storage, DType)
    assert isinstance(scale, DType)
    assert isinstance(zero, DType)
    if not storage.is_integer or not zero.is_integer or not scale.is_float:
        raise call.fail("storage and zero_type are integers, scale_type is a float")
    bounds = call.int_list_attr("bounds")
    if bounds and not (
        len(bounds) == 2 and storage.bounds[0] <= bounds[0] < bounds[1] <= storage.bounds[1]
    ):
        raise call.fail(f"bounds {bounds} are not two values of {storage}, the lower one first")
    shape = call.shape("x")
    axes, blocks = call.axes_attr("keep", len(shape)), call.int_list_attr("blocks")
    if list(axes) != sorted(axes):
        raise call.fail(f"keep {axes} does not rise")
    if blocks and (len(blocks) != len(axes) or min(blocks) < 1):
        raise call.fail(f"blocks {blocks} are not one size, 1 or more, a kept axis")
    parameters = parameter_shape(shape, axes, blocks)
    return TensorType(parameters, scale), TensorType(parameters, zero)


def _qparams(call: Call) -> tuple[TensorType, ...]:
    quant = call.types["x"].quant
    if quant is None:
        raise call.fail(f"x is {call.types['x']} and is not quantized")
    _one_of(call, "give", GIVES)
    first, second = ("min", "max") if call.text_attr("give") == "range" else ("scale", "zero")
    return _parameter_type(call, quant, first), _parameter_type(call, quant, second)


def _parameter_type(call: Call, quant: QuantType, name: str) -> TensorType:
    """Returns what reading one of the numbers gives; a companion is handed on."""
    # A companion operand is the parameter: its own type says all.
    if (companion := call.companions.get(f"x.{name}")) is not None:
        return companion
    if name in ("min", "max"):
        return TensorType(_parameter_shape_of(call, quant, quant.scale), F32)
    param = quant.scale if name == "scale" else quant.zero
    if param is None:
        raise call.fail(f"x is {call.types['x']}; x.{name} gives the number")
    # Scales that are quantized themselves are read as the floats they mean.
    if isinstance(param, Array):
        return param.type.with_element(param.type.express)
    # A type without zero points has one zero for each scale.
    shape = _parameter_shape_of(call, quant, param or quant.scale)
    if name == "scale":
        return TensorType(shape, quant.scale_type)
    if quant.has_float_zero:
        return TensorType(shape, quant.express)
    return TensorType(shape, quant.storage if quant.storage.is_integer else I32)


def _parameter_shape_of(call: Call, quant: QuantType, param: Param) -> Shape:
    if quant.granularity is None:
        return ()
    if isinstance(param, Array):
        return param.type.shape
    # Per-axis parameters are a list; blocks are a grid with the rank of x.
    shape = quant.granularity.grid(call.shape("x"))
    return shape if quant.axis is None else (shape[quant.axis],)


def chosen_granularity(axes: tuple[int, ...], blocks: tuple[int, ...] = ()) -> Granularity | None:
    """Returns the granularity of integers whose numbers `choose_qparams` makes with such
    attributes."""
    if not axes:
        return None
    return Granularity(tuple(zip(axes, blocks or (1,) * len(axes), strict=True)))


def _fake(call: Call) -> tuple[TensorType, ...]:
    if call.types["x"].quant is not None:
        raise call.fail("x is quantized; it takes floats and gives floats")
    return _express(call)


_ROUND = AttrSpec("round", "text", "")

OPS = (
    OpSpec(
        "quantize",
        (Slot("x"),),
        _quantize,
        (_ROUND, AttrSpec("mode", "text", ""), AttrSpec("saturate", "bool", True)),
        doc="quantizes floats to the result type; `round` and `saturate` are what a file states "
        "and beat the profile, `mode` is what its rules may ask for",
    ),
    OpSpec(
        "dequantize",
        (Slot("x"),),
        _require_quantized,
        doc="dequantizes integers",
    ),
    OpSpec(
        "requantize",
        (Slot("x"),),
        _requantize,
        (_ROUND,),
        doc="requantizes: integers of one quantized type to those of another",
    ),
    OpSpec(
        "recode",
        (Slot("x"),),
        _recode,
        doc="the same bits as another type of that width: quantized, or plain integers",
    ),
    OpSpec(
        "choose_qparams",
        (Slot("x"),),
        _choose,
        (
            AttrSpec("rule", "text", required=True),
            AttrSpec("storage", "dtype", required=True),
            AttrSpec("bounds", "ints", ()),
            AttrSpec("symmetric", "bool", False),
            AttrSpec("keep", "ints", ()),
            AttrSpec("blocks", "ints", ()),
            AttrSpec("scale_type", "dtype", F32),
            AttrSpec("zero_type", "dtype", None),
        ),
        results=2,
        doc="scale and zero for the range of x by a named rule: one of each, or one a block of the "
        "kept axes",
    ),
    OpSpec(
        "qparams",
        (Slot("x"),),
        _qparams,
        (AttrSpec("give", "text", "numbers"),),
        results=2,
        doc="scale and zero of a type as tensors, or least and greatest float value",
    ),
    OpSpec(
        "fake_quantize",
        (Slot("x"),),
        _fake,
        (AttrSpec("learn", "text", ""), AttrSpec("enabled", "bool", True)),
        inner=("code",),
        doc="floats to the floats that the inner slot `code` can hold; `learn` names how training "
        "changes its numbers",
    ),
    OpSpec(
        "cast",
        (Slot("x"),),
        _cast,
        (AttrSpec("to", "dtype", required=True),),
        Traits(near_zero=True),
        doc="values in another element type: integers keep their low bits, float values are cut "
        "toward "
        "zero; past the range of i32 (results of up to 16 bits, and i32) or of i64 they, and "
        "NaN, become its least number first",
    ),
)
