"""The state of reading one ONNX graph: values by the file's names, constants, quantized types.

Handlers of operators (`float_ops`, `quantized_ops`, ...) get an `OnnxReader` and an `OnnxOp`, and
add nodes. A handler raises `KeepOperator` for what it cannot express; the operator then becomes a
`foreign` node. Constants become nodes only when a handler asks for them, since one tensor may be
read with several quantized types.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from qir.arguments import unchecked
from qir.errors import GraphError, OpError, ParseError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype_of
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, reshape
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.origin import Lineage, Origin
from qir.ir.types import Array, Granularity, Param, QuantType, TensorType, make_param
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_shapes import SHAPED_BY_OPERAND
from qir.target import target

from .constant_evaluation import evaluated, refine_created_shape
from .elements import Dimensions
from .faults import input_error
from .files import ModelFile, StoredTensor
from .op import KeepOperator, NotConstant, OnnxOp

STEP = "onnx frontend"
QUANTIZED_DTYPES = frozenset(
    "i8 u8 i16 u16 i32 i4 u4 i2 u2 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f4e2m1fn".split()
)
"""Element types that QuantizeLinear produces and DequantizeLinear reads."""

_add_node, _has = unchecked(Graph.add), unchecked(Graph.has)
_PARAMETER_SLOTS = ("scale", "zero")
"""Endings of the slots that take a computed scale or zero point, such as `x.scale`."""


class ReadBody(Protocol):
    """Reads the subgraph of an If, Loop or Scan as a body; `inputs` are its operands."""

    def __call__(
        self,
        outer: OnnxReader,
        proto: onnx.GraphProto,
        inputs: Sequence[tuple[str, TensorType]],
        ledger: Ledger,
    ) -> Graph: ...


DEFAULTS_SINCE_IR_VERSION = 4
"""The first version of the format whose inputs may have defaults that are not constants."""


class OnnxReader:
    """Builds one graph: the model's, or a body's, whose `outer` reader has the enclosing graph."""

    def __init__(
        self,
        file: ModelFile,
        proto: onnx.GraphProto,
        ledger: Ledger,
        read_body: ReadBody,
        outer: OnnxReader | None = None,
    ) -> None:
        self.file = file
        self.proto = proto
        self.ledger = ledger
        self.read_body = read_body
        self.outer = outer
        name = proto.name if isinstance(proto.name, str) else ""
        profile = "" if outer else target("onnxruntime").profile
        self.graph = Graph("body", "") if outer else Graph(name or "main", profile)
        self.dims: Dimensions = outer.dims if outer else Dimensions()
        self.read_counts: dict[str, int] = {}
        """Number of uses of each tensor; a graph output counts as one."""
        self.declared_types: dict[str, TensorType] = {}
        """Types that `value_info` and the outputs state."""
        self.rankless_types: dict[str, onnx.TypeProto] = {}
        """Types that state an element type and no rank."""
        self.source_names: set[str] = set()
        """Names of the source, which generated names must avoid."""
        self.qparam_names: Mapping[str, tuple[str, str]] = {}
        """(scale, zero point) names of tensors that some operator quantizes or dequantizes."""
        self.annotations: Sequence[tuple[str, tuple[str, str]]] = ()
        """(scale, zero point) names by tensor, as the `quantization_annotation` states them."""
        self.annotated_qparam_names: Mapping[str, tuple[str, str]] = {}
        """The same for tensors that only a `quantization_annotation` describes."""
        self.clip_bounds: dict[str, tuple[tuple[int, int], Origin]] = {}
        """Bounds of quantized constants that a Clip limits (QCDQ), and the origin of that Clip."""
        self._values: dict[str, Value] = {}
        self._aliases: dict[str, str] = {}
        self._stored: dict[str, StoredTensor] = {}
        self._arrays: dict[str, Array] = {}
        self._constants: dict[str, list[tuple[QuantType | None, Value]]] = {}
        """The nodes of constants, with the quantized types that they are read with."""
        self._used: set[str] = set()
        self.evaluates = False
        """Whether `constant_data` may evaluate values that depend on constants and known sizes."""
        self.raw_views: list[Node] = []
        """Recodes of quantized values to plain integers, which may turn out to be unused."""
        self.verify_all = False
        """Whether the verifier must check the whole graph after reading."""
        self.nodes_to_verify: set[Node] = outer.nodes_to_verify if outer else set()
        """Nodes that the verifier must check after reading; type inference checks all others."""
        self._quant_types: dict[tuple[object, ...], QuantType] = {}
        self._evaluated: dict[Value, NDArray[np.generic] | None] = {}
        # From IR version 4 on, an initializer that is an input too may be replaced by the caller.
        # Nothing may be folded from its default then.
        has_overridable_inputs = self.file.proto.ir_version >= DEFAULTS_SINCE_IR_VERSION
        self._overridable_inputs = (
            frozenset(i.name for i in self.proto.input) if has_overridable_inputs else frozenset()
        )
        self._inspected: set[str] = set()
        """Constants whose elements a handler looked at, so that they are fixed in the graph."""

    # -- names and constants ------------------------------------------------------------------

    def alias(self, name: str, source: str) -> None:
        """Makes a name another name of a tensor, as for the result of an Identity."""
        self._aliases[name] = self.resolve(source)

    def resolve(self, name: str) -> str:
        """Returns the tensor's own name for any of its names."""
        # Most graphs have no aliases: this is called for every name.
        return self._aliases.get(name, name) if self._aliases else name

    def store(self, name: str, tensor: StoredTensor) -> None:
        """Registers a constant; its node is added when a handler first asks for it."""
        self._stored[name] = tensor

    def is_constant(self, name: str) -> bool:
        name = self.resolve(name)
        # A tensor that the body produces shadows a constant of the enclosing graph.
        if self.outer is None or name in self._values:
            return name in self._stored
        return name in self._stored or self.outer.is_constant(name)

    def array(self, name: str) -> Array | None:
        """Returns a constant without adding a node; None for a computed tensor."""
        name = self.resolve(name)
        # The elements may decide how an operator is read, so the default cannot be replaced any
        # more.
        self._inspected.add(name)
        return self._array(name)

    def _array(self, name: str) -> Array | None:
        """Returns the same for callers that look at its type only, which fixes nothing."""
        if (cached := self._arrays.get(name)) is not None:
            return cached
        if (stored := self._stored.get(name)) is None:
            return None if self.outer is None or name in self._values else self.outer.array(name)
        self._used.add(name)
        cached = stored if isinstance(stored, Array) else self.file.array(stored, name)
        self._arrays[name] = cached
        return cached

    def constant_dtype(self, name: str) -> DType:
        """Returns a constant's element type; raises KeepOperator for a computed tensor."""
        array = self._array(self.resolve(name))
        if array is None:
            raise KeepOperator
        return array.type.dtype

    def constant_data(self, name: str) -> NDArray[np.generic]:
        """Returns a constant's elements; raises NotConstant for a computed tensor.

        While `evaluates` is set, what depends only on constants and known sizes is computed.
        """
        array = self.array(name)
        if array is not None:
            return array.data
        value = self._values.get(self.resolve(name))
        data = evaluated(value, self._evaluated) if self.evaluates and value is not None else None
        if data is None:
            raise NotConstant
        return data

    def lazy_data(self, name: str) -> ArrayData:
        """Returns a constant's elements, perhaps not loaded yet; raises NotConstant as above."""
        array = self.array(name)
        return self.constant_data(name) if array is None else array.contents

    def unquantized_constants(self) -> dict[str, Value]:
        """Returns constants that have the file's name and type, and no second quantized type."""
        # A constant that is read with two types has two nodes, which one default cannot replace.
        return {
            name: value
            for name, ((quant, value), *others) in self._constants.items()
            if quant is None and not others and self.graph.values.get(name) is value
        }

    def is_inspected(self, value: Value) -> bool:
        """Returns whether the graph depends on the elements of a constant, not only on its type."""
        return value.name in self._inspected or self._evaluated.get(value) is not None

    def unused_constants(self) -> list[str]:
        """Returns the constants of the file that nothing uses, in the file's order."""
        return [name for name in self._stored if name not in self._used]

    # -- values -------------------------------------------------------------------------------

    def type_of(self, op: OnnxOp, name: str) -> TensorType:
        """Returns the type of an operand; a constant's is that of its raw elements."""
        name = self.resolve(name)
        if name not in self._stored and (value := self._values.get(name)) is not None:
            return value.type
        array = self._array(name)
        return array.type if array else self.value(op, name).type

    def value(self, op: OnnxOp, name: str, quant: QuantType | None = None) -> Value:
        """Returns an operand; adds a constant's node if needed, with the quantized type given."""
        name = self.resolve(name)
        if name not in self._stored and (bound := self._values.get(name)) is not None:
            return bound
        if quant is None and (constant := self._known_constant(name, None)) is not None:
            return constant
        if (array := self._array(name)) is not None:
            return self._constant(name, array, quant)
        if name not in self._values:
            raise op.error(f"reads {name!r}, which nothing makes" if name else "lacks an operand")
        return self._values[name]

    def quant_type_of(self, op: OnnxOp, name: str) -> QuantType | None:
        """Returns the quantized type of a computed operand; None for floats and constants."""
        name = self.resolve(name)
        if name not in self._stored and (bound := self._values.get(name)) is not None:
            return bound.type.quant
        return None if self.is_constant(name) else self.value(op, name).type.quant

    def value_to_move(self, op: OnnxOp, name: str) -> Value:
        """Returns an operand of an op that only moves elements.

        A constant takes the quantized type that the consumers of the moved tensor state.
        """
        name = self.resolve(name)
        if (array := self._array(name)) is None:
            return self.value(op, name)
        return self.value(op, name, self.inferred_quant_type(name, array.type))

    def _constant(self, name: str, array: Array, quant: QuantType | None) -> Value:
        if (known := self._known_constant(name, quant)) is not None:
            return known
        if quant is not None:
            array = Array(array.contents, array.type.with_element(quant), name)
        return self.add_constant(name, array, quant)

    def add_constant(self, name: str, array: Array, quant: QuantType | None) -> Value:
        """Returns the constant of that name and quantized type; adds it where it is missing."""
        value = self._known_constant(name, quant)
        if value is None:
            # A tensor that is read with a second quantized type becomes a second constant.
            node_name = name if not _has(self.graph, name) else self.unused_name(name)
            value = _add_node(
                self.graph,
                "constant",
                None,
                {"data": array},
                types=(array.type,),
                name=node_name,
                origins=(Origin("onnx", "Constant", name),),
            ).result
            if node_name != name:
                self.graph.set_lineage(value, Lineage(name))
            self._constants.setdefault(name, []).append((quant, value))
        return value

    def _known_constant(self, name: str, quant: QuantType | None) -> Value | None:
        for known, value in self._constants.get(name, ()):
            if known is quant or known == quant:
                return value
        return None

    def unused_name(self, base: str) -> str:
        """Returns a name, based on `base`, that neither the graph nor the source uses."""
        # Every name of the source is reserved, since operators that come later still need theirs.
        name, count = base, 0
        while name in self.source_names or self.graph.has(name):
            count += 1
            name = f"{base}_{count}"
        return name

    def inferred_quant_type(self, name: str, type_: TensorType) -> QuantType | None:
        """Returns the quantized type of plain integers that producer or consumers state.

        Only types with one scale are inferred: moves may change the axis of several.
        """
        qparams = self.qparam_names.get(name)
        if qparams is None or type_.quant or type_.dtype.name not in QUANTIZED_DTYPES:
            return None
        try:
            quant = self.quant_type(*qparams, type_.dtype)
        except KeepOperator:
            return None
        # E.g. a Transpose in between would move the axis of the scales.
        return quant if quant.granularity is None else None

    def annotated_quant_type(self, name: str) -> QuantType | None:
        """Returns the quantized type that an annotation gives to a constant of integers."""
        name = self.resolve(name)
        array = self.array(name) if name in self.annotated_qparam_names else None
        return None if array is None else self.inferred_quant_type(name, array.type)

    def is_quantized(self, name: str) -> bool:
        """Returns whether a tensor of the file has a quantized type in the graph."""
        name = self.resolve(name)
        if (bound := self._values.get(name)) is not None:
            return bound.type.quant is not None
        return any(quant is not None for quant, _ in self._constants.get(name, ()))

    def has_qparams(self, name: str) -> bool:
        """Returns whether some operator or annotation states its scale."""
        return name in self.qparam_names

    def try_set_quant_type(self, op: OnnxOp, name: str, quant: QuantType) -> bool:
        """Gives an integer input its quantized type in place; False if it has other uses."""
        value = self.value(op, name)
        # Consumers that see other parameters, or plain integers, recode the value.
        typable_ops = ("foreign",) if self.outer else ("input", "foreign")
        if value.uses or value.type.quant or value.node.op not in typable_ops:
            return False
        self.graph.set_type(value, value.type.with_element(quant))
        return True

    def output_value(self, name: str) -> Value:
        """Returns the value of a graph output; raises InputError if nothing produces it."""
        source = self.resolve(name)
        if (array := self._array(source)) is not None:
            return self._constant(source, array, None)
        if source not in self._values:
            raise input_error(self.file.path, f"output {name}", "nothing makes it")
        return self._values[source]

    def bind(self, name: str, value: Value) -> None:
        """Registers a value under its name in the file, with the quantized type inferred for it."""
        if (
            name in self.qparam_names
            and (quant := self.inferred_quant_type(name, value.type)) is not None
        ):
            quantized_type = value.type.with_element(quant)
            if _moves_float_values(value):  # its operand stays plain integers for other consumers
                recode = self.graph.add(
                    "recode",
                    {"x": value},
                    types=[quantized_type],
                    name=self.unused_name(f"{name}_meant"),
                )
                value = recode.result
            else:
                self.graph.set_type(value, quantized_type)
        self._values[name] = value

    def add(
        self,
        op: OnnxOp,
        kind: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr] | None = None,
        *,
        types: Iterable[TensorType] | None = None,
        names: Sequence[str] | None = None,
        bodies: Mapping[str, Graph] | None = None,
    ) -> Node:
        """Adds the node of an operator; raises InputError if the operator is malformed.

        `names` has a name for each result, also for those that the file leaves unnamed.
        """
        # An absent result has no value; the node has as many results as the file names.
        result_names = [n for n in op.outputs if n]
        try:
            node = _add_node(
                self.graph,
                kind,
                operands,
                attrs,
                types=types,
                name=result_names if names is None else names,
                origins=[op.origin()],
                bodies=bodies,
            )
        except (TypeRuleError, GraphError, OpError, ParseError) as error:
            raise op.error(str(error)) from error
        if kind in SHAPED_BY_OPERAND:
            refine_created_shape(self.graph, node, self._evaluated, self._overridable_inputs)
        # Type inference does not relate a computed scale to the type that it belongs to.
        if kind == "fused" or _has_parameter_slots(tuple(operands)):
            self.nodes_to_verify.update([node, *(value.node for value in node.operands.values())])
        for name, value in zip(result_names if names is None else names, node.results, strict=True):
            self.bind(name, value)
        return node

    # -- quantized types ----------------------------------------------------------------------

    def quant_type(
        self, scale: str, zero: str, storage: DType, shape: object = None, axis: int = 0
    ) -> QuantType:
        """Returns the quantized type of constant scale and zero point.

        With a shape, several scales are one for each index of `axis`; else there is one scale.
        Raises KeepOperator for parameters that the language cannot express.
        """
        key = (self.resolve(scale), self.resolve(zero), storage, shape, axis)
        if (cached := self._quant_types.get(key)) is None:
            cached = self._quant_types[key] = self._make_quant_type(
                scale, zero, storage, shape, axis
            )
        return cached

    def _make_quant_type(
        self, scale: str, zero: str, storage: DType, shape: object, axis: int
    ) -> QuantType:
        scales, express = self._checked_scales(scale)
        zeros = self._checked_zero_points(zero, storage, scales)
        if not isinstance(shape, tuple) or not _is_per_axis(scales, shape, axis):
            if scales.size != 1:
                raise KeepOperator(_why_axis_is_open(scales, shape, axis))
            return QuantType(storage, express, (scales.item(),), (int(zeros.item()),))
        granularity, name = Granularity(((axis % len(shape), 1),)), scale.removesuffix("_scale")
        zero_points: Param = ()
        if zeros.any():
            integers = zeros.astype(storage.carrier)
            zero_points = make_param(integers, granularity, f"{name}.zero")
        scale_param = make_param(scales, granularity, f"{name}.scale")
        return QuantType(storage, express, scale_param, zero_points, granularity)

    def block_quant_type(
        self, scale: str, zero: str, data_type: TensorType, axis: int, size: int
    ) -> QuantType:
        """Returns the quantized type with one scale for each block of elements along an axis.

        Raises KeepOperator where the shapes of scales and data do not fit.
        """
        scales, express = self._checked_scales(scale, data_type.rank)
        # Blocks of `size` along the axis, single elements along all others.
        granularity = Granularity(
            tuple((i, size if i == axis else 1) for i in range(data_type.rank))
        )
        grid = granularity.grid(data_type.shape)
        if scales.ndim != data_type.rank or size < 1:
            raise KeepOperator(
                f"blocks of {size} of {data_type.rank} axes have scales of {scales.ndim}"
            )
        if any(isinstance(w, int) and w != s for w, s in zip(grid, scales.shape, strict=True)):
            raise KeepOperator(f"it has {scales.shape} scales for {data_type} in blocks of {size}")
        zeros = self._checked_zero_points(zero, data_type.dtype, scales)
        zero_points: Array | tuple[int, ...] = ()
        if zeros.any():
            stored = self.array(zero)
            integers = zeros.astype(data_type.dtype.carrier) if stored is None else stored.contents
            zero_points = Array(
                reshape(integers, zeros.shape), TensorType(zeros.shape, data_type.dtype), zero
            )
        stored_scales = self.array(scale)
        scale_array = (
            Array.of(scales, scale)
            if stored_scales is None
            else Array(stored_scales.contents, stored_scales.type, scale)
        )
        return QuantType(data_type.dtype, express, scale_array, zero_points, granularity)

    def _checked_scales(self, name: str, most_axes: int = 1) -> tuple[NDArray[np.floating], DType]:
        data = self.constant_data(name)
        scale_type = dtype_of(data)
        # No quantized type of the language has another element type of scales in ONNX models.
        if scale_type.name not in ("f32", "f16") or data.ndim > most_axes or not data.size:
            raise KeepOperator
        scales: NDArray[np.floating] = data.astype(scale_type.carrier, copy=False)
        # Most tensors have one scale: Python's numbers are quicker than arrays of one element.
        if scales.size == 1 and 0 < scales.item() < math.inf:
            return scales, scale_type
        is_valid = np.isfinite(scales) & (
            (scales > 0) | (most_axes > 1)
        )  # blocks have any sign, or none
        if not is_valid.all():
            invalid, count = scales[~is_valid].reshape(-1)[0], scales.size
            which = f"scale {invalid}" if count == 1 else f"scale {invalid}, one of {count},"
            raise KeepOperator(f"its {which} is not positive and finite")
        return scales, scale_type

    def _checked_zero_points(
        self, name: str, storage: DType, scales: NDArray[np.floating]
    ) -> NDArray[np.integer]:
        if storage.name not in QUANTIZED_DTYPES:
            raise KeepOperator
        if not name:
            return np.zeros(scales.shape, np.int64)
        zeros = self.constant_data(name)
        if zeros.size != scales.size:
            raise KeepOperator(f"it has {zeros.size} zero points for {scales.size} scales")
        # The zero point has the type of the quantized values, by the schema.
        if zeros.dtype != storage.carrier:
            raise KeepOperator
        if zeros.size == 1 and storage.is_integer:
            if not storage.bounds[0] <= zeros.item() <= storage.bounds[1]:
                raise KeepOperator(_zero_outside(storage))
            return zeros.astype(np.int64).reshape(scales.shape)
        # float8 has a zero point for its type alone: it is 0.
        if storage.is_float and zeros.astype(np.float32).any():
            raise KeepOperator
        # Only what is narrower than its carrier could be outside.
        if storage.is_integer and storage.bits < storage.carrier.itemsize * 8:
            low, high = storage.bounds
            if zeros.size and not low <= zeros.min() <= zeros.max() <= high:
                raise KeepOperator(_zero_outside(storage))
        return zeros.astype(np.int64).reshape(scales.shape)

    # -- ledger -------------------------------------------------------------------------------

    def note(self, change: Change, subject: str, reason: str) -> None:
        self.ledger.add(change, STEP, subject, reason)

    def check_name(self, name: str, place: str) -> None:
        """Raises InputError for a name that is empty or not UTF-8."""
        if not name or not isinstance(name, str):
            raise input_error(self.file.path, place, "one has no name, or none in UTF-8")


