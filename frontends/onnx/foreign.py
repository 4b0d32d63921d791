"""Foreign nodes: operators that the language cannot express are kept, run and written back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto

from qir.errors import PluginError
from qir.ir.attrs import Attr
from qir.ir.dtype import boxed, texts
from qir.ir.node import Node, Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change

from . import optional
from .calls import unmark_and_find_other_opset
from .elements import UNKNOWN_TENSOR, dtype_of_number, tensor_proto, type_proto
from .evaluated import prefers_runtime, why_evaluator_cannot
from .op import MICROSOFT, OnnxOp, attribute_type_number, names_captured_by, subgraphs_of
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
    places = tuple(i for i, name in enumerate(op.inputs) if name)
    values = [reader.value(op, op.inputs[i]) for i in places]
    results = tuple(i for i, name in enumerate(op.outputs) if name)
    outside = names_captured_by(op) if op.has_subgraphs else ()
    used = [*values, *(reader.value(op, name) for name in outside)]
    reader.add(
        op,
        "foreign",
        {f"xs.{i}": v for i, v in enumerate(used)},
        {
            "framework": "onnx",
            "op": op.type,
            "domain": op.domain,
            "version": op.opset,
            "slots": (places, results, outside) if op.has_subgraphs else (places, results),
            "attrs": attrs,
            "why": why,
        },
        types=_result_types(reader, op, values),
    )
    if why:
        said = f"kept as onnx {op.type}: {why}"
        reader.note(Change.EXACT, next(filter(None, op.outputs), op.location), said)


def _check_opsets_inside(op: OnnxOp) -> None:
    """Raises InputError where subgraphs of a kept operator have operators of another operator set.

    One node is written with one version; inlined functions may bring operators of others.
    """
    inside = [g for a in op.proto.attribute for g in subgraphs_of(a)]
    found = next(filter(None, (unmark_and_find_other_opset(g, op.opset) for g in inside)), "")
    if found:
        raise op.error(f"is kept as it is, of opset {op.opset}, and holds {found} of a function")


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
    held = AttributeProto()
    held.CopyFrom(attribute)
    _inline_external_data(reader, held)
    return None, held.SerializeToString(deterministic=True)


def _inline_external_data(reader: OnnxReader, attribute: AttributeProto) -> None:
    """Copies external data into a graph attribute, which is kept as bytes without its folder."""
    sparse = [attribute.sparse_tensor, *attribute.sparse_tensors]
    tensors = [attribute.t, *attribute.tensors]
    for graph in subgraphs_of(attribute):
        tensors += graph.initializer
        sparse += graph.sparse_initializer
        for inner in (a for node in graph.node for a in node.attribute):
            _inline_external_data(reader, inner)
    tensors += [part for each in sparse for part in (each.values, each.indices)]
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
    out = []
    for name in (n for n in op.outputs if n):
        found = inferred.get(name) or reader.declared_types.get(name)
        if found is None:
            return _unranked_result_types(reader, op, values)
        out.append(_with_declared_sizes(found, reader.declared_types.get(name)))
    return out


def _unranked_result_types(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> list[TensorType]:
    """Returns the types of the results where some rank is unknown."""
    found = _infer_by_onnx(op, values) if op.schema() is not None else {}
    out = []
    for name in (n for n in op.outputs if n):
        proto = found.get(name) or reader.rankless_types.get(name)
        kind = reader.dims.unranked_type(proto)
        if kind.dtype.is_loose and name in reader.declared_types:
            # The declared type is used only where inference finds no rank.
            kind = reader.declared_types[name]
        elif (
            kind.dtype.is_loose
            and op.type in _RANK_2_RESULTS
            and not op.domain
            and proto is not None
        ):
            kind = TensorType((None, None), dtype_of_number(proto.tensor_type.elem_type))
        out.append(_with_declared_sizes(kind, reader.declared_types.get(name)))
        # Reported where a rank is lost first, not at every operator after that.
        if kind.dtype.is_loose and not any(v.type.dtype.is_loose for v in values):
            reader.note(Change.EXACT, name, "nothing says how many axes it has: kept as it is")
    return out


def _type_by_axes_count(op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    """Returns the result of a reduction or Squeeze with computed axes: their count gives its
    rank."""
    reduces = op.type.startswith("Reduce")
    if op.domain or len(values) != 2 or not (op.outputs and (reduces or op.type == "Squeeze")):
        return {}
    kind, axes = (v.type for v in values)
    if kind.quant or axes.rank != 1 or not isinstance(count := axes.shape[0], int):
        return {}
    # An empty list of axes: a reduction is over all of them, unless noop_with_empty_axes is set.
    if not count:
        if not reduces:
            return {}
        none = bool(op.integer("noop_with_empty_axes", 0))
        sizes = kind.shape if none else (1,) * (kind.rank if op.integer("keepdims", 1) else 0)
    # keepdims keeps the rank, but which sizes become 1 is computed.
    elif reduces and op.integer("keepdims", 1):
        sizes = (None,) * kind.rank
    else:
        sizes = (None,) * (kind.rank - count)
    return {op.outputs[0]: kind.with_shape(sizes)}


def _with_declared_sizes(found: TensorType, declared: TensorType | None) -> TensorType:
    if declared is None or declared.rank != found.rank or declared.dtype != found.dtype:
        return found
    pairs = zip(found.shape, declared.shape, strict=True)
    return found.with_shape(tuple(d if f is None else f for f, d in pairs))


def _inferred_types(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    schema = op.schema()
    if schema is None:
        if (
            op.domain == MICROSOFT
            and op.type in _TYPED_LIKE_FIRST_OPERAND
            and values
            and op.outputs
        ):
            kind = values[0].type
            return {op.outputs[0]: kind.with_element(kind.dtype)}
        return _infer_by_runtime(reader, op, values)
    if schema.deprecated and op.type == "GroupNormalization":  # ONNX has no inference for it
        if not op.outputs:
            raise op.error("its result has no name")
        kind = values[0].type
        return {op.outputs[0]: kind.with_element(kind.dtype)}
    try:
        read = {n: reader.dims.tensor_type(t) for n, t in _infer_by_onnx(op, values).items()}
    except ValueError as error:
        raise op.error(f"its results have no shape: {error}") from error
    return {n: t for n, t in read.items() if t is not None}


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
        if (a := v.constant) is not None and a.held.size <= MAX_SHAPE_ELEMENTS
    }
    # Sizes and axes are often constants; inference needs their elements, not only their types.
    imports = [onnx.helper.make_opsetid(op.domain, op.opset)]
    try:
        found = dict(
            onnx.shape_inference.infer_node_outputs(
                schema, op.proto, types, data, opset_imports=imports
            )
        )
        for size in (d for t in found.values() for d in t.tensor_type.shape.dim):
            if size.dim_value < 0:  # inferred for an operator that fails when it is run
                size.Clear()
        return found
    except Exception as error:  # whatever the library raises, the node is at fault
        if len(types) < len(set(names)):
            return {}  # inference needs a type that is unknown
        told = "a text in it is not UTF-8" if isinstance(error, UnicodeError) else error
        raise op.error(f"its results have no shape: {told}") from error


def _check_axes(op: OnnxOp) -> None:
    """Raises InputError for an axis beyond 32 bits, which may crash ONNX's C++ inference."""
    for name in ("axis", "axes"):
        held = op.attribute(name)
        for axis in (held.i, *held.ints) if held is not None else ():
            if not -(1 << 31) <= axis < 1 << 31:
                raise op.error(f"attribute {name!r} is {axis}: no tensor has such an axis")


