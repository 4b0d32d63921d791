"""What has been read so far: values by the file's names, constants made when first needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from qir.errors import GraphError, OpError, ParseError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype_of
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, reshape
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.origin import Lineage, Origin
from qir.ir.types import Array, Granularity, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_shapes import MADE_TO
from qir.target import target

from .constant_evaluation import settled, state
from .elements import Dimensions
from .faults import fault
from .files import ModelFile, Stored
from .op import Computed, KeepOperator, OnnxOp

STEP = "onnx frontend"
CODES = frozenset(
    "i8 u8 i16 u16 i32 i4 u4 i2 u2 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f4e2m1fn".split()
)
"""What QuantizeLinear makes and DequantizeLinear reads."""

_BESIDE = ("scale", "zero")
"""How slots end that take numbers of quantized values."""


class ReadBody(Protocol):
    """Reads a graph that a node holds."""

    def __call__(
        self,
        outer: OnnxReader,
        proto: onnx.GraphProto,
        takes: Sequence[tuple[str, TensorType]],
        ledger: Ledger,
    ) -> Graph: ...


DEFAULTS_SINCE = 4
"""The first version of the format whose inputs may have defaults that are not constants."""


class OnnxReader:
    """Builds one graph: the model's, or a body's within it, which sees what its outer one holds."""

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
        rules = "" if outer else target("onnxruntime").profile
        self.graph = Graph("body", "") if outer else Graph(name or "main", rules)
        self.dims: Dimensions = outer.dims if outer else Dimensions()
        self.readers: dict[str, int] = {}
        """How often each tensor is read, a graph output counting as one reading."""
        self.declared: dict[str, TensorType] = {}
        """Types that the file states for tensors inside."""
        self.stated: dict[str, onnx.TypeProto] = {}
        """Types of tensors inside whose rank it does not say."""
        self.reserved: set[str] = set()
        """Every name of the source, so that made-up ones stay clear of them."""
        self.meanings: Mapping[str, tuple[str, str]] = {}
        """Names of scale and zero point of tensors whose integers somebody gives a meaning."""
        self.annotated: Mapping[str, tuple[str, str]] = {}
        """Those of them that only an annotation gives one."""
        self.narrow: dict[str, tuple[tuple[int, int], Origin]] = {}
        """Bounds of quantized constants that a Clip keeps them in, and where it was."""
        self._values: dict[str, Value] = {}
        self._alias: dict[str, str] = {}
        self._stored: dict[str, Stored] = {}
        self._arrays: dict[str, Array] = {}
        self._constants: dict[tuple[str, QuantType | None], Value] = {}
        self._needed: set[str] = set()
        self.settling = False
        """Whether numbers may be computed where a handler would have them constant."""
        self.raw: list[Node] = []
        """Quantized values that are read as plain numbers, perhaps by nobody."""
        self.doubtful = False
        """Whether something was read that only the verifier knows to be sound, wherever it is."""
        self.unsure: set[Node] = outer.unsure if outer else set()
        """Nodes of which only the verifier knows whether they are sound."""
        self._maps: dict[tuple[object, ...], QuantType] = {}
        self._settled: dict[Value, NDArray[np.generic] | None] = {}
        later = self.file.proto.ir_version >= DEFAULTS_SINCE
        self._spare = frozenset(i.name for i in self.proto.input) if later else frozenset()
        self._looked: set[str] = set()
        """Constants whose elements somebody asked for."""

    # -- names and constants ------------------------------------------------------------------

    def alias(self, name: str, source: str) -> None:
        """Lets a name stand for another tensor."""
        self._alias[name] = self.resolve(source)

    def resolve(self, name: str) -> str:
        """Returns the tensor that a name stands for."""
        return self._alias.get(name, name) if self._alias else name

    def store(self, name: str, tensor: Stored) -> None:
        """Keeps a tensor of the file until somebody needs it."""
        self._stored[name] = tensor

    def is_constant(self, name: str) -> bool:
        name = self.resolve(name)
        if self.outer is None or name in self._values:
            return name in self._stored
        return name in self._stored or self.outer.is_constant(name)

    def array(self, name: str) -> Array | None:
        """Returns a constant's elements, without making a node; None for what is computed."""
        name = self.resolve(name)
        self._looked.add(name)
        return self._array(name)

    def _array(self, name: str) -> Array | None:
        """Returns the same, for whoever hands it on and looks at its type alone."""
        if (found := self._arrays.get(name)) is not None:
            return found
        if (stored := self._stored.get(name)) is None:
            return None if self.outer is None or name in self._values else self.outer.array(name)
        self._needed.add(name)
        found = stored if isinstance(stored, Array) else self.file.array(stored, name)
        self._arrays[name] = found
        return found

    def kind_of(self, name: str) -> DType:
        """Returns a constant's element type; Keep for what is computed."""
        found = self._array(self.resolve(name))
        if found is None:
            raise KeepOperator
        return found.type.dtype

    def numbers(self, name: str) -> NDArray[np.generic]:
        """Returns a constant's elements; Computed for what is computed.

        While settling, what hangs on constants and known sizes alone is computed at once.
        """
        found = self.array(name)
        if found is not None:
            return found.data
        value = self._values.get(self.resolve(name))
        data = settled(value, self._settled) if self.settling and value is not None else None
        if data is None:
            raise Computed
        return data

    def held(self, name: str) -> ArrayData:
        """Returns a constant's elements, or what makes them when they are asked for; Computed as
        above."""
        found = self.array(name)
        return self.numbers(name) if found is None else found.contents

    def plain(self) -> dict[str, Value]:
        """Constants with the name and the type of the file's, which are read in one way only."""
        count = Counter(name for name, _ in self._constants)
        return {
            name: value
            for (name, quant), value in self._constants.items()
            if quant is None and count[name] == 1 and self.graph.values.get(name) is value
        }

    def counted_on(self, value: Value) -> bool:
        """Returns whether somebody asked for the elements of a constant of that name."""
        return value.name in self._looked or self._settled.get(value) is not None

    def unneeded(self) -> list[str]:
        """Constants of the file that nothing needed, in the file's order."""
        return [name for name in self._stored if name not in self._needed]

    # -- values -------------------------------------------------------------------------------

    def type_of(self, op: OnnxOp, name: str) -> TensorType:
        """Returns the type of an operand; a constant's is that of its raw elements."""
        name = self.resolve(name)
        if name not in self._stored and (value := self._values.get(name)) is not None:
            return value.type
        found = self._array(name)
        return found.type if found else self.value(op, name).type

    def value(self, op: OnnxOp, name: str, quant: QuantType | None = None) -> Value:
        """Returns an operand; a constant is made where it is missing, with the meaning given."""
        name = self.resolve(name)
        if name not in self._stored and (found := self._values.get(name)) is not None:
            return found
        if quant is None and (held := self._constants.get((name, None))) is not None:
            return held
        if (array := self._array(name)) is not None:
            return self._constant(name, array, quant)
        if name not in self._values:
            raise op.fail(f"reads {name!r}, which nothing makes" if name else "lacks an operand")
        return self._values[name]

    def map_of(self, op: OnnxOp, name: str) -> QuantType | None:
        """Returns the quantized type of an operand that is computed and is quantized."""
        name = self.resolve(name)
        if name not in self._stored and (found := self._values.get(name)) is not None:
            return found.type.quant
        return None if self.is_constant(name) else self.value(op, name).type.quant

    def moved(self, op: OnnxOp, name: str) -> Value:
        """Returns an operand of an op that moves integers: a constant takes the meaning its readers
        give."""
        name = self.resolve(name)
        if (array := self._array(name)) is None:
            return self.value(op, name)
        return self.value(op, name, self.meaning(name, array.type))

    def _constant(self, name: str, array: Array, quant: QuantType | None) -> Value:
        if quant is not None and (name, quant) not in self._constants:
            array = Array(array.contents, array.type.with_element(quant), name)
        return self.hold(name, array, quant)

    def hold(self, name: str, array: Array, quant: QuantType | None) -> Value:
        """Returns the constant of a name in the file and a meaning; these elements where it is
        missing."""
        key = (name, quant)
        if key not in self._constants:
            free = name if not self.graph.has(name) else self.spare(name)
            value = self.graph.add(
                "constant",
                None,
                {"data": array},
                types=(array.type,),
                name=free,
                origins=(Origin("onnx", "Constant", name),),
            ).result
            if free != name:
                self.graph.set_lineage(value, Lineage(name))
            self._constants[key] = value
        return self._constants[key]

    def spare(self, base: str) -> str:
        """Returns a name that neither graph nor source has."""
        name, count = base, 0
        while name in self.reserved or self.graph.has(name):
            count += 1
            name = f"{base}_{count}"
        return name

    def meaning(self, name: str, kind: TensorType) -> QuantType | None:
        """Returns what raw integers of that name mean, where all of it is known."""
        pair = self.meanings.get(name)
        if pair is None or kind.quant or kind.dtype.name not in CODES:
            return None
        try:
            quant = self.quant(*pair, kind.dtype)
        except KeepOperator:
            return None
        return quant if quant.granularity is None else None

    def numbered(self, name: str) -> QuantType | None:
        """Returns what an annotation says of raw integers that are constant."""
        name = self.resolve(name)
        array = self.array(name) if name in self.annotated else None
        return None if array is None else self.meaning(name, array.type)

    def holds(self, name: str) -> bool:
        """Returns whether a tensor of the file is quantized with a meaning."""
        name = self.resolve(name)
        if (found := self._values.get(name)) is not None:
            return found.type.quant is not None
        return any(n == name and quant is not None for n, quant in self._constants)

    def has_meaning(self, name: str) -> bool:
        """Returns whether somebody reads or makes it as quantized values."""
        return name in self.meanings

    def mean(self, op: OnnxOp, name: str, quant: QuantType) -> bool:
        """Gives raw integers along an axis their meaning, unless another reader sees them raw."""
        value = self.value(op, name)
        own = ("foreign",) if self.outer else ("input", "foreign")
        if value.uses or value.type.quant or value.node.op not in own:
            return False
        self.graph.set_type(value, value.type.with_element(quant))
        return True

    def result(self, name: str) -> Value:
        """Returns a value that the graph gives back; raises InputError if nothing makes it."""
        source = self.resolve(name)
        if (array := self._array(source)) is not None:
            return self._constant(source, array, None)
        if source not in self._values:
            raise fault(self.file.path, f"output {name}", "nothing makes it")
        return self._values[source]

    def bind(self, name: str, value: Value) -> None:
        """Enters a value under its name in the file."""
        if name in self.meanings and (quant := self.meaning(name, value.type)) is not None:
            kind = value.type.with_element(quant)
            if _moves_raw(value):  # what it was is raw for somebody else
                made = self.graph.add(
                    "recode", {"x": value}, types=[kind], name=self.spare(f"{name}_meant")
                )
                value = made.result
            else:
                self.graph.set_type(value, kind)
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
        """Adds the node that an op of the file becomes; raises InputError if the op is malformed.

        Results that have no name in the file have one in `names`.
        """
        given = [n for n in op.outputs if n]
        try:
            node = self.graph.add(
                kind,
                operands,
                attrs,
                types=types,
                name=given if names is None else names,
                origins=[op.origin()],
                bodies=bodies,
            )
        except (TypeRuleError, GraphError, OpError, ParseError) as error:
            raise op.fail(str(error)) from error
        if kind in MADE_TO:
            state(self.graph, node, self._settled, self._spare)
        if kind == "fused" or _beside(tuple(operands)):
            self.unsure.update([node, *(value.node for value in node.operands.values())])
        for name, value in zip(given if names is None else names, node.results, strict=True):
            self.bind(name, value)
        return node

    # -- quantized types ----------------------------------------------------------------------

    def quant(
        self, scale: str, zero: str, storage: DType, shape: object = None, axis: int = 0
    ) -> QuantType:
        """Returns the quantized type that scale and zero point say; Keep for what the language
        holds otherwise.

        With a shape, a list of scales is one an index of `axis`; else there is one for all.
        """
        key = (self.resolve(scale), self.resolve(zero), storage, shape, axis)
        if (found := self._maps.get(key)) is None:
            found = self._maps[key] = self._quant(scale, zero, storage, shape, axis)
        return found

    def _quant(self, scale: str, zero: str, storage: DType, shape: object, axis: int) -> QuantType:
        scales, kind = self._scales(scale)
        zeros = self._zeros(zero, storage, scales)
        if not isinstance(shape, tuple) or not _per_axis(scales, shape, axis):
            if scales.size != 1:
                raise KeepOperator(_open_axis(scales, shape, axis))
            flat, offset = scales.reshape(()), zeros.reshape(())
            return uniform(storage, flat, offset, express=kind)
        axis %= len(shape)
        return uniform(
            storage, scales, zeros, axis=axis, express=kind, name=scale.removesuffix("_scale")
        )

    def blocks(self, scale: str, zero: str, kind: TensorType, axis: int, size: int) -> QuantType:
        """Returns the quantized type of one scale a block along an axis; Keep for what is held
        otherwise."""
        scales, express = self._scales(scale, kind.rank)
        grain = Granularity(tuple((i, size if i == axis else 1) for i in range(kind.rank)))
        wanted = grain.grid(kind.shape)
        if scales.ndim != kind.rank or size < 1:
            raise KeepOperator(f"blocks of {size} of {kind.rank} axes have scales of {scales.ndim}")
        if any(isinstance(w, int) and w != s for w, s in zip(wanted, scales.shape, strict=True)):
            raise KeepOperator(f"it has {scales.shape} scales for {kind} in blocks of {size}")
        zeros = self._zeros(zero, kind.dtype, scales)
        held: Array | tuple[int, ...] = ()
        if zeros.any():
            codes = self.array(zero)
            made = zeros.astype(kind.dtype.carrier) if codes is None else codes.contents
            held = Array(reshape(made, zeros.shape), TensorType(zeros.shape, kind.dtype), zero)
        given = self.array(scale)
        numbers = (
            Array.of(scales, scale) if given is None else Array(given.contents, given.type, scale)
        )
        return QuantType(kind.dtype, express, numbers, held, grain)

    def _scales(self, name: str, most: int = 1) -> tuple[NDArray[np.floating], DType]:
        data = self.numbers(name)
        kind = dtype_of(data)
        if kind.name not in ("f32", "f16") or data.ndim > most or not data.size:
            raise KeepOperator
        scales: NDArray[np.floating] = data.astype(kind.carrier, copy=False)
        fine = np.isfinite(scales) & ((scales > 0) | (most > 1))  # blocks have any sign, or none
        if not fine.all():
            bad, count = scales[~fine].reshape(-1)[0], scales.size
            which = f"scale {bad}" if count == 1 else f"scale {bad}, one of {count},"
            raise KeepOperator(f"its {which} is not positive and finite")
        return scales, kind

    def _zeros(
        self, name: str, storage: DType, scales: NDArray[np.floating]
    ) -> NDArray[np.integer]:
        if storage.name not in CODES:
            raise KeepOperator
        if not name:
            return np.zeros(scales.shape, np.int64)
        zeros = self.numbers(name)
        if zeros.size != scales.size:
            raise KeepOperator(f"it has {zeros.size} zero points for {scales.size} scales")
        if zeros.dtype != storage.carrier:
            raise KeepOperator
        if storage.is_float and zeros.astype(np.float32).any():
            raise KeepOperator
        low, high = storage.bounds if storage.is_integer else (0, 0)
        if storage.is_integer and zeros.size and not low <= zeros.min() <= zeros.max() <= high:
            raise KeepOperator(f"a zero point is outside {low}..{high}")
        return zeros.astype(np.int64).reshape(scales.shape)

    # -- ledger -------------------------------------------------------------------------------

    def note(self, change: Change, subject: str, reason: str) -> None:
        self.ledger.add(change, STEP, subject, reason)

    def check_name(self, name: str, place: str) -> None:
        """Raises InputError for an empty name, or one that is no text."""
        if not name or not isinstance(name, str):
            raise fault(self.file.path, place, "one has no name, or none in UTF-8")


@lru_cache(4096)
def _beside(slots: tuple[str, ...]) -> bool:
    return any(slot.endswith(_BESIDE) for slot in slots)


def _per_axis(scales: NDArray[np.floating], shape: tuple[object, ...], axis: int) -> bool:
    if scales.ndim != 1 or not -len(shape) <= axis < len(shape):
        return False
    return shape[axis] == scales.size


def _open_axis(scales: NDArray[np.floating], shape: object, axis: int) -> str:
    """Returns why a list of scales is along no axis, where that is an axis whose size nobody
    says."""
    sizes = shape if isinstance(shape, tuple) and scales.ndim == 1 else ()
    if not -len(sizes) <= axis < len(sizes) or isinstance(sizes[axis], int):
        return ""
    said = f"it has {scales.size} scales along axis {axis}, whose size the file leaves open"
    return f"{said}; {scales.size} there would do"


def _moves_raw(value: Value) -> bool:
    """Returns whether it has the elements of what is not quantized."""
    held = spec(value.node.op).traits.same_params
    parts = [v for slot, v in value.node.operands.items() if slot.partition(".")[0] in held]
    return any(part.type.quant is None for part in parts)
