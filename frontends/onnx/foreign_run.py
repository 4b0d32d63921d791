"""Runs foreign nodes, and writes them back as the operators they were.

A node runs in ONNX's reference evaluator, which defines the operators, or in onnxruntime, whichever
`evaluated` says; onnxruntime need not be installed.
"""

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
from qir.ir.dtype import box_object, decode_texts
from qir.ir.foreign_names import names_at_slots, rename_captured
from qir.ir.node import Node, Value
from qir.ir.types import Array

from . import optional
from .elements import tensor_proto, type_proto
from .op import MICROSOFT, attribute_type_number, subgraphs_of
from .operator_engines import prefers_runtime, why_evaluator_cannot


def node_proto(node: Node) -> onnx.NodeProto:
    """Returns the operator as the file had it, with the current names of operands and results.

    Raises PluginError for a foreign node that was made by hand and is inconsistent.
    """
    try:
        return _node_proto(node)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        message = "its slots and attrs are not those of an onnx operator with these operands"
        raise PluginError(f"onnx {node.attrs['op']!s}: {message}") from error


def _node_proto(node: Node) -> onnx.NodeProto:
    values, results = node.variadic("xs"), node.results
    stated_slots, attrs = node.attrs["slots"], node.attrs["attrs"]
    slots = stated_slots or (tuple(range(len(values))), tuple(range(len(results))))
    assert isinstance(slots, tuple)
    assert isinstance(attrs, tuple)
    operand_places, result_places, *captured_slots = (
        p if isinstance(p, tuple) else () for p in slots
    )
    proto = onnx.NodeProto(op_type=str(node.attrs["op"]), domain=str(node.attrs["domain"]))
    names = [v.name for v in values]
    captured = captured_slots[0] if captured_slots else ()
    proto.input.extend(names_at_slots(operand_places, names[: len(names) - len(captured)]))
    proto.output.extend(names_at_slots(result_places, [v.name for v in results]))
    # Captured tensors are operands after the operator's own, in the order of `captured_names`.
    current_names = dict(zip(map(str, captured), names[len(names) - len(captured) :], strict=True))
    for pair in attrs:
        assert isinstance(pair, tuple)
        name, value = pair
        attribute = _attribute(node, str(name), value)
        for graph in subgraphs_of(attribute):
            rename_captured(graph, current_names)
        proto.attribute.append(attribute)
    return proto


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
    attribute = AttributeProto()
    try:
        attribute.ParseFromString(data)
    except Exception as error:  # protobuf's own error, which is not onnx's to import
        raise ValueError("its bytes are no attribute") from error
    return attribute


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
    return version or (1 if node.attrs["domain"] else NEWEST_OPSET)


def single_node_model(node: Node) -> onnx.ModelProto | None:
    """Returns a model of that node alone, whose inputs are the computed operands.

    None for quantized and opaque values, which such a model cannot state.
    """
    values = dict.fromkeys(node.operands.values())
    if any(v.type.quant or v.type.dtype.is_opaque for v in (*values, *node.results)):
        return None
    constants = {v: a for v in values if (a := v.constant) is not None}
    domain = str(node.attrs["domain"])
    imports = [onnx.helper.make_opsetid(domain, _version(node))]
    graph = onnx.helper.make_graph(
        [node_proto(node)],
        "foreign",
        [_portable_value_info(v) for v in values if v not in constants],
        [onnx.ValueInfoProto(name=v.name) for v in node.results],
        [tensor_proto(array, v.name) for v, array in constants.items()],
        value_info=[_portable_value_info(v) for v in node.results],
    )
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _portable_value_info(value: Value) -> onnx.ValueInfoProto:
    """Returns a value's type, with sizes that are formulas left open.

    ONNX has sizes that are numbers or names.
    """
    # E.g. the product of two sizes after a flatten.
    sizes = (d if isinstance(d, int) or str(d).isidentifier() else None for d in value.type.shape)
    portable_type = value.type.with_shape(tuple(sizes))
    return onnx.helper.make_value_info(value.name, type_proto(portable_type))


def _value_info(value: Value) -> onnx.ValueInfoProto:
    return named_value_info(value.name, value)


def named_value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    return onnx.helper.make_value_info(name, type_proto(value.type))


