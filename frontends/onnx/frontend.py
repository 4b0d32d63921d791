"""Entry point of the ONNX frontend: reads a model file into a graph.

Reading goes through the nodes in topological order. Each is read by the handler of its (domain,
operator); what no handler can express is kept as a foreign node, so that any valid model loads.
"""

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
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
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
    foreign_run,
    index_ops,
    metadata,
    moving_ops,
    plugin_ops,
    pool_ops,
    quantization_annotation,
    quantized_ops,
    ranks,
    recurrent_ops,
    reduce_ops,
    resize_ops,
    samples,
    shape_ops,
)
from .elements import decoded_text, dense_array, dtype_of_number
from .faults import input_error, refused_error
from .files import LargeTensor, ModelFile, StoredTensor, read_model
from .functions import QIR_DOMAIN
from .inferred_types import inferred_qparam_names, moves_elements
from .op import MICROSOFT, KeepOperator, NotConstant, OnnxOp
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
    **quantized_ops.OPS,
}
"""By domain and name; those of other domains that few models have are in `other_domains`."""


def handler_of(domain: str, name: str) -> Callable[[OnnxReader, OnnxOp], None] | None:
    """Returns what reads an operator; None for one that nothing here reads."""
    handler = _HANDLERS.get((domain, name))
    if handler is None and domain:
        from .other_domains import HANDLERS

        handler = HANDLERS.get((domain, name))
    return handler


class OnnxFrontend(Frontend):
    """Reads ONNX models, opset 7 and newer: float, QDQ and QOperator."""

    name = "onnx"
    suffixes = (".onnx",)

    @np.errstate(all="ignore")  # bad scales are reported as errors, not as warnings
    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a model file.

        Raises InputError for a damaged file, Refused for what the language cannot hold.
        """
        path = Path(str(source))
        file = read_model(path)
        try:
            return _load_graph(file, ledger)
        except QirError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
            # Files are untrusted: what no check foresaw is still one line, and no traceback.
            raise input_error(path, "", f"is damaged: {error or type(error).__name__}") from error

    def files(self, path: Path) -> Sequence[Path]:
        """Returns a model's file and its external data files."""
        return external_data.files(path)

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a float model, a QDQ model and a dynamically quantized one.

        Returns their paths.
        """
        return samples.write(folder)

    @np.errstate(all="ignore")
    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node by onnxruntime or ONNX's reference evaluator.

        Raises PluginError if neither can.
        """
        return foreign_run.run(node, operands)

    @np.errstate(all="ignore")
    def read_again(self, node: Node) -> Graph | None:
        """Reads a kept operator again, now that passes made its operands constant or known in size.

        Returns its graph, or None if it has to stay foreign.
        """
        domain, version = str(node.attrs["domain"]), node.attrs["version"]
        has_handler = handler_of(domain, str(node.attrs["op"])) is not None
        is_readable = has_handler and isinstance(version, int)
        model = foreign_run.single_node_model(node) if is_readable else None
        if model is None or not isinstance(version, int):
            return None
        path = Path(node.name)
        # The ledger of this reading is dropped: the operator was reported when it was kept.
        graph = _load_graph(ModelFile(path, model, {domain: version}, {}, {}), Ledger())
        return None if any(n.op == "foreign" for n in graph) else graph


@pause_garbage_collection()
def _load_graph(file: ModelFile, ledger: Ledger) -> Graph:
    reader = OnnxReader(file, file.proto.graph, ledger, _read_body)
    _read_graph(reader, _make_model_inputs)
    # Only now is it known which constants some handler looked at: these cannot be replaced.
    defaults.mark_overridable_constants(reader)
    _report_dropped(reader)
    nodes = None if reader.verify_all else reader.nodes_to_verify
    if nodes is None or nodes:
        from qir.ir.verify import errors

        if problems := errors(reader.graph, nodes):
            raise input_error(file.path, "", str(problems[0]))
    return reader.graph


def _read_body(
    outer: OnnxReader,
    proto: onnx.GraphProto,
    inputs: Sequence[tuple[str, TensorType]],
    ledger: Ledger,
) -> Graph:
    """Returns the body of a subgraph; `inputs` are its own inputs, then the tensors it captures."""
    reader = OnnxReader(outer.file, proto, ledger, _read_body, outer)

    def make_inputs(reader: OnnxReader, stored: set[str]) -> set[str]:
        for name, kind in inputs:
            reader.check_name(name, "inputs of a body")
            if name in stored or reader.graph.has(name):
                raise input_error(reader.file.path, f"input {name}", "is there twice")
            _bind_body_input(
                reader, name, reader.graph.add("input", types=[kind], name=name).result
            )
        _record_declared_types(reader)
        return {name for name, _ in inputs}

    _read_graph(reader, make_inputs)
    outer.verify_all = outer.verify_all or reader.verify_all
    return reader.graph


