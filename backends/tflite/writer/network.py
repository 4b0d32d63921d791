"""The tensors of a graph's values in the file, and what op writers need to add operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.dims import Shape, known_shape
from qir.ir.dtype import F32, DType
from qir.ir.node import Node, Value
from qir.ir.types import QuantType, TensorType

from .flatbuffer import Field
from .model import ModelBuilder, Quantization
from .schema import ELEMENT_TYPES
from .versions import version_of

Options: TypeAlias = "tuple[str, Mapping[str, Field]] | None"
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The axes of images with channels last, by those with channels first, and back."""
STORAGES = ("i8", "u8", "i16", "i4")
"""The element types that TensorFlow Lite's kernels take as quantized values; i4 are weights."""


class Network:
    """A file under construction, with the tensor of each value."""

    def __init__(self, halves: Collection[Value] = ()) -> None:
        self.model, self.halves = ModelBuilder(), halves
        """`halves` are constants that are stored as float16."""
        self.tensors: dict[Value, int] = {}
        self.images: dict[Value, int] = {}
        """Tensors with channels last, of values that have them first."""
        self._widened: dict[int, int] = {}
        """Tensors of float32, by those of float16 that they are made of."""

    # -- tensors --------------------------------------------------------------------------------

    def tensor(self, value: Value) -> int:
        """Returns the tensor of a value; constants and transposed images are made when asked."""
        if value not in self.tensors and value in self.images:
            at = self.transposed(value.node, self.images[value], value.type, TO_FIRST, value.name)
            self.tensors[value] = at
        if value not in self.tensors:
            array = value.constant
            assert array is not None, value
            halves = value in self.halves
            self.tensors[value] = self.constant(
                value.node, array.data, value.type, value.name, halves=halves
            )
        return self.tensors[value]

    def image(self, value: Value) -> int:
        """Returns an image of channels first as a tensor with channels last."""
        if value not in self.images:
            node, kind = value.node, as_image(value.type)
            x = node.operands.get("x")
            if node.op == "transpose" and node.attrs["perm"] == TO_FIRST and x is not None:
                self.images[value] = self.tensor(x)
            else:
                name = f"{value.name}/channels_last"
                at = self.transposed(node, self.tensor(value), kind, TO_LAST, name)
                self.images[value] = at
        return self.images[value]

    def constant(
        self,
        node: Node,
        data: NDArray[np.generic],
        kind: TensorType,
        name: str = "constant",
        *,
        halves: bool = False,
    ) -> int:
        """Adds a constant of a type; floats may be stored as float16."""
        if halves:
            return self._halves(data, name)
        number, quantization = self.element(node, kind)
        held = data
        if kind.quant is not None and str(kind.quant.storage) == "i4":
            held = _packed(data)
        return self.model.tensor(name, data.shape, number, quantization, held)

    def plain(
        self, data: NDArray[np.generic], name: str = "constant", *, halves: bool = False
    ) -> int:
        """Adds a constant of plain numbers: float32, also stored as float16, int32, int64, bool."""
        if halves:
            return self._halves(data, name)
        word = {"float32": "f32", "int32": "i32", "int64": "i64", "bool": "bool"}
        return self.model.tensor(name, data.shape, ELEMENT_TYPES[word[data.dtype.name]], None, data)

    def _halves(self, data: NDArray[np.generic], name: str) -> int:
        """Adds float32 numbers as float16 ones, and what dequantizes them."""
        number, halves = ELEMENT_TYPES["f16"], data.astype(np.float16)
        stored = self.model.tensor(f"{name}/f16", data.shape, number, None, halves)
        if stored not in self._widened:
            made = self.model.tensor(name, data.shape, ELEMENT_TYPES["f32"])
            version = version_of("DEQUANTIZE", (number,), None, 1)
            self.model.operator("DEQUANTIZE", version, (stored,), (made,), None)
            self._widened[stored] = made
        return self._widened[stored]

    def sums(self, data: NDArray[np.generic], unit: NDArray[np.float32], name: str) -> int:
        """Adds a constant of sums, whose unit is a product of scales."""
        scales = np.asarray(unit, np.float32).reshape(-1)
        quantization = Quantization(scales, np.zeros(1, np.int64))
        number = ELEMENT_TYPES["i64" if data.dtype == np.int64 else "i32"]
        return self.model.tensor(name, data.shape, number, quantization, data)

    def ints(self, numbers: Sequence[int] | int, name: str = "constant") -> int:
        """Adds a constant of int32: a list, or one alone."""
        return self.plain(np.asarray(numbers, np.int32), name)

    def made(self, node: Node, kind: TensorType, name: str) -> int:
        """Adds a tensor that an operator makes."""
        number, quantization = self.element(node, kind)
        return self.model.tensor(name, sizes_of(kind), number, quantization)

    def element(self, node: Node, kind: TensorType) -> tuple[int, Quantization | None]:
        """Returns the number of an element type and the quantization of a type."""
        quant = kind.quant
        word = str(kind.dtype if quant is None else quant.storage)
        if word not in ELEMENT_TYPES:
            raise refusal(node, f"TensorFlow Lite has no kernels on {word}; use float32 or int8")
        return ELEMENT_TYPES[word], None if quant is None else _quantization(node, quant)

    # -- operators ------------------------------------------------------------------------------

    def operator(
        self,
        node: Node,
        op: str,
        inputs: Sequence[int],
        kinds: Sequence[TensorType],
        options: Options = None,
        names: Sequence[str] = (),
    ) -> list[int]:
        """Adds an operator; returns the tensors that it makes."""
        names = names or [f"{node.name}/{op.lower()}"] * len(kinds)
        outputs = [self.made(node, kind, name) for kind, name in zip(kinds, names, strict=True)]
        elements = [self.element_of(at) for at in (*inputs, *outputs) if at >= 0]
        version = version_of(op, elements, options, len(inputs))
        self.model.operator(op, version, inputs, outputs, options)
        return outputs

    def add(
        self,
        node: Node,
        op: str,
        inputs: Sequence[int],
        kind: TensorType,
        options: Options = None,
        name: str = "",
    ) -> int:
        """Adds an operator of one result."""
        return self.operator(node, op, inputs, [kind], options, [name] if name else ())[0]

    def transposed(
        self, node: Node, x: int, kind: TensorType, perm: Sequence[int], name: str = ""
    ) -> int:
        """Adds a transpose whose result has a type."""
        return self.add(node, "TRANSPOSE", (x, self.ints(perm)), kind, name=name)

    def reshaped(self, node: Node, x: int, kind: TensorType, name: str = "") -> int:
        """Adds a reshape to a type; raises Refused where more than one size is open."""
        sizes = sizes_of(kind)
        if sizes.count(-1) > 1:
            raise refusal(node, "more than one size of its result is open; state the sizes")
        options: Options = ("ReshapeOptions", {"new_shape": sizes})
        return self.add(node, "RESHAPE", (x, self.ints(sizes, "shape")), kind, options, name)

    def element_of(self, tensor: int) -> int:
        """Returns the number of a tensor's element type."""
        number = self.model.tensors[tensor]["type"]
        assert isinstance(number, int)
        return number


