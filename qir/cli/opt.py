"""`qir opt`: runs passes on a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults, pass_options
from qir.cli import verb as shared
from qir.cli.models import (
    claim_files,
    claim_model,
    file_bytes,
    ledger_json,
    open_model,
    require_distinct_files,
    save_ledger,
    show_ledger,
)
from qir.cli.screen import Screen, size

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.rewrite import Report


@shared.verb(
    "qir opt model.onnx -p prune -p 'fold-constants{limit=4096}' -o folded.qir",
    "qir opt model.onnx -p 'fold-batch-norm; prune' --validate -o folded.onnx",
    "qir opt quantized.onnx -p 'group{as=ort-1.31}' --dump steps -o grouped.qir",
)
@shared.model
@pass_options.passes
@shared.output("Where to write it: a .qir file, or the target's own kind.")
@shared.target
@shared.format_
@click.option(
    "--validate",
    is_flag=True,
    help="Run the model before and after each pass, and name the first tensor that moved further"
    " than its pass declares, with the rewrite that moved it.",
)
@shared.data("Samples to validate with; without it they are drawn, by a fixed seed.")
@pass_options.size
@shared.whole("--limit", "Validate with so many samples.", 4)
@click.option(
    "--dump",
    type=shared.PATH,
    metavar="DIR",
    help="Write the graph before and after each pass into a folder, numbered, as text and .qir;"
    " --force replaces those of another run.",
)
@shared.whole("--seconds", "Stop a pass that takes longer, and say where it was.")
@shared.lossy
@shared.force
@shared.save_ledger
@shared.as_json
@shared.quiet
def opt(
    model: Path,
    texts: tuple[str, ...],
    output: Path,
    target: str,
    form: str | None,
    validate: bool,
    data: Path | None,
    sizes: tuple[str, ...],
    limit: int,
    dump: Path | None,
    seconds: int | None,
    lossy: bool,
    force: bool,
    ledger_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run passes on a model, in the order given.

    `qir passes` lists them with their options. The graph is verified after each. What was run is
    kept in a .qir file, and `qir show` lists it. Ends with status 1 if --validate finds a tensor
    that moved; then, as after any failure, nothing is written.

    --json prints {file, output, output_bytes, validated, passes: [{name, text, changed, seconds,
    nodes_before, nodes_after, rewrites: [{number, rewrite, node, origins}]}], ledger: {kind:
    count}}.
    """
    from qir.errors import UsageError
    from qir.graph_dump import Dump
    from qir.ledger import Ledger
    from qir.qir_files import read_journal
    from qir.workflows.optimizing import optimize_model

    # Samples that nothing runs on are a forgotten --validate, whose absence nobody would notice.
    if (data is not None or sizes) and not validate:
        raise UsageError("--data and --size are what --validate runs on; give --validate too")
    steps = pass_options.parse(texts)
    require_distinct_files([model, data], [output, ledger_file])
    claim_model(output, target, form, force=force)
    claim_files(ledger_file, force=force)
    if dump is not None:
        Dump.claim(dump, force=force)
    screen = Screen(quiet=quiet)
    ledger, journal = Ledger(), read_journal(model)
    graph = open_model(model, ledger)
    reports: list[Report] = []
    with screen.progress("passes") as progress, pass_options.surroundings():

        def after(report: Report, graph: Graph) -> None:
            reports.append(report)
            progress(len(reports), len(steps))

        optimize_model(
            graph,
            steps,
            output,
            target=target,
            format=form,
            ledger=ledger,
            journal=journal,
            samples=pass_options.samples(graph, data, sizes, limit) if validate else (),
            dump=dump,
            after=after,
            seconds=seconds,
            lossy=lossy,
            force=force,
        )
    save_ledger(ledger, ledger_file)
    length = file_bytes(output)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": length,
                "validated": validate,
                "passes": [pass_options.report_json(report) for report in reports],
                "ledger": ledger_json(ledger),
            }
        )
        return
    validated_text = ", validated" if validate else ""
    screen.line(f"{model.name} -> {output.name} {size(length)}{validated_text}", "bold")
    if data is not None:
        defaults.show_passed_over(screen, graph, data)
    pass_options.show(screen, reports)
    for line in pass_options.hints(reports):
        screen.line(f"  {line}", "yellow")
    show_ledger(screen, ledger)