def _bind_body_input(reader: OnnxReader, name: str, value: Value) -> None:
    """Registers an input of a body; plain integers that its operators dequantize get their type."""
    quant = reader.inferred_quant_type(name, value.type)
    if quant is not None:
        quantized_type = value.type.with_element(quant)
        quantized_name = reader.unused_name(f"{name}_meant")
        value = reader.graph.add(
            "recode", {"x": value}, types=[quantized_type], name=quantized_name
        ).result
    reader.bind(name, value)


def _read_graph(
    reader: OnnxReader, make_inputs: Callable[[OnnxReader, set[str]], set[str]]
) -> None:
    """Reads the constants, inputs, operators and outputs of a graph."""
    file = reader.file
    # Parameters of all quantized tensors are collected first: an input or a constant gets its
    # quantized type from operators that come later.
    ops = [_make_op(file, i, node) for i, node in enumerate(reader.proto.node)]
    stated_by_operators = inferred_qparam_names(ops)
    # Where an operator and an annotation disagree, the operator computes: it wins.
    reader.annotated_qparam_names = {
        name: names
        for name, names in quantization_annotation.annotated_qparam_names(reader).items()
        if name not in stated_by_operators
    }
    reader.qparam_names = {**reader.annotated_qparam_names, **stated_by_operators}
    constants = _store_constants(reader, ops)
    _count_readers(reader, ops)
    inputs = make_inputs(reader, constants)
    # Constants were stored above; another domain may have an operator of that name.
    computed = [op for op in ops if op.type != "Constant" or op.domain]
    for op in _topological_order(computed, {*constants, *inputs}):
        _read_op(reader, op)
    _make_output(reader)
    # Views as plain integers were added before it was known whether anything reads them.
    dynamic_ops.remove_unused_raw_views(reader)


def _make_op(file: ModelFile, index: int, node: onnx.NodeProto) -> OnnxOp:
    domain = "" if node.domain == "ai.onnx" else node.domain
    marked_version = calls.marked_opset(node) if file.inlined_functions else 0
    op = OnnxOp(node, index, domain, marked_version or file.opsets.get(domain, 0), file.path)
    try:
        # Joining fails on bytes: one check for all names of the operator.
        "".join((op.type, domain, op.name, *op.inputs, *op.outputs, *op.attributes))
    except TypeError:  # protobuf gives what is no text as bytes
        raise input_error(file.path, f"node {index}", "holds a name that is not UTF-8") from None
    if not op.opset:
        raise op.error(f"is of domain {domain or 'ai.onnx'!r}, which the file does not import")
    op.check()
    return op


def _store_constants(reader: OnnxReader, ops: Sequence[OnnxOp]) -> set[str]:
    """Registers initializers and Constant nodes; returns their names."""
    file, names = reader.file, set[str]()
    # Only the initializers of the outermost graph may be large, with data left out of the message.
    initializers = list(reader.proto.initializer) if reader.outer else file.initializers()
    entries: list[tuple[str, str, StoredTensor]] = [
        ("initializers", t.proto.name if isinstance(t, LargeTensor) else t.name, t)
        for t in initializers
    ]
    entries += [
        ("initializers", t.values.name, _dense_initializer(file, t, t.values.name))
        for t in reader.proto.sparse_initializer
    ]
    entries += [
        (op.location, op.proto.output[0], _constant_node_value(file, op))
        for op in ops
        if op.type == "Constant"
    ]
    for place, name, tensor in entries:
        reader.check_name(name, place)
        if name in names:
            raise input_error(file.path, place, f"a second tensor {name!r}")
        names.add(name)
        reader.store(name, tensor)
    return names


def _dense_initializer(file: ModelFile, sparse: onnx.SparseTensorProto, name: str) -> Array:
    values, indices = file.array(sparse.values, name), file.array(sparse.indices, name)
    shape = tuple(sparse.dims)
    try:
        file.sparse_budget.reserve(shape, values.type.dtype)
        return dense_array(shape, values, indices, name)
    except (ValueError, OverflowError) as error:
        raise input_error(file.path, f"tensor {name}", str(error)) from error


def _constant_node_value(file: ModelFile, op: OnnxOp) -> StoredTensor:
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
            return Array.of(np.array(decoded_text(attribute.s), object), name)
        case onnx.AttributeProto(name="value_strings"):
            return Array.of(np.array([decoded_text(s) for s in attribute.strings], object), name)
        case onnx.AttributeProto(name="sparse_value"):
            return _dense_initializer(file, attribute.sparse_tensor, name)
    raise refused_error(op.path, op.location, "holds no plain tensor of numbers")


