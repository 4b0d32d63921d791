"""The types of tensors: a shape, and a plain element type or a quantized one.

A quantized type may hold many parameters; these are arrays, and arrays are typed: so both are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import lru_cache
from typing import Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import GraphError, TypeRuleError
from qir.ir import dims
from qir.ir.dims import Dim, Shape, Sym
from qir.ir.dtype import F32, F64, STRING, DType, dtype_of
from qir.ir.lazy_arrays import ArrayData, LazyArray, iter_pieces
from qir.ir.numerals import check_zeros, fit_in_64_bits, item_bytes, number_text, round_to_dtype
from qir.records import KeptHash, record

_MAX_DEPTH = 8  # arrays of scales whose scales are arrays whose scales ...
_MAX_SIZE = 10**18  # elements along one axis
_MAX_AXES = 64  # NumPy has no more
MAX_INLINE_PARAMS = 8
"""So many parameters print in line; more are an array."""

Param: TypeAlias = "tuple[float, ...] | tuple[int, ...] | Array | None"
"""Numbers, an array of them, or None where a companion slot gives them (`?`)."""

ArrayName: TypeAlias = "Callable[[Array], str]"
"""What gives an array the name that it prints under."""


class Array:
    """A constant's elements (integers, if its type is quantized) with the name they print under.

    Writable elements are copied, and `data` is a view that cannot be made writable. `contents` is
    the same elements, or the lazy array that computes them.
    GraphError where elements and type do not fit.
    """

    __slots__ = ("_digest", "contents", "depth", "name", "type")
    _digest: str
    depth: int
    contents: ArrayData
    name: str
    type: TensorType

    def __init__(self, data: ArrayData, type: TensorType, name: str = "") -> None:
        kind = type.dtype
        if kind.is_opaque:
            raise GraphError(f"array {name or '?'}: {type} is no tensor, and no constant holds it")
        if kind.carrier != data.dtype or tuple(type.shape) != data.shape:
            actual = f"{data.dtype} {list(data.shape)}"
            raise GraphError(f"array {name or '?'}: holds {actual}, its type is {type}")
        depth = 1
        if kind is not type.element:
            depth += max((a.depth for a in type.arrays()), default=0)
        if depth > _MAX_DEPTH:
            raise GraphError(f"array {name or '?'}: arrays within types, over {_MAX_DEPTH} deep")
        if not isinstance(data, LazyArray):
            if data.flags.writeable:
                data = data.copy()
                data.flags.writeable = False
            data = data.view() if data.base is None else data
        set_field = object.__setattr__
        set_field(self, "contents", data)
        set_field(self, "type", type)
        set_field(self, "name", name)
        set_field(self, "depth", depth)
        set_field(self, "_digest", "")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"arrays are read-only, and so is {name}")

    @property
    def data(self) -> NDArray[np.generic]:
        """All elements."""
        contents = self.contents
        return contents.read_all() if isinstance(contents, LazyArray) else contents

    @classmethod
    def of(cls, data: NDArray[np.generic], name: str = "") -> Array:
        """Returns the array with the plain type that its elements have."""
        data = np.asarray(data)
        kind = dtype_of(data)
        if kind is STRING:
            data = data.astype(object)
        return cls(data, TensorType(data.shape, kind), name)

    @property
    def digest(self) -> str:
        """Hash of type and elements; equal arrays have equal ones."""
        if not self._digest:
            import hashlib  # with it comes OpenSSL

            state = hashlib.blake2b(str(self.type).encode(), digest_size=16)
            if self.contents.dtype.kind == "O":
                for item in self.data.flat:
                    text = item_bytes(item)
                    state.update(len(text).to_bytes(8, "little") + text)
            else:
                for piece in iter_pieces(self.contents):
                    state.update(piece.reshape(-1).view(np.uint8).data)
            object.__setattr__(self, "_digest", state.hexdigest())
        return self._digest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return self is other or (self.type == other.type and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<array @{self.name or '?'} : {self.type!r}>"


def _by_content(array: Array) -> str:
    return f"@{array.digest[:12]}"


def _range_text(array: Array) -> str:
    """For a prompt: how many numbers, the least and the greatest."""
    if array.contents.dtype.kind == "O" or not array.contents.size:
        return f"[{array.contents.size}]"
    numbers = array.data.astype(np.float64)
    return f"[{numbers.size} in {numbers.min():.4g}..{numbers.max():.4g}]"


@record
class Granularity:
    """Which elements share parameters: on each named axis, blocks of so many indices."""

    blocks: tuple[tuple[int, int], ...]
    by: Array | None = None

    def __post_init__(self) -> None:
        axes = [axis for axis, _ in self.blocks]
        if axes != sorted(set(axes)) or any(a < 0 or s < 1 for a, s in self.blocks):
            raise TypeRuleError(f"grain {self}: axes must rise from 0, blocks hold one or more")

    @property
    def axis(self) -> int | None:
        """The axis, where this is one scale an index of one axis."""
        if len(self.blocks) == 1 and self.blocks[0][1] == 1 and self.by is None:
            return self.blocks[0][0]
        return None

    def __str__(self) -> str:
        return self.text(_by_content)

    def text(self, name: ArrayName) -> str:
        """Returns the printed form; `name` gives the array's."""
        if self.axis is not None:
            return str(self.axis)
        blocks = ", ".join(f"{axis}:{size}" for axis, size in self.blocks)
        return f"{{{blocks}{f' by {name(self.by)}' if self.by else ''}}}"

    def grid(self, shape: Shape) -> Shape:
        """Returns the shape of the array of parameters for a tensor of that shape."""
        sizes = dict(self.blocks)
        return tuple(
            (-(-dim // sizes[i]) if isinstance(dim, int) else dim) if i in sizes else 1
            for i, dim in enumerate(shape)
        )


@record
class DeclaredBounds:
    """The range a framework's file declares, kept as it was: low, high and the level at high."""

    low: tuple[float, ...] | Array
    high: tuple[float, ...] | Array
    level: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _round_each(self.low, F32))
        object.__setattr__(self, "high", _round_each(self.high, F32))
        if isinstance(self.level, int):  # as its text reads
            object.__setattr__(self, "level", float(self.level))


@record
class QuantType(KeptHash):
    """A quantized type: float = (q - zero) * scale + plus, or a lookup table."""

    storage: DType
    express: DType = F32
    scale: Param = (1.0,)
    zero: Param = ()
    granularity: Granularity | None = None
    bounds: tuple[int, int] | None = None
    scale_dtype: DType | None = None
    plus: tuple[float, ...] | Array | None = None
    declared: DeclaredBounds | None = None
    kind: Literal["uniform", "lut"] = "uniform"
    codes: tuple[float, ...] | Array | None = None
    signs: tuple[bool | str, ...] = field(init=False, repr=False)
    """What `==` of numbers does not distinguish: 3 from 3.0 as a zero, 0.0 from -0.0."""

    def __post_init__(self) -> None:
        if not (self.storage.is_float or self.storage.is_integer):
            raise TypeRuleError(f"{self.storage} is not a storage type; integers and floats are")
        for kind in (self.express, self.scale_type):
            if not kind.is_float:
                raise TypeRuleError(f"quantized values and scales mean floats: {kind} is none")
        if self.bounds and (self.bounds == self.storage.bounds or self.storage.is_float):
            object.__setattr__(self, "bounds", None)
        if self.bounds:
            low, high = self.bounds
            if not self.storage.bounds[0] <= low < high <= self.storage.bounds[1]:
                raise TypeRuleError(f"bounds {low}:{high} are not in {self.storage}")
        if self.scale_dtype is self.express or self.scale_dtype == self.express:
            object.__setattr__(self, "scale_dtype", None)
        object.__setattr__(self, "scale", _round_each(self.scale, self.scale_type))
        object.__setattr__(self, "plus", _round_each(self.plus, self.express))
        if isinstance(self.zero, tuple) and self.zero:
            if all(type(z) is int and z == 0 for z in self.zero):
                object.__setattr__(self, "zero", ())
            elif any(isinstance(z, float) for z in self.zero):
                object.__setattr__(self, "zero", tuple(float(z) for z in self.zero))
        if (self.kind == "lut") != (self.codes is not None):
            verb = "needs" if self.kind == "lut" else "has no"
            raise TypeRuleError(f"a {self.kind} type {verb} codes")
        self._check_counts()
        if self.codes is not None:
            self._check_table(self.codes)
        object.__setattr__(self, "signs", self._signs())

    def _signs(self) -> tuple[bool | str, ...]:
        floats = isinstance(self.zero, tuple) and any(isinstance(z, float) for z in self.zero)
        if not floats and self.plus is None and self.codes is None and self.declared is None:
            if not isinstance(self.scale, tuple) or 0.0 not in self.scale:
                return ()  # the usual case
        declared = (self.declared.low, self.declared.high) if self.declared else ()
        out: list[bool | str] = [True] if floats else []
        for part in (self.scale, self.zero if floats else (), self.plus, self.codes, *declared):
            if isinstance(part, tuple) and 0.0 in part:
                out.append("".join("-" if math.copysign(1.0, v) < 0 else "+" for v in part))
        return tuple(out)

    def _check_table(self, codes: tuple[float, ...] | Array) -> None:
        """What a table asks for: integers, no zero, and entries that are numbers."""
        if not self.storage.is_integer:
            raise TypeRuleError(f"a table is looked up by integers, and {self.storage} has none")
        if self.zero != ():
            raise TypeRuleError("values of a table have no zero; plus moves the float values")
        size = self.high - self.low + 1
        if (count := _count(codes)) > size:
            raise TypeRuleError(f"a table of {count} entries, but {self.storage} has {size} values")
        if not _all_satisfy(math.isfinite, codes):
            raise TypeRuleError("an entry of a table is not finite")

    def _check_counts(self) -> None:
        if isinstance(self.scale, tuple) and not 1 <= len(self.scale) <= MAX_INLINE_PARAMS:
            limit = f"one to {MAX_INLINE_PARAMS}, else an array"
            raise TypeRuleError(f"{len(self.scale)} scales in line; {limit}")
        if self.granularity is None and (count := _count(self.scale)) != 1:
            raise TypeRuleError(f"{count} scales for a whole tensor; name an axis")
        if isinstance(self.zero, tuple) and not fit_in_64_bits(self.zero):
            raise TypeRuleError("a zero point of more than 64 bits")
        if isinstance(self.zero, tuple) and isinstance(self.scale, tuple) and self.zero:
            if len(self.zero) != len(self.scale):
                raise TypeRuleError(f"{len(self.scale)} scales but {len(self.zero)} zeros")
        if self.plus is None and self.declared is None and self.codes is None:
            return  # the usual case
        declared = (self.declared.low, self.declared.high) if self.declared else ()
        for part in (self.plus, *declared):
            if self.granularity is None and _count(part) != 1:
                raise TypeRuleError(f"{_count(part)} offsets or range ends for a whole tensor")
        if self.plus is not None and not _all_satisfy(_is_not_nan, self.plus):
            raise TypeRuleError("an offset is no number")
        if not all(_all_satisfy(_is_not_nan, end) for end in declared):
            raise TypeRuleError("an end of a declared range is no number")
        if _count(self.codes) == 0:
            raise TypeRuleError("a table of no quantized values")

    @property
    def scale_type(self) -> DType:
        """The type of its scales: its own, else the expressed type."""
        return self.scale_dtype or self.express

    @property
    def low(self) -> int:
        """Least quantized value."""
        return (self.bounds or self.storage.bounds)[0]

    @property
    def high(self) -> int:
        """Greatest quantized value."""
        return (self.bounds or self.storage.bounds)[1]

    @property
    def axis(self) -> int | None:
        """The axis of a per-axis type, None for a whole tensor (and for blocks)."""
        return self.granularity.axis if self.granularity else None

    @property
    def dynamic(self) -> bool:
        """Whether companion slots give the numbers."""
        return self.scale is None or self.zero is None

    @property
    def has_float_zero(self) -> bool:
        """Whether the zero is a float value and not a quantized value."""
        if isinstance(self.zero, Array):
            return self.zero.type.dtype.is_float
        return bool(self.zero) and any(isinstance(z, float) for z in self.zero or ())

    def scales(self) -> NDArray[np.floating]:
        """Returns the scales in their own type: one, a list along the axis, or a grid."""
        if self.scale is None:
            raise TypeRuleError(f"{self}: the scale comes from a companion slot")
        if isinstance(self.scale, Array):
            return self.scale.data  # type: ignore[return-value]
        out = np.array(self.scale, self.scale_type.carrier)
        return out if self.granularity else out[0]

    def zeros(self) -> NDArray[np.generic]:
        """Returns the zeros, shaped as the scales; int64 unless they are float."""
        if self.zero is None:
            raise TypeRuleError(f"{self}: the zero comes from a companion slot")
        if isinstance(self.zero, Array):
            data = self.zero.data
            if self.has_float_zero or (
                data.dtype == np.uint64 and np.greater_equal(data, 1 << 63).any()
            ):
                return data
            return data.astype(np.int64)
        if not self.zero:
            return np.zeros(() if self.scale is None else np.shape(self.scales()), np.int64)
        integer = np.uint64 if max(self.zero) >= 2**63 else np.int64
        out = np.array(self.zero, np.float64 if self.has_float_zero else integer)
        return out if self.granularity else out[0]

    def has_same_mapping(self, other: QuantType) -> bool:
        """Returns whether equal integers mean equal floats, so that both may share storage."""
        if self is other or (self.declared is None and other.declared is None):
            return self == other
        return replace(self, declared=None) == replace(other, declared=None)

    def with_parameters(
        self, scale: Param, zero: Param = (), *, grain: Granularity | None = None
    ) -> QuantType:
        """Returns the type with other parameters, without the declared range."""
        return replace(self, scale=scale, zero=zero, granularity=grain, declared=None)

    def arrays(self) -> Iterator[Array]:
        """Yields the arrays this type refers to, nested ones after those that name them."""
        declared = (self.declared.low, self.declared.high) if self.declared else ()
        by = self.granularity.by if self.granularity else None
        for part in (self.scale, self.zero, by, self.plus, *declared, self.codes):
            if isinstance(part, Array):
                yield part
                yield from part.type.arrays()

    def __str__(self) -> str:
        return self.text(_by_content)

    def __repr__(self) -> str:
        return self.text(_range_text)

    def text(self, name: ArrayName) -> str:
        """Returns the printed form; `name` gives each array's."""
        bounds = f"<{self.bounds[0]}:{self.bounds[1]}>" if self.bounds else ""
        element = f"{self.storage}{bounds}:{self.express}"
        if self.granularity:
            element += f":{self.granularity.text(name)}"
        parts = [element, self._params(name), *self._clauses(name)]
        return f"!quant.{self.kind}<{', '.join(parts)}>"

    def _params(self, name: ArrayName) -> str:
        kind = self.scale_type
        zero = self.zero
        if isinstance(self.scale, tuple) and isinstance(zero, tuple):
            pairs = [
                number_text(s, kind) + (f":{number_text(zero[i])}" if zero else "")
                for i, s in enumerate(self.scale)
            ]
            return pairs[0] if self.granularity is None else f"{{{', '.join(pairs)}}}"
        scale = _param(self.scale, kind, name)
        return scale + ("" if zero == () else f":{_param(zero, None, name)}")

    def _clauses(self, name: ArrayName) -> Iterator[str]:
        if self.scale_dtype:
            yield f"scale {self.scale_dtype}"
        if self.plus is not None:
            yield f"plus {_param(self.plus, self.express, name)}"
        if self.declared:
            low = _param(self.declared.low, F32, name)
            high = _param(self.declared.high, F32, name)
            level = self.declared.level
            yield f"from {low}..{high}" + ("" if level is None else f" / {number_text(level)}")
        if isinstance(self.codes, tuple):
            yield f"codes [{', '.join(number_text(c) for c in self.codes)}]"
        elif self.codes is not None:
            yield f"codes {name(self.codes)}"


def _param(value: Param, kind: DType | None, name: ArrayName) -> str:
    if value is None:
        return "?"
    if isinstance(value, Array):
        return name(value)
    if len(value) == 1:
        return number_text(value[0], kind)
    return f"{{{', '.join(number_text(v, kind) for v in value)}}}"


def _count(value: Param) -> int:
    if value is None:
        return 1
    return math.prod(value.contents.shape) if isinstance(value, Array) else len(value)


def _is_not_nan(value: float) -> bool:
    return value == value


def _all_satisfy(test: Callable[[float], bool], values: tuple[float, ...] | Array) -> bool:
    """Returns whether a test holds for all numbers; quantized ones are not tested."""
    if not isinstance(values, Array):
        return all(map(test, values))
    if not values.type.dtype.is_float or values.type.quant is not None:
        return True
    return all(map(test, values.data.astype(np.float64).reshape(-1).tolist()))


def _round_each(value: Param, kind: DType) -> tuple[float, ...] | Array | None:
    """Numbers in line, as the type that holds them holds them."""
    return tuple(round_to_dtype(v, kind) for v in value) if isinstance(value, tuple) else value


def make_param(values: NDArray[np.generic], granularity: Granularity | None, name: str) -> Param:
    """Parameters in their one form: numbers in line where they are few, else an array."""
    flat = np.asarray(values).reshape(-1)
    has_list_form = granularity is None or granularity.axis is not None
    if has_list_form and flat.size <= MAX_INLINE_PARAMS:
        return tuple(flat.astype(np.int64 if flat.dtype.kind in "iu" else np.float64).tolist())
    return Array.of(np.ascontiguousarray(values), name)


def uniform(
    storage: DType,
    scale: NDArray[np.floating] | np.floating,
    zero: NDArray[np.integer] | np.integer | int = 0,
    *,
    axis: int | None = None,
    bounds: tuple[int, int] | None = None,
    express: DType = F32,
    name: str = "",
) -> QuantType:
    """Returns a uniform quantized type: one scale for the tensor, or one an index of `axis`.

    TypeRuleError for a zero point that the storage type cannot hold, and a scale that is NaN.
    """
    granularity = None if axis is None else Granularity(((axis, 1),))
    scale, zeros = np.asarray(scale), np.asarray(zero)
    kind = dtype_of(scale)
    if kind.is_integer:
        scale, kind = scale.astype(np.float64), F64
    if not kind.is_float:
        raise TypeRuleError(f"scales are floats, and {kind} is none")
    if math.isnan(scale.item()) if scale.size == 1 else np.isnan(scale).any():
        raise TypeRuleError("a scale is NaN")
    if storage.is_integer:
        check_zeros(zeros, storage)
    try:
        zeros = zeros if zeros.shape == scale.shape else np.broadcast_to(zeros, scale.shape)
    except ValueError:
        raise TypeRuleError(f"{scale.size} scales but {zeros.size} zero points") from None
    if not scale.ndim and storage.is_integer and storage.bits <= 32:  # the usual case
        scales, zero_points = (float(scale.item()),), (int(zeros.item()),) if zeros.item() else ()
        return QuantType(storage, express, scales, zero_points, granularity, bounds, kind)
    return QuantType(
        storage,
        express,
        scale=make_param(scale, granularity, f"{name}.scale"),
        zero=()
        if not np.count_nonzero(zeros)
        else make_param(zeros.astype(storage.carrier), granularity, f"{name}.zero"),
        granularity=granularity,
        bounds=bounds,
        scale_dtype=kind,
    )


Element: TypeAlias = DType | QuantType
"""The type of each element of a tensor: a plain type, or a quantized one."""


@record
class TensorType(KeptHash):
    """Shape and element; the element is a plain or a quantized type."""

    shape: Shape
    element: DType | QuantType

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple):
            if not isinstance(self.shape, list):
                raise TypeRuleError(f"a shape of {self.shape!r}; it is a tuple of sizes")
            object.__setattr__(self, "shape", tuple(self.shape))
        if len(self.shape) > _MAX_AXES:
            raise TypeRuleError(f"a tensor of {len(self.shape)} axes; {_MAX_AXES} are possible")
        for dim in self.shape:
            if dim is None or dim.__class__ is Sym:
                continue
            if dim.__class__ is not int:
                object.__setattr__(self, "shape", tuple(map(dims.size, self.shape)))
                return self.__post_init__()
            if not 0 <= dim < _MAX_SIZE:
                raise TypeRuleError(f"an axis of {dim} elements; 0 to 10^18 are possible")
        if isinstance(self.element, DType) and self.element.is_opaque and self.shape:
            raise TypeRuleError(f"{self}: what is no tensor has no axes")
        if isinstance(self.element, QuantType) and self.element.granularity:
            for axis, _ in self.element.granularity.blocks:
                if axis >= len(self.shape):
                    raise TypeRuleError(f"{self}: axis {axis}, but it has {len(self.shape)}")

    @property
    def quant(self) -> QuantType | None:
        """The quantized type, if there is one."""
        return self.element if isinstance(self.element, QuantType) else None

    @property
    def dtype(self) -> DType:
        """The type that is stored: the storage type where it is quantized."""
        return self.element.storage if isinstance(self.element, QuantType) else self.element

    @property
    def express(self) -> DType:
        """What is meant: the expressed type where there is a quantized type."""
        return self.element.express if isinstance(self.element, QuantType) else self.element

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest integer that an element may be; (0, 0) where they are no integers."""
        quant = self.quant
        if quant is None or not quant.storage.is_integer:
            return self.dtype.bounds
        if quant.codes is None:
            return quant.low, quant.high
        return quant.low, min(quant.high, quant.low + _count(quant.codes) - 1)

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        """Returns the type of such elements in another shape."""
        return TensorType(shape, self.element)

    def with_element(self, element: DType | QuantType) -> TensorType:
        """Returns the type of other elements in that shape."""
        return TensorType(self.shape, element)

    def arrays(self) -> Iterator[Array]:
        """Yields the arrays this type refers to."""
        if isinstance(self.element, QuantType):
            yield from self.element.arrays()

    def __str__(self) -> str:
        return self.text(_by_content)

    def __repr__(self) -> str:
        return self.text(_range_text)

    def text(self, name: ArrayName) -> str:
        """Returns the printed form; `name` gives each array's."""
        if isinstance(self.element, QuantType):
            return _dims(self.shape) + self.element.text(name)
        return _dims(self.shape) + self.element.name


@lru_cache(4096)
def _dims(shape: Shape) -> str:
    return "".join(f"{_dim(d)}x" for d in shape)


def _dim(dim: Dim) -> str:
    if dim is None:
        return "?"
    return f"({dim})" if isinstance(dim, Sym) else str(dim)
