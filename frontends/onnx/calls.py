"""Calls of functions, made ready to be written out: each of a copy that has the call's attributes.

What is written out is of the model's operator sets. An operator that is another one in those of its
function is marked with its own, by which it is read.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

import onnx

from .functions import DEEPEST, DOMAIN, key_of
from .op import held_graphs

OLDEST = 7
"""The oldest operator set that is read."""
OPSET = "qir.opset"
"""The note of a node that says of which operator set it is."""
_CHANGED = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "GroupNormalization": 21}
_CHANGED |= {"Resize": 11, "Upsample": 9, "RoiAlign": 16}
"""Operators to which an operator set gave another meaning, and that set."""
_Key = tuple[str, str, str]


def bind(proto: onnx.ModelProto, kept: Container[str], most: int) -> None:
    """Gives each call a function without attributes; raises ValueError where a function cannot be
    read.

    What it does not give is the function's default, and what is neither is the operator's own. The
    copies have at most so many bytes.
    """
    calls = _Calls(proto, kept, most)
    calls.nodes(proto.graph.node, calls.opsets, None, ())
    held = [f for f in proto.functions if f.domain == DOMAIN and f.name in kept]
    copies = [onnx.FunctionProto.FromString(f.SerializeToString()) for f in held] + calls.copies
    del proto.functions[:]
    proto.functions.extend(copies)
    del proto.opset_import[:]
    imports = [onnx.helper.make_opsetid(d, v) for d, v in calls.opsets.items()]
    proto.opset_import.extend(imports)
    for function in proto.functions:
        del function.opset_import[:]
        function.opset_import.extend(imports)


def opset(node: onnx.NodeProto) -> int:
    """Returns the operator set that an operator is marked with; 0 where it is of the model's."""
    return next((int(p.value) for p in node.metadata_props if p.key == OPSET), 0)


def strange(graph: onnx.GraphProto, version: int) -> str:
    """Returns an operator in a graph that is of another set than what holds it; the marks are taken
    off."""
    found = ""
    for node in graph.node:
        marked = opset(node)
        _unmark(node)
        inner = [strange(g, version) for a in node.attribute for g in held_graphs(a)]
        if marked not in (0, version):
            found = found or f"{node.op_type} of opset {marked}"
        found = found or next(filter(None, inner), "")
    return found


