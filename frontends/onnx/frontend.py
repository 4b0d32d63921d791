"""The entry: a model file becomes a graph."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from qir.errors import QirError, TypeRuleError
from qir.frontend import Frontend
from qir.ir.garbage import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ir.verify import errors
from qir.ledger import Change, Ledger

from . import (
    attention_ops,
    calls,
    control_ops,
    custom,
    defaults,
    dynamic_ops,
    elementwise_ops,
    external_data,
    float_ops,
    foreign,
    index_ops,
    metadata,
    moving_ops,
    plugin_ops,
    pool_ops,
    qonnx_ops,
    quantization_annotation,
    quantized_ops,
    ranks,
    recurrent_ops,
    reduce_ops,
    resize_ops,
    samples,
    shape_ops,
)
from .contrib import (
    attention,
    experts,
    grouped_attention,
    multi_head_attention,
    operators,
    quantized,
    recurrent,
)
from .elements import dense, element, text_of
from .faults import fault, refusal
from .files import Large, ModelFile, Stored, read_model
from .functions import DOMAIN
from .inferred_types import meanings, moves
from .op import MICROSOFT, Computed, KeepOperator, OnnxOp
from .reader import OnnxReader

_HANDLERS = {
    **{("", name): handler for name, handler in float_ops.OPS.items()},
    **{("", name): handler for name, handler in elementwise_ops.OPS.items()},
    **{("", name): handler for name, handler in reduce_ops.OPS.items()},
    **{("", name): handler for name, handler in shape_ops.OPS.items()},
    **{("", name): handler for name, handler in moving_ops.OPS.items()},
    **{("", name): handler for name, handler in pool_ops.OPS.items()},
    **{("", name): handler for name, handler in resize_ops.OPS.items()},
    **{("", name): handler for name, handler in index_ops.OPS.items()},
    (MICROSOFT, "Inverse"): index_ops.inverse,
    **{("", name): handler for name, handler in control_ops.OPS.items()},
    **{("", name): handler for name, handler in recurrent_ops.OPS.items()},
    **{("", name): handler for name, handler in attention_ops.OPS.items()},
    **operators.OPS,
    **experts.OPS,
    **recurrent.OPS,
    **qonnx_ops.OPS,
    **attention.OPS,
    **quantized.OPS,
    **attention_ops.CONTRIB,
    **grouped_attention.OPS,
    **multi_head_attention.OPS,
    **quantized_ops.OPS,
}


class OnnxFrontend(Frontend):
    """Reads ONNX models, opset 7 and newer: float, QDQ and QOperator."""

    name = "onnx"
    suffixes = (".onnx",)

    @np.errstate(all="ignore")  # numbers that are none are told in words, and need no warnings
    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a model file; raises InputError for one that is damaged, Refused for what has no
        form."""
        path = Path(str(source))
        file = read_model(path)
        try:
            return _load(file, ledger)
        except QirError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
            raise fault(path, "", f"is damaged: {error or type(error).__name__}") from error

    def files(self, path: Path) -> Sequence[Path]:
        """Returns a model's file, and those of external data that its tensors name."""
        return external_data.files(path)

    def samples(self, folder: Path) -> Sequence[Path]:
        """Returns a float model, a QDQ model, and one whose scales are computed."""
        return samples.write(folder)

    @np.errstate(all="ignore")
    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node by ONNX's reference evaluator; raises PluginError if it
        cannot."""
        return foreign.run(node, operands)

    @np.errstate(all="ignore")
    def read_again(self, node: Node) -> Graph | None:
        """Returns a standard op that was kept, by what its operands have become; None if it is
        kept."""
        domain, version = str(node.attrs["domain"]), node.attrs["version"]
        known = (domain, str(node.attrs["op"])) in _HANDLERS and isinstance(version, int)
        model = foreign.alone(node) if known else None
        if model is None or not isinstance(version, int):
            return None
        place = Path(node.name)
        graph = _load(ModelFile(place, model, {domain: version}, {}, {}), Ledger())
        return None if any(n.op == "foreign" for n in graph) else graph


@pause_garbage_collection()
def _load(file: ModelFile, ledger: Ledger) -> Graph:
    reader = OnnxReader(file, file.proto.graph, ledger, _body)
    _fill(reader, _inputs)
    defaults.entered(reader)
    _dropped(reader)
    among = None if reader.doubtful else reader.unsure
    if (among is None or among) and (found := errors(reader.graph, among)):
        raise fault(file.path, "", str(found[0]))
    return reader.graph


def _body(
    outer: OnnxReader,
    proto: onnx.GraphProto,
    takes: Sequence[tuple[str, TensorType]],
    ledger: Ledger,
) -> Graph:
    """Returns a body, which takes these values, those that it uses from outside among them."""
    reader = OnnxReader(outer.file, proto, ledger, _body, outer)

    def make_inputs(reader: OnnxReader, stored: set[str]) -> set[str]:
        for name, kind in takes:
            reader.check_name(name, "inputs of a body")
            if name in stored or reader.graph.has(name):
                raise fault(reader.file.path, f"input {name}", "is there twice")
            _entered(reader, name, reader.graph.add("input", types=[kind], name=name).result)
        _declare(reader)
        return {name for name, _ in takes}

    _fill(reader, make_inputs)
    outer.doubtful = outer.doubtful or reader.doubtful
    return reader.graph


def _entered(reader: OnnxReader, name: str, value: Value) -> None:
    """Enters what a body takes; raw integers that it reads with a quantized type are read so from
    the first."""
    quant = reader.meaning(name, value.type)
    if quant is not None:
        kind = value.type.with_element(quant)
        meant = reader.spare(f"{name}_meant")
        value = reader.graph.add("recode", {"x": value}, types=[kind], name=meant).result
    reader.bind(name, value)


def _fill(reader: OnnxReader, make_inputs: Callable[[OnnxReader, set[str]], set[str]]) -> None:
    """Reads what a graph holds."""
    file = reader.file
    ops = [_op(file, i, node) for i, node in enumerate(reader.proto.node)]
    said = meanings(ops)
    reader.annotated = {
        n: p for n, p in quantization_annotation.pairs(reader).items() if n not in said
    }
    reader.meanings = {**reader.annotated, **said}
    made = _stored(reader, ops)
    _count_readers(reader, ops)
    inputs = make_inputs(reader, made)
    computed = [op for op in ops if op.type != "Constant" or op.domain]
    for op in _ordered(computed, {*made, *inputs}):
        _read(reader, op)
    _output(reader)
    dynamic_ops.unread(reader)


def _op(file: ModelFile, index: int, node: onnx.NodeProto) -> OnnxOp:
    domain = "" if node.domain == "ai.onnx" else node.domain
    own = calls.opset(node) if file.functions else 0
    op = OnnxOp(node, index, domain, own or file.opsets.get(domain, 0), file.path)
    try:
        "".join((op.type, domain, op.name, *op.inputs, *op.outputs, *op.attributes))
    except TypeError:  # protobuf gives what is no text as bytes
        raise fault(file.path, f"node {index}", "holds a name that is not UTF-8") from None
    if not op.opset:
        raise op.fail(f"is of domain {domain or 'ai.onnx'!r}, which the file does not import")
    op.check()
    return op


def _stored(reader: OnnxReader, ops: Sequence[OnnxOp]) -> set[str]:
    """Keeps initializers and Constant nodes; gives their names."""
    file, names = reader.file, set[str]()
    held = list(reader.proto.initializer) if reader.outer else file.initializers()
    entries: list[tuple[str, str, Stored]] = [
        ("initializers", t.proto.name if isinstance(t, Large) else t.name, t) for t in held
    ]
    entries += [
        ("initializers", t.values.name, _dense(file, t, t.values.name))
        for t in reader.proto.sparse_initializer
    ]
    entries += [
        (op.place, op.proto.output[0], _constant(file, op)) for op in ops if op.type == "Constant"
    ]
    for place, name, tensor in entries:
        reader.check_name(name, place)
        if name in names:
            raise fault(file.path, place, f"a second tensor {name!r}")
        names.add(name)
        reader.store(name, tensor)
    return names


def _dense(file: ModelFile, sparse: onnx.SparseTensorProto, name: str) -> Array:
    values, indices = file.array(sparse.values, name), file.array(sparse.indices, name)
    shape = tuple(sparse.dims)
    try:
        file.room.take(shape, values.type.dtype)
        return dense(shape, values, indices, name)
    except (ValueError, OverflowError) as error:
        raise fault(file.path, f"tensor {name}", str(error)) from error


def _constant(file: ModelFile, op: OnnxOp) -> Stored:
    (attribute,) = op.proto.attribute if len(op.proto.attribute) == 1 else (None,)
    name = op.proto.output[0]
    match attribute:
        case onnx.AttributeProto(name="value"):
            return attribute.t
        case onnx.AttributeProto(name="value_float"):
            return Array.of(np.array(attribute.f, np.float32), name)
        case onnx.AttributeProto(name="value_floats"):
            return Array.of(np.array(attribute.floats, np.float32), name)
        case onnx.AttributeProto(name="value_int"):
            return Array.of(np.array(attribute.i, np.int64), name)
        case onnx.AttributeProto(name="value_ints"):
            return Array.of(np.array(attribute.ints, np.int64), name)
        case onnx.AttributeProto(name="value_string"):
            return Array.of(np.array(text_of(attribute.s), object), name)
        case onnx.AttributeProto(name="value_strings"):
            return Array.of(np.array([text_of(s) for s in attribute.strings], object), name)
        case onnx.AttributeProto(name="sparse_value"):
            return _dense(file, attribute.sparse_tensor, name)
    raise refusal(op.path, op.place, "holds no plain tensor of numbers")


def _inputs(reader: OnnxReader, stored: set[str]) -> set[str]:
    """Makes the inputs; one with a default is a constant, which the caller may give instead."""
    file, names = reader.file, set[str]()
    for info in reader.proto.input:
        place = f"input {info.name}"
        reader.check_name(info.name, "inputs")
        if info.name in names:
            raise fault(file.path, place, "is there twice")
        names.add(info.name)
        if info.name in stored:
            continue
        kind = _stated(reader, place, info)
        if kind is None and not info.type.tensor_type.elem_type:
            raise refusal(file.path, place, "is no tensor whose type the file says")
        kind = kind or _counted(reader, info) or reader.dims.loose_type(info.type)
        node = reader.graph.add(
            "input", types=[kind], name=info.name, origins=[Origin("onnx", "Input", info.name)]
        )
        reader.bind(info.name, node.result)
    for given, name in reader.dims.names.items():
        if given != name:
            reader.note(Change.DROPPED, given, f"the dimension is called {name} here")
    _declare(reader)
    return names


def _stated(reader: OnnxReader, place: str, info: onnx.ValueInfoProto) -> TensorType | None:
    """Returns the type that the file says; None where it says no rank. InputError for what is no
    type."""
    try:
        kind = reader.dims.tensor_type(info.type)
        number = info.type.tensor_type.elem_type
        if kind is None and number not in onnx.TensorProto.DataType.values():
            element(number)
    except (ValueError, TypeRuleError) as error:
        raise fault(reader.file.path, place, str(error)) from error
    return kind


def _counted(reader: OnnxReader, info: onnx.ValueInfoProto) -> TensorType | None:
    """Returns the type of an input whose rank follows from what takes it."""

    def rank(name: str) -> int | None:
        array = reader.array(name)
        return None if array is None else array.type.rank

    found = ranks.of(info.name, reader.proto.node, rank)
    if found is None:
        return None
    axes, op = found
    reader.note(Change.EXACT, info.name, f"has {axes} axes, as {op} takes; the file says none")
    return TensorType((None,) * axes, element(info.type.tensor_type.elem_type))


def _declare(reader: OnnxReader) -> None:
    for info in (*reader.proto.value_info, *reader.proto.output):
        kind = _stated(reader, f"tensor {info.name}", info)
        if kind is not None:
            reader.declared[info.name] = kind
        elif info.type.tensor_type.elem_type:
            reader.stated[info.name] = info.type


def _ordered(ops: Sequence[OnnxOp], known: set[str]) -> list[OnnxOp]:
    """Returns the ops, producers first, else as they are; raises InputError for a cycle or a double
    name."""
    if _in_order(ops, known):
        return list(ops)
    maker: dict[str, int] = {}
    for i, op in enumerate(ops):
        for name in filter(None, op.outputs):
            if name in known or maker.setdefault(name, i) != i:
                raise op.fail(f"makes {name!r}, which is made elsewhere")
    needs = [{maker[n] for n in op.reads if n in maker} for op in ops]
    users: dict[int, list[int]] = {}
    for i, producers in enumerate(needs):
        for producer in producers:
            users.setdefault(producer, []).append(i)
    missing = [len(n) for n in needs]
    ready = [i for i, count in enumerate(missing) if not count]
    out: list[OnnxOp] = []
    while ready:
        i = heapq.heappop(ready)
        out.append(ops[i])
        for user in users.get(i, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(out) < len(ops):
        stuck = next(op for i, op in enumerate(ops) if missing[i])
        raise stuck.fail("needs its own result: the graph has a cycle")
    return out


def _in_order(ops: Sequence[OnnxOp], known: set[str]) -> bool:
    """Returns whether they stand producers first, each name made once: exporters write them so."""
    made, early = set(known), set[str]()
    for op in ops:
        for name in op.reads:
            if name not in made:
                early.add(name)
        for name in op.outputs:
            if name and (name in made or name in early):
                return False
            made.add(name)
    return True


def _count_readers(reader: OnnxReader, ops: Sequence[OnnxOp]) -> None:
    outputs = [info.name for info in reader.proto.output]
    read = list(chain.from_iterable(op.reads for op in ops))
    reader.readers = Counter([*read, *outputs])
    reader.reserved = {*read, *chain.from_iterable(op.outputs for op in ops), *outputs}


def _read(reader: OnnxReader, op: OnnxOp) -> None:
    if op.domain == DOMAIN and (found := reader.file.customs.get(op.type)) is not None:
        custom.read(reader, op, found)
        return
    try:
        _read_or_keep(reader, op)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise op.fail(_in_words(op, error)) from error


def _read_or_keep(reader: OnnxReader, op: OnnxOp) -> None:
    handler = _HANDLERS.get((op.domain, op.type)) or plugin_ops.handler(op)
    try:
        if handler is None:
            raise KeepOperator
        if reader.dims.loose and _loose(reader, op):
            raise KeepOperator("" if op.holds else "nothing says how many axes its operands have")
        if not op.domain and _codes(reader, op):
            raise KeepOperator
        _handle(reader, op, handler)
    except KeepOperator as kept:
        foreign.keep(reader, op, str(kept))


def _in_words(op: OnnxOp, error: Exception) -> str:
    """What a handler says of numbers, or that a node is not what the handler is for."""
    ours = isinstance(error, ValueError | OverflowError) and "to unpack" not in str(error)
    parts = f"{len(op.inputs)} operands, {len(op.outputs)} results"
    return str(error) if ours else f"{parts}: not as its operator is"


def _handle(reader: OnnxReader, op: OnnxOp, handler: Callable[[OnnxReader, OnnxOp], None]) -> None:
    """Reads an op; where that asks for numbers that are computed, by computing them at once.

    So is one whose results nobody knows otherwise.
    """
    try:
        handler(reader, op)
    except KeepOperator as kept:
        if not isinstance(kept, Computed) and not foreign.unsaid(reader, op):
            raise
        reader.settling = True
        try:
            handler(reader, op)
        finally:
            reader.settling = False


def _loose(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether nobody knows how many axes some operand has, so that none of ours takes
    it."""
    names = (n for n in op.inputs if n and not reader.is_constant(n))
    return any(reader.value(op, n).type.dtype.is_loose for n in names)


