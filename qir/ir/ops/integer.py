"""Products of raw integers, as files have them that quantize while they run.

Their operands are not quantized but plain 8-bit numbers; zeros come as companions, `a.zero`.
"""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.dtype import I8, I32, U8
from qir.ir.ops.conv import window_count
from qir.ir.ops.elementwise import broadcast
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _raw(call: Call, slot: str) -> Shape:
    """Returns the operand's shape; raises TypeRuleError unless it and its zero are plain 8-bit
    numbers."""
    kind = call.types[slot]
    if kind.element not in (I8, U8):
        hint = "; recode gives the raw integers" if kind.quant else ""
        raise call.fail(f"{slot} is {kind}, it takes raw i8 or u8{hint}")
    zero = call.companions.get(f"{slot}.zero")
    if zero is not None and zero.element != kind.element:
        raise call.fail(f"{slot}.zero is {zero}, {slot} is {kind.element}")
    return kind.shape


def _only_zeros(call: Call, *slots: str) -> None:
    known = {f"{slot}.zero" for slot in slots}
    for name in call.companions:
        if name not in known:
            raise call.fail(f"it takes no {name}: its operands are raw numbers and have zeros only")


def _matmul(call: Call) -> tuple[TensorType, ...]:
    a, b = _raw(call, "a"), _raw(call, "b")
    _only_zeros(call, "a", "b")
    if not a or not b:
        raise call.fail("an operand is a scalar")
    has_rows, has_columns = len(a) > 1, len(b) > 1
    # NumPy's rule: a vector counts as one row on the left, one column on the right, and its axis is
    # dropped from the result.
    a, b = (a if has_rows else (1, *a)), (b if has_columns else (*b, 1))
    if not dims.may_be_equal(a[-1], b[-2]):
        raise call.fail(f"a has {a[-1]} columns, b has {b[-2]} rows")
    batch = broadcast(call, a[:-2], b[:-2]) if a[:-2] or b[:-2] else ()
    _zero_fits(call, "a.zero", a[-2])
    _zero_fits(call, "b.zero", b[-1])
    shape = (*batch, *((a[-2],) if has_rows else ()), *((b[-1],) if has_columns else ()))
    return (TensorType(shape, I32),)


def _zero_fits(call: Call, slot: str, count: Dim) -> None:
    """Raises TypeRuleError for a list of zeros that is not one an index."""
    kind = call.companions.get(slot)
    if kind is None or kind.rank != 1 or kind.shape[0] == 1:
        return
    if not dims.may_be_equal(kind.shape[0], count):
        raise call.fail(f"{slot} has {kind.shape[0]} numbers, there are {count}")


def _conv(call: Call) -> tuple[TensorType, ...]:
    x, w = _raw(call, "x"), _raw(call, "w")
    _only_zeros(call, "x", "w")
    axes = len(x) - 2
    if axes < 1 or len(w) != len(x):
        raise call.fail(f"x has {len(x)} axes and w {len(w)}; both have as many, 3 or more")
    groups, out_channels = call.int_attr("groups"), w[0]
    if groups < 1 or (isinstance(out_channels, int) and out_channels % groups):
        raise call.fail(f"{out_channels} output channels do not split into {groups} groups")
    if not dims.may_be_equal(x[1], dims.multiply(w[1], groups)):
        raise call.fail(f"x has {x[1]} channels, w wants {w[1]} x {groups} groups")
    stride, dilation = (_each(call, n, axes, 1) for n in ("stride", "dilation"))
    pad = _each(call, "pad", 2 * axes, 0)
    sizes = [
        window_count(size, kernel, stride[i], pad[i] + pad[i + axes], dilation[i])
        for i, (size, kernel) in enumerate(zip(x[2:], w[2:], strict=True))
    ]
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise call.fail("the window is larger than the padded input")
    if (zero := call.companions.get("x.zero")) is not None and dims.product(zero.shape) != 1:
        raise call.fail(f"x.zero is {zero}; there is one for all of x")
    _zero_fits(call, "w.zero", out_channels)
    return (TensorType((x[0], out_channels, *sizes), I32),)


def _each(call: Call, name: str, count: int, minimum: int) -> tuple[int, ...]:
    """Returns a number an axis; none: the least there is."""
    values = call.int_list_attr(name)
    if not values:
        return (minimum,) * count
    if len(values) != count or min(values) < minimum:
        raise call.fail(f"{name} {values} is not {count} numbers, each {minimum} or more")
    return values


def _macs(call: Call, result: Shape) -> int:
    inner = call.shape("a")[-1:] if call.op == "matmul_integer" else call.shape("w")[1:]
    total = 1
    for size in dims.known_shape((*result, *inner)) or (0,):
        total *= size
    return total


OPS = (
    OpSpec(
        "matmul_integer",
        (Slot("a"), Slot("b")),
        _matmul,
        cost=_macs,
        doc="sums of (a - a.zero) * (b - b.zero) in i32 that wraps; zeros are along a's rows and "
        "b's columns",
    ),
    OpSpec(
        "conv_integer",
        (Slot("x"), Slot("w")),
        _conv,
        (
            AttrSpec("stride", "ints", ()),
            AttrSpec("pad", "ints", ()),
            AttrSpec("dilation", "ints", ()),
            AttrSpec("groups", "int", 1),
        ),
        cost=_macs,
        doc="convolution of raw integers, channels second, in i32 that wraps; padding counts as "
        "x.zero, w.zero is along output channels",
    ),
)
