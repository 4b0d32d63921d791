"""Writes foreign ops: operators that QIR keeps as their file had them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import onnx
from onnx import AttributeProto, helper, version_converter

from qir.ir.attrs import Attr
from qir.ir.node import Node, Value
from qir.ir.types import Array
from qir.ledger import Change

from ..opset import changed_operators
from ..optimizer import padded_pools
from .elements import element_type, tensor, type_proto
from .writer import STEP, OnnxWriter

FIRST_COMPATIBLE = 26
"""From this operator set on, versions only add types and attributes to existing operators."""


def opset_of(node: Node) -> int:
    """Returns the operator set that a node is from; the newest for one that no file had."""
    version = node.attrs["version"]
    assert isinstance(version, int)
    return version or (1 if node.attrs["domain"] else FIRST_COMPATIBLE)


def first_opset(node: Node) -> int:
    """Returns the first operator set that has the node's form."""
    proto = onnx.NodeProto(op_type=str(node.attrs["op"]), domain=str(node.attrs["domain"]))
    return _schema_version(proto, opset_of(node))


def fits_opset(node: Node, opset: int) -> bool:
    """Returns whether an older operator set accepts the node as it is: its types and attributes.

    Later versions of these sets changed nothing else.
    """
    name, pairs = str(node.attrs["op"]), node.attrs["attrs"]
    try:
        schema = onnx.defs.get_schema(name, opset, "")
    except onnx.defs.SchemaError:
        return False
    # Outside this range a version may change the meaning, which a schema does not tell.
    if not FIRST_COMPATIBLE <= opset < opset_of(node):
        return False
    attribute_names = {
        str(p[0]) for p in (pairs if isinstance(pairs, tuple) else ()) if isinstance(p, tuple)
    }
    if not attribute_names <= set(schema.attributes):
        return False
    slots = node.attrs["slots"]
    ins, outs = (int_list(p) for p in slots[:2]) if isinstance(slots, tuple) else ([], [])
    formals = [
        *zip(ins, node.variadic("xs"), itertools.repeat(schema.inputs)),
        *zip(outs, node.results, itertools.repeat(schema.outputs)),
    ]
    return all(_accepts(formal, at, value) for at, value, formal in formals)


def _accepts(formal: Sequence[onnx.defs.OpSchema.FormalParameter], at: int, value: Value) -> bool:
    if not formal:
        return False
    # A variadic formal parameter is the last one, and stands for all operands after it.
    parameter = formal[min(at, len(formal) - 1)]
    if value.type.dtype.is_opaque:
        return True  # later versions add no others of these
    kind = onnx.TensorProto.DataType.Name(element_type(value.type.dtype)).lower()
    return f"tensor({kind})" in parameter.types


def write(writer: OnnxWriter, node: Node) -> None:
    """Writes a foreign node; raises Refused for another framework's, or one without a form in
    this opset."""
    framework, domain = str(node.attrs["framework"]), str(node.attrs["domain"])
    if framework != "onnx":
        remedy = f"write it for {framework} instead, or leave the op out of the model"
        raise writer.refuse(
            node, f"{node.attrs['op']!r} is {framework}'s own and unknown to ONNX; {remedy}"
        )
    proto, before = _node_proto(writer, node), len(writer.nodes)
    if domain:
        why = str(node.attrs["why"])
        writer.check_domain(
            str(node.attrs["op"]), domain, f"{node.name}: {why}" if why else node.name
        )
        writer.domains[domain] = max(opset_of(node), writer.domains.get(domain, 1))
        writer.nodes.append(proto)
    elif changed_operators.has_changed_meaning(proto, opset_of(node), writer.opset):
        changed_operators.WRITERS[proto.op_type](writer, node, proto)
    elif _has_same_schema(proto, opset_of(node), writer.opset) or fits_opset(node, writer.opset):
        writer.nodes.append(proto)
    else:
        _write_converted(writer, node, proto)
    if proto.op_type == "Pad" and not domain:
        padded_pools.keep_pads(writer, node, writer.nodes[before:])
    for value in node.results:
        writer.add_value_info(value)


def _has_same_schema(proto: onnx.NodeProto, one: int, other: int) -> bool:
    """Returns whether an operator, and all in its subgraphs, has one schema in both operator
    sets."""
    found = [proto, *(n for n in changed_operators.nodes_inside(proto) if n.domain == "")]
    return all(_schema_version(each, one) == _schema_version(each, other) for each in found)


def _schema_version(proto: onnx.NodeProto, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(proto.op_type, opset, proto.domain).since_version)
    except onnx.defs.SchemaError:
        return 0


