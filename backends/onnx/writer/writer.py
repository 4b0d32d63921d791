"""The model under construction: tensor names, initializers, and the nodes written so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from qir.analysis.float32_overflow import FLOAT32_MAX, is_infinite_by_rounding, overflow_note
from qir.analysis.int32_overflow import wrap_note
from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.dtype import I32, DType, dtype_of
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, arrays_equal, read_all
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.profiles import NamedProfile, library_of

from . import custom
from .elements import QUANTIZABLE, UNKNOWN, is_large, tensor, type_proto, without_elements

STEP = "onnx emitter"
"""The step that the ledger's entries name."""
MICROSOFT = "com.microsoft"
FIRST_BLOCK_SCALES = 21
"""The first operator set whose QuantizeLinear has scales for blocks."""
AttrValue: TypeAlias = (
    "int | float | str | tuple[float, ...] | tuple[str, ...] | onnx.TensorProto | onnx.GraphProto"
)
"""A value of an attribute in a NodeProto."""


@dataclass(frozen=True, slots=True)
class OpToWrite:
    """An op to write: a node or a stage of a chain, with its operands by slot and its result's
    name."""

    op: str
    attrs: Mapping[str, Attr]
    operands: Mapping[str, Value]
    kind: TensorType
    out: str
    node: Node
    origins: tuple[Origin, ...]

    @classmethod
    def of(
        cls,
        op: str,
        attrs: Mapping[str, Attr],
        operands: Mapping[str, Value],
        kind: TensorType,
        out: str,
        node: Node,
        origins: tuple[Origin, ...],
    ) -> OpToWrite:
        """Returns an op with its operands in the order of the op's slots, as ONNX lists them."""
        # Almost always the operands are in order already, and nothing is sorted.
        slots = [s.name for s in spec(op).operands]
        if list(operands) == slots[: len(operands)]:
            return cls(op, attrs, operands, kind, out, node, origins)

        def place(slot: str) -> tuple[int, int]:
            base, _, index = slot.partition(".")
            return slots.index(base), int(index or 0)

        ordered = {s: operands[s] for s in sorted(operands, key=place)}
        return cls(op, attrs, ordered, kind, out, node, origins)

    def variadic(self, prefix: str) -> list[str]:
        """Returns the slots of a variadic operand, in order."""
        found = [s for s in self.operands if s.startswith(f"{prefix}.")]
        return sorted(found, key=lambda s: int(s.rpartition(".")[2]))

    def int_tuple(self, name: str) -> tuple[int, ...]:
        """Returns an attribute of integers."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def int_attr(self, name: str) -> int:
        """Returns an integer attribute."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def float_attr(self, name: str) -> float:
        """Returns a float attribute."""
        value = self.attrs[name]
        assert isinstance(value, float)
        return value

    @property
    def is_nhwc(self) -> bool:
        """Whether the op's layout is NHWC."""
        return self.attrs.get("layout") == "NHWC"


def _attribute(name: str, value: AttrValue) -> onnx.AttributeProto:
    # `type(v) is int`, as a bool would be cached under an equal integer's key.
    if type(value) is int or (type(value) is tuple and all(type(v) is int for v in value)):
        return _int_attribute(name, value)
    return helper.make_attribute(name, value)


@lru_cache(4096)
def _int_attribute(name: str, value: int | tuple[int, ...]) -> onnx.AttributeProto:
    """Returns an integer attribute, cached for equal requests; callers copy it."""
    return helper.make_attribute(name, value)


