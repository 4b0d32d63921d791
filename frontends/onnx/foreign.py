"""Foreign nodes: keeps operators that the language cannot express, and infers their result types.

`foreign_run` runs them and writes them back.
"""

from __future__ import annotations

import onnx
from onnx import AttributeProto

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import TensorType
from qir.ledger import Change

from .calls import unmark_and_find_other_opset
from .elements import UNKNOWN_TENSOR, dtype_of_number, tensor_proto, type_proto
from .foreign_run import IR_VERSION, NEWEST_OPSET, named_value_info, runtime_session
from .op import MICROSOFT, OnnxOp, names_captured_by, subgraphs_of
from .reader import OnnxReader

_TYPED_LIKE_FIRST_OPERAND = frozenset(
    {"QLinearLeakyRelu", "Gelu", "FastGelu", "QuickGelu", "BiasGelu"}
)
"""Operators of onnxruntime's domain whose result has the type of their first operand.

ONNX has no schema for them, and asking onnxruntime needs it to be installed.
"""
_RANK_2_RESULTS = ("Flatten", "Gemm")
"""Operators whose result has two axes, whatever their operands have."""
MAX_SHAPE_ELEMENTS = 1024
"""Constants of up to this many elements are given to shape inference; larger ones are data."""


def keep(reader: OnnxReader, op: OnnxOp, why: str = "") -> None:
    """Adds the operator as a foreign node; raises InputError if inference finds it malformed.

    `why` is the reason for keeping an operator that the language knows. Tensors that its subgraphs
    capture become operands after its own, so that passes see them.
    """
    if op.has_subgraphs and reader.file.inlined_functions:
        _check_opsets_inside(op)
    attrs = tuple((a.name, attribute_value(reader, op, a)) for a in op.proto.attribute)
    # `slots` remembers which operands and results were absent, to write the node back unchanged.
    operand_places = tuple(i for i, name in enumerate(op.inputs) if name)
    values = [reader.value(op, op.inputs[i]) for i in operand_places]
    results = tuple(i for i, name in enumerate(op.outputs) if name)
    captured = names_captured_by(op) if op.has_subgraphs else ()
    operands = [*values, *(reader.value(op, name) for name in captured)]
    reader.add(
        op,
        "foreign",
        {f"xs.{i}": v for i, v in enumerate(operands)},
        {
            "framework": "onnx",
            "op": op.type,
            "domain": op.domain,
            "version": op.opset,
            "slots": (operand_places, results, captured)
            if op.has_subgraphs
            else (operand_places, results),
            "attrs": attrs,
            "why": why,
        },
        types=_result_types(reader, op, values),
    )
    if why:
        message = f"kept as onnx {op.type}: {why}"
        reader.note(Change.EXACT, next(filter(None, op.outputs), op.location), message)


def _check_opsets_inside(op: OnnxOp) -> None:
    """Raises InputError where subgraphs of a kept operator have operators of another operator set.

    One node is written with one version; inlined functions may bring operators of others.
    """
    subgraphs = [g for a in op.proto.attribute for g in subgraphs_of(a)]
    other_operator = next(
        filter(None, (unmark_and_find_other_opset(g, op.opset) for g in subgraphs)), ""
    )
    if other_operator:
        raise op.error(
            f"is kept as it is, of opset {op.opset}, and holds {other_operator} of a function"
        )


def attribute_value(reader: OnnxReader, op: OnnxOp, attribute: AttributeProto) -> Attr:
    """Returns an attribute's value; graphs and types as (None, the serialized AttributeProto)."""
    match attribute.type:
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.STRING:
            return _decoded_text(attribute.s)
        case AttributeProto.INTS:
            return tuple(attribute.ints)
        case AttributeProto.FLOATS:
            return tuple(attribute.floats)
        case AttributeProto.STRINGS:
            return tuple(_decoded_text(s) for s in attribute.strings)
        case AttributeProto.TENSOR:
            return reader.file.array(attribute.t, attribute.name)
        case AttributeProto.TENSORS:
            return tuple(reader.file.array(t, attribute.name) for t in attribute.tensors)
    # GRAPH, SPARSE_TENSOR and TYPE_PROTO attributes have no form in the language: kept as bytes.
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    _inline_external_data(reader, copy)
    return None, copy.SerializeToString(deterministic=True)