def _codes(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether quantized values keep an op of the standard from being read by its meaning in
    float.

    One that computes on quantized values is kept: ONNX means the quantized values themselves.
    """
    known = moves(op) or (op.domain, op.type) in quantized_ops.OPS
    if known or op.type in control_ops.OPS or float_ops.casts_nothing(reader, op):
        return False
    if any(name and reader.map_of(op, name) for name in op.inputs):
        return True
    return any(reader.has_meaning(name) for name in op.outputs)


def _output(reader: OnnxReader) -> None:
    file = reader.file
    names = [info.name for info in reader.proto.output]
    if "" in names or not (names or reader.outer):
        why = "one has no name" if names else "there is none, so nothing is asked for"
        raise fault(file.path, "outputs", why)
    first = {name: i for i, name in reversed(list(enumerate(names)))}
    again = next((n for i, n in enumerate(names) if first[n] != i), None)
    if again and reader.outer is None:
        raise fault(file.path, "outputs", f"{again!r} is there twice")
    slots = [name if first[name] == i else f"{name}.{i}" for i, name in enumerate(names)]
    found = {slot: reader.result(name) for slot, name in zip(slots, names, strict=True)}
    # Runtimes compute some ops by other kernels from one operator set to the next.
    opset = f"opset {file.opsets['']}" if "" in file.opsets else ""
    origin = Origin("onnx", "Output", path=opset, operands=tuple(zip(slots, names, strict=True)))
    said = [] if reader.outer else metadata.said(file.proto)
    reader.graph.add("output", found, origins=[origin, *said])


def _dropped(reader: OnnxReader) -> None:
    proto = reader.file.proto
    for name in reader.unneeded():
        reader.note(Change.DROPPED, name, "a constant that nothing uses")
    for entry in metadata.lost(reader.file):
        reader.note(*entry)
    if proto.training_info:
        reader.note(Change.DROPPED, proto.graph.name or "main", "how the model is trained")
    for name, reason in quantization_annotation.lost(reader):
        reader.note(Change.DROPPED, name, reason)