class OnnxWriter:
    """Collects the nodes and initializers of a graph or of a body."""

    def __init__(
        self, graph: Graph, ledger: Ledger, opset: int, outer: OnnxWriter | None = None
    ) -> None:
        self.graph = graph
        self.outer = outer
        """The writer of the graph around a body. Initializers of bodies are written there."""
        self.ledger = ledger
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.large: dict[str, Array] = {}
        """The arrays of large initializers, which are written without their elements."""
        self.value_infos: list[onnx.ValueInfoProto] = []
        self.domains: dict[str, int] = {"": opset}
        self.standard: bool = outer.standard if outer else False
        """Whether operators outside of ONNX's own domain are refused."""
        self.moves_integers: bool = outer.moves_integers if outer else False
        """Whether ops that keep elements are written on integers, where floats would be possible
        too."""
        self.functions: dict[str, onnx.FunctionProto] = outer.functions if outer else {}
        """Functions of the model, by name."""
        self.bounded_constants = 0
        """How many constants have bounds that ONNX's types cannot state."""
        self._names: dict[Value, str] = {}
        self._aliases: set[Value] = set()
        self._used_names: set[str] = set(graph.values) | set(graph.outputs)
        self._node_names: set[str] = set()
        self._params: dict[bytes, str] = {}
        self._dequantized: dict[Value, str] = {}
        """The DequantizeLinear of each value that float ops read."""
        self._clamped: dict[Value, str] = {}
        """The Clip after it, where dequantized values overflow float32."""
        self._same_source: dict[str, list[tuple[Array, str]]] = {}
        """Initializers by the tensor of the source model that they come from."""
        if outer is not None:
            # Names are unique in the whole model: onnxruntime inlines bodies.
            self.domains, self._node_names = outer.domains, outer._node_names
            self._used_names = outer._used_names
            for name, value in graph.values.items():
                if value.constant is None:
                    self.set_name(value, self.fresh(name))

    # -- names --------------------------------------------------------------------------------

    def set_name(self, value: Value, name: str) -> None:
        """Gives a value's tensor another name than the value's own."""
        self._names[value] = name

    def alias(self, value: Value, name: str) -> None:
        """Makes a value the tensor that another operator writes."""
        self._names[value] = name
        self._aliases.add(value)

    def is_alias(self, value: Value) -> bool:
        """Returns whether another operator writes the value's tensor."""
        return value in self._aliases

    def name(self, value: Value) -> str:
        """Returns the name of a value's tensor; a constant is written when its name is first
        needed."""
        if (name := self._names.get(value)) is not None:
            return name
        if (array := value.constant) is None:
            return value.name
        name = self._names[value] = self._constant(value, array)
        return name

    def fresh(self, base: str) -> str:
        """Returns an unused tensor name."""
        name, count = base, 1
        while name in self._used_names:
            name, count = f"{base}_{count}", count + 1
        self._used_names.add(name)
        return name

    def claim(self, name: str) -> bool:
        """Reserves a tensor name; returns False where it is in use."""
        free = name not in self._used_names
        self._used_names.add(name)
        return free

    def _constant(self, value: Value, array: Array) -> str:
        """Writes an initializer, and shares one that repeats another of the same source tensor."""
        if self.outer is not None:
            # Different source tensors stay apart even if equal, so that each can be found by its
            # name.
            return self.outer._constant(value, array)
        known = self._same_source.setdefault(value.lineage.tensor, [])
        for other, name in known:
            if other.type.dtype == array.type.dtype and _are_shareable(other, array):
                return name
        name = value.name
        others = self.graph.values.get(name) is not value or name in self.initializers
        if name in self.graph.outputs or others:
            name = self.fresh(f"{name}_constant" if name in self.graph.outputs else name)
        known.append((array, name))
        self.add_initializer(name, array)
        if array.type.quant and array.type.quant.bounds:
            self.bounded_constants += 1
        return name

    def add_initializer(self, name: str, array: Array) -> None:
        """Adds an initializer; large ones without their elements."""
        if is_large(array):
            self.initializers[name], self.large[name] = without_elements(array, name), array
        else:
            self.initializers[name] = tensor(array, name)

    @property
    def main(self) -> OnnxWriter:
        """The writer of the main graph, which has all initializers."""
        return self if self.outer is None else self.outer.main

    def constant(self, data: NDArray[np.generic], name: str) -> str:
        """Adds an initializer that is no value of the graph, and returns its name."""
        if self.outer is not None:
            return self.outer.constant(data, name)
        name = self.fresh(name)
        self.add_initializer(name, Array.of(data))
        return name

    def parameter(
        self, data: ArrayData, name: str, source_name: str | None, kind: DType | None = None
    ) -> str:
        """Returns the name of a scale or zero point, under its source's name; equal ones are
        shared."""
        if self.outer is not None:
            return self.outer.parameter(data, name, source_name, kind)
        kind = kind or dtype_of(np.empty(0, data.dtype))
        array = Array(data, TensorType(data.shape, kind))
        key = array.digest.encode() if is_large(array) else _content_of(tensor(array, ""))
        # Scales and zero points without a name in the source are shared by content.
        if source_name is None:
            if key in self._params:
                return self._params[key]
            source_name = self.fresh(name)
        # The source's initializer of that name, if it has the same content; else a fresh name.
        elif source_name in self.initializers:
            if self._key(source_name) == key:
                return source_name
            source_name = self.fresh(source_name)
        elif source_name in self._used_names:
            source_name = self.fresh(source_name)
        self._used_names.add(source_name)
        self.add_initializer(source_name, array)
        self._params.setdefault(key, source_name)
        return source_name

    def _key(self, name: str) -> bytes:
        """Returns the content of an initializer, without its name."""
        if (array := self.large.get(name)) is None:
            return _content_of(self.initializers[name])
        return Array(
            array.contents, TensorType(array.contents.shape, array.type.dtype)
        ).digest.encode()

    # -- nodes --------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        attrs: Mapping[str, AttrValue] | None = None,
        *,
        domain: str = "",
        origins: Iterable[Origin] = (),
    ) -> None:
        """Writes a node. It gets the name that the source's node of this op had."""
        outputs, name, bare = list(outputs), "", False
        for origin in origins:
            if origin.op != op:
                continue
            # Operators such as QuantizeLinear are in both domains: the source's is kept.
            if origin.path.startswith("domain ") and not (domain or self.standard):
                domain = "" if "block_size" in (attrs or {}) else origin.path[len("domain ") :]
            if not name and origin.framework == "onnx":
                name, bare = origin.name, not origin.name
        self.check_domain(op, domain, outputs[0])
        name = name if name or bare else f"{outputs[0]}_{op}"
        while name and name in self._node_names:
            name += "_"
        self._node_names.add(name)
        self.domains.setdefault(domain, 1)
        node = onnx.NodeProto(op_type=op, name=name, input=inputs, output=outputs)
        if domain:
            node.domain = domain
        for key, value in (attrs or {}).items():
            node.attribute.append(_attribute(key, value))
        self.nodes.append(node)

    def check_domain(self, op: str, domain: str, name: str) -> None:
        """Raises Refused for an operator of another domain, where only ONNX's own are allowed."""
        own = domain == custom.DOMAIN or domain.startswith("ai.onnx")
        if self.standard and domain and not own:
            message = f"{op} is {domain}'s and no operator of ONNX itself"
            message += "; `target='onnxruntime'` has it" if domain == MICROSOFT else ""
            raise Refused(f"{name}: {message}"[:239])

    def transposed(self, source: str, perm: tuple[int, ...], out: str | None = None) -> str:
        """Writes a Transpose and returns its result's name."""
        out = out or self.fresh(f"{source}_transposed")
        self.emit("Transpose", [source], [out], {"perm": perm})
        return out

    # -- quantized values ---------------------------------------------------------------------

    def refuse(self, node: Node, what: str) -> Refused:
        """Returns an error that names the node and its origin."""
        where = f" ({node.origins[0]})" if node.origins else ""
        return Refused(f"{node.name}{where}: {what}"[:239])

    def report_float_form(self, op: str, node: Node, out: str) -> None:
        """Reports that a quantized op was written in float, where results saturate and wrap
        differently."""
        difference = wrap_note(self.graph, node) or overflow_note(self.graph, node)
        change = Change.APPROXIMATED if difference else Change.REGROUPED
        reason = (
            f"{op} on quantized values is written as float ops between quantized values{difference}"
        )
        self.ledger.add(change, STEP, out, reason)

    def check(self, node: Node, quant: QuantType, *, constant: bool) -> None:
        """Raises Refused for a quantized type that QuantizeLinear and DequantizeLinear do not
        have."""
        unsupported = (
            quant.kind != "uniform"
            or quant.dynamic
            or quant.has_float_zero
            or quant.plus is not None
            or quant.storage.name not in QUANTIZABLE
            or quant.express.name not in ("f32", "f16")
        )
        if unsupported:
            raise self.refuse(node, f"ONNX has no form here for quantized values of {quant}")
        if quant.bounds and not constant:
            raise self.refuse(
                node, f"ONNX types use the whole range of their storage; {quant} is narrower"
            )

    def check_quantizable(self, node: Node, quant: QuantType) -> None:
        """Raises Refused for int32, which DequantizeLinear reads but QuantizeLinear does not
        make."""
        if quant.storage == I32:
            reason = (
                "QuantizeLinear makes quantized values of 2 to 16 bits and of floats of 4 "
                "and 8, not of i32"
            )
            raise self.refuse(node, f"{reason}; i32 may be a constant's or an input's")

    def parameters_of(
        self, value: Value, node: Node, source_names: tuple[str | None, str | None] = (None, None)
    ) -> tuple[str, str]:
        """Returns the names of a value's scale and zero point."""
        kind = value.type
        return self.parameter_names(
            kind.quant, value.lineage.tensor, node, source_names, kind.shape
        )

    def parameter_names(
        self,
        quant: QuantType | None,
        stem: str,
        node: Node,
        source_names: tuple[str | None, str | None] = (None, None),
        shape: Shape = (),
    ) -> tuple[str, str]:
        """Returns the names of a type's scale and zero point, which are written once where equal.

        `shape` is that of the tensor: block parameters are arranged as its grid of blocks.
        """
        assert quant is not None
        scales, zeros = (
            _as_block_grid(array, quant, shape) for array in _scale_and_zero_arrays(quant)
        )
        rounded_scales = scales
        # A scale of float32 for float16 data is rounded to the type that ONNX wants there.
        if scales.dtype != quant.express.carrier:
            rounded_scales = read_all(scales).astype(quant.express.carrier)
            if (rounded_scales.astype(scales.dtype) != read_all(scales)).any():
                self.ledger.add(
                    Change.NUDGED, STEP, stem, f"scale rounded to {quant.express}", codes=1.0
                )
        return (
            self.parameter(rounded_scales, f"{stem}_scale", source_names[0]),
            self.parameter(zeros, f"{stem}_zero_point", source_names[1], quant.storage),
        )

    def float_tensor(self, value: Value, node: Node) -> str:
        """Returns the float tensor of a value; quantized values are dequantized once for all
        consumers."""
        quant = value.type.quant
        if quant is None:
            return self.name(value)
        if value not in self._dequantized:
            out = self.fresh(f"{value.name}_DequantizeLinear_Output")
            self.dequantize(value, out, node)
            self._dequantized[value] = out
        if not is_infinite_by_rounding(self.graph, node, value):
            return self._dequantized[value]
        if value not in self._clamped:
            out = self.fresh(f"{value.name}_held")
            # Integer kernels stay finite where the dequantized values overflow float32: clamp
            # these.
            limits = (("least", -FLOAT32_MAX), ("greatest", FLOAT32_MAX))
            bounds = [self.parameter(np.array(v, np.float32), n, None) for n, v in limits]
            self.emit("Clip", [self._dequantized[value], *bounds], [out])
            self._clamped[value] = out
        return self._clamped[value]

    def dequantize(
        self,
        value: Value,
        out: str,
        node: Node,
        source_names: tuple[str | None, str | None] = (None, None),
        *,
        zero: bool = True,
    ) -> None:
        """Writes a DequantizeLinear of a value."""
        quant = value.type.quant
        assert quant is not None
        # Bounds matter where integers are clamped: constants and values after a Clip are within
        # them.
        within_bounds = value.constant is not None or _is_clipped(value)
        if custom.needs_function(quant, value.type.shape, constant=within_bounds):
            self._custom("Dequantize", self.name(value), value.type, out, node)
            return
        self.check(node, quant, constant=within_bounds)
        scale, offset = self.parameters_of(value, node, source_names)
        operands = [self.name(value), scale, *([offset] if zero else [])]
        attrs = self.scale_attrs(quant, value.type.shape, node)
        self.emit("DequantizeLinear", operands, [out], attrs, origins=node.origins)

    def quantize(
        self,
        source: str,
        kind: TensorType,
        out: str,
        node: Node,
        stem: str,
        source_names: tuple[str | None, str | None] = (None, None),
        *,
        zero: bool = True,
        rounding: str = "",
    ) -> None:
        """Writes a QuantizeLinear of a float tensor."""
        quant = kind.quant
        assert quant is not None
        adds_zero_first = custom.adds_zero_before_rounding(quant, self._rules(node))
        if (
            custom.needs_function(quant, kind.shape, constant=False)
            or adds_zero_first
            or rounding not in ("", "even")
        ):
            self._custom("Quantize", source, kind, out, node, rounding)
            return
        self.check(node, quant, constant=False)
        self.check_quantizable(node, quant)
        scale, offset = self.parameter_names(quant, stem, node, source_names, kind.shape)
        operands = [source, scale, *([offset] if zero else [])]
        attrs = self.scale_attrs(quant, kind.shape, node)
        self.emit("QuantizeLinear", operands, [out], attrs, origins=node.origins)

    def _rules(self, node: Node) -> NamedProfile:
        """Returns the rules by which a node quantizes; the graph may carry them."""
        return library_of(self.graph).named(node.profile or self.graph.profile or "native")

    def _custom(
        self, op: str, source: str, kind: TensorType, out: str, node: Node, rounding: str = ""
    ) -> None:
        """Writes a call of a model function, for a quantized type that ONNX lacks."""
        rules, quant = self._rules(node), kind.quant
        if op == "Quantize" and quant is not None and custom.multiplies_by_gain(quant, rules):
            # The function divides, so that it can say x * (1 / scale) only to the last bit.
            gain = f"{rules.name} multiplies by a gain, which may round otherwise"
            reason = f"divided by its scale; {gain}"
            self.ledger.add(Change.NUDGED, "onnx emitter", out, reason, codes=1.0)
            rules = NamedProfile("native")
        try:
            function, arrays = custom.type_function(op, kind, rules, self.opset, rounding)
        except Refused as error:
            raise self.refuse(node, str(error)) from None
        self.function(function)
        stem = node.result.lineage.tensor or node.name
        operands = [
            self.parameter(a.data, a.name or f"{stem}_{n}", None, dtype_of(a.data))
            for n, a in arrays.items()
        ]
        origins = node.origins
        self.emit(function.name, [source, *operands], [out], domain=custom.DOMAIN, origins=origins)
        reason = f"{op.lower()} by a function of primitive operators"
        self.ledger.add(Change.EXACT, "onnx emitter", out, reason)

    def scale_attrs(self, quant: QuantType, shape: Shape, node: Node) -> dict[str, AttrValue]:
        """Returns the attributes for the axis or blocks of scales; raises Refused for other
        blocks."""
        if quant.granularity is None:
            return {}
        if quant.axis is not None:
            return {"axis": quant.axis}
        blocks = custom.block_axis_and_size(quant.granularity, shape)
        if blocks is None:
            raise self.refuse(node, f"ONNX has blocks along one axis; {quant} has others")
        if self.opset < FIRST_BLOCK_SCALES:
            raise self.refuse(node, f"blocks need opset {FIRST_BLOCK_SCALES}")
        return {"axis": blocks[0], "block_size": blocks[1]}

    # -- the model ----------------------------------------------------------------------------

    def function(self, proto: onnx.FunctionProto) -> None:
        """Adds a function to the model, once."""
        self.functions.setdefault(proto.name, proto)

    def add_value_info(self, value: Value) -> None:
        """Adds the type of an intermediate tensor, as far as it is known."""
        if value.type.dtype.name == UNKNOWN:
            return
        self.value_infos.append(helper.make_value_info(self.name(value), type_proto(value.type)))


