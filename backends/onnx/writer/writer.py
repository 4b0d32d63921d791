"""The model under construction: names, initializers, and the nodes written so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from qir.analysis.float32_overflow import MOST, beyond, ending
from qir.analysis.int32_overflow import going_on
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

from . import custom
from .elements import STORED, UNKNOWN, head, is_large, tensor, type_proto

STEP = "onnx emitter"
MICROSOFT = "com.microsoft"
BLOCKS = 21
"""The first operator set whose scales are along blocks."""
Wire: TypeAlias = (
    "int | float | str | tuple[float, ...] | tuple[str, ...] | onnx.TensorProto | onnx.GraphProto"
)


@dataclass(frozen=True, slots=True)
class Work:
    """One op to be written: its operands by slot, and where its result goes."""

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
    ) -> Work:
        """Returns the work with its operands in the order of the op's slots, as ONNX lists them."""
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

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def whole(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        value = self.attrs[name]
        assert isinstance(value, float)
        return value

    @property
    def last(self) -> bool:
        """Whether channels are last."""
        return self.attrs.get("layout") == "NHWC"


def _attribute(name: str, value: Wire) -> onnx.AttributeProto:
    if type(value) is int or (type(value) is tuple and all(type(v) is int for v in value)):
        return _whole_numbers(name, value)
    return helper.make_attribute(name, value)


@lru_cache(4096)
def _whole_numbers(name: str, value: int | tuple[int, ...]) -> onnx.AttributeProto:
    """Returns an integer attribute, made once for equal requests; callers copy it."""
    return helper.make_attribute(name, value)


class OnnxWriter:
    """Collects nodes and initializers under the graph's names."""

    def __init__(
        self, graph: Graph, ledger: Ledger, opset: int, outer: OnnxWriter | None = None
    ) -> None:
        self.graph = graph
        self.outer = outer
        """Who writes the graph around a body: names are one's own in both, constants are its."""
        self.ledger = ledger
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.large: dict[str, Array] = {}
        """Elements of initializers that are here without them."""
        self.infos: list[onnx.ValueInfoProto] = []
        self.domains: dict[str, int] = {"": opset}
        self.standard: bool = outer.standard if outer else False
        """Whether operators of other domains than ONNX's own are refused."""
        self.on_codes: bool = outer.on_codes if outer else False
        """Whether what moves elements is written on integers, where it may be in float too."""
        self.functions: dict[str, onnx.FunctionProto] = outer.functions if outer else {}
        """The model's own, by name."""
        self.bounded = 0
        """Constants whose bounds the format cannot say."""
        self._names: dict[Value, str] = {}
        self._aliases: set[Value] = set()
        self._taken: set[str] = set(graph.values) | set(graph.outputs)
        self._node_names: set[str] = set()
        self._params: dict[bytes, str] = {}
        self._reals: dict[Value, str] = {}
        self._held: dict[Value, str] = {}
        self._twins: dict[str, list[tuple[Array, str]]] = {}
        if outer is not None:
            self.domains, self._node_names = outer.domains, outer._node_names
            self._taken = outer._taken
            for name, value in graph.values.items():
                if value.constant is None:
                    self.call(value, self.fresh(name))

    # -- names --------------------------------------------------------------------------------

    def call(self, value: Value, name: str) -> None:
        """Gives a value's tensor another name than the value has."""
        self._names[value] = name

    def alias(self, value: Value, name: str) -> None:
        """Lets a value be a tensor that another operator writes."""
        self._names[value] = name
        self._aliases.add(value)

    def is_alias(self, value: Value) -> bool:
        """Returns whether another operator writes the value's tensor."""
        return value in self._aliases

    def name(self, value: Value) -> str:
        """Returns the tensor that holds a value; constants are written when first asked for."""
        if (name := self._names.get(value)) is not None:
            return name
        if (array := value.constant) is None:
            return value.name
        name = self._names[value] = self._constant(value, array)
        return name

    def fresh(self, base: str) -> str:
        """Returns a tensor name that is not taken."""
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name

    def claim(self, name: str) -> bool:
        """Takes a tensor name; False where it is taken."""
        free = name not in self._taken
        self._taken.add(name)
        return free

    def _constant(self, value: Value, array: Array) -> str:
        """Writes an initializer; one that repeats another of the same source tensor is shared."""
        if self.outer is not None:
            return self.outer._constant(value, array)
        twins = self._twins.setdefault(value.lineage.tensor, [])
        for other, name in twins:
            if other.type.dtype == array.type.dtype and _one(other, array):
                return name
        name = value.name
        others = self.graph.values.get(name) is not value or name in self.initializers
        if name in self.graph.outputs or others:
            name = self.fresh(f"{name}_constant" if name in self.graph.outputs else name)
        twins.append((array, name))
        self.hold(name, array)
        if array.type.quant and array.type.quant.bounds:
            self.bounded += 1
        return name

    def hold(self, name: str, array: Array) -> None:
        """Writes an initializer; large ones are there without their elements."""
        if is_large(array):
            self.initializers[name], self.large[name] = head(array, name), array
        else:
            self.initializers[name] = tensor(array, name)

    @property
    def whole(self) -> OnnxWriter:
        """Who writes the model itself, whose initializers those of bodies are."""
        return self if self.outer is None else self.outer.whole

    def constant(self, data: NDArray[np.generic], name: str) -> str:
        """Writes an initializer of our own and gives its name."""
        if self.outer is not None:
            return self.outer.constant(data, name)
        name = self.fresh(name)
        self.hold(name, Array.of(data))
        return name

    def parameter(
        self, data: ArrayData, name: str, given: str | None, kind: DType | None = None
    ) -> str:
        """Returns a scale or zero point, under the name its source gave it; equal ones are
        shared."""
        if self.outer is not None:
            return self.outer.parameter(data, name, given, kind)
        kind = kind or dtype_of(np.empty(0, data.dtype))
        array = Array(data, TensorType(data.shape, kind))
        key = array.digest.encode() if is_large(array) else _nameless(tensor(array, ""))
        if given is None:
            if key in self._params:
                return self._params[key]
            given = self.fresh(name)
        elif given in self.initializers:
            if self._key(given) == key:
                return given
            given = self.fresh(given)
        elif given in self._taken:
            given = self.fresh(given)
        self._taken.add(given)
        self.hold(given, array)
        self._params.setdefault(key, given)
        return given

    def _key(self, name: str) -> bytes:
        """Returns what an initializer holds, whatever it is called."""
        if (array := self.large.get(name)) is None:
            return _nameless(self.initializers[name])
        return Array(
            array.contents, TensorType(array.contents.shape, array.type.dtype)
        ).digest.encode()

    # -- nodes --------------------------------------------------------------------------------

    def emit(
        self,
        op: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        attrs: Mapping[str, Wire] | None = None,
        *,
        domain: str = "",
        origins: Iterable[Origin] = (),
    ) -> None:
        """Writes one node, under its source's name, or none, where the source had that op."""
        outputs, name, bare = list(outputs), "", False
        for origin in origins:
            if origin.op != op:
                continue
            # Some names are onnxruntime's too, which is said where a source had those.
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
        """Raises Refused for an operator that ONNX itself does not have, where only those are
        wanted."""
        own = domain == custom.DOMAIN or domain.startswith("ai.onnx")
        if self.standard and domain and not own:
            said = f"{op} is {domain}'s and no operator of ONNX itself"
            said += "; --target onnxruntime has it" if domain == MICROSOFT else ""
            raise Refused(f"{name}: {said}"[:239])

    def transposed(self, source: str, perm: tuple[int, ...], out: str | None = None) -> str:
        """Writes a Transpose and gives its result's name."""
        out = out or self.fresh(f"{source}_transposed")
        self.emit("Transpose", [source], [out], {"perm": perm})
        return out

    # -- quantized values ---------------------------------------------------------------------

    def refuse(self, node: Node, what: str) -> Refused:
        where = f" ({node.origins[0]})" if node.origins else ""
        return Refused(f"{node.name}{where}: {what}"[:239])

    def on_reals(self, op: str, node: Node, out: str) -> None:
        """Says that a quantized op was written in float, which end elsewhere and do not wrap."""
        apart = going_on(self.graph, node) or beyond(self.graph, node)
        change = Change.APPROXIMATED if apart else Change.REGROUPED
        said = f"{op} on quantized values is written as float ops between quantized values{apart}"
        self.ledger.add(change, STEP, out, said)

    def check(self, node: Node, quant: QuantType, *, constant: bool) -> None:
        """Raises Refused for a quantized type that QuantizeLinear and DequantizeLinear cannot
        say."""
        odd = (
            quant.kind != "uniform"
            or quant.dynamic
            or quant.has_float_zero
            or quant.plus is not None
            or quant.storage.name not in STORED
            or quant.express.name not in ("f32", "f16")
        )
        if odd:
            raise self.refuse(node, f"ONNX has no form here for quantized values of {quant}")
        if quant.bounds and not constant:
            raise self.refuse(
                node, f"ONNX types use the whole range of their storage; {quant} is narrower"
            )

    def check_made(self, node: Node, quant: QuantType) -> None:
        """Raises Refused for integers that DequantizeLinear reads and QuantizeLinear does not
        make."""
        if quant.storage == I32:
            said = (
                "QuantizeLinear makes quantized values of 2 to 16 bits and of floats of 4 "
                "and 8, not of i32"
            )
            raise self.refuse(node, f"{said}; i32 may be a constant's or an input's")

    def pair(
        self, value: Value, node: Node, given: tuple[str | None, str | None] = (None, None)
    ) -> tuple[str, str]:
        """Returns the names of a value's scale and zero point."""
        kind = value.type
        return self.pair_of(kind.quant, value.lineage.tensor, node, given, kind.shape)

    def pair_of(
        self,
        quant: QuantType | None,
        stem: str,
        node: Node,
        given: tuple[str | None, str | None] = (None, None),
        shape: Shape = (),
    ) -> tuple[str, str]:
        """Returns the names of scale and zero point, written once where they are equal.

        Those of blocks are as the blocks of a tensor of that shape do.
        """
        assert quant is not None
        scales, zeros = (_laid(held, quant, shape) for held in _numbers(quant))
        single = scales
        if scales.dtype != quant.express.carrier:
            single = read_all(scales).astype(quant.express.carrier)
            if (single.astype(scales.dtype) != read_all(scales)).any():
                self.ledger.add(
                    Change.NUDGED, STEP, stem, f"scale rounded to {quant.express}", codes=1.0
                )
        return (
            self.parameter(single, f"{stem}_scale", given[0]),
            self.parameter(zeros, f"{stem}_zero_point", given[1], quant.storage),
        )

    def real(self, value: Value, node: Node) -> str:
        """Returns the tensor of a value's float values; quantized values are dequantized once."""
        quant = value.type.quant
        if quant is None:
            return self.name(value)
        if value not in self._reals:
            out = self.fresh(f"{value.name}_DequantizeLinear_Output")
            self.dequantize(value, out, node)
            self._reals[value] = out
        if not ending(self.graph, node, value):
            return self._reals[value]
        if value not in self._held:
            out = self.fresh(f"{value.name}_held")
            held = (("least", -MOST), ("greatest", MOST))
            ends = [self.parameter(np.array(v, np.float32), n, None) for n, v in held]
            self.emit("Clip", [self._reals[value], *ends], [out])
            self._held[value] = out
        return self._held[value]

    def dequantize(
        self,
        value: Value,
        out: str,
        node: Node,
        given: tuple[str | None, str | None] = (None, None),
        *,
        zero: bool = True,
    ) -> None:
        """Writes a DequantizeLinear of a value's quantized values."""
        quant = value.type.quant
        assert quant is not None
        kept = value.constant is not None or _clipped(value)
        if custom.odd(quant, value.type.shape, constant=kept):
            self._custom("Dequantize", self.name(value), value.type, out, node)
            return
        self.check(node, quant, constant=kept)
        scale, offset = self.pair(value, node, given)
        operands = [self.name(value), scale, *([offset] if zero else [])]
        attrs = self.along(quant, value.type.shape, node)
        self.emit("DequantizeLinear", operands, [out], attrs, origins=node.origins)

    def quantize(
        self,
        source: str,
        kind: TensorType,
        out: str,
        node: Node,
        stem: str,
        given: tuple[str | None, str | None] = (None, None),
        *,
        zero: bool = True,
        rounding: str = "",
    ) -> None:
        """Writes a QuantizeLinear of a tensor of floats."""
        quant = kind.quant
        assert quant is not None
        early = custom.early(quant, node.profile or self.graph.profile)
        if custom.odd(quant, kind.shape, constant=False) or early or rounding not in ("", "even"):
            self._custom("Quantize", source, kind, out, node, rounding)
            return
        self.check(node, quant, constant=False)
        self.check_made(node, quant)
        scale, offset = self.pair_of(quant, stem, node, given, kind.shape)
        operands = [source, scale, *([offset] if zero else [])]
        attrs = self.along(quant, kind.shape, node)
        self.emit("QuantizeLinear", operands, [out], attrs, origins=node.origins)

    def _custom(
        self, op: str, source: str, kind: TensorType, out: str, node: Node, rounding: str = ""
    ) -> None:
        """Writes a call of the function that quantizes or dequantizes by a quantized type that ONNX
        lacks."""
        name = node.profile or self.graph.profile or "native"
        quant = kind.quant
        if op == "Quantize" and quant is not None and custom.by_gain(quant, name):
            said = f"divided by its scale; {name} multiplies by a gain, which may round otherwise"
            self.ledger.add(Change.NUDGED, "onnx emitter", out, said, codes=1.0)
            name = "native"
        try:
            function, arrays = custom.made(op, kind, name, self.opset, rounding)
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
        said = f"{op.lower()} by a function of primitive operators"
        self.ledger.add(Change.EXACT, "onnx emitter", out, said)

    def along(self, quant: QuantType, shape: Shape, node: Node) -> dict[str, Wire]:
        """Returns the attributes that say how scales are; Refused for blocks that ONNX has not."""
        if quant.granularity is None:
            return {}
        if quant.axis is not None:
            return {"axis": quant.axis}
        found = custom.blocks(quant.granularity, shape)
        if found is None:
            raise self.refuse(node, f"ONNX has blocks along one axis; {quant} has others")
        if self.opset < BLOCKS:
            raise self.refuse(node, f"blocks need opset {BLOCKS}")
        return {"axis": found[0], "block_size": found[1]}

    # -- the whole ----------------------------------------------------------------------------

    def function(self, made: onnx.FunctionProto) -> None:
        """Gives the model a function of its own, once."""
        self.functions.setdefault(made.name, made)

    def info(self, value: Value) -> None:
        """States the type of a tensor inside, as far as it is known."""
        if value.type.dtype.name == UNKNOWN:
            return
        self.infos.append(helper.make_value_info(self.name(value), type_proto(value.type)))


def _one(array: Array, other: Array) -> bool:
    """Returns whether two constants of a tensor may stand as one: equal elements, and as quantized
    values of two quantized types only where they were one."""
    a, b = array.type.quant, other.type.quant
    alike = (
        a is None
        or b is None
        or a.has_same_mapping(b)
        or _place(array.contents) == _place(other.contents)
    )
    return alike and arrays_equal(array.contents, other.contents)


def _place(held: ArrayData) -> object:
    """Identifies the memory of an array's elements."""
    if not isinstance(held, np.ndarray) or not held.size:
        return id(held)
    return (held.__array_interface__["data"][0], held.shape, held.strides)


def _numbers(quant: QuantType) -> tuple[ArrayData, ArrayData]:
    """Returns scales and zeros as they are held, the latter as quantized values."""
    scale, zero, carrier = quant.scale, quant.zero, quant.storage.carrier
    scales = scale.contents if isinstance(scale, Array) else np.asarray(quant.scales())
    if isinstance(zero, Array) and zero.contents.dtype == carrier:
        return scales, zero.contents
    return scales, np.asarray(quant.zeros()).astype(carrier)


def _laid(held: ArrayData, quant: QuantType, shape: Shape) -> ArrayData:
    """Returns the parameters of blocks as a grid, which a type has in line where they are few."""
    if quant.granularity is None or quant.axis is not None or len(held.shape) == len(shape):
        return held
    grid = tuple(d if isinstance(d, int) else -1 for d in quant.granularity.grid(shape))
    return read_all(held).reshape(grid) if grid.count(-1) < 2 else held


def _clipped(value: Value) -> bool:
    """Returns whether a Clip after its quantize keeps quantized values within their bounds."""
    found = any((o.framework, o.op) == ("onnx", "Clip") for o in value.node.origins)
    return found and value.node.op == "quantize"


def _nameless(proto: onnx.TensorProto) -> bytes:
    """Returns what a tensor holds, whatever it is called."""
    out = onnx.TensorProto()
    out.CopyFrom(proto)
    out.ClearField("name")
    return bytes(out.SerializeToString(deterministic=True))