def _infer_by_runtime(reader: OnnxReader, op: OnnxOp, values: list[Value]) -> dict[str, TensorType]:
    """Returns the result types of an operator of onnxruntime's domain; empty without
    onnxruntime."""
    names = [n for n in op.inputs if n]
    given = dict(zip(names, values, strict=True))
    stored = {
        n: a for n, v in given.items() if (a := v.constant) and a.held.size <= MAX_SHAPE_ELEMENTS
    }
    made = [n for n in op.outputs if n]
    ranks = [onnx.helper.make_node("Shape", [n], [f"rank.{n}"]) for n in made]
    graph = onnx.helper.make_graph(
        # onnxruntime shows a scalar and an unknown rank alike; the size of Shape's result differs.
        [op.proto, *ranks],
        "foreign",
        [_named_value_info(n, v) for n, v in given.items() if n not in stored],
        [onnx.ValueInfoProto(name=n) for n in (*made, *(f"rank.{m}" for m in made))],
        [tensor_proto(a, n) for n, a in stored.items()],
    )
    imports = [
        onnx.helper.make_opsetid(op.domain, op.opset),
        onnx.helper.make_opsetid("", _NEWEST_OPSET),
    ]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        shown = {o.name: o for o in _session(model.SerializeToString()).get_outputs()}
    except Exception:  # onnxruntime's errors share no base class; the types stay unknown
        return {}
    out = {}
    for name in made:
        kind, sizes = _RUNTIME_TYPE_NUMBERS.get(shown[name].type), shown[name].shape
        whole = all(not isinstance(size, int) or size >= 0 for size in sizes)
        if kind is not None and whole and shown[f"rank.{name}"].shape == [len(sizes)]:
            proto = onnx.helper.make_tensor_type_proto(kind, sizes)
            out[name] = reader.dims.tensor_type(proto)
    return {n: t for n, t in out.items() if t is not None}