def _make_model_inputs(reader: OnnxReader, stored: set[str]) -> set[str]:
    """Adds the inputs; one with a default (an initializer of that name) is a constant instead.

    `defaults` marks those that the caller may still replace.
    """
    file, names = reader.file, set[str]()
    for info in reader.proto.input:
        place = f"input {info.name}"
        reader.check_name(info.name, "inputs")
        if info.name in names:
            raise input_error(file.path, place, "is there twice")
        names.add(info.name)
        if info.name in stored:
            continue
        input_type = _stated_type(reader, place, info)
        if input_type is None and not info.type.tensor_type.elem_type:
            raise refused_error(file.path, place, "is no tensor whose type the file says")
        # Without a rank in the file: by the operators that read it, else a type of unknown rank.
        input_type = (
            input_type
            or _type_by_inferred_rank(reader, info)
            or reader.dims.unranked_type(info.type)
        )
        node = reader.graph.add(
            "input",
            types=[input_type],
            name=info.name,
            origins=[Origin("onnx", "Input", info.name)],
        )
        reader.bind(info.name, node.result)
    for dimension, name in reader.dims.symbols.items():
        if dimension != name:
            reader.note(Change.DROPPED, dimension, f"the dimension is called {name} here")
    _record_declared_types(reader)
    return names


def _stated_type(reader: OnnxReader, place: str, info: onnx.ValueInfoProto) -> TensorType | None:
    """Returns the type that the file states; None without a rank. Raises InputError for no type."""
    try:
        stated = reader.dims.tensor_type(info.type)
        number = info.type.tensor_type.elem_type
        if stated is None and number not in onnx.TensorProto.DataType.values():
            dtype_of_number(number)
    except (ValueError, TypeRuleError) as error:
        raise input_error(reader.file.path, place, str(error)) from error
    return stated


def _type_by_inferred_rank(reader: OnnxReader, info: onnx.ValueInfoProto) -> TensorType | None:
    """Returns the type of an input whose rank follows from the operators that consume it."""

    def rank(name: str) -> int | None:
        array = reader.array(name)
        return None if array is None else array.type.rank

    inferred = ranks.infer_rank(info.name, reader.proto.node, rank)
    if inferred is None:
        return None
    axes, op = inferred
    reader.note(Change.EXACT, info.name, f"has {axes} axes, as {op} takes; the file says none")
    return TensorType((None,) * axes, dtype_of_number(info.type.tensor_type.elem_type))


def _record_declared_types(reader: OnnxReader) -> None:
    for info in (*reader.proto.value_info, *reader.proto.output):
        declared = _stated_type(reader, f"tensor {info.name}", info)
        if declared is not None:
            reader.declared_types[info.name] = declared
        elif info.type.tensor_type.elem_type:
            reader.rankless_types[info.name] = info.type


