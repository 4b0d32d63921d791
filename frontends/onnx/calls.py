"""Prepares local functions for inlining: each call gets a copy with the call's attributes.

ONNX's inliner moves operators of a function into the model, whose operator sets may differ from
those that the function imports. An operator that means something else in the model's set is marked
with its own version, by which it is read.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

import onnx

from .functions import MAX_CALL_DEPTH, QIR_DOMAIN, function_key
from .op import subgraphs_of

OLDEST_OPSET = 7
"""The oldest operator set that is supported."""
OPSET_PROPERTY = "qir.opset"
"""The metadata property of a node that has its operator set."""
_MEANING_CHANGED_IN = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "GroupNormalization": 21}
_MEANING_CHANGED_IN |= {"Resize": 11, "Upsample": 9, "RoiAlign": 16}
"""Operators whose meaning an operator set changed, and the first such set."""
_Key = tuple[str, str, str]


def specialize_calls(
    proto: onnx.ModelProto, quant_functions: Container[str], max_bytes: int
) -> None:
    """Replaces each call by a call without attributes, of a copy in which they are resolved.

    A missing attribute is the function's default, else that of the operator which refers to it.
    `max_bytes` limits the bytes of all copies. Raises ValueError for a function that cannot be
    read.
    """
    calls = _CallSpecializer(proto, quant_functions, max_bytes)
    calls.specialize_nodes(proto.graph.node, calls.opsets, None, ())
    quant_protos = [
        f for f in proto.functions if f.domain == QIR_DOMAIN and f.name in quant_functions
    ]
    copies = [
        onnx.FunctionProto.FromString(f.SerializeToString()) for f in quant_protos
    ] + calls.copies
    del proto.functions[:]
    proto.functions.extend(copies)
    del proto.opset_import[:]
    imports = [onnx.helper.make_opsetid(d, v) for d, v in calls.opsets.items()]
    proto.opset_import.extend(imports)
    # All operators count as ones of the model now; the others are marked.
    for function in proto.functions:
        del function.opset_import[:]
        function.opset_import.extend(imports)


def marked_opset(node: onnx.NodeProto) -> int:
    """Returns the operator set that an operator is marked with; 0 for the model's."""
    return next((int(p.value) for p in node.metadata_props if p.key == OPSET_PROPERTY), 0)


def unmark_and_find_other_opset(graph: onnx.GraphProto, version: int) -> str:
    """Removes the marks in a graph; returns an operator of another set than `version`, if any."""
    other = ""
    for node in graph.node:
        marked = marked_opset(node)
        _unmark(node)
        inner_operators = [
            unmark_and_find_other_opset(g, version) for a in node.attribute for g in subgraphs_of(a)
        ]
        if marked not in (0, version):
            other = other or f"{node.op_type} of opset {marked}"
        other = other or next(filter(None, inner_operators), "")
    return other