_RUNTIME_TYPE_NUMBERS = {
    f"tensor({name})": kind
    for name, kind in (
        *(("float", 1), ("uint8", 2), ("int8", 3), ("uint16", 4), ("int16", 5), ("int32", 6)),
        *(("int64", 7), ("string", 8), ("bool", 9), ("float16", 10), ("double", 11)),
        *(("uint32", 12), ("uint64", 13), ("bfloat16", 16), ("uint4", 21), ("int4", 22)),
    )
}


# -- running and giving back --------------------------------------------------------------------


def node_proto(node: Node) -> onnx.NodeProto:
    """Returns the operator as the file had it, with the current names of operands and results.

    Raises PluginError for a foreign node that was made by hand and is inconsistent.
    """
    try:
        return _node_proto(node)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        said = "its slots and attrs are not those of an onnx operator with these operands"
        raise PluginError(f"onnx {node.attrs['op']!s}: {said}") from error


def _node_proto(node: Node) -> onnx.NodeProto:
    values, results = node.variadic("xs"), node.results
    given, attrs = node.attrs["slots"], node.attrs["attrs"]
    slots = given or (tuple(range(len(values))), tuple(range(len(results))))
    assert isinstance(slots, tuple)
    assert isinstance(attrs, tuple)
    ins, outs, *more = (p if isinstance(p, tuple) else () for p in slots)
    proto = onnx.NodeProto(op_type=str(node.attrs["op"]), domain=str(node.attrs["domain"]))
    names = [v.name for v in values]
    outside = more[0] if more else ()
    proto.input.extend(_names_at_places(ins, names[: len(names) - len(outside)]))
    proto.output.extend(_names_at_places(outs, [v.name for v in results]))
    now = dict(zip(map(str, outside), names[len(names) - len(outside) :], strict=True))
    for pair in attrs:
        assert isinstance(pair, tuple)
        name, value = pair
        made = _attribute(node, str(name), value)
        for graph in subgraphs_of(made):
            _rename_captured(graph, now)
        proto.attribute.append(made)
    return proto


