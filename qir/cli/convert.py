"""`qir convert`: from one form or file of a model to another."""

from __future__ import annotations

from pathlib import Path

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


@shared.verb(
    "qir convert model.onnx -o model.qir",
    "qir convert quantized.onnx -o operators.onnx --format qoperator",
    "qir convert quantized.onnx -o again.onnx --target onnx --opset 21 --ledger ledger.json",
)
@shared.model
@shared.output("Where to write it: a .qir file, or the target's own kind.")
@shared.shapes
@shared.trust
@shared.target
@shared.format_
@shared.opset
@shared.lossy
@shared.force
@shared.save_ledger
@shared.as_json
@shared.quiet
def convert(
    model: Path,
    output: Path,
    shapes: tuple[shared.Shape, ...],
    trust: bool,
    target: str,
    form: str | None,
    opset: int | None,
    lossy: bool,
    force: bool,
    ledger_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert a model to another form or framework, or to .qir.

    Reads ONNX, PyTorch, TensorFlow, MXNet and .qir files, and prints the ledger: what the
    conversion changed. One that would change numbers by more than one quantization step is refused
    with status 3, unless --lossy allows it.

    --json prints {file, output, output_bytes, ledger: {kind: count}}.
    """
    from qir import pipeline
    from qir.ledger import Ledger
    from qir.qir_files import read_journal

    require_distinct_files([model], [output, ledger_file])
    claim_model(output, target, form, force=force)
    claim_files(ledger_file, force=force)
    ledger = Ledger()
    graph = open_model(model, ledger, shapes, trust=trust)
    pipeline.save(
        graph,
        output,
        target=target,
        format=form,
        ledger=ledger,
        journal=read_journal(model),
        lossy=lossy,
        force=force,
        opset=opset,
    )
    save_ledger(ledger, ledger_file)
    length = file_bytes(output)
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": length,
                "ledger": ledger_json(ledger),
            }
        )
        return
    before = size(file_bytes(model))
    screen.line(f"{model.name} {before} -> {output.name} {size(length)}", "bold")
    if not len(ledger):
        screen.line("  nothing changed on the way")
    show_ledger(screen, ledger)
