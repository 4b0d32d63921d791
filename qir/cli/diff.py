"""`qir diff`: what differs between two models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Cell, Column, Screen, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qir.ir.diff import Difference, Lone

MOST = 60
"""Rows of one table; --json has all."""


@shared.verb(
    "qir diff model.onnx model.qir",
    "qir diff quantized.onnx again.onnx --json > changes.json",
)
@click.argument("a", type=shared.PATH)
@click.argument("b", type=shared.PATH)
@shared.as_json
@shared.quiet
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, as_json: bool, quiet: bool) -> None:
    """Show what differs between two models.

    Ops are matched by where they came from, then by the tensors they make, then by what they
    compute; then structure, types, scales, zero points, codes and weights are compared. Names of
    inner values and the order of ops are no difference. Ends with status 1 where there is one.

    --json prints {a, b, equal, nodes, matched, graph, changed: [{a, b, op, how, changes: [{what,
    where, a, b, measure}]}], only_a: [{name, op, held_by}], only_b, bodies}.
    """
    from qir.ir.diff import diff as compare

    found = compare(open_model(a), open_model(b))
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json({"a": str(a), "b": str(b), **found.to_json()})
    else:
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        _show(screen, names, found)
    if not found.equal:
        context.exit(1)


def _show(screen: Screen, names: tuple[str, str], found: Difference) -> None:
    count = plural(found.nodes[0], "node")
    if found.equal:
        screen.line(f"{names[0]} and {names[1]}: no difference in {count}", "green")
        return
    screen.line(f"{names[0]} -> {names[1]}", "bold")
    how = ", ".join(f"{number:,} by {kind}" for kind, number in found.matched.items())
    screen.facts(
        {
            "nodes": f"{found.nodes[0]:,} and {found.nodes[1]:,}",
            "matched": f"{len(found.pairs):,}" + (f" ({how})" if how else ""),
            "changed": f"{len(found.changed):,}",
            f"only in {names[0]}": f"{len(found.only_a):,}",
            f"only in {names[1]}": f"{len(found.only_b):,}",
        }
    )
    _show_changes(screen, names, found)
    for name, lone, other in (
        (names[0], found.only_a, names[1]),
        (names[1], found.only_b, names[0]),
    ):
        _show_lone(screen, name, other, lone)
    for path, body in found.bodies.items():
        screen.line()
        _show(screen, (f"{names[0]} {path}", f"{names[1]} {path}"), body)


def _show_changes(screen: Screen, names: tuple[str, str], found: Difference) -> None:
    rows = [("", "", c.what, c.where, c.a, c.b, "") for c in found.graph]
    for pair in found.changed:
        for i, change in enumerate(pair.changes):
            head = (_pair(pair.a, pair.b), pair.op) if i == 0 else ("", "")
            values = (change.a, change.b)
            rows.append((*head, change.what, change.where, *values, change.far))
    columns = (
        Column("node", fit="shorten"),
        Column("op", fit="drop"),
        Column("what"),
        Column("where"),
        Column(names[0], fit="shorten"),
        Column(names[1], fit="shorten"),
        Column("how far", fit="wrap"),
    )
    screen.table(columns, rows[:MOST], title="changed")
    _more(screen, len(rows))


def _pair(a: str, b: str) -> str:
    return a if a == b else f"{a} ~ {b}"


def _show_lone(screen: Screen, name: str, other: str, lone: Sequence[Lone]) -> None:
    columns = (Column("node", fit="shorten"), Column("op"), Column(f"in {other}", fit="wrap"))
    rows = [
        (Cell(n.name), n.op, f"a part of {n.held_by}" if n.held_by else "") for n in lone[:MOST]
    ]
    screen.table(columns, rows, title=f"only in {name}")
    _more(screen, len(lone))


def _more(screen: Screen, count: int) -> None:
    if count > MOST:
        screen.line(f"  and {count - MOST:,} more; --json has all", "dim")
