"""The nodes of a GraphDef under construction, and the tensor of each value."""

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
_TYPE_NAMES = {
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
_QUANTIZED_NAMES = {"u8": "quint8", "i8": "qint8", "i32": "qint32"}
RANGE_DIVISORS = {"u8": 255.0, "i8": 127.0, "i32": 2.0**31}
"""What the maximum of a range is divided by to get the scale, by storage."""
F32 = np.float32
PROFILE = "tf-2.21.onednn"
"""The numerics profile of written graphs."""


def refusal(node: Node, why: str) -> Refused:
    """Returns the error for a node, in one line."""
    origin = f" (from {node.origins[0]})" if node.origins else ""
    return Refused(f"{node.name}{origin}: {why}")


class GraphNodes:
    """Collects nodes, and the tensor of each value."""

    def __init__(self, reserved: Sequence[str] = ()) -> None:
        self.messages: dict[str, tuple[Sequence[str], bytes]] = {}
        """The inputs and the NodeDef message of each node."""
        self.tensors: dict[Value, str] = {}
        self.names: set[str] = set()
        self.reserved = {valid_name(name).lower() for name in reserved}
        """Names of outputs, which other nodes must not take."""
        self.shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.simulates = False
        """Whether pairs of quantize and dequantize are written as FakeQuant ops."""
        self.after: Callable[[], str] | None = None
        """Returns the node whose control edge constants need, inside a loop or branch."""

    # -- names and nodes ------------------------------------------------------------------------

    def name(self, base: str, *, reserved: bool = False) -> str:
        """Returns an unused name; TensorFlow ignores case."""
        stem = valid_name(base)
        unique, count = stem, 0
        while unique.lower() in self.names or (not reserved and unique.lower() in self.reserved):
            count += 1
            unique = f"{stem}_{count}"
        self.names.add(unique.lower())
        return unique

    def add(self, op: str, inputs: Sequence[str], like: str = "", /, **attrs: Attr) -> str:
        """Adds a node named like a value; returns its name, which is that of its first result."""
        name = self.name(like or op)
        self.node(op, name, inputs, **attrs)
        return name

    def node(self, op: str, name: str, inputs: Sequence[str], /, **attrs: Attr) -> None:
        """Adds a node whose name was reserved before."""
        self.messages[name] = inputs, wire.node_def(op, name, inputs, attrs)

    @contextmanager
    def constants_after(self, node: Callable[[], str]) -> Iterator[None]:
        """Makes constants part of a loop or branch, by a control edge from a node that is added on
        demand.

        A node without consumers would count as an output of the model.
        """
        previous = self.after, self.shared
        self.after, self.shared = cache(node), {}
        yield
        self.after, self.shared = previous

    def add_named(self, op: str, name: str, inputs: Sequence[str], /, **attrs: Attr) -> str:
        """Adds a node of exactly that name: an input or output of the model."""
        unique = self.name(name, reserved=True)
        self.node(op, unique, inputs, **attrs)
        return unique

    def reachable_nodes(self, ends: Iterable[str]) -> dict[str, bytes]:
        """Returns the messages of the nodes on which some tensors depend, in the order of writing.

        A node without consumers would count as an output of the model.
        """
        reached: set[str] = set()
        pending = list(ends)
        while pending:
            name = node_name(pending.pop())
            if name not in reached:
                reached.add(name)
                pending += self.messages[name][0]
        return {name: message for name, (_, message) in self.messages.items() if name in reached}

    def constant(self, data: object, kind: str = "", like: str = "const") -> str:
        """Returns a constant; short equal ones are shared."""
        array = np.asarray(data)
        kind = kind or _numpy_kind(array)
        key = (kind, array.shape, array.tobytes()) if array.size <= MAX_SHARED_ELEMENTS else None
        if key is not None and key in self.shared:
            return self.shared[key]
        control_inputs = () if self.after is None else (f"^{self.after()}",)
        name = self.add(
            "Const", control_inputs, like, value=TensorAttr(array, kind), dtype=TypeAttr(kind)
        )
        if key is not None:
            self.shared[key] = name
        return name

    def int_constant(self, numbers: Sequence[int], like: str = "const") -> str:
        """Returns a constant list of integers."""
        return self.constant(np.asarray(numbers, np.int32), like=like)

    # -- values ---------------------------------------------------------------------------------

    def tensor(self, value: Value) -> str:
        """Returns the tensor of a value; a constant is written when it is first read."""
        if value not in self.tensors:
            assert value.constant is not None
            array = value.constant
            kind = type_name(value.type.element, value)
            self.tensors[value] = self.constant(array.data, kind, value.name)
        return self.tensors[value]

    def range_constants(self, quant: QuantType, like: str) -> tuple[str, str]:
        """Returns constants for the range of a quantized type."""
        low, high = range_from_type(quant)
        return self.constant(low, "float", f"{like}/min"), self.constant(
            high, "float", f"{like}/max"
        )


MAX_SHARED_ELEMENTS = 64
"""Constants of at most so many elements are shared where equal."""


def node_name(place: str) -> str:
    """Returns the node of a tensor such as `split:1`, or of a control edge such as `^split`."""
    return place.removeprefix("^").partition(":")[0]


def valid_name(name: str) -> str:
    """Returns a name as TensorFlow allows it."""
    cleaned = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).strip("/") or "_"
    return cleaned if re.match(r"[A-Za-z0-9.]", cleaned) else f"v{cleaned}"


