"""`qir query`: nodes or values of a model that an expression describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Column, Screen, plural
from qir.cli.words import scale, shape, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qir.ir.node import Value
    from qir.query.query import QueryMatch


@shared.verb(
    "qir query model.onnx 'op == \"conv2d\" and has(bias) and result.uses > 0'",
    "qir query quantized.onnx 'w.bits == 8 and max(w.scale) > 0.001' --json > wide.json",
    "qir query quantized.onnx 'quantized and not constant and zero == 0' --values",
)
@shared.model
@click.argument("expression")
@click.option("--values", is_flag=True, help="Look for values, and not for nodes.")
@shared.as_json
def query(model: Path, expression: str, values: bool, as_json: bool) -> None:
    """Find nodes or values by an expression.

    Names are facts of a node (op, name, uses, inputs, users, origin.name), its slots (x, w, bias)
    with facts of values (w.bits, x.scale, x.node.op, result.shape), and attributes (stride,
    attr.axis); with --values, facts of a value. There are and, or, not, comparisons, in, sums,
    len(a), any(a, .. it ..), all(a, .. it ..), has(a), matches("glob"), min(a), max(a), sum(a),
    abs(a). What is not there makes a comparison false; a list compared with a number holds where
    each of its elements does.

    --json prints {file, expression, nodes: [{name, op, stages, path, operands, results: [{name,
    type}], origin}]}, or, with --values, {file, expression, values: [{name, type, op, uses}]}.
    """
    graph = open_model(model)
    screen = Screen()
    head = {"file": str(model), "expression": expression}
    if values:
        from qir.query.query import query_values

        found = query_values(graph, expression)
        if as_json:
            screen.json({**head, "values": [_value(value) for value in found]})
        else:
            _show_values(screen, found)
        return
    from qir.query.query import search

    matches = search(graph, expression)
    if as_json:
        screen.json({**head, "nodes": [_node(match) for match in matches]})
    else:
        _show_nodes(screen, matches)


def _value(value: Value) -> dict[str, object]:
    return {
        "name": value.name,
        "type": str(value.type),
        "op": value.node.op,
        "uses": len(value.uses),
    }


def _node(match: QueryMatch) -> dict[str, object]:
    node = match.node
    return {
        "name": node.name,
        "op": node.op,
        "stages": [stage.op for stage in node.stages],
        "path": list(match.path),
        "operands": {slot: value.name for slot, value in node.operands.items()},
        "results": [{"name": v.name, "type": str(v.type)} for v in node.results],
        "origin": str(node.origins[0]) if node.origins else "",
    }


def _show_nodes(screen: Screen, matches: Sequence[QueryMatch]) -> None:
    from qir.inspect.summary import QuantizedStorage, plain_shape, weights_of
    from qir.ir.quantized_ops import stored_quant_type
    from qir.query.display import op_name

    rows = []
    for node, path in matches:
        value = node.results[0] if node.results else None
        quantized = QuantizedStorage.of(stored_quant_type(value)) if value else None
        rows.append(
            (
                "/".join((*path, node.name)),
                op_name(node),
                shape(plain_shape(value.type.shape)) if value else "",
                quantized.storage if quantized else str(value.type.dtype) if value else "",
                scale(quantized),
                weights(weights_of(node)),
                str(node.origins[0]) if node.origins else "",
            )
        )
    columns = (
        Column("name", fit="fold"),
        Column("op", fit="fold"),
        Column("result"),
        Column("holds"),
        Column("scale:zero", fit="drop"),
        Column("weights", fit="drop"),
        Column("from", fit="drop"),
    )
    screen.line(plural(len(rows), "node"), "bold")
    screen.table(columns, rows)


def _show_values(screen: Screen, values: Sequence[Value]) -> None:
    from qir.inspect.summary import InterfaceTensor, QuantizedStorage
    from qir.query.facts import value_quant_type

    rows = []
    for value in values:
        plain = InterfaceTensor.of(value.name, value.type)
        quantized = QuantizedStorage.of(value_quant_type(value))
        uses = f"{len(value.uses):,}"
        kind = plain.dtype
        rows.append(
            (value.name, shape(plain.shape, kind), kind, scale(quantized), value.node.op, uses)
        )
    columns = (
        Column("name", fit="fold"),
        Column("shape"),
        Column("holds"),
        Column("scale:zero"),
        Column("made by", fit="drop"),
        Column("uses", "right"),
    )
    screen.line(plural(len(rows), "value"), "bold")
    screen.table(columns, rows)