def _topological_order(ops: Sequence[OnnxOp], available: set[str]) -> list[OnnxOp]:
    """Returns the operators in topological order, ties in the order of the file.

    Raises InputError for a cycle, and for a tensor that two operators produce.
    """
    # Producers may come after consumers in a file, and names may clash: both are rare.
    if _is_sorted(ops, available):
        return list(ops)
    producer_of: dict[str, int] = {}
    for i, op in enumerate(ops):
        for name in filter(None, op.outputs):
            if name in available or producer_of.setdefault(name, i) != i:
                raise op.error(f"makes {name!r}, which is made elsewhere")
    producers_of = [{producer_of[n] for n in op.names_read if n in producer_of} for op in ops]
    users: dict[int, list[int]] = {}
    for i, producers in enumerate(producers_of):
        for producer in producers:
            users.setdefault(producer, []).append(i)
    # Kahn's algorithm; the heap yields the earliest operator of the file that is ready.
    missing = [len(n) for n in producers_of]
    ready = [i for i, count in enumerate(missing) if not count]
    ordered: list[OnnxOp] = []
    while ready:
        i = heapq.heappop(ready)
        ordered.append(ops[i])
        for user in users.get(i, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(ordered) < len(ops):
        stuck = next(op for i, op in enumerate(ops) if missing[i])
        raise stuck.error("needs its own result: the graph has a cycle")
    return ordered


def _is_sorted(ops: Sequence[OnnxOp], available: set[str]) -> bool:
    """Returns whether producers come first and names are unique, as exporters write models."""
    produced, read_early = set(available), set[str]()
    for op in ops:
        for name in op.names_read:
            if name not in produced:
                read_early.add(name)
        for name in op.outputs:
            # Read before it is made, or made twice.
            if name and (name in produced or name in read_early):
                return False
            produced.add(name)
    return True


def _count_readers(reader: OnnxReader, ops: Sequence[OnnxOp]) -> None:
    outputs = [info.name for info in reader.proto.output]
    names_read = list(chain.from_iterable(op.names_read for op in ops))
    reader.read_counts = Counter([*names_read, *outputs])
    reader.source_names = {*names_read, *chain.from_iterable(op.outputs for op in ops), *outputs}


def _read_op(reader: OnnxReader, op: OnnxOp) -> None:
    if (
        op.domain == QIR_DOMAIN
        and (quant_function := reader.file.quant_functions.get(op.type)) is not None
    ):
        custom.read(reader, op, quant_function)
        return
    try:
        _read_or_keep(reader, op)
    # Handlers unpack operands without checking their count first: the file is at fault then.
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise op.error(_handler_error_text(op, error)) from error


def _read_or_keep(reader: OnnxReader, op: OnnxOp) -> None:
    handler = handler_of(op.domain, op.type) or plugin_ops.plugin_handler(op)
    try:
        if handler is None:
            raise KeepOperator
        if reader.dims.has_unranked and _has_unranked_operand(reader, op):
            raise KeepOperator(
                "" if op.has_subgraphs else "nothing says how many axes its operands have"
            )
        if not op.domain and _has_unsupported_quantized_values(reader, op):
            raise KeepOperator
        _handle_or_evaluate(reader, op, handler)
    except KeepOperator as reason:
        foreign.keep(reader, op, str(reason))


def _handler_error_text(op: OnnxOp, error: Exception) -> str:
    """Returns a handler's own message; for an unexpected error, that the operator is malformed."""
    # Python's "too many values to unpack" is of a wrong number of operands.
    is_own_text = isinstance(error, ValueError | OverflowError) and "to unpack" not in str(error)
    parts = f"{len(op.inputs)} operands, {len(op.outputs)} results"
    return str(error) if is_own_text else f"{parts}: not as its operator is"


def _handle_or_evaluate(
    reader: OnnxReader, op: OnnxOp, handler: Callable[[OnnxReader, OnnxOp], None]
) -> None:
    """Reads an operator; if an attribute is a computed operand, a second time by evaluating it.

    Many exporters compute axes, sizes and bounds from shapes. Operators are read so too if nothing
    else gives the types of their results.
    """
    try:
        handler(reader, op)
    except KeepOperator as reason:
        if not isinstance(reason, NotConstant) and not foreign.has_untyped_results(reader, op):
            raise
        reader.evaluates = True
        try:
            handler(reader, op)
        finally:
            reader.evaluates = False


def _has_unranked_operand(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether some computed operand has an unknown rank, which no op accepts."""
    names = (n for n in op.inputs if n and not reader.is_constant(n))
    return any(reader.value(op, n).type.dtype.is_loose for n in names)


def _has_unsupported_quantized_values(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether a standard operator reads or makes quantized values that it computes with.

    It is kept: ONNX computes on the integers themselves, an op on the floats that they represent.
    """
    is_supported = moves_elements(op) or (op.domain, op.type) in quantized_ops.OPS
    if is_supported or op.type in control_ops.OPS or float_ops.is_identity_cast(reader, op):
        return False
    if any(name and reader.quant_type_of(op, name) for name in op.inputs):
        return True
    return any(reader.has_qparams(name) for name in op.outputs)


def _make_output(reader: OnnxReader) -> None:
    file = reader.file
    names = [info.name for info in reader.proto.output]
    if "" in names or not (names or reader.outer):
        why = "one has no name" if names else "there is none, so nothing is asked for"
        raise input_error(file.path, "outputs", why)
    first_index = {name: i for i, name in reversed(list(enumerate(names)))}
    repeated = next((n for i, n in enumerate(names) if first_index[n] != i), None)
    if repeated and reader.outer is None:
        raise input_error(file.path, "outputs", f"{repeated!r} is there twice")
    # A body may return one tensor twice, as loops do: its slots are numbered then.
    slots = [name if first_index[name] == i else f"{name}.{i}" for i, name in enumerate(names)]
    results = {slot: reader.output_value(name) for slot, name in zip(slots, names, strict=True)}
    # Runtimes compute some ops by other kernels from one operator set to the next.
    opset = f"opset {file.opsets['']}" if "" in file.opsets else ""
    origin = Origin("onnx", "Output", path=opset, operands=tuple(zip(slots, names, strict=True)))
    notes = [] if reader.outer else metadata.metadata_origins(file.proto)
    reader.graph.add("output", results, origins=[origin, *notes])


def _report_dropped(reader: OnnxReader) -> None:
    proto = reader.file.proto
    for name in reader.unused_constants():
        reader.note(Change.DROPPED, name, "a constant that nothing uses")
    for entry in metadata.dropped_entries(reader.file):
        reader.note(*entry)
    if proto.training_info:
        reader.note(Change.DROPPED, proto.graph.name or "main", "how the model is trained")
    for name, reason in quantization_annotation.dropped_annotations(reader):
        reader.note(Change.DROPPED, name, reason)