def _numpy_kind(array: Data) -> str:
    name = {"float32": "float", "float64": "double", "float16": "half"}.get(array.dtype.name)
    return name or array.dtype.name


def type_name(element: DType | QuantType, value: Value) -> str:
    """Returns TensorFlow's name of an element type; raises Refused if it has no kernels for it."""
    if isinstance(element, QuantType):
        if str(element.storage) not in _QUANTIZED_NAMES:
            raise refusal(
                value.node, f"TensorFlow has no values of {element.storage}; take u8 or i8"
            )
        return _QUANTIZED_NAMES[str(element.storage)]
    if str(element) not in _TYPE_NAMES:
        raise refusal(value.node, f"TensorFlow has no tensors of {element}")
    return _TYPE_NAMES[str(element)]


def type_attr(value: Value) -> TypeAttr:
    """Returns the attribute that names a value's element type."""
    return TypeAttr(type_name(value.type.element, value))


def shape_attr(value: Value) -> ShapeAttr:
    """Returns a value's shape as an attribute."""
    return ShapeAttr(tuple(n if isinstance(n, int) else -1 for n in value.type.shape))


def _usable_declared_range(quant: QuantType) -> DeclaredBounds | None:
    """Returns the declared range of a type; None for one with another number of steps.

    MXNet's ranges, for example, have 127.5 and 255.5 steps.
    """
    declared = quant.declared
    is_usable = declared is not None and declared.level in (
        None,
        RANGE_DIVISORS.get(str(quant.storage)),
    )
    return declared if is_usable else None


def range_from_type(quant: QuantType) -> tuple[Data, Data]:
    """Returns the range of a quantized type in float32: the declared one if there is one.

    For a scale alone, it is the range nearest to it from which TensorFlow computes this scale
    again.
    """
    if (declared := _usable_declared_range(quant)) is not None:
        low, high = (
            np.asarray(end.data if isinstance(end, Array) else end, F32).reshape(-1)
            for end in (declared.low, declared.high)
        )
    else:
        # Without a declared range: max = scale * level, moved by one float step if that gives the
        # scale.
        level = F32(RANGE_DIVISORS[str(quant.storage)])
        scales = np.asarray(quant.scales(), F32).reshape(-1)
        high = scales * level
        for neighbour in (np.nextafter(high, F32(np.inf)), np.nextafter(high, F32(0))):
            high = np.where(
                high / level == scales, high, np.where(neighbour / level == scales, neighbour, high)
            )
        low = -high if quant.storage.bounds[0] < 0 else high * F32(0)
    low, high = low.astype(F32), high.astype(F32)
    return (low, high) if high.size > 1 else (low.reshape(()), high.reshape(()))


def has_inexact_range(quant: QuantType) -> bool:
    """Returns whether a type has no declared range, and no range gives its scale again."""
    if _usable_declared_range(quant) is not None:
        return False
    scales = np.asarray(quant.scales(), F32).reshape(-1)
    high = np.asarray(range_from_type(quant)[1], F32).reshape(-1)
    return bool(np.any(high / F32(RANGE_DIVISORS[str(quant.storage)]) != scales))
