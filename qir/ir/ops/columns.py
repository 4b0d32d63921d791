"""Windows laid out as columns and put back, samples at given places, and matrices as a whole."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.conv import window_count
from qir.ir.ops.elementwise import require_floats, require_numbers, require_same_express
from qir.ir.ops.granularity import unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

MODES = ("nearest", "linear", "cubic")
PADDING_MODES = ("zeros", "border", "reflection")
_MAX_AXES = 64


def _window_grid(call: Call, sizes: Shape) -> Dim:
    """Returns how many windows there are in all."""
    axes = len(call.int_list_attr("kernel"))
    kernel, stride = call.int_list_attr("kernel"), call.int_list_attr("stride", axes)
    dilation, pad = call.int_list_attr("dilation", axes), call.int_list_attr("pad", 2 * axes)
    if not axes or min(*kernel, *stride, *dilation) < 1 or min(pad) < 0:
        raise call.fail("kernel, stride and dilation are 1 or more, pad 0 or more")
    counts = [
        window_count(sizes[i], kernel[i], stride[i], pad[i] + pad[i + axes], dilation[i])
        for i in range(axes)
    ]
    if any(isinstance(c, int) and c < 1 for c in counts):
        raise call.fail(f"no window of {kernel} is in {list(sizes)}")
    return dims.product(tuple(counts))


def _unfold(call: Call) -> tuple[TensorType, ...]:
    x, kernel = call.shape("x"), call.int_list_attr("kernel")
    if len(x) != len(kernel) + 2:
        raise call.fail(f"x has {len(x)} axes, it takes {len(kernel) + 2}")
    rows = dims.multiply(x[1], dims.product(kernel))
    return (TensorType((x[0], rows, _window_grid(call, x[2:])), call.express("x")),)


def _fold(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    x, kernel = call.shape("x"), call.int_list_attr("kernel")
    size = call.int_list_attr("size", len(kernel))
    if len(x) != 3:
        raise call.fail(f"x has {len(x)} axes, it takes 3")
    if min(size, default=0) < 1:
        raise call.fail(f"size {size}: each must be 1 or more")
    count, area = _window_grid(call, size), dims.product(kernel)
    if not dims.may_be_equal(count, x[2]):
        raise call.fail(f"x has {x[2]} columns, but {count} windows make up {size}")
    # Rows are [channels x kernel], so their number is a multiple of the kernel's area.
    if isinstance(x[1], int) and isinstance(area, int) and x[1] % area:
        raise call.fail(f"x has {x[1]} rows, which are no whole windows of {kernel}")
    return (TensorType((x[0], dims.divide(x[1], area), *size), call.express("x")),)


def _grid_sample(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    require_same_express(call, "x", "grid")
    x, grid = call.shape("x"), call.shape("grid")
    axes = len(x) - 2
    if axes < 1 or len(grid) != len(x) or not dims.may_be_equal(grid[-1], axes):
        raise call.fail(
            f"x {list(x)} needs a grid of {len(x)} axes, the last of {axes}: {list(grid)}"
        )
    if not dims.may_be_equal(x[0], grid[0]):
        raise call.fail(f"x has {x[0]} images, grid {grid[0]}")
    if call.text_attr("mode") not in MODES or call.text_attr("outside") not in PADDING_MODES:
        raise call.fail(f"mode {call.text_attr('mode')!r}, outside {call.text_attr('outside')!r}")
    if 0 in x[2:]:
        raise call.fail(f"x {list(x)} has nothing to sample")
    return (TensorType((x[0], x[1], *grid[1:-1]), call.express("x")),)


def _affine_grid(call: Call) -> tuple[TensorType, ...]:
    require_floats(call, "theta")
    theta, kind, constant = call.shape("theta"), call.types["size"], call.constant("size")
    if kind.rank != 1 or kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"size is {kind}, it takes one row of whole numbers")
    rank = kind.shape[0]
    if not isinstance(rank, int) or not 3 <= rank <= _MAX_AXES:
        raise call.fail(f"size is {kind}; its length must be known, and 3 at least")
    axes = rank - 2
    if (
        len(theta) != 3
        or not dims.may_be_equal(theta[1], axes)
        or not dims.may_be_equal(theta[2], axes + 1)
    ):
        raise call.fail(f"theta {list(theta)}, it takes matrices of {axes} x {axes + 1}")
    # The spatial sizes are known only where `size` is a constant; the rank always is.
    shape: Shape = (None,) * axes
    if constant is not None:
        shape = tuple(int(s) for s in constant[2:])
        if min(constant.tolist()) < 1 or not dims.may_be_equal(theta[0], int(constant[0])):
            raise call.fail(f"theta {list(theta)} and size {constant.tolist()} do not fit")
    return (TensorType((theta[0], *shape, axes), call.express("theta")),)


def _det(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(_square(call)[:-2], call.express("x")),)


def _inverse(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(_square(call), call.express("x")),)


def _square(call: Call) -> Shape:
    require_floats(call)
    x = call.shape("x")
    if len(x) < 2 or not dims.may_be_equal(x[-2], x[-1]):
        raise call.fail(f"x has {list(x)}, it takes square matrices")
    return x


def _move_unfold(call: Call, element: QuantType) -> QuantType | None:
    # Channels and window positions are mixed into rows and columns; only the batch axis stays.
    return unless_along_axes(element, *range(1, len(call.shape("x"))))


_X = (Slot("x"),)
_WINDOW = tuple(
    AttrSpec(name, "ints", required=True) for name in ("kernel", "stride", "pad", "dilation")
)

OPS = (
    OpSpec(
        "unfold",
        _X,
        _unfold,
        _WINDOW,
        Traits(same_params=("x",), value_preserving=True),
        _move_unfold,
        doc="each window of all channels a column: [batch, channels x kernel, windows]",
    ),
    OpSpec(
        "fold",
        _X,
        _fold,
        (AttrSpec("size", "ints", required=True), *_WINDOW),
        doc="columns added where unfold took them from, an image of that size",
    ),
    OpSpec(
        "grid_sample",
        (Slot("x"), Slot("grid")),
        _grid_sample,
        (
            AttrSpec("mode", "text", "linear"),
            AttrSpec("outside", "text", "zeros"),
            AttrSpec("align_corners", "bool", False),
        ),
        doc="x between its elements, where the grid says; -1..1 spans each axis, the last first",
    ),
    OpSpec(
        "affine_grid",
        (Slot("theta"), Slot("size")),
        _affine_grid,
        (AttrSpec("align_corners", "bool", False),),
        doc="the grid of places that a matrix maps an image of that size to",
    ),
    OpSpec("det", _X, _det, doc="determinant of each matrix in the last two axes"),
    OpSpec("inverse", _X, _inverse, doc="inverse of each matrix in the last two axes"),
)
