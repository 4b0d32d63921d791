"""`qir probe`: what the runtimes of this machine really compute, next to what files say of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.screen import PAGE, Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.inspect.probing import Measured, OpReading, Reading


@shared.verb(
    "qir probe",
    "qir probe onnxruntime.all --json > measured.json",
    "qir probe torch.fbgemm -o torch-next.fbgemm.toml",
)
@click.argument("runtimes", nargs=-1, metavar="[RUNTIME]...")
@click.option(
    "--python",
    metavar="FILE",
    help="A Python that has the named runtime, where QIR's own has not: mxnet.",
)
@click.option("--all", "every", is_flag=True, help="Also show fields that no result distinguishes.")
@shared.output("Write a profile file of what was measured, for one runtime.", required=False)
@shared.force
@shared.as_json
@shared.quiet
@click.pass_context
def probe(
    context: click.Context,
    runtimes: tuple[str, ...],
    python: str | None,
    every: bool,
    output: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare what runtimes compute with their profiles.

    Each RUNTIME (without one, all that are installed) runs small models with many ties. The
    reference computes the same under the profile, and under each other value of every field. The
    table lists the fields where another value gives other bytes: the value of the file, the values
    that fit the runtime, and how many elements, at least, each other value gets wrong. -o writes a
    profile that extends the nearest one by what differs. Ends with status 1 if a claim of a file
    does not hold.

    --json prints {runtimes: [{name, version, settings, profile, covered, cases, elements, drifts,
    skipped, ops: [{op, tail, kinds, cases, elements, differ, gap, claim, holds, found, left,
    fields: [{field, filed, obeyed, told, agrees}]}]}], output}.
    """
    from qir.inspect.measurements import to_json
    from qir.workflows import probe_runtimes

    screen = Screen(quiet=quiet, elsewhere=PAGE)
    probed = probe_runtimes(
        runtimes, python=python, output=output, force=force, progress=screen.progress
    )
    if as_json:
        written = None if output is None else str(output)
        screen.json({"runtimes": [to_json(m) for m in probed.measured], "output": written})
    else:
        for measured in probed.measured:
            _show(screen, measured, every)
        for other in probed.assumed:
            summary_text = f", on {other.evidence}" if other.evidence else ""
            screen.line(
                f"{other.name}: {other.why or 'no evidence'}: {other.state}{summary_text}", "dim"
            )
        if not probed.measured:
            screen.line("no runtime that can be probed is installed")
    # Status 1 lets a nightly job notice that a new release of a runtime computes otherwise.
    if probed.has_findings:
        context.exit(1)


def _show(screen: Screen, measured: Measured, every: bool) -> None:
    known = measured.profile
    # The nearest profile is a guess that the table below tests, so it must be seen that it is one.
    if not measured.covered:
        known += ", the nearest: no file speaks of this version"
    screen.line(f"{measured.name} {measured.version}, compared with {known}", "bold")
    rows = [
        (
            op.said,
            "; ".join(op.kinds),
            field.field,
            field.filed,
            _measured(field),
            f"{field.told:,}" if field.told else "",
            StyledText("yes", "green") if field.agrees else StyledText("no", "red"),
        )
        for op in measured.ops
        for field in op.fields
        # A field that no case distinguishes (`told` is 0) says nothing about the runtime.
        if every or field.told or not field.agrees
    ]
    columns = (
        Column("op", fit="fold"),
        Column("on", fit="drop"),
        Column("field"),
        Column("file says", fit="wrap"),
        Column("measured", fit="wrap"),
        Column("shown by", "right"),
        Column("agree"),
    )
    screen.table(columns, rows)
    for op in measured.drifts:
        screen.line(f"{op.said} ({'; '.join(op.kinds)}): {_drift(op)}", "red")
    for what, why in measured.skipped.items():
        screen.line(f"{what} is not run: {why}", "yellow")
    shown = f"{plural(measured.cases, 'case')}, {plural(measured.elements, 'element')}"
    if measured.drifts:
        screen.line(f"{plural(len(measured.drifts), 'drift')} in {shown}", "red")
    else:
        screen.line(f"no drift in {shown}", "green")
    screen.line()


def _measured(field: Reading) -> str:
    return field.obeyed[0] if len(field.obeyed) == 1 else f"{' or '.join(field.obeyed)}"


def _drift(op: OpReading) -> str:
    summary_text = (
        f"{op.differ:,} of {op.elements:,} elements differ, by {plural(op.gap, 'step')} at most"
    )
    summary_text += f", though the file claims {op.claim}"
    # The bytes differ but no field of a rule explains it: that asks for a method, not for another
    # value.
    if not op.found:
        return f"{summary_text}; no field says why"
    changes = ", ".join(f"{name} = {value}" for name, value in op.found.items())
    return f"{summary_text}; with {changes} {op.left:,} do"