def _zero_outside(storage: DType) -> str:
    low, high = storage.bounds
    return f"a zero point is outside {low}..{high}"


@lru_cache(4096)
def _has_parameter_slots(slots: tuple[str, ...]) -> bool:
    return any(slot.endswith(_PARAMETER_SLOTS) for slot in slots)


def _is_per_axis(scales: NDArray[np.floating], shape: tuple[object, ...], axis: int) -> bool:
    if scales.ndim != 1 or not -len(shape) <= axis < len(shape):
        return False
    return shape[axis] == scales.size


def _why_axis_is_open(scales: NDArray[np.floating], shape: object, axis: int) -> str:
    """Returns why several scales have no axis: its size is open. Empty for another reason."""
    sizes = shape if isinstance(shape, tuple) and scales.ndim == 1 else ()
    if not -len(sizes) <= axis < len(sizes) or isinstance(sizes[axis], int):
        return ""
    reason = f"it has {scales.size} scales along axis {axis}, whose size the file leaves open"
    return f"{reason}; {scales.size} there would do"


def _moves_float_values(value: Value) -> bool:
    """Returns whether its node moves elements of an operand that is not quantized."""
    slots = spec(value.node.op).traits.same_params
    moved = [v for slot, v in value.node.operands.items() if slot.partition(".")[0] in slots]
    return any(part.type.quant is None for part in moved)
