"""The nodes of a GraphDef as they are written, and what each value has become in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
from numpy.typing import NDArray

from qir.errors import Refused
from qir.ir.dtype import DType
from qir.ir.node import Node, Value
from qir.ir.types import Array, DeclaredBounds, QuantType

from . import wire
from .wire import Attr, ShapeAttr, TensorAttr, TypeAttr

Data = NDArray[np.generic]
_KINDS = {
    "f32": "float",
    "f64": "double",
    "f16": "half",
    "bf16": "bfloat16",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
_QUANTIZED = {"u8": "quint8", "i8": "qint8", "i32": "qint32"}
_LEVELS = {"u8": 255.0, "i8": 127.0, "i32": 2.0**31}
"""What the greatest reach of a range is divided by, by storage."""
F32 = np.float32
PROFILE = "tf-2.21.onednn"
"""The numerics of what is written."""


def refused(node: Node, why: str) -> Refused:
    """Returns the error for a node, in one line."""
    origin = f" (from {node.origins[0]})" if node.origins else ""
    return Refused(f"{node.name}{origin}: {why}")


class Nodes:
    """Collects nodes; every value has the name of the tensor that it became."""

    def __init__(self, reserved: Sequence[str] = ()) -> None:
        self.made: dict[str, tuple[Sequence[str], bytes]] = {}
        """By node: what it reads, and its message."""
        self.places: dict[Value, str] = {}
        self.names: set[str] = set()
        self.reserved = {clean(name).lower() for name in reserved}
        """Names of outputs, which only their own nodes take."""
        self.shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.simulates = False
        """Whether pairs of quantize and dequantize are FakeQuant ops."""
        self.after: Callable[[], str] | None = None
        """Names the node that constants wait for: they belong to its round, or to its branch."""

    # -- names and nodes ------------------------------------------------------------------------

    def name(self, wanted: str, *, reserved: bool = False) -> str:
        """Returns a name that no other node has; TensorFlow ignores case."""
        stem = clean(wanted)
        found, count = stem, 0
        while found.lower() in self.names or (not reserved and found.lower() in self.reserved):
            count += 1
            found = f"{stem}_{count}"
        self.names.add(found.lower())
        return found

    def add(self, op: str, inputs: Sequence[str], like: str = "", /, **attrs: Attr) -> str:
        """Adds a node, named like a value; returns its name, which is its first result's."""
        name = self.name(like or op)
        self.node(op, name, inputs, **attrs)
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], /, **attrs: Attr) -> None:
        """Adds a node whose name was taken before."""
        self.made[name] = inputs, wire.node(op, name, inputs, attrs)

    @contextmanager
    def pivot(self, node: Callable[[], str]) -> Iterator[None]:
        """Makes constants part of the round or the branch of a node, which the first one asks for.

        A node that nothing waits for would be taken for an output of the model.
        """
        before = self.after, self.shared
        self.after, self.shared = cache(node), {}
        yield
        self.after, self.shared = before

    def put(self, op: str, name: str, inputs: Sequence[str], /, **attrs: Attr) -> str:
        """Adds a node of exactly that name, an input or output of the model."""
        found = self.name(name, reserved=True)
        self.node(op, found, inputs, **attrs)
        return found

    def needed(self, ends: Iterable[str]) -> dict[str, bytes]:
        """Returns the nodes that some nodes hang on, these included, in the order of writing.

        A node that nothing reads would be taken for an output of the model.
        """
        found: set[str] = set()
        waiting = list(ends)
        while waiting:
            name = node_of(waiting.pop())
            if name not in found:
                found.add(name)
                waiting += self.made[name][0]
        return {name: message for name, (_, message) in self.made.items() if name in found}

    def constant(self, data: object, kind: str = "", like: str = "const") -> str:
        """Returns a constant; of short ones that are alike there is one."""
        array = np.asarray(data)
        kind = kind or _numpy_kind(array)
        key = (kind, array.shape, array.tobytes()) if array.size <= _SHORT else None
        if key is not None and key in self.shared:
            return self.shared[key]
        waits = () if self.after is None else (f"^{self.after()}",)
        name = self.add("Const", waits, like, value=TensorAttr(array, kind), dtype=TypeAttr(kind))
        if key is not None:
            self.shared[key] = name
        return name

    def row(self, numbers: Sequence[int], like: str = "const") -> str:
        """Returns a constant row of whole numbers."""
        return self.constant(np.asarray(numbers, np.int32), like=like)

    # -- values ---------------------------------------------------------------------------------

    def read(self, value: Value) -> str:
        """Returns the tensor of a value; a constant is written where it is first read."""
        if value not in self.places:
            assert value.constant is not None
            held = value.constant
            kind = kind_of(value.type.element, value)
            self.places[value] = self.constant(held.data, kind, value.name)
        return self.places[value]

    def ends(self, quant: QuantType, like: str) -> tuple[str, str]:
        """Returns the constants that are the range of a quantized type."""
        low, high = range_of(quant)
        return self.constant(low, "float", f"{like}/min"), self.constant(
            high, "float", f"{like}/max"
        )


