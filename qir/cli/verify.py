"""`qir verify`: whether a model is well formed, and whether its sums fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.capability import Verdict
    from qir.inspect.overflow import SumRange
    from qir.ir.verify import Finding


@shared.verb(
    "qir verify quantized.onnx",
    "qir verify quantized.onnx --target onnxruntime --overflow",
    "qir verify quantized.onnx --json > findings.json",
)
@shared.model
@click.option("--target", metavar="NAME", help="Also report what this backend does not support.")
@click.option("--overflow", is_flag=True, help="Show the largest possible sums of every product.")
@shared.as_json
@shared.quiet
@click.pass_context
def verify(
    context: click.Context,
    model: Path,
    target: str | None,
    overflow: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check that a model is well formed and consistent.

    Types fit their ops, scales are positive, zero points are in the range of the storage type,
    biases have the scale of their accumulators, tensors that share storage share their parameters,
    and no 32-bit sum can overflow; docs/reference/verify.md lists every rule.

    --target also reports for each op whether a backend computes it in integers. --overflow proves
    from the weights how many bits the sums of each layer need, and where 16-bit sums of pairs, as
    on CPUs without VNNI, can saturate. Ends with status 1 if there is an error or a warning; notes,
    and pairs that can saturate, do not count.

    --json prints {file, target, nodes, rules, findings: [{rule, severity, node, message, origin,
    slot, value, path}], sums: [{node, op, depth, least, greatest, channel, static, pairs, why,
    slot, path, origin, bits, headroom, wraps}], ops: [{node, op, taken, reason, path, origin,
    defect}]};
    sums are null without --overflow, ops without --target.
    """
    from dataclasses import asdict

    from qir.inspect.float_sums import float_sums_text
    from qir.ir.verify import RULES
    from qir.workflows.verification import verify_model

    graph = open_model(model)
    outcome = verify_model(graph, target=target, overflow=overflow)
    findings, ops, sums = outcome.findings, outcome.verdicts, outcome.sums
    rules = len(RULES) + (target is not None)
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "target": target,
                "nodes": sum(len(part) for _, part in graph.walk()),
                "rules": rules,
                "findings": [asdict(f) for f in findings],
                "sums": None if sums is None else [s.to_json() for s in sums],
                "ops": None if ops is None else [asdict(v) for v in ops],
            }
        )
    else:
        if findings:
            show_findings(screen, model.name, findings)
        else:
            nodes = sum(len(part) for _, part in graph.walk())
            scope = f"{plural(nodes, 'node')}, {plural(rules, 'rule')}"
            screen.line(f"{model.name}: no findings in {scope}", "green")
        if ops is not None and target is not None:
            show_ops(screen, target, ops)
            if outcome.float_sums:
                screen.line(float_sums_text(outcome.float_sums, target))
        if sums is not None:
            show_sums(screen, sums)
    # Notes are of what is allowed; a script that checks a model must not fail on them.
    if any(f.severity != "note" for f in findings):
        context.exit(1)


def show_findings(screen: Screen, name: str, found: Sequence[Finding]) -> None:
    """Prints every finding in a table, their number above it."""
    styles = {"error": "red", "warning": "yellow", "note": ""}
    rows = [
        (
            StyledText(f.severity, styles[f.severity]),
            f.path if "/" in f.path else "",
            f.node,
            f.message,
            f.rule,
        )
        for f in found
    ]
    columns = (
        Column(""),
        Column("in", fit="fold"),
        Column("node", fit="fold"),
        Column("finding", fit="wrap"),
        Column("rule"),
    )
    counts = [(sum(f.severity == word for f in found), word) for word in styles]
    summary = ", ".join(plural(count, word) for count, word in counts if count)
    screen.line(f"{name}: {summary}", "bold")
    screen.table(columns, rows)


def show_ops(screen: Screen, target: str, ops: Sequence[Verdict]) -> None:
    """Prints how many ops a target takes in integers, and why it does not take the others."""
    integer = sum(v.taken == "integer" for v in ops)
    screen.line(f"{target} takes {integer:,} of {plural(len(ops), 'op')} in integers")
    styles = {"float": "yellow", "refused": "red"}
    rows = [
        (StyledText(v.taken, styles[v.taken]), v.op, v.node, v.reason)
        for v in ops
        # What is taken in integers is counted above and needs no row.
        if v.taken in styles
    ]
    columns = (
        Column(""),
        Column("op", fit="fold"),
        Column("node", fit="fold"),
        Column("why not in integers", fit="wrap"),
    )
    screen.table(columns, rows)


def show_sums(screen: Screen, sums: Sequence[SumRange]) -> None:
    """Prints the bits that the sums of each product need, the worst channel, and the pairs."""
    if not sums:
        screen.line("no op sums quantized products")
        return
    columns = (
        Column("layer", fit="fold"),
        Column("op"),
        Column("terms", "right"),
        Column("worst sum", "right"),
        Column("channel", "right", fit="drop"),
        Column("bits", "right"),
        Column("of 32 left", "right"),
        Column("pairs in 16 bits"),
    )
    rows = [
        (
            f"{s.path}: {s.node}" if "/" in s.path else s.node,
            s.op,
            "" if s.depth is None else f"{s.depth:,}",
            f"not known: {s.why}" if s.why else f"{_furthest(s):,}",
            ("" if s.why else "any") if s.channel is None else f"{s.channel:,}",
            "" if s.bits is None else str(s.bits),
            "" if s.headroom is None else StyledText(str(s.headroom), "red" if s.wraps else ""),
            "" if s.why and s.pairs is None else pairs_text(s),
        )
        for s in sums
    ]
    screen.table(columns, rows, title="sums")


def _furthest(sums: SumRange) -> int:
    least, greatest = sums.least or 0, sums.greatest or 0
    # ~least is -least - 1: of int32 -2^31 and 2^31 - 1 lie equally far out.
    return greatest if greatest >= ~least else least


def pairs_text(sums: SumRange) -> str | StyledText:
    """Returns what becomes of sums of two neighbouring products, with a pair that shows it."""
    pairs = sums.pairs
    if pairs is None:
        return "none"
    if not pairs.saturates:
        return StyledText("never saturate", "green")
    (a, b), (u, v) = pairs.weights, pairs.codes
    return StyledText(f"can saturate: {u} x {a} + {v} x {b} = {u * a + v * b:,}", "yellow")