def _rename_captured(graph: onnx.GraphProto, now: Mapping[str, str]) -> None:
    """Renames captured tensors in a subgraph to their current names."""
    own = {*(i.name for i in graph.input), *(t.name for t in graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    changed = {old: new for old, new in now.items() if old not in own and old != new}
    if not changed:
        return
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for held in subgraphs_of(attribute):
                _rename_captured(held, changed)
    for info in graph.output:
        info.name = changed.get(info.name, info.name)


def _names_at_places(places: tuple[Attr, ...], names: list[str]) -> list[str]:
    at = [p for p in places if isinstance(p, int)]
    out = [""] * (max(at, default=-1) + 1)
    for place, name in zip(at, names, strict=True):
        out[place] = name
    return out


def _attribute(node: Node, name: str, value: Attr) -> AttributeProto:
    if isinstance(value, tuple) and len(value) == 2 and value[0] is None:
        return _parsed_attribute(value[1] if isinstance(value[1], bytes) else b"")
    if isinstance(value, Array):
        return onnx.helper.make_attribute(name, tensor_proto(value, value.name))
    if isinstance(value, tuple) and value and isinstance(value[0], Array):
        tensors = [tensor_proto(v, v.name) for v in value if isinstance(v, Array)]
        return onnx.helper.make_attribute(name, tensors)
    if isinstance(value, tuple) and not value:
        return onnx.helper.make_attribute(name, [], attr_type=_empty_list_type(node, name))
    return onnx.helper.make_attribute(name, value)


def _parsed_attribute(data: bytes) -> AttributeProto:
    made = AttributeProto()
    try:
        made.ParseFromString(data)
    except Exception as error:  # protobuf's own error, which is not onnx's to import
        raise ValueError("its bytes are no attribute") from error
    return made


def _empty_list_type(node: Node, name: str) -> int:
    try:
        schema = onnx.defs.get_schema(
            str(node.attrs["op"]), _version(node), str(node.attrs["domain"])
        )
        return attribute_type_number(schema.attributes[name])
    except (onnx.defs.SchemaError, KeyError):
        return int(AttributeProto.INTS)


def _version(node: Node) -> int:
    version = node.attrs["version"]
    assert isinstance(version, int)
    return version or (1 if node.attrs["domain"] else _NEWEST_OPSET)


def single_node_model(node: Node) -> onnx.ModelProto | None:
    """Returns a model of that node alone, whose inputs are the computed operands.

    None for quantized and opaque values, which such a model cannot state.
    """
    values = dict.fromkeys(node.operands.values())
    if any(v.type.quant or v.type.dtype.is_opaque for v in (*values, *node.results)):
        return None
    held = {v: a for v in values if (a := v.constant) is not None}
    domain = str(node.attrs["domain"])
    imports = [onnx.helper.make_opsetid(domain, _version(node))]
    graph = onnx.helper.make_graph(
        [node_proto(node)],
        "foreign",
        [_portable_value_info(v) for v in values if v not in held],
        [onnx.ValueInfoProto(name=v.name) for v in node.results],
        [tensor_proto(array, v.name) for v, array in held.items()],
        value_info=[_portable_value_info(v) for v in node.results],
    )
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _portable_value_info(value: Value) -> onnx.ValueInfoProto:
    """Returns a value's type, with sizes that are formulas left open: ONNX has numbers and
    names."""
    sizes = (d if isinstance(d, int) or str(d).isidentifier() else None for d in value.type.shape)
    kind = value.type.with_shape(tuple(sizes))
    return onnx.helper.make_value_info(value.name, type_proto(kind))


def _value_info(value: Value) -> onnx.ValueInfoProto:
    return _named_value_info(value.name, value)


def _named_value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    return onnx.helper.make_value_info(name, type_proto(value.type))


def run(node: Node, operands: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
    """Computes the node by ONNX's reference evaluator, or by onnxruntime if that is installed.

    onnxruntime comes first for forms that the evaluator lacks or gets wrong (`evaluated`). Raises
    PluginError where neither runs the node.
    """
    proto = node_proto(node)
    values = {f"xs.{i}": v for i, v in enumerate(node.variadic("xs"))}
    inputs = [_value_info(v) for v in dict.fromkeys(values.values())]
    outputs = [_value_info(v) for v in node.results]
    graph = onnx.helper.make_graph([proto], "foreign", inputs, outputs)
    domain = str(node.attrs["domain"])
    feed = {
        values[slot].name: data.item() if _is_boxed(values[slot]) else data
        for slot, data in operands.items()
    }
    if not domain and (own := optional.FUNCTIONS.get(proto.op_type)) is not None:
        try:
            return (_as_carrier(own([feed[v.name] for v in values.values()]), node.result),)
        except PluginError as error:
            raise PluginError(f"onnx {proto.op_type}: {error}") from error
    if (proto.op_type, domain) == ("Loop", "") and not proto.input[1]:
        # ONNX's evaluator takes an absent condition of a Loop for False, the standard for True.
        proto.input[1] = "condition of the first round"
        always = onnx.helper.make_tensor(proto.input[1], onnx.TensorProto.BOOL, (), [True])
        graph.node[0].CopyFrom(proto)
        graph.initializer.append(always)
    imports = [onnx.helper.make_opsetid(domain, _version(node))]
    if domain:
        imports.append(onnx.helper.make_opsetid("", _NEWEST_OPSET))
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    _require_texts(proto, operands)
    found = _compute_results(node, proto, model, feed)
    return tuple(_as_carrier(a, v) for a, v in zip(found, node.results, strict=True))


def _require_texts(proto: onnx.NodeProto, operands: Mapping[str, NDArray[np.generic]]) -> None:
    """Raises PluginError for string elements that are not UTF-8, which no evaluator accepts."""
    for slot, data in operands.items():
        if data.dtype == object and any(isinstance(item, bytes) for item in data.flat):
            raise PluginError(f"onnx {proto.op_type}: {slot} holds bytes that are no UTF-8 text")


def _compute_results(
    node: Node, proto: onnx.NodeProto, model: onnx.ModelProto, feed: Mapping[str, object]
) -> Sequence[object]:
    kinds = [v.type.dtype for v in (*node.variadic("xs"), *node.results)]
    plain = all(kind.name in _NUMPY_DTYPES or kind.is_opaque for kind in kinds)
    first = plain and prefers_runtime(proto, _version(node), on_floats=not kinds[0].is_integer)
    found = _run_in_runtime(model.SerializeToString(), feed) if first else None
    if found is not None:
        return found
    if why := why_evaluator_cannot(proto, _version(node)):
        raise PluginError(f"onnx {proto.op_type}: {why}")
    try:
        return _run_in_evaluator(model, feed)
    except Exception as error:  # the evaluator raises what its NumPy code raises
        found = _run_in_runtime(model.SerializeToString(), feed) if plain and not first else None
        if found is None:
            why = str(node.attrs["why"])
            if _is_custom(proto) and not why:
                said = _CUSTOM_OP_ERROR.format(proto.domain)
            else:
                said = f"{why}; {error}" if why else str(error)
            raise PluginError(f"onnx {proto.op_type}: {said}") from error
        return found


_CUSTOM_OP_ERROR = (
    "a custom op of domain {}, which neither ONNX nor onnxruntime has: a plugin can bring it"
    " (docs/plugins/op.md); qir quantize --dynamic or --weights needs no run"
)


def _is_custom(proto: onnx.NodeProto) -> bool:
    """Returns whether neither ONNX nor onnxruntime defines the operator."""
    return proto.domain not in ("", MICROSOFT) and not onnx.defs.has(proto.op_type, proto.domain)


def _as_carrier(made: object, value: Value) -> NDArray[np.generic]:
    kind = value.type.dtype
    if kind.is_loose:
        array = np.asarray(made)
        return texts(array) if array.dtype.kind in "US" else array
    return boxed(made) if kind.is_opaque else np.asarray(made).astype(kind.carrier, copy=False)


def _is_boxed(value: Value) -> bool:
    """Returns whether runs hold the value in a box: a sequence, map or optional, not a tensor."""
    return value.type.dtype.is_opaque and not value.type.dtype.is_loose


_NEWEST_OPSET, _IR_VERSION = 26, 10
"""The newest operator set and IR version that onnxruntime 1.31 loads."""
_NUMPY_DTYPES = frozenset("f64 f32 f16 i8 i16 i32 i64 u8 u16 u32 u64 bool string".split())
"""Element types that onnxruntime exchanges with NumPy."""


def _run_in_evaluator(model: onnx.ModelProto, feed: Mapping[str, object]) -> Sequence[object]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(feed)))


def _run_in_runtime(model: bytes, feed: Mapping[str, object]) -> Sequence[object] | None:
    """Returns onnxruntime's results; None if it is not installed or refuses the model."""
    try:
        session = _session(model)
        found: Sequence[object] = session.run(None, dict(feed))
    except (
        Exception
    ):  # its errors share no base of their own, and the evaluator has said what is wrong
        return None
    return found


class _RuntimeOutput(Protocol):
    name: str
    type: str
    shape: list[int | str | None]


class _RuntimeSession(Protocol):
    def get_outputs(self) -> Sequence[_RuntimeOutput]: ...

    def run(self, outputs: None, feed: dict[str, object]) -> Sequence[object]: ...


@lru_cache(maxsize=64)
def _session(model: bytes) -> _RuntimeSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session: _RuntimeSession = onnxruntime.InferenceSession(
        model,
        options,
        ["CPUExecutionProvider"],
        enable_fallback=0,  # it prints when it tries again
    )
    return session