def _write_converted(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a node in the form of a newer opset, by ONNX's version converter.

    Raises Refused where its subgraphs hold an operator that means something else there.
    """
    if found := [
        n
        for n in changed_operators.nodes_inside(proto)
        if changed_operators.has_changed_meaning(n, opset_of(node), writer.opset)
    ]:
        problem = f"{found[0].op_type}, which means another thing in opset {writer.opset}"
        raise writer.refuse(node, f"{proto.op_type} of opset {opset_of(node)} holds {problem}")
    # The converter works on models: one with this single node, and its constants as initializers.
    operands = dict.fromkeys(node.variadic("xs"))
    graph = helper.make_graph(
        [proto],
        "one",
        [helper.make_value_info(writer.name(v), type_proto(v.type)) for v in operands],
        [helper.make_value_info(writer.name(v), type_proto(v.type)) for v in node.results],
        [tensor(a, writer.name(v)) for v in operands if (a := v.constant) is not None],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(node))])
    try:
        found = version_converter.convert_version(model, writer.opset).graph
    except Exception as error:  # whatever the library raises, the node has no newer form
        raise writer.refuse(
            node,
            f"{proto.op_type} of opset {opset_of(node)} has no form in {writer.opset}: {error}",
        ) from error
    # Names that the converter invents could be in use, so each gets a fresh one.
    known = {writer.name(v) for v in operands}
    inside = {n for converted_node in found.node for n in converted_node.output} - {
        o.name for o in found.output
    }
    names = {n: writer.fresh(f"{proto.output[0]}_{n}") for n in sorted(inside)}
    for constant in found.initializer:
        if constant.name not in known:
            names[constant.name] = writer.fresh(f"{proto.output[0]}_{constant.name}")
            constant.name = names[constant.name]
            writer.main.initializers[constant.name] = constant
    for converted_node in found.node:
        converted_node.input[:] = [names.get(n, n) for n in converted_node.input]
        converted_node.output[:] = [names.get(n, n) for n in converted_node.output]
        writer.nodes.append(converted_node)
    writer.ledger.add(
        Change.EXACT, STEP, node.name, f"{proto.op_type} is written as opset {writer.opset} has it"
    )


def _node_proto(writer: OnnxWriter, node: Node) -> onnx.NodeProto:
    try:
        return _source_node_proto(writer, node)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        reason = "its slots and attrs are not those of an onnx operator with these operands"
        raise writer.refuse(node, f"{node.attrs['op']!s}: {reason}") from error


def _source_node_proto(writer: OnnxWriter, node: Node) -> onnx.NodeProto:
    slots = node.attrs["slots"]
    positions = slots if isinstance(slots, tuple) else ()
    # Without positions, operands and results are in order with none missing.
    in_order = list(range(len(node.variadic("xs")))), list(range(len(node.results)))
    # `slots` holds positions of operands, of results, and names of outer tensors that subgraphs
    # read.
    ins, outs = (int_list(p) for p in positions[:2]) if len(positions) > 1 else in_order
    outer_names = positions[2] if len(positions) > 2 and isinstance(positions[2], tuple) else ()
    origin = next((o for o in node.origins if o.framework == "onnx"), None)
    proto = onnx.NodeProto(op_type=str(node.attrs["op"]), domain=str(node.attrs["domain"]))
    proto.name = origin.name if origin else f"{node.name}_{proto.op_type}"
    names = [writer.name(v) for v in node.variadic("xs")]
    proto.input.extend(at_positions(ins, names[: len(names) - len(outer_names)]))
    proto.output.extend(at_positions(outs, [writer.name(v) for v in node.results]))
    renamed = dict(zip(map(str, outer_names), names[len(names) - len(outer_names) :], strict=True))
    for name, value in attributes_by_name(node.attrs["attrs"]).items():
        attr = attribute(proto, opset_of(node), name, value)
        for graph in _subgraphs(attr):
            _rename_outer_names(graph, renamed)
        proto.attribute.append(attr)
    return proto


def _subgraphs(attr: AttributeProto) -> list[onnx.GraphProto]:
    return [*([attr.g] if attr.HasField("g") else []), *attr.graphs]


def _rename_outer_names(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Renames the outer tensors that a subgraph reads."""
    # A name that the subgraph defines hides the outer one.
    own = {*(i.name for i in graph.input), *(t.name for t in graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    changed = {old: new for old, new in renamed.items() if old not in own and old != new}
    if not changed:
        return
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]
        for each in node.attribute:
            for inner in _subgraphs(each):
                _rename_outer_names(inner, changed)
    for info in graph.output:
        info.name = changed.get(info.name, info.name)


def attributes_by_name(attrs: Attr) -> dict[str, Attr]:
    """Returns the attributes of a foreign node by name."""
    pairs = attrs if isinstance(attrs, tuple) else ()
    return {str(p[0]): p[1] for p in pairs if isinstance(p, tuple)}


def int_list(value: Attr) -> list[int]:
    """Returns a tuple attribute of integers as a list."""
    return [p for p in value if isinstance(p, int)] if isinstance(value, tuple) else []


def at_positions(at: list[int], names: list[str]) -> list[str]:
    """Returns names at their positions, with empty names in between."""
    out = [""] * (max(at, default=-1) + 1)
    for place, name in zip(at, names, strict=True):
        out[place] = name
    return out


def attribute(proto: onnx.NodeProto, opset: int, name: str, value: Attr) -> AttributeProto:
    """Returns an attribute as a protobuf."""
    # (None, bytes) is an attribute that QIR does not model, such as a subgraph: kept serialized.
    if isinstance(value, tuple) and len(value) == 2 and value[0] is None:
        return _parsed(value[1] if isinstance(value[1], bytes) else b"")
    if isinstance(value, Array):
        return helper.make_attribute(name, tensor(value, value.name))
    if isinstance(value, tuple) and value and isinstance(value[0], Array):
        tensors = [tensor(v, v.name) for v in value if isinstance(v, Array)]
        return helper.make_attribute(name, tensors)
    # An empty list has no element to tell its type, so the schema does.
    if isinstance(value, tuple) and not value:
        return helper.make_attribute(name, [], attr_type=_empty(proto, opset, name))
    return helper.make_attribute(name, value)


def _parsed(data: bytes) -> AttributeProto:
    attr = AttributeProto()
    try:
        attr.ParseFromString(data)
    except Exception as error:  # protobuf's own error, which is not onnx's to import
        raise ValueError("its bytes are no attribute") from error
    return attr


def _empty(proto: onnx.NodeProto, opset: int, name: str) -> int:
    """Returns the type of an attribute that is an empty list."""
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, proto.domain).attributes[name]
    except (onnx.defs.SchemaError, KeyError):
        return int(AttributeProto.INTS)
    return int(AttributeProto.AttributeType.Value(str(schema.type).rpartition(".")[2]))
