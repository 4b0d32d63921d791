"""A graph for other tools: DOT, GraphML, Mermaid and JSON, with storage to be seen in each.

Constants are drawn with their readers in DOT and Mermaid, and are nodes in GraphML and JSON.
Bodies are clusters of their own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from xml.sax.saxutils import escape

from qir.inspect.summary import QuantizedStorage, plain_shape
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import GraphLike, Node, Value
from qir.ir.types import Array
from qir.query.display import element, family, node_family, op_name, shape, storage

VERSION = 1
Colours: TypeAlias = Mapping[str, tuple[str, str]]
COLOURS: Colours = {
    "int4": ("#c7ece6", "#2f8f83"),
    "int8": ("#d3efd0", "#3f8f3a"),
    "int16": ("#d6e6fa", "#3a6fb0"),
    "int32": ("#dfe1f7", "#5a5fb5"),
    "float8": ("#ecd9f5", "#8a4bab"),
    "float16": ("#fbe8c8", "#b57f1e"),
    "float32": ("#f4f4f4", "#8a8a8a"),
    "other": ("#ffffff", "#b0b0b0"),
}
"""Fill and border of each storage family."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A node that is drawn, its name in the drawing, and the lines on it."""

    node: Node
    key: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The nodes and lines of one graph, and the drawings of bodies."""

    title: str
    nodes: tuple[_Drawn, ...]
    edges: tuple[tuple[str, str, str], ...]
    """From, to, and what goes along."""
    bodies: tuple[_Drawing, ...]


def _draw(graph: GraphLike, title: str, prefix: str = "n") -> _Drawing:
    keys: dict[Node, str] = {}
    drawn: list[_Drawn] = []
    edges: list[tuple[str, str, str]] = []
    bodies: list[_Drawing] = []
    for i, node in enumerate(graph):
        if node.op == "constant":
            continue
        # Mermaid and DOT ids: names of values may hold anything.
        keys[node] = key = f"{prefix}{i}"
        drawn.append(_Drawn(node, key, tuple(_lines(node))))
        for slot, value in node.operands.items():
            if value.node in keys:
                edges.append((keys[value.node], key, f"{slot}  {shape(value.type)}"))
        for name, body in node.bodies.items():
            bodies.append(_draw(body, f"{node.name} {name}", f"{key}_{len(bodies)}_"))
    return _Drawing(title, tuple(drawn), tuple(edges), tuple(bodies))


def _lines(node: Node) -> Iterator[str]:
    yield op_name(node)
    if node.results and node.name != node.op:
        yield node.name
    if node.op == "output":
        return
    for value in node.results[:1]:
        yield f"{shape(value.type)} {element(value)}"
    for slot, value in node.operands.items():
        if value.node.op == "constant":
            yield f"{slot}: {shape(value.type)} {element(value)}"


# -- DOT --------------------------------------------------------------------------------------


def to_dot(graph: GraphLike) -> str:
    """Returns the graph in Graphviz's language."""
    lines = [
        f"digraph {_dot(graph.name)} {{",
        "  rankdir=TB;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8, color="#808080"];',
        *_dot_body(_draw(graph, graph.name), "  "),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_body(drawing: _Drawing, indent: str) -> Iterator[str]:
    for node in drawing.nodes:
        fill, border = COLOURS[node_family(node.node)]
        label = _dot("\n".join(node.lines))
        yield f'{indent}{node.key} [label={label}, fillcolor="{fill}", color="{border}"];'
    for start, end, label in drawing.edges:
        yield f"{indent}{start} -> {end} [label={_dot(label)}];"
    for body in drawing.bodies:
        yield f"{indent}subgraph cluster_{body.nodes[0].key if body.nodes else 'none'} {{"
        yield f"{indent}  label={_dot(body.title)};"
        yield from _dot_body(body, indent + "  ")
        yield f"{indent}}}"


def _dot(text: str) -> str:
    """Returns a quoted text; a line's end stays one."""
    lines = (
        printable(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
        for line in text.split("\n")
    )
    return '"' + "\\n".join(lines) + '"'


def printable(text: str) -> str:
    """Returns the text with everything that is no letter, mark or blank spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# -- Mermaid ----------------------------------------------------------------------------------


def to_mermaid(graph: GraphLike) -> str:
    """Returns the graph as a Mermaid flowchart, for pages that draw such."""
    drawing = _draw(graph, graph.name)
    lines = ["flowchart TD", *_mermaid_body(drawing, "  ")]
    used = {node_family(node.node) for node in _all_nodes(drawing)}
    for name, (fill, border) in COLOURS.items():
        if name in used:
            lines.append(f"  classDef {name} fill:{fill},stroke:{border},color:#000")
    return "\n".join(lines) + "\n"


def _all_nodes(drawing: _Drawing) -> Iterator[_Drawn]:
    yield from drawing.nodes
    for body in drawing.bodies:
        yield from _all_nodes(body)


def _mermaid_body(drawing: _Drawing, indent: str) -> Iterator[str]:
    for node in drawing.nodes:
        label = "<br/>".join(map(_mermaid, node.lines))
        yield f'{indent}{node.key}["{label}"]:::{node_family(node.node)}'
    for start, end, label in drawing.edges:
        yield f'{indent}{start} -->|"{_mermaid(label)}"| {end}'
    for i, body in enumerate(drawing.bodies):
        key = f"{body.nodes[0].key}g" if body.nodes else f"g{i}"
        yield f'{indent}subgraph {key}["{_mermaid(body.title)}"]'
        yield from _mermaid_body(body, indent + "  ")
        yield f"{indent}end"


_PLAIN = re.compile(r"[\w .,:/|+=-]", re.ASCII)


def _mermaid(text: str) -> str:
    """Returns what Mermaid could take for its own is written as a number: `#34;` is a quote."""
    return "".join(
        c if _PLAIN.match(c) or (c.isalpha() and ord(c) > 127) else f"#{ord(c)};"
        for c in printable(text)
    )


# -- GraphML ----------------------------------------------------------------------------------


_KEYS = {
    "graph": ("name", "profile"),
    "node": ("name", "op", "path", "type", "storage", "attributes", "origin", "colour"),
    "edge": ("slot", "value", "type", "storage"),
}


def to_graphml(graph: GraphLike) -> str:
    """Returns the graph in GraphML; networkx reads it, and every use is an edge with its slot."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
    ]
    for kind, names in _KEYS.items():
        for name in names:
            ids = f'id="{kind}.{name}" for="{kind}"'
            lines.append(f'  <key {ids} attr.name="{name}" attr.type="string"/>')
    lines.append('  <graph edgedefault="directed">')
    lines += _data("graph", (graph.name, graph.profile))
    lines += _graphml_body(graph, "n", "")
    return "\n".join([*lines, "  </graph>", "</graphml>"]) + "\n"


def _data(kind: str, texts: Iterable[str]) -> Iterator[str]:
    for name, text in zip(_KEYS[kind], texts, strict=True):
        if text:
            yield f'    <data key="{kind}.{name}">{_xml(text)}</data>'


def _graphml_body(graph: GraphLike, prefix: str, path: str) -> Iterator[str]:
    keys: dict[Node, str] = {}
    for i, node in enumerate(graph):
        keys[node] = key = f"{prefix}{i}"
        fill, _ = COLOURS[node_family(node)]
        yield f'    <node id="{key}">'
        texts = (
            node.name,
            op_name(node),
            path,
            ", ".join(str(v.type) for v in node.results),
            ", ".join(str(storage(v)) for v in node.results),
            ", ".join(f"{n} = {_attr_text(v)}" for n, v in node.attrs.items()),
            str(node.origins[0]) if node.origins else "",
            fill,
        )
        yield from _data("node", texts)
        yield "    </node>"
        for number, (slot, value) in enumerate(node.operands.items()):
            ends = f'id="{key}.{number}" source="{keys[value.node]}" target="{key}"'
            yield f"    <edge {ends}>"
            yield from _data("edge", (slot, value.name, str(value.type), str(storage(value))))
            yield "    </edge>"
        for number, (name, body) in enumerate(node.bodies.items()):
            inner = f"{path}/{node.name}/{name}" if path else f"{node.name}/{name}"
            yield from _graphml_body(body, f"{key}_{number}_", inner)


def _attr_text(value: Attr) -> str:
    if isinstance(value, Array):
        return f"{shape(value.type)} {value.type.dtype}"
    return value.hex() if isinstance(value, bytes) else str(value)


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """Text that XML takes for nothing else; letters that it cannot hold are spelled out."""
    spelled = _NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return escape(spelled, {"\r": "&#13;"})


# -- JSON -------------------------------------------------------------------------------------


def to_json(graph: GraphLike) -> dict[str, object]:
    """Returns the graph as JSON takes it: nodes in order, with operands and results by name.

    Elements of constants are left out; they have their content hash.
    """
    return {"format": "qir-graph", "version": VERSION, **_json_body(graph)}


def _json_body(graph: GraphLike) -> dict[str, object]:
    return {
        "name": graph.name,
        "profile": graph.profile,
        "inputs": [value.name for value in graph.inputs],
        "outputs": {
            n: v.name for node in graph if node.op == "output" for n, v in node.operands.items()
        },
        "nodes": [_json_node(node) for node in graph if node.op != "output"],
    }


def _json_node(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "op": node.op,
        "attributes": {name: _json_attr(value) for name, value in node.attrs.items()},
        "operands": {slot: value.name for slot, value in node.operands.items()},
        "results": [_json_value(value) for value in node.results],
        "stages": [
            {
                "op": stage.op,
                "attributes": {n: _json_attr(value) for n, value in stage.attrs.items()},
                "slots": list(stage.slots),
                "flow": stage.flow,
                "type": str(stage.type) if stage.type else None,
            }
            for stage in node.stages
        ],
        "profile": node.profile,
        "plans": {slot: str(scheme) for slot, scheme in node.schemes.items()},
        "origins": [str(origin) for origin in node.origins],
        "bodies": {name: _json_body(body) for name, body in node.bodies.items()},
    }


def _json_value(value: Value) -> dict[str, object]:
    quantized_storage = QuantizedStorage.of(value.type.quant)
    return {
        "name": value.name,
        "type": str(value.type),
        "shape": list(plain_shape(value.type.shape)),
        "dtype": str(value.type.dtype),
        "express": str(value.type.express),
        "family": family(storage(value)),
        "codes": _json_codes(quantized_storage) if quantized_storage else None,
        "tensor": value.lineage.tensor,
        "how": list(value.lineage.how),
    }


def _json_codes(codes: QuantizedStorage) -> dict[str, object]:
    return {
        "storage": codes.storage,
        "scale": [_json_attr(number) for number in codes.scale],
        "zero": [_json_attr(number) for number in codes.zero],
        "axis": codes.axis,
    }


def _json_attr(value: Attr) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return {"bytes": value.hex()}
        case DType():
            return {"dtype": value.name}
        case Array():
            kind = str(value.type)
            return {"array": value.name, "type": kind, "hash": value.digest}
        case tuple():
            return [_json_attr(item) for item in value]
    return value


def _json_text(graph: GraphLike) -> str:
    """Returns the JSON as a text that a file holds: halves of letters are spelled out as JSON
    does."""
    text = json.dumps(to_json(graph), indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace").decode() + "\n"


FORMATS: Mapping[str, Callable[[GraphLike], str]] = {
    "dot": to_dot,
    "graphml": to_graphml,
    "json": _json_text,
    "mermaid": to_mermaid,
}
"""The writers by the names of their formats."""
