"""`qir group`: wraps what a runtime computes as one kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import claim_model, open_model, require_distinct_files
from qir.cli.screen import Column, Screen, plural
from qir.registry import DEFAULT_TARGET

if TYPE_CHECKING:
    from qir.inspect.left_float import FloatOp, PredictedKernel
    from qir.rewrite.runner.numbering import RewriteStep


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
    """Group the ops that a runtime computes as one kernel.

    A runtime rounds where it fuses. So the bytes of a QDQ model are those of its grouped form,
    which follows the runtime's profile: `qir run` predicts them, by the rules of this processor or
    of --isa. Ops that stay float are listed with the reason.

    A float model is folded as for quantizing. What will be one kernel once its inputs and outputs
    are quantized becomes one group of float ops; no number changes, and conditions on quantized
    types are assumed to hold. Such a model is calibrated and quantized as any other, without
    quantization inside its groups. As a pass: qir opt -p 'group{as=PROFILE}'.

    --json prints {file, output, output_bytes, profile, on, groups: [{node, chain, row, claim,
    origins}], loaded, float: [{node, op, reason, origins}], float_sums: [{path, node, op, bits,
    codes}], doubts: [{node, reason}]}; claim says how far the profile claims the runtime's bytes,
    null for a float model; on is "codes" for quantized models and "reals" for float models, whose
    groups may be one op; loaded counts changes before grouping, as the runtime makes when it loads
    the model, or as quantizing folds it; float_sums are ops on quantized tensors that the runtime
    computes in float32 in an order of its own, with the bits of the tensors, and by how many steps
    a result may differ; doubts are nodes that the runtime may load in a way not predicted.
    """
    from qir.inspect.float_sums import float_sums_text
    from qir.ledger import Ledger
    from qir.qir_files import read_journal
    from qir.workflows.grouping import group_model, require_kept_groups

    require_distinct_files([model], [output])
    require_kept_groups(output)
    claim_model(output, DEFAULT_TARGET, None, force=force)
    ledger, journal = Ledger(), read_journal(model)
    graph = open_model(model, ledger)
    outcome = group_model(graph, profile, output, ledger=ledger, journal=journal, force=force)
    profile, real, steps, claims = (
        outcome.profile,
        outcome.is_float,
        outcome.kernels,
        outcome.claims,
    )
    loaded, left_float, sums = outcome.loaded, outcome.left, outcome.float_sums
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": output.stat().st_size,
                "profile": profile,
                "on": "reals" if real else "codes",
                "groups": [_json(s, None if real else claims.get(s.node, "exact")) for s in steps],
                "loaded": loaded,
                "float": [_left(one) for one in left_float],
                "float_sums": [asdict(one) for one in sums],
                "doubts": [{"node": e.subject, "reason": e.reason} for e in outcome.doubts],
            }
        )
        return
    screen.line(f"{model.name} -> {output.name} as {profile}", "bold")
    title = f"{plural(len(steps), 'kernel')} on quantized {'inputs' if real else 'values'}"
    when = "that are folded first" if real else "on loading"
    more = f", {plural(loaded, 'change')} {when}" if loaded else ""
    screen.facts(
        {
            "groups": title + more,
            "float": plural(len(left_float), "op") if left_float else "nothing",
        }
    )
    # Of a float model no byte is claimed: it is not quantized yet.
    if steps and not real:
        screen.facts({"claims": _claimed(claims.values(), len(steps))})
    rows = [_row(s, "" if real else claims.get(s.node, "exact")) for s in steps]
    columns = (
        Column("node", fit="fold"),
        Column("computed as one", fit="wrap"),
        *([Column("bytes", fit="wrap")] if claims else []),
        Column("says", fit="fold"),
        Column("came from", fit="drop"),
    )
    if not claims:
        # Rows must be as long as the columns are many.
        rows = [(node, chain, *rest) for node, chain, _, *rest in rows]
    screen.table(columns, rows, title="groups")
    _show_left(screen, left_float)
    if sums:
        screen.line(float_sums_text(sums, "the runtime"))
    for entry in outcome.doubts:
        screen.line(f"{entry.subject}: {entry.reason}")
    if real and steps:
        screen.line()
        screen.line(
            "The model is float, and no number of it moved. qir quantize with "
            f"--as {profile} quantizes the inputs and outputs of these kernels, in a .qir file; "
            f"grouped as {profile} again, that gives the bytes of the runtime. Quantized values "
            "for a --target may differ."
        )


def _show_left(screen: Screen, left: Sequence[FloatOp]) -> None:
    """What stays float, by op and reason, the most first."""
    counts = Counter((one.op, one.reason) for one in left)
    # From the end, so that the first node is the one that is kept.
    first = {(one.op, one.reason): one.node for one in reversed(left)}
    rows = [
        (op, f"{count:,}", reason, first[op, reason])
        for (op, reason), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    columns = (
        Column("op"),
        Column("count", align="right"),
        Column("why", fit="wrap"),
        Column("first", fit="drop"),
    )
    screen.table(columns, rows, title="in float")


def _claimed(said: Iterable[str], count: int) -> str:
    """Returns how far the bytes of kernels are known, in a line."""
    found = Counter(said)
    # Claims list what is less than exact: kernels without one have every byte claimed.
    rest = count - found.total()
    parts = [f"{plural(n, 'kernel')}: {what}" for what, n in found.most_common()]
    whole = f"every byte of {plural(rest, 'kernel')}" if rest else ""
    return "; ".join(part for part in (whole, *parts) if part)


def _row(step: RewriteStep | PredictedKernel, claim: str) -> tuple[str, ...]:
    chain, says = _split(step)
    return step.node, chain, claim, says, str(step.origins[0]) if step.origins else ""


def _split(step: RewriteStep | PredictedKernel) -> tuple[str, str]:
    """Returns the chain, and the row of the profile that says it is one kernel."""
    chain, _, row = step.rewrite.rpartition(" by ")
    return chain, row


def _json(step: RewriteStep | PredictedKernel, claim: str | None) -> dict[str, object]:
    chain, row = _split(step)
    origins = [str(origin) for origin in step.origins]
    said = {"node": step.node, "chain": chain.split(" |> "), "row": row, "claim": claim}
    return {**said, "origins": origins}


def _left(one: FloatOp) -> dict[str, object]:
    origins = [str(origin) for origin in one.origins]
    return {"node": one.node, "op": one.op, "reason": one.reason, "origins": origins}
