"""`qir why-not`: whether a pattern matches at a node, or the first condition that failed."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Screen, plural

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.ir.node import Node
    from qir.rewrite.why import WhyNot


@shared.verb(
    "qir why-not model.onnx conv1 'relu(conv2d(%x, %w, bias=maybe %b))'",
    "qir why-not model.onnx norm2 'relu|clip(batch_norm(conv2d(%x, %w), ...))' --json",
    "qir why-not model.onnx classes 'softmax(gemm(%x, %w, ...) where (trans_b)) {axis = 1 or -1}'",
)
@shared.model
@click.argument("node")
@click.argument("pattern")
@shared.as_json
@click.pass_context
def why_not(context: click.Context, model: Path, node: str, pattern: str, as_json: bool) -> None:
    """Tell why a pattern does not match at a node.

    The first condition that failed is named, and where. NODE is the name of a value that it makes,
    or the path of one in a body: loop/body/y. It may stand anywhere in the pattern. PATTERN is its
    text, such as 'relu(add(%x, %y))', a file of it that ends in .pattern, or the name of a pattern
    of an installed pass. Ends with status 1 where the pattern does not match.

    --json prints {file, node, pattern, matches, root, nodes, at, reason, text}.
    """
    from qir.rewrite.library import find_pattern
    from qir.rewrite.why import why_not as explain

    wanted = find_pattern(pattern)
    found = explain(wanted, _find(open_model(model), node))
    screen = Screen()
    if as_json:
        screen.json({"file": str(model), "node": node, **_json(found)})
    else:
        _show(screen, found)
    context.exit(0 if found.match is not None else 1)


def _find(graph: Graph, path: str) -> Node:
    """The node that makes a value; UsageError where there is none."""
    from qir.errors import UsageError

    if graph.has(path):
        return graph[path].node
    top = graph.name
    names: list[str] = []
    for where, body in graph.walk():
        inside = where.partition("/")[2]
        for name, value in body.values.items():
            full = f"{inside}/{name}" if inside else name
            if path in (full, f"{top}/{full}"):
                return value.node
            names.append(full)
    near = difflib.get_close_matches(path, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"no node makes a value {path!r}{hint}")


def _json(found: WhyNot) -> dict[str, object]:
    return {
        "pattern": found.pattern.name,
        "matches": found.match is not None,
        "root": found.root.name if found.root else None,
        "nodes": [n.name for n in found.match.nodes] if found.match else [],
        "at": found.at.name if found.at else None,
        "reason": found.reason,
        "text": str(found.pattern),
    }


def _show(screen: Screen, found: WhyNot) -> None:
    screen.line(str(found), "green" if found.match is not None else "yellow")
    if found.match is not None:
        names = ", ".join(node.name for node in found.match.nodes)
        screen.line(f"  {plural(len(found.match.nodes), 'node')}: {names}")
    elif found.at is not None:
        screen.line(f"  {found.at!r}", "dim")
    if found.match is None and found.met:
        screen.line(f"  {plural(found.met, 'part')} of the pattern met before that", "dim")
