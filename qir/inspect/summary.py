"""What a model is made of: its size, its work, its ops and its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import LazyArray, boxes
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import (
    STRUCTURAL_OPS,
    longest_chain,
    quantized_nodes,
    source_quant_type,
    stored_quant_type,
)
from qir.ir.types import Array, QuantType, TensorType
from qir.query.cost import macs, one_sample
from qir.query.display import op_name

_MAX_BYTES_AT_ONCE = 1 << 16
"""Bytes of an array that is looked at as a whole."""
_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class QuantizedStorage:
    """How float values are stored as quantized values."""

    storage: str
    scale: tuple[float, ...]
    zero: tuple[float, ...]
    axis: int | None
    """The axis that has a scale for each index; None: one for the tensor, or blocks."""

    @classmethod
    def of(cls, quant: QuantType | None) -> QuantizedStorage | None:
        """Returns the numbers of a quantized type; None where there is none, or companions give
        them."""
        if quant is None:
            return None
        if quant.dynamic:
            return cls(str(quant.storage), (), (), quant.axis)
        scales = np.asarray(quant.scales(), np.float64).reshape(-1)
        zeros = np.asarray(quant.zeros()).reshape(-1)
        return cls(str(quant.storage), tuple(scales.tolist()), tuple(zeros.tolist()), quant.axis)


@dataclass(frozen=True, slots=True)
class InterfaceTensor:
    """An input or output."""

    name: str
    shape: tuple[int | str | None, ...]
    """Sizes; a name or formula where the size is symbolic, None where nobody knows it."""
    dtype: str
    codes: QuantizedStorage | None = None

    @classmethod
    def of(cls, name: str, type: TensorType) -> InterfaceTensor:
        return cls(name, plain_shape(type.shape), str(type.dtype), QuantizedStorage.of(type.quant))


@dataclass(frozen=True, slots=True)
class OpCount:
    """How often an op is in a graph."""

    op: str
    count: int
    in_codes: int


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One op that computes, or the chain of ops that one kernel computes."""

    name: str
    op: str
    shape: tuple[int | str | None, ...]
    storage: str
    codes: QuantizedStorage | None
    weights: InterfaceTensor | None
    macs: int | None
    """Multiply-adds for one sample; None where a size is not known."""
    in_codes: bool
    origin: str


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What `qir show` reports of a model.

    `to_json` has the keys of the fields: name, profile, frameworks, nodes, parameters, bytes, macs,
    integer_macs, longest_integer_chain, inputs, defaults, outputs, ops, layers.
    """

    name: str
    profile: str
    frameworks: tuple[str, ...]
    nodes: int
    parameters: int
    bytes: Mapping[str, int]
    """Bytes of constants by element type; `scales` are the arrays that types refer to."""
    macs: int
    integer_macs: int
    """Those of ops that work on quantized values."""
    longest_integer_chain: tuple[str, ...]
    inputs: tuple[InterfaceTensor, ...]
    defaults: tuple[InterfaceTensor, ...]
    """Inputs that nobody has to give; what they are then is among the parameters."""
    outputs: tuple[InterfaceTensor, ...]
    ops: tuple[OpCount, ...]
    layers: tuple[LayerSummary, ...]

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        return asdict(self)


def summarize(graph: Graph) -> ModelSummary:
    """Returns all that `qir show` reports of a graph; each body counts once."""
    parts = _parts(graph)
    integer = {
        node: on_integers
        for _, part in parts
        for node, on_integers in quantized_nodes(part).items()
    }
    sizes = one_sample(graph)
    layers = tuple(
        _layer(f"{path}{node.name}", node, integer[node], macs(node, sizes))
        for path, part in parts
        for node in part
        if node in integer
    )
    frameworks = dict.fromkeys(o.framework for _, p in parts for node in p for o in node.origins)
    return ModelSummary(
        graph.name,
        graph.profile,
        tuple(frameworks),
        sum(len(part) for _, part in parts),
        sum(a.contents.size for a in _constants(graph) if str(a.type.dtype) not in ("i64", "bool")),
        bytes_by_dtype(graph),
        sum(layer.macs or 0 for layer in layers),
        sum(layer.macs or 0 for layer in layers if layer.in_codes),
        max((_chain(path, part) for path, part in parts), key=len),
        tuple(InterfaceTensor.of(value.name, value.type) for value in graph.inputs),
        tuple(InterfaceTensor.of(value.name, value.type) for value in graph.defaults),
        tuple(InterfaceTensor.of(name, value.type) for name, value in _outputs(graph).items()),
        _histogram(graph, integer),
        layers,
    )


def _parts(graph: Graph) -> list[tuple[str, Graph]]:
    """Returns the graph and then the bodies within it, each with what goes before the names it
    holds."""
    parts = [(path.partition("/")[2], part) for path, part in graph.walk()]
    *bodies, (_, whole) = parts
    return [("", whole), *((f"{path}/", body) for path, body in bodies)]


def _chain(path: str, part: Graph) -> tuple[str, ...]:
    return tuple(f"{path}{node.name}" for node in longest_chain(part))


def plain_shape(shape: Shape) -> tuple[int | str | None, ...]:
    """Returns a shape of numbers and texts."""
    return tuple(dim if isinstance(dim, int) or dim is None else str(dim) for dim in shape)


def _outputs(graph: Graph) -> Mapping[str, Value]:
    ends = [node for node in graph if node.op == "output"]
    return ends[0].operands if ends else {}


def _constants(graph: Graph) -> Iterator[Array]:
    """Yields every different constant, once.

    Content is looked at no further than telling them apart asks for: of large arrays some elements,
    and of what is mapped from a file nothing but where it is there.
    """
    by_key: dict[object, list[Array]] = {}
    for node in (node for _, part in graph.walk() for node in part):
        array = node.results[0].constant if node.op == "constant" else None
        if array is None:
            continue
        # Comparing two large arrays reads both; the same bytes of one file are equal unread.
        file_position = _place(array)
        seen_arrays = by_key.setdefault(file_position or _short(array), [])
        if seen_arrays and (file_position or any(array == other for other in seen_arrays)):
            continue
        seen_arrays.append(array)
        yield array


def _place(array: Array) -> object:
    """Returns where elements are in a file that they are mapped from."""
    if isinstance(array.contents, LazyArray):
        return None
    base: object = array.contents
    # Views of views lead to the map that owns the memory.
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None:
        return None
    first = array.data.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return str(base.filename), base.offset + first, array.data.strides, array.type


def _short(array: Array) -> object:
    """Returns what equal arrays have in common: all of a small one, the type and parts of a large
    one."""
    if isinstance(array.contents, LazyArray):
        # Only the first box is read: the rest is compared where these agree.
        first = next(boxes(array.contents.shape, _SAMPLES))
        return array.type, array.contents.read_box(first).tobytes()
    data = array.contents
    if data.dtype.kind == "O" or data.nbytes <= _MAX_BYTES_AT_ONCE or not data.flags.c_contiguous:
        return array.digest
    flat = data.reshape(-1)
    return array.type, flat[:: flat.size // _SAMPLES].tobytes()


def bytes_by_dtype(graph: Graph) -> dict[str, int]:
    """Bytes of constants by element type, most first; `scales` are arrays that types refer to."""
    out: Counter[str] = Counter()
    for array in _constants(graph):
        out[str(array.type.dtype)] += _array_bytes(array)
    nodes = [node for _, part in graph.walk() for node in part]
    held = {a.digest: a for n in nodes for v in n.results for a in v.type.arrays()}
    if held:
        out["scales"] = sum(map(_array_bytes, held.values()))
    return dict(out.most_common())


def _array_bytes(array: Array) -> int:
    if array.contents.dtype.kind == "O":
        return sum(len(t if isinstance(t, bytes) else str(t).encode()) for t in array.data.flat)
    return -(-array.contents.size * max(array.type.dtype.bits, 1) // 8)


def _histogram(graph: Graph, integer: Mapping[Node, bool]) -> tuple[OpCount, ...]:
    counts: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for node in (node for _, part in graph.walk() for node in part):
        if node.op in STRUCTURAL_OPS:
            continue
        text = op_name(node)
        counts[text] += 1
        codes[text] += integer.get(node, False)
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OpCount(op, count, codes[op]) for op, count in rows)


def _layer(name: str, node: Node, integer: bool, work: int | None) -> LayerSummary:
    value = node.results[0] if node.results else None
    codes = QuantizedStorage.of(stored_quant_type(value)) if value else None
    return LayerSummary(
        name,
        op_name(node),
        plain_shape(value.type.shape) if value else (),
        codes.storage if codes else str(value.type.dtype) if value else "",
        codes,
        weights_of(node),
        work,
        integer,
        str(node.origins[0]) if node.origins else "",
    )


def weights_of(node: Node) -> InterfaceTensor | None:
    """Returns the operand in the weight slot of the op, or of the first stage of its chain that has
    one.

    A transposed convolution has one too, though no trait says so.
    """
    stages = [(s.op, node.stage_operands(i)) for i, s in enumerate(node.stages)]
    for op, operands in stages or [(node.op, node.operands)]:
        value = operands.get(spec(op).traits.weight or "w")
        if value is not None:
            quant = source_quant_type(value)
            dtype = str(quant.storage if quant else value.type.dtype)
            return InterfaceTensor(
                value.name, plain_shape(value.type.shape), dtype, QuantizedStorage.of(quant)
            )
    return None
