"""Parses and checks a `-symbol.json` file: nodes in topological order, heads, subgraphs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qir.errors import InputError
from qir.json_file import read_json

_MAX_SEARCHED_BYTES = 1 << 28
"""Larger files are not searched for a symbol, which has no weights."""
_MAX_SUBGRAPH_DEPTH = 4
"""Nesting of subgraphs."""
_MAX_SHOWN = 60
"""Characters of a name in errors."""
Entry = tuple[int, int]
"""(node index, result index)."""


def shortened(name: str) -> str:
    """Returns a name, shortened for errors."""
    return name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}..."


@dataclass(frozen=True)
class SymbolNode:
    """An operator, or a variable if `op` is null."""

    op: str
    name: str
    attrs: Mapping[str, str]
    inputs: tuple[Entry, ...]
    subgraphs: tuple[Symbol, ...] = ()
    subgraphs_json: str = ""
    """The subgraphs as JSON text, as the file has them."""

    @property
    def label(self) -> str:
        """The name, shortened for errors."""
        return shortened(self.name)

    @property
    def description(self) -> str:
        """Name and operator, for errors."""
        return f"node {self.label} ({shortened(self.op)})"

    @property
    def is_variable(self) -> bool:
        """Whether this is an input or a parameter."""
        return self.op == "null"


@dataclass(frozen=True)
class Symbol:
    """The nodes in topological order, and the results of the graph."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]

    def counts(self) -> list[int]:
        """Returns, by node, the count of its results up to the last one that is used."""
        result_counts = [1] * len(self.nodes)
        for index, result in (*self.heads, *(e for node in self.nodes for e in node.inputs)):
            result_counts[index] = max(result_counts[index], result + 1)
        return result_counts

    def output_names(self) -> list[str]:
        """Returns the names of the results: MXNet's, unless a node has `__output0__`.

        QIR writes that attribute to keep the names of a graph.
        """
        names: list[str] = []
        for index, result in self.heads:
            node = self.nodes[index]
            is_numbered = sum(index == other for other, _ in self.heads) > 1 or result
            base_name = node.name if node.is_variable else f"{node.name}_output"
            default_name = (
                f"{base_name}{result}" if is_numbered and not node.is_variable else base_name
            )
            names.append(node.attrs.get(f"__output{result}__", default_name))
        return names


def looks_like_symbol(path: Path) -> bool:
    """Returns whether a `.json` file is a symbol, by its name or its keys."""
    if path.name.endswith("-symbol.json"):
        return True
    try:
        if path.stat().st_size > _MAX_SEARCHED_BYTES:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    # The keys of every symbol; parsing large files would take seconds.
    return b'"nodes"' in content and b'"arg_nodes"' in content and b'"heads"' in content


def read_symbol(path: Path) -> Symbol:
    """Returns the symbol in a file; raises InputError with the entry if it is damaged."""
    return _symbol(read_json(path, "MXNet symbol"), str(path), 0)


def _symbol(content: object, location: str, depth: int) -> Symbol:
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise InputError(f"{location}: is no MXNet symbol: it has no list of nodes")
    if depth > _MAX_SUBGRAPH_DEPTH:
        raise InputError(f"{location}: subgraphs are more than {_MAX_SUBGRAPH_DEPTH} deep")
    nodes: list[SymbolNode] = []
    variables: set[str] = set()
    for index, entry in enumerate(content["nodes"]):
        node = _node(entry, f"{location}: node {index}", index, depth)
        if node.is_variable:
            if node.name in variables:
                raise InputError(f"{location}: node {index}: a second variable named {node.label}")
            variables.add(node.name)
        nodes.append(node)
    heads = _entries(content.get("heads"), f"{location}: heads", len(nodes))
    if not heads:
        raise InputError(f"{location}: has no heads, so it computes nothing")
    return Symbol(tuple(nodes), heads)


def _node(entry: object, position: str, index: int, depth: int) -> SymbolNode:
    if not isinstance(entry, dict):
        raise InputError(f"{position} is no object with op and name")
    op, name = entry.get("op"), entry.get("name")
    if not isinstance(op, str) or not isinstance(name, str):
        raise InputError(f"{position} has no op and name")
    attrs: dict[str, str] = {}
    for key in ("attr", "param", "attrs"):  # MXNet before 0.11 has the first two, later the third
        texts = entry.get(key) or {}
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            raise InputError(f"{position} ({shortened(name)}): its {key} are no texts")
        attrs |= texts
    location = f"{position} ({shortened(name)})"
    inputs = _entries(entry.get("inputs") or [], location, index)
    subgraphs = entry.get("subgraphs") or []
    if not isinstance(subgraphs, list):
        raise InputError(f"{location}: its subgraphs are no list")
    inner_symbols = tuple(_symbol(graph, f"{location}: subgraph", depth + 1) for graph in subgraphs)
    if op == "null" and (inputs or inner_symbols):
        raise InputError(f"{location}: a variable reads nothing")
    return SymbolNode(
        op, name, attrs, inputs, inner_symbols, json.dumps(subgraphs) if inner_symbols else ""
    )


def _entries(references: object, location: str, before: int) -> tuple[Entry, ...]:
    """Returns references to results; `before` is the first node index that they must not name."""
    if not isinstance(references, list):
        raise InputError(f"{location}: a list of references is missing")
    entries: list[Entry] = []
    for item in references:
        has_form = isinstance(item, list) and 2 <= len(item) <= 3
        if not has_form or not all(type(part) is int and part >= 0 for part in item):
            raise InputError(
                f"{location}: {str(item)[:40]} is no reference [node, result, version]"
            )
        if item[0] >= before:
            message = "does not come before it: the graph has a cycle or is not in order"
            raise InputError(f"{location}: reads node {item[0]}, which {message}")
        if item[1] >= 1 << 16:
            raise InputError(f"{location}: asks for result {item[1]} of node {item[0]}")
        entries.append((item[0], item[1]))
    return tuple(entries)
