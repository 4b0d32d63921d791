"""`qir verify`: whether a model is well formed."""

from __future__ import annotations

from pathlib import Path

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Cell, Column, Screen, plural


@shared.verb(
    "qir verify quantized.onnx",
    "qir verify quantized.onnx --target onnxruntime",
    "qir verify quantized.onnx --json > findings.json",
)
@shared.model
@click.option("--target", metavar="NAME", help="Also find what this backend cannot take.")
@shared.as_json
@shared.quiet
@click.pass_context
def verify(
    context: click.Context, model: Path, target: str | None, as_json: bool, quiet: bool
) -> None:
    """Check that a model means what it says.

    Types fit their ops, scales are positive, zero points lie in their codes, biases count in the
    units of their accumulators, and what shares codes shares their meaning. Ends with status 1
    where there is a finding.

    --json prints {file, target, nodes, rules, findings: [{rule, severity, node, message, origin,
    slot, value, path}]}.
    """
    from dataclasses import asdict

    from qir import pipeline
    from qir.ir.verify import RULES

    graph = open_model(model)
    found = pipeline.verify(graph, target=target)
    rules = len(RULES) + (target is not None)
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "target": target,
                "nodes": len(graph),
                "rules": rules,
                "findings": [asdict(f) for f in found],
            }
        )
    elif not found:
        looked = f"{plural(len(graph), 'node')}, {plural(rules, 'rule')}"
        screen.line(f"{model.name}: no findings in {looked}", "green")
    else:
        styles = {"error": "red", "warning": "yellow"}
        rows = [(Cell(f.severity, styles[f.severity]), f.node, f.message, f.rule) for f in found]
        columns = (
            Column(""),
            Column("node", fit="shorten"),
            Column("finding", fit="wrap"),
            Column("rule"),
        )
        errors = sum(f.severity == "error" for f in found)
        counts = [(errors, "error"), (len(found) - errors, "warning")]
        said = ", ".join(plural(count, word) for count, word in counts if count)
        screen.line(f"{model.name}: {said}", "bold")
        screen.table(columns, rows)
    if found:
        context.exit(1)