class _CallSpecializer:
    """The functions of a model, and the specialized copies that its calls need."""

    def __init__(
        self, proto: onnx.ModelProto, quant_functions: Container[str], max_bytes: int
    ) -> None:
        self.functions = {function_key(f.domain, f.name, f.overload): f for f in proto.functions}
        self.kept_functions = quant_functions
        self.bytes_left = max_bytes
        self.opsets = _opsets(proto.opset_import)
        self.copies: list[onnx.FunctionProto] = []
        self.copy_names: dict[tuple[_Key, tuple[bytes, ...]], str] = {}

    def specialize_nodes(
        self,
        nodes: Iterable[onnx.NodeProto],
        opsets: Mapping[str, int],
        call_attributes: Mapping[str, onnx.AttributeProto] | None,
        callers: tuple[_Key, ...],
    ) -> None:
        """Specializes the calls among nodes of a function.

        `call_attributes` are the attributes of its call.
        """
        for node in nodes:
            _unmark(node)
            if node.attribute:
                self.resolve_attributes(node, opsets, call_attributes, callers)
            key = function_key(node.domain, node.op_type, node.overload)
            # Functions of QIR are read as quantize and dequantize, and never inlined.
            if key[0] == QIR_DOMAIN and key[1] in self.kept_functions:
                continue
            if key not in self.functions:
                self.mark_opset(node, key[0], opsets, callers)
                continue
            node.op_type = self.specialized_copy(key, node.attribute, callers)
            # The attributes are in the copy now; the inliner would look for them in the function.
            node.overload = ""
            del node.attribute[:]

    def resolve_attributes(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        call_attributes: Mapping[str, onnx.AttributeProto] | None,
        callers: tuple[_Key, ...],
    ) -> None:
        """Replaces references to attributes of the function by what the call gives."""
        # In reverse, because absent optional attributes are deleted while walking.
        for i in reversed(range(len(node.attribute))):
            attribute = node.attribute[i]
            if call_attributes is None or not attribute.ref_attr_name:
                for graph in subgraphs_of(attribute):
                    self.specialize_nodes(graph.node, opsets, call_attributes, callers)
                continue
            value, name = call_attributes.get(attribute.ref_attr_name), attribute.name
            # The call gives no value and the function has no default: the operator's default
            # applies.
            if value is None:
                del node.attribute[i]
                continue
            attribute.CopyFrom(value)
            attribute.name = name
            self.take_bytes(attribute.ByteSize())

    def take_bytes(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise ValueError("with the attributes of each call they hold more than 2 GiB")

    def mark_opset(
        self,
        node: onnx.NodeProto,
        domain: str,
        opsets: Mapping[str, int],
        callers: tuple[_Key, ...],
    ) -> None:
        """Marks an operator whose form in the model's operator set is a different one."""
        version = opsets.get(domain)
        # Operators of the model itself are of its own operator set.
        if version is None or not callers:
            return
        if not 0 < version < 1 << 31:
            raise ValueError(f"{callers[-1][1]!r} imports version {version} of {domain!r}")
        # A domain that only functions use is imported by the model at the first version met.
        op_type, model_version = node.op_type, self.opsets.setdefault(domain, version)
        if model_version == version or _is_same_operator(op_type, model_version, version, domain):
            return
        newest = onnx.defs.onnx_opset_version()
        message = f"{callers[-1][1]!r} has {op_type} of opset {version}"
        if not domain and not OLDEST_OPSET <= version <= newest:
            raise ValueError(f"{message}; {OLDEST_OPSET} to {newest} are read")
        if not domain and _computes_differently(
            op_type, model_version, version, frozenset(a.name for a in node.attribute)
        ):
            raise ValueError(
                f"{message}, which means otherwise in {model_version}, the model's own"
            )
        node.metadata_props.add(key=OPSET_PROPERTY, value=str(version))

    def specialized_copy(
        self, key: _Key, attributes: Iterable[onnx.AttributeProto], callers: tuple[_Key, ...]
    ) -> str:
        """Returns the name of the copy for a call with these attributes; equal calls share one."""
        function = self.functions[key]
        if key in callers:
            raise ValueError(f"{key[1]!r} is recursive")
        # ONNX's inliner recurses as deep as calls are nested.
        if len(callers) >= MAX_CALL_DEPTH:
            raise ValueError(f"more than {MAX_CALL_DEPTH} calls are in one another")
        stated = {a.name: a for a in attributes}
        # Sorted, so that calls share a copy whatever the order of their attributes.
        serialized = sorted(a.SerializeToString(deterministic=True) for a in stated.values())
        call_attributes = {**{a.name: a for a in function.attribute_proto}, **stated}
        copy_key = key, tuple(serialized)
        if copy_key not in self.copy_names:
            self.take_bytes(function.ByteSize())
            copy = onnx.FunctionProto()
            copy.CopyFrom(function)
            del copy.attribute[:]
            del copy.attribute_proto[:]
            self.specialize_nodes(
                copy.node, _opsets(copy.opset_import), call_attributes, (*callers, key)
            )
            copy.overload = ""
            copy.name = f"{key[1]}.{len(self.copies)}"
            self.copies.append(copy)
            self.copy_names[copy_key] = copy.name
        return self.copy_names[copy_key]


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if i.domain == "ai.onnx" else i.domain: i.version for i in imports}


def _unmark(node: onnx.NodeProto) -> None:
    for i in reversed(range(len(node.metadata_props))):
        if node.metadata_props[i].key == OPSET_PROPERTY:
            del node.metadata_props[i]


@lru_cache(1024)
def _is_same_operator(name: str, opset: int, other: int, domain: str) -> bool:
    """Returns whether an operator has one form in two sets, but for more element types."""
    try:
        forms = [onnx.defs.get_schema(name, version, domain) for version in (opset, other)]
    except onnx.defs.SchemaError:
        return False
    # The same schema applies to both versions.
    if len({form.since_version for form in forms}) == 1:
        return True
    parts = [(_defaults(f), *(_formal_parameters(p) for p in (f.inputs, f.outputs))) for f in forms]
    return parts[0] == parts[1] and not _has_changed_meaning(name, opset, other)


@lru_cache(1024)
def _computes_differently(
    name: str, opset: int, other: int, attribute_names: frozenset[str]
) -> bool:
    """Returns whether an operator computes different results by the two sets.

    A changed default of an attribute that the node does not give counts.
    """
    if _has_changed_meaning(name, opset, other):
        return True
    try:
        first, second = (
            _defaults(onnx.defs.get_schema(name, version)) for version in (opset, other)
        )
    except onnx.defs.SchemaError:
        return False
    return any(first[n] != second[n] for n in (first.keys() & second.keys()) - attribute_names)


def _has_changed_meaning(name: str, opset: int, other: int) -> bool:
    return min(opset, other) < _MEANING_CHANGED_IN.get(name, 0) <= max(opset, other)


def _defaults(form: onnx.defs.OpSchema) -> dict[str, bytes]:
    return {n: a.default_value.SerializeToString() for n, a in form.attributes.items()}


def _formal_parameters(
    parameters: Iterable[onnx.defs.OpSchema.FormalParameter],
) -> list[tuple[str, str]]:
    return [(parameter.name, str(parameter.option)) for parameter in parameters]
