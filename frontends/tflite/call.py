"""An operator of a file, as converters see it: operands, options, and adding nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dims import Dim
from qir.ir.dtype import F32, I64, DType
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType

from .model_file import FileOperator
from .reader import SubgraphReader, Unread
from .schema import ACTIVATIONS

_ACTIVATION_OPS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "relu": ("relu", {}),
    "relu_n1_to_1": ("clip", {"min": -1.0, "max": 1.0}),
    "relu6": ("clip", {"min": 0.0, "max": 6.0}),
    "tanh": ("tanh", {}),
}


class OperatorCall:
    """An operator that is being read, with its operands, which were read before it."""

    def __init__(self, reader: SubgraphReader, operator: FileOperator) -> None:
        self.reader = reader
        self.operator = operator

    @property
    def name(self) -> str:
        """The name of its first result."""
        return self.reader.name_of(self.operator)

    # -- operands -------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of operands, those at the end that are left out aside."""
        inputs = self.operator.inputs
        return max((i + 1 for i, tensor in enumerate(inputs) if tensor >= 0), default=0)

    def __getitem__(self, index: int) -> Value:
        """Returns an operand."""
        value = self.optional(index)
        if value is None:
            raise Unread(f"it has {self.count} operands")
        return value

    def optional(self, index: int) -> Value | None:
        """Returns an operand; None where it is left out."""
        inputs = self.operator.inputs
        tensor = inputs[index] if index < len(inputs) else -1
        return self.reader.value(tensor) if tensor >= 0 else None

    @property
    def operands(self) -> Sequence[Value]:
        """All operands, of an operator with any number of them."""
        return [self[i] for i in range(self.count)]

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Returns the shape of an operand."""
        return self[index].type.shape

    def rank(self, index: int) -> int:
        """Returns the rank of an operand."""
        return self[index].type.rank

    def sizes(self, index: int) -> tuple[int, ...]:
        """Returns the shape of an operand; raises Unread for an open one."""
        sizes = tuple(size for size in self.shape(index) if isinstance(size, int))
        if len(sizes) != self.rank(index):
            raise Unread(f"the sizes of its operand {index} are not known")
        return sizes

    def elements(self, index: int) -> NDArray[np.generic]:
        """Returns the elements of a constant operand; raises Unread for others."""
        array = self[index].constant
        if array is None or array.type.quant is not None:
            raise Unread(f"its operand {index} is computed while the network runs")
        return array.data

    def integers(self, index: int) -> tuple[int, ...]:
        """Returns a constant operand of integers, a scalar or a vector, as a tuple."""
        return tuple(int(number) for number in self.elements(index).reshape(-1))

    def axis(self, index: int, rank: int) -> int:
        """Returns a constant operand that is an axis; negative ones count from the end."""
        axes = self.axes(index, rank)
        if len(axes) != 1:
            raise Unread(f"its operand {index} is {list(axes)}, and no axis")
        return axes[0]

    def axes(self, index: int, rank: int) -> tuple[int, ...]:
        """Returns a constant operand that lists axes, each once; negative ones count from the
        end."""
        axes = (axis + rank if axis < 0 else axis for axis in self.integers(index))
        return tuple(dict.fromkeys(axes))

    # -- options --------------------------------------------------------------------------------

    def integer(self, name: str, default: int = 0) -> int:
        """Returns an option that is a whole number."""
        options = self.operator.options
        return default if options is None else options.integer(name)

    def real(self, name: str, default: float = 0.0) -> float:
        """Returns an option that is a float."""
        options = self.operator.options
        return default if options is None else options.real(name)

    def flag(self, name: str) -> bool:
        """Returns an option that is true or false."""
        options = self.operator.options
        return options is not None and options.flag(name)

    def integer_list(self, name: str) -> tuple[int, ...]:
        """Returns an option that is a vector of whole numbers."""
        options = self.operator.options
        return () if options is None else options.integers(name)

    # -- results --------------------------------------------------------------------------------

    def result_quant(self, index: int = 0) -> QuantType | None:
        """Returns the quantized type that the file states for a result."""
        return self.reader.quant(self.operator.outputs[index])

    def result_dtype(self, index: int = 0) -> DType:
        """Returns the element type that the file states for a result that is not quantized."""
        element = self.reader.element(self.operator.outputs[index])
        return element.express if isinstance(element, QuantType) else element

    def result_sizes(self, index: int = 0) -> tuple[int, ...]:
        """Returns the sizes that the file states for a result, with -1 for open ones."""
        return self.reader.tensor(self.operator.outputs[index]).sizes

    def add(
        self, op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr] | None = None
    ) -> Value:
        """Adds an op within the operator, of a type that follows from its operands."""
        return self.reader.add(self.operator, op, operands, attrs or {}).result

    def finish(
        self,
        op: str,
        operands: Mapping[str, Value | None],
        attrs: Mapping[str, Attr] | None = None,
        *,
        profile: str | None = None,
    ) -> Value:
        """Adds the op that computes the operator's result, and the activation at its end.

        The result has the quantized type that the file states. Operands that are None are left out.
        """
        held = {slot: value for slot, value in operands.items() if value is not None}
        complete = spec(op).complete_attrs(attrs or {})
        activation = self._activation()
        quant = self.result_quant()
        if quant is None:
            kinds = self._float_types(op, held, complete)
            node = self.reader.add(self.operator, op, held, attrs or {}, kinds, profile)
            if activation is None:
                return node.result
            return self.add(activation[0], {"x": node.result}, activation[1])
        (kind, *_) = infer_result_types(op, held, complete, {})
        kind = kind.with_element(quant)
        if activation is None:
            node = self.reader.add(self.operator, op, held, attrs or {}, [kind], profile)
            return node.result
        op_at_end, attrs_at_end = activation
        stages = (
            Stage(op, complete, tuple(held)),
            Stage(op_at_end, spec(op_at_end).complete_attrs(attrs_at_end), (), "x"),
        )
        return self.reader.add_chain(self.operator, stages, held, kind, profile)

    def finish_all(
        self, op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
    ) -> Sequence[Value]:
        """Adds an op that only moves elements, of several results."""
        return self.reader.add(self.operator, op, operands, attrs).results

    def add_control(
        self, op: str, operands: Mapping[str, Value], bodies: Mapping[str, Graph]
    ) -> Sequence[Value]:
        """Adds an op that holds bodies; returns its results."""
        return self.reader.add(self.operator, op, operands, {}, bodies=bodies).results

    def _float_types(
        self, op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
    ) -> list[TensorType] | None:
        """Returns the types of a result of floats that are computed from quantized values; None
        where they follow from the operands alone."""
        if all(value.type.quant is None for value in operands.values()):
            return None
        types = infer_result_types(op, operands, attrs, {})
        return [kind.with_element(self.result_dtype()) for kind in types]

    def _activation(self) -> tuple[str, Mapping[str, Attr]] | None:
        number = 0
        options = self.operator.options
        if options is not None and options.declares("fused_activation_function"):
            number = options.integer("fused_activation_function")
        if not number:
            return None
        name = ACTIVATIONS[number] if 0 <= number < len(ACTIVATIONS) else f"number {number}"
        if name not in _ACTIVATION_OPS:
            raise Unread(f"the activation at its end is {name}")
        return _ACTIVATION_OPS[name]

    def constant(self, data: NDArray[np.generic], what: str = "constant") -> Value:
        """Adds a constant, named after the operator and `what`."""
        name = self.reader.fresh_name(self.operator, what)
        # `ascontiguousarray` turns rank 0 into rank 1, which the reshape undoes.
        return self.reader.graph.constant(np.ascontiguousarray(data).reshape(data.shape), name=name)

    def int64_constant(self, sizes: Sequence[int], what: str = "sizes") -> Value:
        """Adds a constant vector of i64, the language's type of sizes."""
        return self.constant(np.asarray(sizes, np.int64), what)

    def scalar_like(self, value: float, like: Value) -> Value:
        """Adds a scalar constant in the element type of another value."""
        return self.constant(np.asarray(value, like.type.dtype.carrier), "number")

    def as_i64(self, value: Value) -> Value:
        """Returns integers as i64."""
        if value.type.dtype == I64:
            return value
        array = value.constant
        if array is not None:
            return self.constant(array.data.astype(np.int64), "indices")
        return self.add("cast", {"x": value}, {"to": I64})

    def moved(self, value: Value, perm: tuple[int, ...]) -> Value:
        """Returns a value with its axes in another order; a constant is moved at once."""
        array = value.constant
        if array is None:
            return self.add("transpose", {"x": value}, {"perm": perm})
        complete = spec("transpose").complete_attrs({"perm": perm})
        (kind,) = infer_result_types("transpose", {"x": value}, complete, {})
        data = np.ascontiguousarray(array.data.transpose(perm))
        name = self.reader.fresh_name(self.operator, "weights")
        return self.reader.graph.constant(Array(data, kind, name))

    @property
    def is_dynamic(self) -> bool:
        """Whether it computes floats from floats by quantized weights."""
        return self.result_quant() is None and self[0].type.element == F32