_SHORT = 64


def node_of(place: str) -> str:
    """Returns the node of a result such as `split:1`, or the one that `^split` waits for."""
    return place.removeprefix("^").partition(":")[0]


def clean(name: str) -> str:
    """Returns a name as TensorFlow allows it."""
    found = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).strip("/") or "_"
    return found if re.match(r"[A-Za-z0-9.]", found) else f"v{found}"


def _numpy_kind(array: Data) -> str:
    name = {"float32": "float", "float64": "double", "float16": "half"}.get(array.dtype.name)
    return name or array.dtype.name


def kind_of(element: DType | QuantType, value: Value) -> str:
    """Returns TensorFlow's name of an element type; Refused for one that it has no kernels for."""
    if isinstance(element, QuantType):
        if str(element.storage) not in _QUANTIZED:
            raise refused(
                value.node, f"TensorFlow has no values of {element.storage}; take u8 or i8"
            )
        return _QUANTIZED[str(element.storage)]
    if str(element) not in _KINDS:
        raise refused(value.node, f"TensorFlow has no tensors of {element}")
    return _KINDS[str(element)]


def kind(value: Value) -> TypeAttr:
    """Returns the attribute that names the element type of a value."""
    return TypeAttr(kind_of(value.type.element, value))


def sizes(value: Value) -> ShapeAttr:
    """Returns the shape of a value as an attribute."""
    return ShapeAttr(tuple(n if isinstance(n, int) else -1 for n in value.type.shape))


def _declared(quant: QuantType) -> DeclaredBounds | None:
    """Returns the range that a type declares; None for one that has another number of steps.

    Such are MXNet's, whose ranges have 127.5 and 255.5 steps.
    """
    held = quant.declared
    fits = held is not None and held.level in (None, _LEVELS.get(str(quant.storage)))
    return held if fits else None


def range_of(quant: QuantType) -> tuple[Data, Data]:
    """Returns the range of a quantized type in float32: the declared one where there is one.

    Of a scale alone it is the nearest that gives this scale again, as far as there is one.
    """
    if (declared := _declared(quant)) is not None:
        low, high = (
            np.asarray(end.data if isinstance(end, Array) else end, F32).reshape(-1)
            for end in (declared.low, declared.high)
        )
    else:
        level = F32(_LEVELS[str(quant.storage)])
        scales = np.asarray(quant.scales(), F32).reshape(-1)
        high = scales * level
        for other in (np.nextafter(high, F32(np.inf)), np.nextafter(high, F32(0))):
            high = np.where(
                high / level == scales, high, np.where(other / level == scales, other, high)
            )
        low = -high if quant.storage.bounds[0] < 0 else high * F32(0)
    low, high = low.astype(F32), high.astype(F32)
    return (low, high) if high.size > 1 else (low.reshape(()), high.reshape(()))


def rebuilt(quant: QuantType) -> bool:
    """Reports whether a type has no declared range, and none gives its scale again."""
    if _declared(quant) is not None:
        return False
    scales = np.asarray(quant.scales(), F32).reshape(-1)
    high = np.asarray(range_of(quant)[1], F32).reshape(-1)
    return bool(np.any(high / F32(_LEVELS[str(quant.storage)]) != scales))
