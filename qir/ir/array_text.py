"""The elements of arrays as text and bytes: what `.qir` files and texts with weights hold."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import ParseError
from qir.ir.dtype import dtype
from qir.ir.types import TensorType

KINDS = {
    "bool": "?",
    **{f"{sign}{bits}": f"{sign}{bits // 8}" for sign in "iu" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}
"""NumPy's name of each element type that texts with weights hold."""
_NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}


def stored_texts(data: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns an array as files keep it: strings as the bytes of their list, all else as it is."""
    if data.dtype.kind != "O":
        return data
    items = [list(t) if isinstance(t, bytes) else str(t) for t in data.reshape(-1)]
    return np.frombuffer(json.dumps(items).encode(), np.uint8)


def write_array(data: NDArray[np.generic]) -> str:
    """Returns the type and the elements, as `read_array` reads them: `2xf32 = "AAAAAAAAgD8="`.

    Types that NumPy does not have are unsigned integers of the same width.
    """
    stored = stored_texts(data)
    plain_dtype = stored.dtype if stored.dtype in _NAMES else np.dtype(f"u{stored.dtype.itemsize}")
    plain_array = np.ascontiguousarray(stored).view(plain_dtype).reshape(stored.shape)
    named = TensorType(plain_array.shape, dtype(_NAMES[plain_dtype]))
    little = plain_array.astype(plain_dtype.newbyteorder("<"), copy=False)
    return f'{named} = "{base64.b64encode(little.tobytes()).decode()}"'


def read_array(kind: TensorType, text: str) -> NDArray[np.generic]:
    """Returns the elements of that type; raises ParseError where the text does not hold just so
    many."""
    name = "" if kind.quant else kind.dtype.name
    sizes: Sequence[object] = kind.shape
    if name not in KINDS or not all(isinstance(size, int) for size in sizes):
        raise ParseError(f"data are of a plain type and known sizes, not {kind}")
    shape = tuple(size for size in sizes if isinstance(size, int))
    stored_dtype = np.dtype(KINDS[name]).newbyteorder("<")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ParseError("data are no base64 text") from None
    if len(data) != math.prod(shape) * stored_dtype.itemsize:
        expected = f"{kind} takes {math.prod(shape) * stored_dtype.itemsize} bytes"
        raise ParseError(f"{expected}, the data hold {len(data)}")
    return np.frombuffer(data, stored_dtype).astype(KINDS[name], copy=False).reshape(shape)
