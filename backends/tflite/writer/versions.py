"""The version of each operator: the least that has what is asked of it.

As `GetBuiltinOperatorVersion` of TensorFlow Lite's `op_version.cc` chooses them, so that older
interpreters take files that ask for nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .flatbuffer import Field
from .schema import ELEMENT_TYPES

_I4, _I8, _I16, _U8, _F16 = (ELEMENT_TYPES[word] for word in ("i4", "i8", "i16", "u8", "f16"))
_SIGNED: Mapping[str, int] = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "EXPAND_DIMS": 1,
    "ELU": 1,
    "FULLY_CONNECTED": 4,
    "HARD_SWISH": 1,
    "PRELU": 1,
    "RELU_0_TO_1": 1,
    "RESHAPE": 1,
    "REVERSE_V2": 1,
    "SELECT_V2": 1,
    "SPACE_TO_DEPTH": 1,
    "DEPTH_TO_SPACE": 1,
    "SQUEEZE": 1,
    "CAST": 1,
    "SHAPE": 1,
}
"""Versions of operators on int8; 2 where there is none here."""
_PLAIN: Mapping[str, int] = {"BROADCAST_TO": 2}
"""Versions of operators on other types; 1 where there is none here."""


def version_of(
    op: str,
    elements: Sequence[int],
    options: tuple[str, Mapping[str, Field]] | None,
    inputs: int,
) -> int:
    """Returns the version of an operator on tensors of these element types."""
    flags = options[1] if options else {}
    signed = _I8 in elements or _I16 in elements
    version = _SIGNED.get(op, 2) if signed else _PLAIN.get(op, 1)
    if op == "QUANTIZE":
        return 2 if elements[0] in (_I8, _I16, _U8) else 1
    if op == "DEQUANTIZE" and elements[0] in (_I16, _F16):
        return 3
    if op == "FULLY_CONNECTED" and _I4 in elements:
        return 10
    if op == "FULLY_CONNECTED" and flags.get("keep_num_dims"):
        return max(version, 5)
    if op == "TRANSPOSE_CONV":
        return 3 if inputs > 3 else version
    if flags.get("half_pixel_centers"):
        return max(version, 3)
    return version