def _are_shareable(array: Array, other: Array) -> bool:
    """Returns whether two constants of one source tensor may share an initializer.

    Their elements are equal; and if their quantized types differ, they share memory: then the
    source had one.
    """
    a, b = array.type.quant, other.type.quant
    compatible = (
        a is None
        or b is None
        or a.has_same_mapping(b)
        or _memory_of(array.contents) == _memory_of(other.contents)
    )
    return compatible and arrays_equal(array.contents, other.contents)


def _memory_of(elements: ArrayData) -> object:
    """Identifies the memory of an array's elements."""
    if not isinstance(elements, np.ndarray) or not elements.size:
        return id(elements)
    return (elements.__array_interface__["data"][0], elements.shape, elements.strides)


def _scale_and_zero_arrays(quant: QuantType) -> tuple[ArrayData, ArrayData]:
    """Returns the arrays of scales and zero points, the latter in the storage type."""
    scale, zero, carrier = quant.scale, quant.zero, quant.storage.carrier
    scales = scale.contents if isinstance(scale, Array) else np.asarray(quant.scales())
    if isinstance(zero, Array) and zero.contents.dtype == carrier:
        return scales, zero.contents
    return scales, np.asarray(quant.zeros()).astype(carrier)


def _as_block_grid(parameters: ArrayData, quant: QuantType, shape: Shape) -> ArrayData:
    """Returns block parameters as a grid: types have flat lists where there are few."""
    if quant.granularity is None or quant.axis is not None or len(parameters.shape) == len(shape):
        return parameters
    grid = tuple(d if isinstance(d, int) else -1 for d in quant.granularity.grid(shape))
    return read_all(parameters).reshape(grid) if grid.count(-1) < 2 else parameters


def _is_clipped(value: Value) -> bool:
    """Returns whether a Clip after its quantize keeps a value's integers within bounds."""
    has_clip = any((o.framework, o.op) == ("onnx", "Clip") for o in value.node.origins)
    return has_clip and value.node.op == "quantize"


def _content_of(proto: onnx.TensorProto) -> bytes:
    """Returns a tensor's bytes without its name."""
    out = onnx.TensorProto()
    out.CopyFrom(proto)
    out.ClearField("name")
    return bytes(out.SerializeToString(deterministic=True))
