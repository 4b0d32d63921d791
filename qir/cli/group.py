"""`qir group`: wraps what a runtime computes as one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import claim_model, open_model, require_apart
from qir.cli.screen import Column, Screen, plural

if TYPE_CHECKING:
    from qir.rewrite import Report
    from qir.rewrite.numbering import Step


@shared.verb(
    "qir group quantized.onnx --as ort-1.31 -o ort.qir",
    "qir group quantized.onnx --as torch-2.13.fbgemm -o torch.qir --json",
)
@shared.model
@click.option(
    "--as",
    "profile",
    required=True,
    metavar="PROFILE",
    help="Numerics profile of the runtime: ort-1.31, tflite-2.21.xnnpack, or a .toml file.",
)
@shared.output("Where to write it: a .qir file.")
@shared.force
@shared.as_json
@shared.quiet
def group(
    model: Path,
    profile: str,
    output: Path,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Wrap what a runtime computes as one kernel.

    Its profile says what. A runtime rounds where it groups, so the bytes of a model with quantize
    and dequantize nodes are those of the grouped one, which follows that profile: `qir run`
    predicts them. As a pass: qir opt -p 'group{as=PROFILE}'.

    --json prints {file, output, output_bytes, profile, groups: [{node, chain, row, origins}],
    loaded}; loaded counts what the runtime changes when it loads the model, before it groups.
    """
    from qir import pipeline
    from qir.errors import UsageError
    from qir.ledger import Ledger
    from qir.passes.group import Group

    require_apart([model], [output])
    if output.suffix.lower() != pipeline.SUFFIX:
        raise UsageError(f"{output}: groups are kept in .qir files; qir convert writes others")
    claim_model(output, "onnxruntime", None, force=force)
    ledger, journal = Ledger(), pipeline.read_journal(model)
    graph = open_model(model, ledger)
    reports: list[Report] = []
    wanted = Group(profile)
    profile = wanted.profile
    done = pipeline.optimize(
        graph,
        [wanted],
        ledger=ledger,
        journal=journal,
        after=lambda report, _: reports.append(report),
    )
    pipeline.save(done, output, ledger=ledger, journal=journal, force=force, lossy=True)
    steps = [step for report in reports for step in report.steps if " by " in step.rewrite]
    loaded = sum(entry.step == "group" for entry in ledger) - len(steps)
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": output.stat().st_size,
                "profile": profile,
                "groups": [_json(step) for step in steps],
                "loaded": loaded,
            }
        )
        return
    screen.line(f"{model.name} -> {output.name} as {profile}", "bold")
    what = f"{plural(len(steps), 'kernel')} on codes"
    more = f", {plural(loaded, 'change')} on loading" if loaded else ""
    screen.facts({"groups": what + more})
    rows = [(s.node, *_split(s), str(s.origins[0]) if s.origins else "") for s in steps]
    columns = (
        Column("node", fit="shorten"),
        Column("computed as one", fit="wrap"),
        Column("says", fit="shorten"),
        Column("came from", fit="drop"),
    )
    screen.table(columns, rows, title="groups")


def _split(step: Step) -> tuple[str, str]:
    """The chain, and the row of the profile that says it is one kernel."""
    chain, _, row = step.rewrite.rpartition(" by ")
    return chain, row


def _json(step: Step) -> dict[str, object]:
    chain, row = _split(step)
    origins = [str(origin) for origin in step.origins]
    return {"node": step.node, "chain": chain.split(" |> "), "row": row, "origins": origins}
