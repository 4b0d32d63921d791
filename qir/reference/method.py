"""What a method is: a quantized function by a name that profiles use, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.types import TensorType
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.maps import AnyMap
from qir.records import record

Integers = NDArray[np.generic]
Float32Array = NDArray[np.float32]
float32 = np.float32


class MethodCall(Protocol):
    """One quantized op: what it is given and what it must give."""

    @property
    def op(self) -> str: ...
    @property
    def attrs(self) -> Mapping[str, Attr]: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def out(self) -> Affine | None: ...
    @property
    def types(self) -> Mapping[str, TensorType]: ...
    @property
    def result(self) -> TensorType: ...
    @property
    def tails(self) -> tuple[str, ...]: ...
    def affine(self, slot: str) -> Affine: ...
    def map(self, slot: str) -> AnyMap: ...


@record
class Method:
    """A function, the operands it takes, and which attributes and parameters."""

    function: Callable[..., Integers]
    slots: tuple[str, ...] = ("x",)
    attrs: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    rule: bool = False
    """Whether it also works by other fields of the rule."""
    beside: tuple[str, ...] = ()
    """Operands that are not quantized, given by name where there are any."""
    whole: bool = False
    """Whether it is given the call and all arrays, and sees to the rest itself."""
    any_map: bool = False
    """Whether it takes quantized values of quantized types of every kind, and dequantizes them."""
    tails: bool = False
    """Whether it bounds float values itself where a relu follows, before they are quantized."""
    reals: bool = False
    """Whether it may make float values where the result is to be float."""


def round_to_int32(x: Float32Array) -> NDArray[np.int64]:
    """To integers, halves to even; what does not fit 32 bits becomes their least, as in SIMD."""
    with np.errstate(invalid="ignore"):
        # cvtps2dq gives 0x80000000 for NaN and for what 32 bits do not hold.
        fits = np.abs(x) < float32(2.0**31)
    return np.where(fits, np.rint(np.where(fits, x, 0)), -(2.0**31)).astype(np.int64)


def saturate(integers: NDArray[np.int64], out: Affine) -> Integers:
    """Whole numbers as quantized values that saturate."""
    return np.clip(integers, out.low, out.high).astype(out.carrier)


def quantized_result(call: MethodCall) -> Affine:
    """Returns the quantized type of a result; raises OpError where the result is float."""
    if call.out is None:
        raise OpError(f"{call.op}: the method gives quantized values, the result is float")
    return call.out


def int_list(attrs: Mapping[str, Attr], name: str) -> list[int]:
    """Returns an attribute that is a list of integers."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return [v for v in value if isinstance(v, int)]


def require_per_tensor(name: str, *maps: Affine) -> None:
    """Raises OpError for a quantized type that has scales along an axis."""
    if any(m.axis is not None for m in maps):
        raise OpError(f"{name}: one scale a tensor, not one a channel")


def require_same_parameters(name: str, x: Affine, out: Affine) -> None:
    """Raises OpError where a result has another quantized type than the operand whose quantized
    type its kernel hands on."""
    if not x.same_map(out):
        raise OpError(
            f"{name}: the runtime's kernel keeps its operand's quantization parameters, and the "
            "result has others; expand-qdq writes it in QDQ form, which the runtime computes"
        )


def variadic_slots(arrays: Mapping[str, object]) -> list[str]:
    """Returns the slots `xs.0`, `xs.1` ... in order."""
    # By number, since as texts `xs.10` would come before `xs.2`.
    return sorted((s for s in arrays if s.startswith("xs.")), key=lambda s: int(s[3:]))
