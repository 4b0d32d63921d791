"""Large constants: read-only, typed, and held by content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qir.errors import GraphError
from qir.ir.dtype import STRING, dtype_of

if TYPE_CHECKING:
    from qir.ir.types import TensorType


_MOST_DEPTH = 8  # arrays of scales whose scales are arrays whose scales ...


class Array:
    """A constant's elements (codes, if its type is quantized) with the name they print under.

    Elements that somebody could still write to are copied. GraphError where elements and type
    do not fit.
    """

    __slots__ = ("_digest", "data", "depth", "name", "type")

    def __init__(self, data: NDArray[np.generic], type: TensorType, name: str = "") -> None:
        if type.dtype.carrier != data.dtype or tuple(type.shape) != data.shape:
            held = f"{data.dtype} {list(data.shape)}"
            raise GraphError(f"array {name or '?'}: holds {held}, its type is {type}")
        self.depth: int = 1 + max((a.depth for a in type.arrays()), default=0)
        if self.depth > _MOST_DEPTH:
            raise GraphError(f"array {name or '?'}: arrays within types, over {_MOST_DEPTH} deep")
        if data.flags.writeable:
            data = data.copy()
            data.flags.writeable = False
        self.data = data
        self.type = type
        self.name = name
        self._digest = ""

    @classmethod
    def of(cls, data: NDArray[np.generic], name: str = "") -> Array:
        """The array with the plain type that its elements have."""
        from qir.ir.types import TensorType

        data = np.asarray(data)
        kind = dtype_of(data)
        if kind is STRING:
            data = data.astype(object)
        return cls(data, TensorType(data.shape, kind), name)

    @property
    def digest(self) -> str:
        """Hash of type and elements; equal arrays have equal ones."""
        if not self._digest:
            state = hashlib.blake2b(str(self.type).encode(), digest_size=16)
            if self.data.dtype.kind == "O":
                for item in self.data.flat:
                    text = _bytes(item)
                    state.update(len(text).to_bytes(8, "little") + text)
            else:
                state.update(np.ascontiguousarray(self.data).reshape(-1).view(np.uint8).data)
            self._digest = state.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return self is other or (self.type == other.type and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Array(@{self.name or '?'} : {self.type})"


def _bytes(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode(errors="surrogatepass")
