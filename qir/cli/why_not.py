"""`qir why-not`: whether a pattern matches at a node, or the first condition that failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Screen, plural

if TYPE_CHECKING:
    from qir.rewrite.patterns.conditions import PassReport
    from qir.rewrite.patterns.mismatch import WhyNot


@shared.verb(
    "qir why-not model.onnx conv1 'relu(conv2d(%x, %w, bias=maybe %b))'",
    "qir why-not model.onnx norm2 fold-batch-norm --json",
    "qir why-not model.onnx classes 'softmax(gemm(%x, %w, ...) where (trans_b)) {axis = 1 or -1}'",
)
@shared.model
@click.argument("node")
@click.argument("pattern")
@shared.as_json
@click.pass_context
def why_not(context: click.Context, model: Path, node: str, pattern: str, as_json: bool) -> None:
    """Show why a pattern does not match at a node.

    Names the first condition that failed, and where. NODE is the name of one of its values, or the
    path of one in a body: loop/body/y; it may be any node of the pattern. PATTERN is its text, such
    as 'relu(add(%x, %y))', a file that holds it and ends in .pattern, or the name of a pattern of
    an installed pass. If a pass is named, such as recover, all its patterns are tried, and the one
    that came nearest is shown. Some passes written in Python explain themselves too:
    fold-batch-norm. Ends with status 1 if nothing matches.

    --json prints {file, node, pattern, matches, root, nodes, at, reason, text}.
    """
    from qir.workflows import explain_match

    explanation = explain_match(open_model(model), node, pattern)
    screen, nearest = Screen(), explanation.match
    if as_json:
        found = _json(nearest) if nearest is not None else _place_json(explanation.reports[0])
        screen.json({"file": str(model), "node": node, **found})
    elif nearest is None:
        _show_places(screen, explanation.reports)
    else:
        _show(screen, nearest)
        if not explanation.matches and explanation.tried > 1:
            others = plural(explanation.tried - 1, "other pattern")
            screen.line(f"  of {pattern} it came nearest; {others} tried too", "dim")
    # As `grep` ends: a script asks whether it matches.
    context.exit(0 if explanation.matches else 1)


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


def _place_json(report: PassReport) -> dict[str, object]:
    hindrance = report.hindrance
    return {
        "pattern": report.name,
        "matches": hindrance is None,
        "root": report.root.name if report.root else None,
        "nodes": [report.root.name] if report.root and hindrance is None else [],
        "at": hindrance.at.name if hindrance else None,
        "reason": hindrance.reason if hindrance else "",
        "text": str(report.place),
    }


def _show_places(screen: Screen, reports: Sequence[PassReport]) -> None:
    for one in reports:
        screen.line(str(one), "green" if one.hindrance is None else "yellow")
        screen.line(f"  {one.place}", "dim")
        if one.hindrance is not None and one.hindrance.met > 0:
            screen.line(f"  {plural(one.hindrance.met, 'condition')} held before that", "dim")


def _show(screen: Screen, found: WhyNot) -> None:
    screen.line(str(found), "green" if found.match is not None else "yellow")
    if found.match is not None:
        names = ", ".join(node.name for node in found.match.nodes)
        screen.line(f"  {plural(len(found.match.nodes), 'node')}: {names}")
    elif found.at is not None:
        screen.line(f"  {found.at!r}", "dim")
    if found.match is None and found.met:
        screen.line(f"  {plural(found.met, 'part')} of the pattern met before that", "dim")
