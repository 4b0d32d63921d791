"""Pooling along one or three axes, to sizes that are given, and back; channels are second."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.dtype import I64
from qir.ir.ops.conv import window_count
from qir.ir.ops.elementwise import require_floats, require_numbers
from qir.ir.ops.granularity import unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType

INDEX_BASES = ("tensor", "plane")


def window_counts(call: Call, sizes: Shape) -> list[Dim]:
    """Returns how many windows fit along each axis; raises TypeRuleError for attributes that cannot
    be meant."""
    axes = len(sizes)
    kernel, stride = call.int_list_attr("kernel", axes), call.int_list_attr("stride", axes)
    dilation = call.int_list_attr("dilation", axes) if "dilation" in call.attrs else (1,) * axes
    pad, ceil = call.int_list_attr("pad", 2 * axes), "ceil" in call.attrs and call.bool_attr("ceil")
    if min(*kernel, *stride, *dilation) < 1 or min(pad) < 0:
        raise call.fail("kernel, stride and dilation are 1 or more, pad 0 or more")
    out = [
        window_count(
            sizes[i],
            kernel[i],
            stride[i],
            pad[i] + pad[i + axes],
            dilation[i],
            ceil=ceil,
            lead=pad[i],
            pools="pool" in call.op,
        )
        for i in range(axes)
    ]
    if any(isinstance(size, int) and size < 0 for size in out):
        raise call.fail("the window is larger than the padded input")
    return out


def _pooled_shape(call: Call, spatial: int) -> Shape:
    """Returns the shape of x, which has batch, channels and n axes more."""
    x = call.shape("x")
    if not spatial or len(x) != spatial + 2:
        raise call.fail(f"x has {len(x)} axes, it takes {spatial + 2}")
    return x


def _pool(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    if "p" in call.attrs and call.int_attr("p") < 1:
        raise call.fail(f"p = {call.int_attr('p')}, it must be 1 or more")
    if not call.op.startswith("max"):
        require_floats(call)
    x = _pooled_shape(call, int(call.op[-2]))
    return (TensorType((*x[:2], *window_counts(call, x[2:])), call.express("x")),)


def _pool_with_places(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    x = _pooled_shape(call, len(call.int_list_attr("kernel")))
    if call.text_attr("counted") not in INDEX_BASES:
        raise call.fail(f"counted {call.text_attr('counted')!r} is neither tensor nor plane")
    shape = (*x[:2], *window_counts(call, x[2:]))
    return TensorType(shape, call.express("x")), TensorType(shape, I64)


def _unpool(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    size, places = call.int_list_attr("size"), call.types["places"]
    x = _pooled_shape(call, len(size))
    if call.text_attr("counted") not in INDEX_BASES:
        raise call.fail(f"counted {call.text_attr('counted')!r} is neither tensor nor plane")
    if min(size, default=0) < 0:
        raise call.fail(f"size {size}: one is negative")
    if places.quant or not places.dtype.is_integer or places.rank != len(x):
        raise call.fail(f"places are {places}, they must be whole numbers shaped as x")
    if not all(map(dims.may_be_equal, places.shape, x)):
        raise call.fail(f"places {list(places.shape)} are not shaped as x {list(x)}")
    return (TensorType((*x[:2], *size), call.express("x")),)


def _adaptive(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    if call.op == "adaptive_avg_pool":
        require_floats(call)
    size = call.int_list_attr("size")
    if not size:
        raise call.fail("size names no axis")
    x = _pooled_shape(call, len(size))
    if min(size, default=0) < -1:
        raise call.fail(f"size {size}: one is negative")
    for target, size_of_x in zip(size, x[2:], strict=True):
        if size_of_x == 0 and target:
            raise call.fail(f"x {list(x)} has nothing to take {size} from")
    sizes = (
        size_of_x if target == -1 else target for target, size_of_x in zip(size, x[2:], strict=True)
    )
    return (TensorType((*x[:2], *sizes), call.express("x")),)


def keep_unless_spatial(call: Call, element: QuantType) -> QuantType | None:
    """The quantized type stays, where it works on batch or channels alone."""
    return unless_along_axes(element, *range(2, len(call.shape("x"))))


def _window_attrs(n: int) -> tuple[AttrSpec, ...]:
    return (
        AttrSpec("kernel", "ints", required=True),
        AttrSpec("stride", "ints", (1,) * n),
        AttrSpec("pad", "ints", (0,) * 2 * n),
    )


def _pools_along(n: int) -> tuple[OpSpec, ...]:
    dilation, ceil = AttrSpec("dilation", "ints", (1,) * n), AttrSpec("ceil", "bool", False)
    return (
        OpSpec(
            f"max_pool{n}d",
            _X,
            _pool,
            (*_window_attrs(n), dilation, ceil),
            _KEEPS,
            keep_unless_spatial,
            doc="greatest element of each window; padding never wins",
        ),
        OpSpec(
            f"avg_pool{n}d",
            _X,
            _pool,
            (*_window_attrs(n), ceil, AttrSpec("count_pad", "bool", False)),
            Traits(averages=True),
            doc="mean of each window; padding counts as zeros where count_pad says so",
        ),
        OpSpec(
            f"lp_pool{n}d",
            _X,
            _pool,
            (*_window_attrs(n), AttrSpec("p", "int", 2), dilation, ceil),
            doc="p-th root of the sum of |x| to the p in each window",
        ),
    )


_X = (Slot("x"),)
_KEEPS = Traits(same_params=("x",), value_preserving=True)
_COUNTED = AttrSpec("counted", "text", "tensor")
_SIZE = AttrSpec("size", "ints", required=True)

OPS = (
    *_pools_along(1),
    *_pools_along(3),
    OpSpec(
        "max_pool_places",
        _X,
        _pool_with_places,
        (
            *(AttrSpec(name, "ints", required=True) for name in ("kernel", "stride", "pad")),
            AttrSpec("dilation", "ints", required=True),
            AttrSpec("ceil", "bool", False),
            _COUNTED,
        ),
        results=2,
        doc="greatest element of each window along all axes but two, and where it stands: "
        "its number in the whole tensor or in its plane",
    ),
    OpSpec(
        "max_unpool",
        (Slot("x"), Slot("places")),
        _unpool,
        (_SIZE, _COUNTED),
        doc="zeros of those sizes, with each element at the place that max_pool_places gave it",
    ),
    OpSpec(
        "adaptive_avg_pool",
        _X,
        _adaptive,
        (_SIZE,),
        Traits(averages=True),
        doc="mean of windows that divide each axis into `size` parts as even as can be; -1 keeps",
    ),
    OpSpec(
        "adaptive_max_pool",
        _X,
        _adaptive,
        (_SIZE,),
        _KEEPS,
        keep_unless_spatial,
        doc="greatest element of the windows that adaptive_avg_pool takes",
    ),
)
