"""Element types: a name, a width, and the NumPy type that carries the values."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import ParseError
from qir.records import record

_FLOATS: dict[str, tuple[int, object]] = {
    "f64": (64, np.float64),
    "f32": (32, np.float32),
    "f16": (16, np.float16),
    "bf16": (16, ml_dtypes.bfloat16),
    "f8e4m3fn": (8, ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": (8, ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": (8, ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": (8, ml_dtypes.float8_e5m2fnuz),
    "f8e8m0": (8, ml_dtypes.float8_e8m0fnu),
    "f6e2m3fn": (6, ml_dtypes.float6_e2m3fn),
    "f6e3m2fn": (6, ml_dtypes.float6_e3m2fn),
    "f4e2m1fn": (4, ml_dtypes.float4_e2m1fn),
}
_INT = re.compile(r"([iu])([1-9][0-9]?)")
_OPAQUE = re.compile(r'opaque<"([ !#-\[\]-~]{1,1000})">')
_SIZES = re.compile(r"\[[^\[\]]*\]")


@record
class DType:
    """One element type; `f32`, `u8`, `i4`. Made by `dtype(name)` and compared by name."""

    name: str
    kind: str
    bits: int

    @property
    def carrier(self) -> np.dtype[np.generic]:
        """The NumPy type whose array holds such elements, one a slot, never packed."""
        carrier = _CARRIERS.get(self.name)
        return _carrier(self) if carrier is None else carrier

    @property
    def is_float(self) -> bool:
        """Whether elements are floats, of any width."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, of any width."""
        return self.kind in ("int", "uint")

    @property
    def is_opaque(self) -> bool:
        """Whether this is no element of a tensor, but a list or the like of a framework.

        So is a tensor of unknown rank, since sizes of elements are what the language counts in.
        """
        return self.kind == "opaque"

    @property
    def is_loose(self) -> bool:
        """Returns whether this is a tensor of unknown rank."""
        return self.is_opaque and self.name.endswith('[...]">')

    @property
    def is_optional(self) -> bool:
        """Whether this may be left out: nothing, or a tensor or list."""
        return self.opaque_text.startswith("optional(")

    @property
    def opaque_text(self) -> str:
        """What the framework calls it; empty for an element of a tensor."""
        match = _OPAQUE.fullmatch(self.name)
        return match[1] if match else ""

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest integer; (0, 0) for what is not an integer type."""
        if self.kind == "int":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        return 0, 0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dtype({self.name!r})"


def _carrier(kind: DType) -> np.dtype[np.generic]:
    carrier = np.dtype(object)
    if kind.kind == "float":
        carrier = np.dtype(_FLOATS[kind.name][1])  # type: ignore[call-overload]
    elif kind.kind == "bool":
        carrier = np.dtype(np.bool_)
    elif kind.is_integer:
        # An i4 is carried by an int8: arrays are never packed in memory.
        width = next(w for w in (8, 16, 32, 64) if kind.bits <= w)
        carrier = np.dtype(f"{'i' if kind.kind == 'int' else 'u'}{width // 8}")
    if not kind.is_opaque:  # of these there may be any number
        _CARRIERS[kind.name] = carrier
    return carrier


_CARRIERS: dict[str, np.dtype[np.generic]] = {}


@cache
def dtype(name: str) -> DType:
    """Returns the element type of that name; raises ParseError for a name that is none."""
    if name in _FLOATS:
        return DType(name, "float", _FLOATS[name][0])
    if name == "bool":
        return DType(name, "bool", 1)
    if name == "string":
        return DType(name, "string", 0)
    if _OPAQUE.fullmatch(name):
        return DType(name, "opaque", 0)
    if (match := _INT.fullmatch(name)) and int(match[2]) <= 64:
        return DType(name, "int" if match[1] == "i" else "uint", int(match[2]))
    raise ParseError(f"{name!r} is not an element type; such as f32, bf16, i8, u8, i32, bool")


def opaque(text: str) -> DType:
    """Returns the type of what is no tensor, as its framework writes it.

    Sizes are in brackets, `[...]` where they are unknown. ParseError for a text that no type could
    hold.
    """
    return dtype(f'opaque<"{text}">')


def join_dtypes(a: DType, b: DType) -> DType | None:
    """Returns the type that holds both: opaque ones with their sizes left out; None if there is
    none."""
    if a == b:
        return a
    if not (a.is_opaque and b.is_opaque):
        return None
    without_sizes = _SIZES.sub("[...]", a.name)
    return dtype(without_sizes) if without_sizes == _SIZES.sub("[...]", b.name) else None


def box_object(thing: object) -> NDArray[np.generic]:
    """What is no tensor, as the one element of an array, which is how values of it are held."""
    if isinstance(thing, np.ndarray) and thing.dtype == object and not thing.ndim:
        return thing
    out = np.empty((), object)
    out[()] = thing
    return out


def decode_texts(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Texts as objects, bytes read as UTF-8; those that are no text stay bytes."""
    out = array.astype(object)
    for at, item in np.ndenumerate(out):
        if isinstance(item, bytes):
            with suppress(UnicodeDecodeError):
                out[at] = item.decode()
    return out


_BY_CARRIER: dict[np.dtype[np.generic], DType] = (
    {
        np.dtype(c): dtype(n)  # type: ignore[call-overload]
        for n, (_, c) in _FLOATS.items()
    }
    | {np.dtype(f"{k}{w}"): dtype(f"{k}{w * 8}") for k in "iu" for w in (1, 2, 4, 8)}
    | {np.dtype(np.bool_): dtype("bool")}
)


def dtype_of(array: NDArray[np.generic]) -> DType:
    """Returns the element type whose carrier this array has; raises ParseError if there is none."""
    if array.dtype.kind in "OUST":
        return dtype("string")
    try:
        return _BY_CARRIER[array.dtype]
    except KeyError:
        raise ParseError(f"no element type for NumPy's {array.dtype}") from None


F32, F64, F16, BF16 = dtype("f32"), dtype("f64"), dtype("f16"), dtype("bf16")
I8, U8, I16, U16, I32, U32 = (dtype(n) for n in ("i8", "u8", "i16", "u16", "i32", "u32"))
I64, BOOL, STRING = dtype("i64"), dtype("bool"), dtype("string")