def _inline_external_data(reader: OnnxReader, attribute: AttributeProto) -> None:
    """Copies external data into a graph attribute, which is kept as bytes without its folder."""
    sparse = [attribute.sparse_tensor, *attribute.sparse_tensors]
    tensors = [attribute.t, *attribute.tensors]
    for graph in subgraphs_of(attribute):
        tensors += graph.initializer
        sparse += graph.sparse_initializer
        for inner in (a for node in graph.node for a in node.attribute):
            _inline_external_data(reader, inner)
    tensors += [
        part for sparse_tensor in sparse for part in (sparse_tensor.values, sparse_tensor.indices)
    ]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(tensor_proto(reader.file.array(tensor, tensor.name), tensor.name))


def _decoded_text(data: bytes) -> Attr:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# -- what it gives ------------------------------------------------------------------------------


def has_untyped_results(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether neither ONNX's inference nor the file gives the types of all results."""
    values = [reader.value(op, name) for name in op.inputs if name]
    known = {**reader.declared_types, **_inferred_types(reader, op, values)}
    return any(name and name not in known for name in op.outputs)


def _result_types(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> list[TensorType]:
    """Returns the types of the named results: inferred, else as the file declares them."""
    # What ONNX infers wins over what follows from the count of axes.
    inferred = {**_type_by_axes_count(op, values), **_inferred_types(reader, op, values)}
    types = []
    for name in (n for n in op.outputs if n):
        result_type = inferred.get(name) or reader.declared_types.get(name)
        if result_type is None:
            return _unranked_result_types(reader, op, values)
        types.append(_with_declared_sizes(result_type, reader.declared_types.get(name)))
    return types


def _unranked_result_types(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> list[TensorType]:
    """Returns the types of the results where some rank is unknown."""
    inferred = _infer_by_onnx(op, values) if op.schema() is not None else {}
    types = []
    for name in (n for n in op.outputs if n):
        proto = inferred.get(name) or reader.rankless_types.get(name)
        result_type = reader.dims.unranked_type(proto)
        if result_type.dtype.is_loose and name in reader.declared_types:
            # The declared type is used only where inference finds no rank.
            result_type = reader.declared_types[name]
        elif (
            result_type.dtype.is_loose
            and op.type in _RANK_2_RESULTS
            and not op.domain
            and proto is not None
        ):
            result_type = TensorType((None, None), dtype_of_number(proto.tensor_type.elem_type))
        types.append(_with_declared_sizes(result_type, reader.declared_types.get(name)))
        # Reported where a rank is lost first, not at every operator after that.
        if result_type.dtype.is_loose and not any(v.type.dtype.is_loose for v in values):
            reader.note(Change.EXACT, name, "nothing says how many axes it has: kept as it is")
    return types


def _type_by_axes_count(op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    """Returns the result of a reduction or Squeeze with computed axes.

    The count of axes gives its rank.
    """
    reduces = op.type.startswith("Reduce")
    if op.domain or len(values) != 2 or not (op.outputs and (reduces or op.type == "Squeeze")):
        return {}
    data_type, axes = (v.type for v in values)
    if data_type.quant or axes.rank != 1 or not isinstance(count := axes.shape[0], int):
        return {}
    # An empty list of axes: a reduction is over all of them, unless noop_with_empty_axes is set.
    if not count:
        if not reduces:
            return {}
        is_noop = bool(op.integer("noop_with_empty_axes", 0))
        sizes = (
            data_type.shape
            if is_noop
            else (1,) * (data_type.rank if op.integer("keepdims", 1) else 0)
        )
    # keepdims keeps the rank, but which sizes become 1 is computed.
    elif reduces and op.integer("keepdims", 1):
        sizes = (None,) * data_type.rank
    else:
        sizes = (None,) * (data_type.rank - count)
    return {op.outputs[0]: data_type.with_shape(sizes)}


def _with_declared_sizes(inferred: TensorType, declared: TensorType | None) -> TensorType:
    if declared is None or declared.rank != inferred.rank or declared.dtype != inferred.dtype:
        return inferred
    pairs = zip(inferred.shape, declared.shape, strict=True)
    return inferred.with_shape(tuple(d if f is None else f for f, d in pairs))


def _inferred_types(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    schema = op.schema()
    if schema is None:
        if (
            op.domain == MICROSOFT
            and op.type in _TYPED_LIKE_FIRST_OPERAND
            and values
            and op.outputs
        ):
            first_type = values[0].type
            return {op.outputs[0]: first_type.with_element(first_type.dtype)}
        # Operators of onnxruntime's domain have their shape inference inside the runtime.
        return _infer_by_runtime(reader, op, values)
    if schema.deprecated and op.type == "GroupNormalization":  # ONNX has no inference for it
        if not op.outputs:
            raise op.error("its result has no name")
        first_type = values[0].type
        return {op.outputs[0]: first_type.with_element(first_type.dtype)}
    try:
        types = {n: reader.dims.tensor_type(t) for n, t in _infer_by_onnx(op, values).items()}
    except ValueError as error:
        raise op.error(f"its results have no shape: {error}") from error
    return {n: t for n, t in types.items() if t is not None}


def _infer_by_onnx(op: OnnxOp, values: list[Value]) -> dict[str, onnx.TypeProto]:
    """Returns the types of the results by ONNX's shape inference; open sizes have no value."""
    schema = op.schema()
    assert schema is not None
    _check_axes(op)
    names = [n for n in op.inputs if n]
    types = {
        n: type_proto(v.type)
        for n, v in zip(names, values, strict=True)
        if v.type.dtype.name != UNKNOWN_TENSOR
    }
    data = {
        n: tensor_proto(a, n)
        for n, v in zip(names, values, strict=True)
        if (a := v.constant) is not None and a.contents.size <= MAX_SHAPE_ELEMENTS
    }
    # Sizes and axes are often constants; inference needs their elements, not only their types.
    imports = [onnx.helper.make_opsetid(op.domain, op.opset)]
    try:
        inferred = dict(
            onnx.shape_inference.infer_node_outputs(
                schema, op.proto, types, data, opset_imports=imports
            )
        )
        # `infer_node_outputs` takes wrong attributes without a check, and subtracts.
        for size in (d for t in inferred.values() for d in t.tensor_type.shape.dim):
            if size.dim_value < 0:  # inferred for an operator that fails when it is run
                size.Clear()
        return inferred
    except Exception as error:  # whatever the library raises, the node is at fault
        if len(types) < len(set(names)):
            return {}  # inference needs a type that is unknown
        message = "a text in it is not UTF-8" if isinstance(error, UnicodeError) else error
        raise op.error(f"its results have no shape: {message}") from error


def _check_axes(op: OnnxOp) -> None:
    """Raises InputError for an axis beyond 32 bits, which may crash ONNX's C++ inference."""
    for name in ("axis", "axes"):
        attribute = op.attribute(name)
        for axis in (attribute.i, *attribute.ints) if attribute is not None else ():
            if not -(1 << 31) <= axis < 1 << 31:
                raise op.error(f"attribute {name!r} is {axis}: no tensor has such an axis")


def _infer_by_runtime(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    """Returns an operator's result types by onnxruntime; empty where it is not installed."""
    names = [n for n in op.inputs if n]
    operands = dict(zip(names, values, strict=True))
    constants = {
        n: a
        for n, v in operands.items()
        if (a := v.constant) and a.contents.size <= MAX_SHAPE_ELEMENTS
    }
    result_names = [n for n in op.outputs if n]
    ranks = [onnx.helper.make_node("Shape", [n], [f"rank.{n}"]) for n in result_names]
    graph = onnx.helper.make_graph(
        # onnxruntime shows a scalar and an unknown rank alike; the size of Shape's result differs.
        [op.proto, *ranks],
        "foreign",
        [named_value_info(n, v) for n, v in operands.items() if n not in constants],
        [
            onnx.ValueInfoProto(name=n)
            for n in (*result_names, *(f"rank.{m}" for m in result_names))
        ],
        [tensor_proto(a, n) for n, a in constants.items()],
    )
    imports = [
        onnx.helper.make_opsetid(op.domain, op.opset),
        onnx.helper.make_opsetid("", NEWEST_OPSET),
    ]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    try:
        outputs = {o.name: o for o in runtime_session(model.SerializeToString()).get_outputs()}
    except Exception:  # onnxruntime's errors share no base class; the types stay unknown
        return {}
    types = {}
    for name in result_names:
        type_number, sizes = _RUNTIME_TYPE_NUMBERS.get(outputs[name].type), outputs[name].shape
        # Inference of a malformed operator may yield negative sizes.
        are_valid = all(not isinstance(size, int) or size >= 0 for size in sizes)
        if type_number is not None and are_valid and outputs[f"rank.{name}"].shape == [len(sizes)]:
            proto = onnx.helper.make_tensor_type_proto(type_number, sizes)
            types[name] = reader.dims.tensor_type(proto)
    return {n: t for n, t in types.items() if t is not None}


_RUNTIME_TYPE_NUMBERS = {
    f"tensor({name})": kind
    for name, kind in (
        *(("float", 1), ("uint8", 2), ("int8", 3), ("uint16", 4), ("int16", 5), ("int32", 6)),
        *(("int64", 7), ("string", 8), ("bool", 9), ("float16", 10), ("double", 11)),
        *(("uint32", 12), ("uint64", 13), ("bfloat16", 16), ("uint4", 21), ("int4", 22)),
    )
}
