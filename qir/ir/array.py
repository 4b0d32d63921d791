"""Large constants: read-only, typed, and held by content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qir.errors import GraphError
from qir.ir.dtype import dtype_of

if TYPE_CHECKING:
    from qir.ir.types import TensorType


class Array:
    """A constant's elements (codes, if its type is quantized) with the name they print under."""

    __slots__ = ("_digest", "data", "name", "type")

    def __init__(self, data: NDArray[np.generic], type: TensorType, name: str = "") -> None:
        if type.dtype.carrier != data.dtype or tuple(type.shape) != data.shape:
            held = f"{dtype_of(data)} {list(data.shape)}"
            raise GraphError(f"array {name or '?'}: holds {held}, its type is {type}")
        if data.flags.writeable:
            data = data.view()
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
        return cls(data, TensorType(data.shape, dtype_of(data)), name)

    @property
    def digest(self) -> str:
        """Hash of type and elements; equal arrays have equal ones."""
        if not self._digest:
            state = hashlib.blake2b(str(self.type).encode(), digest_size=16)
            if self.data.dtype.kind == "O":
                for item in self.data.flat:
                    text = item if isinstance(item, bytes) else str(item).encode()
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