def run(node: Node, operands: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
    """Computes the node by ONNX's reference evaluator, or by onnxruntime if that is installed.

    onnxruntime comes first for forms that the evaluator lacks or gets wrong (`prefers_runtime`).
    Raises PluginError where neither runs the node.
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
    # The evaluator has no optionals; these operators are functions of `optional`.
    if not domain and (function := optional.FUNCTIONS.get(proto.op_type)) is not None:
        try:
            return (_as_carrier(function([feed[v.name] for v in values.values()]), node.result),)
        except PluginError as error:
            raise PluginError(f"onnx {proto.op_type}: {error}") from error
    if (proto.op_type, domain) == ("Loop", "") and not proto.input[1]:
        # ONNX's evaluator takes an absent condition of a Loop for False, the standard for True.
        proto.input[1] = "condition of the first round"
        condition = onnx.helper.make_tensor(proto.input[1], onnx.TensorProto.BOOL, (), [True])
        graph.node[0].CopyFrom(proto)
        graph.initializer.append(condition)
    imports = [onnx.helper.make_opsetid(domain, _version(node))]
    if domain:
        imports.append(onnx.helper.make_opsetid("", NEWEST_OPSET))
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    _require_texts(proto, operands)
    results = _compute_results(node, proto, model, feed)
    return tuple(_as_carrier(a, v) for a, v in zip(results, node.results, strict=True))


def _require_texts(proto: onnx.NodeProto, operands: Mapping[str, NDArray[np.generic]]) -> None:
    """Raises PluginError for string elements that are not UTF-8, which no evaluator accepts."""
    for slot, data in operands.items():
        if data.dtype == object and any(isinstance(item, bytes) for item in data.flat):
            raise PluginError(f"onnx {proto.op_type}: {slot} holds bytes that are no UTF-8 text")


def _compute_results(
    node: Node, proto: onnx.NodeProto, model: onnx.ModelProto, feed: Mapping[str, object]
) -> Sequence[object]:
    types = [v.type.dtype for v in (*node.variadic("xs"), *node.results)]
    is_supported = all(
        element_type.name in _NUMPY_DTYPES or element_type.is_opaque for element_type in types
    )
    prefers = is_supported and prefers_runtime(
        proto, _version(node), on_floats=not types[0].is_integer
    )
    results = _run_in_runtime(model.SerializeToString(), feed) if prefers else None
    if results is not None:
        return results
    if why := why_evaluator_cannot(proto, _version(node)):
        raise PluginError(f"onnx {proto.op_type}: {why}")
    try:
        return _run_in_evaluator(model, feed)
    except Exception as error:  # the evaluator raises what its NumPy code raises
        # The evaluator lacks some operators, and some element types of others.
        results = (
            _run_in_runtime(model.SerializeToString(), feed)
            if is_supported and not prefers
            else None
        )
        if results is None:
            why = str(node.attrs["why"])
            if _is_custom(proto) and not why:
                message = _CUSTOM_OP_ERROR.format(proto.domain)
            else:
                message = f"{why}; {error}" if why else str(error)
            raise PluginError(f"onnx {proto.op_type}: {message}") from error
        return results


_CUSTOM_OP_ERROR = (
    "a custom op of domain {}, which neither ONNX nor onnxruntime has: a plugin can bring it"
    " (docs/plugins/op.md); qir quantize --dynamic or --weights needs no run"
)


def _is_custom(proto: onnx.NodeProto) -> bool:
    """Returns whether neither ONNX nor onnxruntime defines the operator."""
    return proto.domain not in ("", MICROSOFT) and not onnx.defs.has(proto.op_type, proto.domain)


def _as_carrier(result: object, value: Value) -> NDArray[np.generic]:
    element_type = value.type.dtype
    if element_type.is_loose:
        array = np.asarray(result)
        return decode_texts(array) if array.dtype.kind in "US" else array
    return (
        box_object(result)
        if element_type.is_opaque
        else np.asarray(result).astype(element_type.carrier, copy=False)
    )


def _is_boxed(value: Value) -> bool:
    """Returns whether runs hold the value in a box: a sequence, map or optional, not a tensor."""
    return value.type.dtype.is_opaque and not value.type.dtype.is_loose


NEWEST_OPSET, IR_VERSION = 26, 10
"""The newest operator set and IR version that onnxruntime 1.31 loads."""
_NUMPY_DTYPES = frozenset("f64 f32 f16 i8 i16 i32 i64 u8 u16 u32 u64 bool string".split())
"""Element types that onnxruntime exchanges with NumPy."""


def _run_in_evaluator(model: onnx.ModelProto, feed: Mapping[str, object]) -> Sequence[object]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(feed)))


def _run_in_runtime(model: bytes, feed: Mapping[str, object]) -> Sequence[object] | None:
    """Returns onnxruntime's results; None if it is not installed or refuses the model."""
    try:
        session = runtime_session(model)
        results: Sequence[object] = session.run(None, dict(feed))
    except (
        Exception
    ):  # its errors share no base of their own, and the evaluator has said what is wrong
        return None
    return results


class _RuntimeOutput(Protocol):
    name: str
    type: str
    shape: list[int | str | None]


class _RuntimeSession(Protocol):
    def get_outputs(self) -> Sequence[_RuntimeOutput]: ...

    def run(self, outputs: None, feed: dict[str, object]) -> Sequence[object]: ...


@lru_cache(maxsize=64)
def runtime_session(model: bytes) -> _RuntimeSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # The node shall run by its own kernel, without fusions.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session: _RuntimeSession = onnxruntime.InferenceSession(
        model,
        options,
        ["CPUExecutionProvider"],
        enable_fallback=0,  # it prints when it tries again
    )
    return session
