"""`qir export`: a model as a drawing, or as data for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from qir.cli import verb as shared
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.screen import Screen, plural, size


@shared.verb(
    "qir export model.onnx --to dot > model.dot",
    "qir export quantized.onnx --to graphml -o quantized.graphml",
    "qir export quantized.onnx --to mermaid -o quantized.mmd",
)
@shared.model
@click.option(
    "--to",
    "form",
    type=click.Choice(["dot", "graphml", "mermaid", "json"]),
    required=True,
    help="What to write.",
)
@shared.output("Where to write it; to standard output if not given, or -.", required=False)
@shared.force
@shared.as_json
@shared.quiet
def export(
    model: Path, form: str, output: Path | None, force: bool, as_json: bool, quiet: bool
) -> None:
    """Write a model as DOT, GraphML, Mermaid or JSON.

    Nodes are coloured by the storage type of their results, and labelled with scale and zero point.
    DOT and Mermaid draw constants with their readers, GraphML and JSON have every node and use.
    JSON is for programs: `qir/cli/schemas/graph.json` in the package says what is in it.

    --json prints {file, output, output_bytes, to, nodes}.
    """
    from qir.atomic import write_text
    from qir.inspect.export import FORMATS

    if output is None or str(output) == "-":
        if as_json:
            raise click.UsageError("--json describes the file that is written; name it with -o")
        # As it is, without the screen: the next program of a pipe reads it.
        click.echo(FORMATS[form](open_model(model)), nl=False)
        return
    require_distinct_files([model], [output])
    claim_files(output, force=force)
    graph = open_model(model)
    write_text(output, FORMATS[form](graph))
    length = output.stat().st_size
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": length,
                "to": form,
                "nodes": len(graph),
            }
        )
        return
    nodes = plural(len(graph), "node")
    screen.line(f"{model.name} -> {output.name}: {nodes}, {size(length)}", "bold")