class OpCall:
    """An op, or a kernel of several, that is being written."""

    def __init__(self, network: Network, node: Node) -> None:
        self.w, self.node = network, node
        first = node.stages[0] if node.stages else node
        self.op: str = first.op
        self.attrs: Mapping[str, Attr] = first.attrs
        self.operands = node.stage_operands(0) if node.stages else node.operands

    @property
    def result(self) -> TensorType:
        """The type of the result."""
        return self.node.result.type

    @property
    def activation(self) -> int:
        """The number of the activation at its end; raises Refused for another."""
        number = fused_activation(self.node)
        if number is None:
            raise self.refused("its kernels end in no such activation; keep it apart")
        return number

    def tensor(self, slot: str = "x") -> int:
        """Returns the tensor of an operand."""
        return self.w.tensor(self.operands[slot])

    def image(self, slot: str = "x") -> tuple[int, TensorType]:
        """Returns the tensor of an operand with channels last, and its type."""
        value = self.operands[slot]
        if self.attrs.get("layout") == "NHWC":
            return self.w.tensor(value), value.type
        return self.w.image(value), as_image(value.type)

    def kind(self, slot: str = "x") -> TensorType:
        """Returns the type of an operand."""
        return self.operands[slot].type

    def known(self, shape: Shape) -> tuple[int, ...]:
        """Returns sizes; raises Refused where one is open."""
        sizes = known_shape(shape)
        if sizes is None:
            raise self.refused("it is written for known sizes, and one is open; state it")
        return sizes

    def constant(self, slot: str, what: str = "constant") -> NDArray[np.generic]:
        """Returns the elements of a constant operand; raises Refused for a computed one."""
        array = self.operands[slot].constant
        if array is None:
            raise self.refused(f"its {slot} is computed, and TensorFlow Lite wants a {what}")
        return array.data

    def integer(self, name: str) -> int:
        """Returns an attribute that is a whole number."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        """Returns an attribute that is a number."""
        value = self.attrs[name]
        assert isinstance(value, int | float)
        return float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns an attribute that lists whole numbers."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(int(each) for each in value)  # type: ignore[arg-type]

    def axis(self, name: str = "axis", slot: str = "x") -> int:
        """Returns an attribute that is an axis, counted from the first."""
        return self.integer(name) % max(self.kind(slot).rank, 1)

    def add(self, op: str, inputs: Sequence[int], kind: TensorType, options: Options = None) -> int:
        """Adds an operator for an intermediate result."""
        return self.w.add(self.node, op, inputs, kind, options)

    def finish(self, op: str, inputs: Sequence[int], options: Options = None) -> int:
        """Adds the operator that computes the result."""
        return self.w.add(self.node, op, inputs, self.result, options, self.node.result.name)

    def scalar(self, number: float, like: TensorType | None = None) -> int:
        """Adds a constant number of a float or integer type."""
        carrier = (like or self.result).dtype.carrier
        return self.w.plain(np.asarray(number, carrier))

    def refused(self, why: str) -> Refused:
        """Returns the error for this op."""
        return refusal(self.node, why)


OpWriter: TypeAlias = "Callable[[OpCall], int | Sequence[int]]"
"""Writes an op and returns the tensors of its results."""
ACTIVATIONS: Mapping[tuple[float | None, float | None], int] = {
    (0.0, None): 1,
    (-1.0, 1.0): 2,
    (0.0, 6.0): 3,
}
"""The numbers of fused activations, by the bounds that they clamp to."""


def fused_activation(node: Node) -> int | None:
    """Returns the number of the activation at a kernel's end, 0 for none; None for another."""
    if len(node.stages) < 2:
        return 0
    last = node.stages[-1]
    if len(node.stages) > 2 or last.op not in ("relu", "clip"):
        return None
    return ACTIVATIONS.get((0.0, None) if last.op == "relu" else clip_bounds(last.attrs))