class _Calls:
    """The functions of a model, and the copies that its calls need."""

    def __init__(self, proto: onnx.ModelProto, kept: Container[str], most: int) -> None:
        self.functions = {key_of(f.domain, f.name, f.overload): f for f in proto.functions}
        self.kept = kept
        self.room = most
        self.opsets = _opsets(proto.opset_import)
        self.copies: list[onnx.FunctionProto] = []
        self.made: dict[tuple[_Key, tuple[bytes, ...]], str] = {}

    def nodes(
        self,
        nodes: Iterable[onnx.NodeProto],
        opsets: Mapping[str, int],
        given: Mapping[str, onnx.AttributeProto] | None,
        within: tuple[_Key, ...],
    ) -> None:
        """Binds what nodes of these operator sets call, in a function that is given attributes."""
        for node in nodes:
            _unmark(node)
            if node.attribute:
                self.attributes(node, opsets, given, within)
            key = key_of(node.domain, node.op_type, node.overload)
            if key[0] == DOMAIN and key[1] in self.kept:
                continue
            if key not in self.functions:
                self.mark(node, key[0], opsets, within)
                continue
            node.op_type = self.copy(key, node.attribute, within)
            node.overload = ""
            del node.attribute[:]

    def attributes(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        given: Mapping[str, onnx.AttributeProto] | None,
        within: tuple[_Key, ...],
    ) -> None:
        """Puts what is given in place of references."""
        for i in reversed(range(len(node.attribute))):
            attribute = node.attribute[i]
            if given is None or not attribute.ref_attr_name:
                for graph in held_graphs(attribute):
                    self.nodes(graph.node, opsets, given, within)
                continue
            found, name = given.get(attribute.ref_attr_name), attribute.name
            if found is None:
                del node.attribute[i]
                continue
            attribute.CopyFrom(found)
            attribute.name = name
            self.take(attribute.ByteSize())

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise ValueError("with the attributes of each call they hold more than 2 GiB")

    def mark(
        self, node: onnx.NodeProto, domain: str, opsets: Mapping[str, int], within: tuple[_Key, ...]
    ) -> None:
        """Marks an operator that is another one in the model's operator set."""
        version = opsets.get(domain)
        if version is None or not within:
            return
        if not 0 < version < 1 << 31:
            raise ValueError(f"{within[-1][1]!r} imports version {version} of {domain!r}")
        kind, ours = node.op_type, self.opsets.setdefault(domain, version)
        if ours == version or _same(kind, ours, version, domain):
            return
        newest = onnx.defs.onnx_opset_version()
        said = f"{within[-1][1]!r} has {kind} of opset {version}"
        if not domain and not OLDEST <= version <= newest:
            raise ValueError(f"{said}; {OLDEST} to {newest} are read")
        if not domain and _otherwise(
            kind, ours, version, frozenset(a.name for a in node.attribute)
        ):
            raise ValueError(f"{said}, which means otherwise in {ours}, the model's own")
        node.metadata_props.add(key=OPSET, value=str(version))

    def copy(
        self, key: _Key, attributes: Iterable[onnx.AttributeProto], within: tuple[_Key, ...]
    ) -> str:
        """Returns the name of the function that a call with these attributes becomes a call of."""
        function = self.functions[key]
        if key in within:
            raise ValueError(f"{key[1]!r} is recursive")
        if len(within) >= DEEPEST:
            raise ValueError(f"more than {DEEPEST} calls are in one another")
        own = {a.name: a for a in attributes}
        said = sorted(a.SerializeToString(deterministic=True) for a in own.values())
        given = {**{a.name: a for a in function.attribute_proto}, **own}
        known = key, tuple(said)
        if known not in self.made:
            self.take(function.ByteSize())
            made = onnx.FunctionProto()
            made.CopyFrom(function)
            del made.attribute[:]
            del made.attribute_proto[:]
            self.nodes(made.node, _opsets(made.opset_import), given, (*within, key))
            made.overload = ""
            made.name = f"{key[1]}.{len(self.copies)}"
            self.copies.append(made)
            self.made[known] = made.name
        return self.made[known]


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if i.domain == "ai.onnx" else i.domain: i.version for i in imports}


def _unmark(node: onnx.NodeProto) -> None:
    for i in reversed(range(len(node.metadata_props))):
        if node.metadata_props[i].key == OPSET:
            del node.metadata_props[i]


@lru_cache(1024)
def _same(name: str, opset: int, other: int, domain: str) -> bool:
    """Returns whether an operator is the same in two sets: the types that it takes may have become
    more."""
    try:
        forms = [onnx.defs.get_schema(name, each, domain) for each in (opset, other)]
    except onnx.defs.SchemaError:
        return False
    if len({form.since_version for form in forms}) == 1:
        return True
    parts = [(_defaults(f), *(_operands(p) for p in (f.inputs, f.outputs))) for f in forms]
    return parts[0] == parts[1] and not _changed(name, opset, other)


@lru_cache(1024)
def _otherwise(name: str, opset: int, other: int, given: frozenset[str]) -> bool:
    """Returns whether runtimes that take an operator by either set compute different numbers."""
    if _changed(name, opset, other):
        return True
    try:
        first, second = (_defaults(onnx.defs.get_schema(name, each)) for each in (opset, other))
    except onnx.defs.SchemaError:
        return False
    return any(first[n] != second[n] for n in (first.keys() & second.keys()) - given)


def _changed(name: str, opset: int, other: int) -> bool:
    return min(opset, other) < _CHANGED.get(name, 0) <= max(opset, other)


def _defaults(form: onnx.defs.OpSchema) -> dict[str, bytes]:
    return {n: a.default_value.SerializeToString() for n, a in form.attributes.items()}


def _operands(held: Iterable[onnx.defs.OpSchema.FormalParameter]) -> list[tuple[str, str]]:
    return [(part.name, str(part.option)) for part in held]