def clip_bounds(attrs: Mapping[str, Attr]) -> tuple[float | None, float | None]:
    """Returns the bounds of a clip; None where there is none."""
    low, high = attrs["min"], attrs["max"]
    return (
        float(low) if isinstance(low, int | float) and low > -np.inf else None,
        float(high) if isinstance(high, int | float) and high < np.inf else None,
    )


def as_image(kind: TensorType) -> TensorType:
    """Returns the type of an image with channels last, of one with channels first."""
    return kind.with_shape(tuple(kind.shape[axis] for axis in TO_LAST))


def _packed(data: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns values of 4 bits, two in a byte, the first in its lower half."""
    halves = data.reshape(-1).astype(np.int8).view(np.uint8) & 15
    halves = np.append(halves, np.zeros(halves.size % 2, np.uint8))
    return np.asarray(halves[::2] | halves[1::2] << 4)


def sizes_of(kind: TensorType) -> tuple[int, ...]:
    """Returns sizes, with -1 for open ones."""
    return tuple(size if isinstance(size, int) else -1 for size in kind.shape)


def float_kind(shape: Sequence[int], dtype: DType = F32) -> TensorType:
    """Returns a type of known sizes."""
    return TensorType(tuple(shape), dtype)


def _quantization(node: Node, quant: QuantType) -> Quantization:
    """Returns a quantized type as the file has it; raises Refused for one that it cannot have."""
    problem = ""
    if quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None:
        problem = "is no plain scale with a zero point"
    elif quant.granularity is not None and quant.axis is None:
        problem = "has scales in blocks"
    elif str(quant.storage) not in STORAGES:
        problem = f"is stored as {quant.storage}"
    if problem:
        remedy = "quantize the float model for this target: qir quantize --target tflite"
        raise refusal(node, f"its quantized type {problem}; {remedy}")
    scales = np.asarray(quant.scales(), np.float32).reshape(-1)
    zeros = np.asarray(quant.zeros(), np.int64).reshape(-1)
    return Quantization(scales, zeros, quant.axis or 0)


def refusal(node: Node, why: str) -> Refused:
    """Returns the error for a node, in one line."""
    origin = f" (from {node.origins[0]})" if node.origins else ""
    name = node.results[0].name if node.results else node.op
    ops = " |> ".join(stage.op for stage in node.stages) or node.op
    return Refused(f"{name}{origin}: {ops}: {why}"[:239])
