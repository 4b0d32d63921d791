"""`qir plan`: what quantizing would do, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Column, Screen, StyledText, amount, percent, plural

if TYPE_CHECKING:
    from qir.analysis.decisions import Decision, Plan

_MUCH = 0.1
"""Share of the work in loops from which on unrolling is worth a hint."""


@shared.verb(
    "qir plan model.onnx",
    "qir plan model.onnx --granularity tensor --keep-float '/fc/*'",
    "qir plan model.onnx --rule 'op=softmax: float' --json > plan.json",
)
@shared.model
@shared.target
@shared.format_
@shared.granularity
@shared.rules
@shared.keep_float
@shared.dynamic
@shared.weights
@shared.as_json
@shared.quiet
def plan(
    model: Path,
    target: str,
    form: str | None,
    granularity: str,
    rules: tuple[str, ...],
    floats: tuple[str, ...],
    dynamic: bool,
    weights: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show op by op what quantizing would do, without data.

    Lists what becomes integer and how it is stored, what is fused into the kernel of another op,
    what stays float and why, and which tensors must share one scale. Batch norms and constants are
    folded first, as by `qir quantize`.

    Attention masks, such as -10000 or -inf before a softmax, stay float, because they would
    dominate the quantization range. Here masks are found among constants; `qir quantize` quantizes
    one after all if the data reach about as far. Masks in inputs show only in data; a last line
    names such inputs.

    Ops on tensors that are quantized already count as integer if the target computes them in
    integers. --weights stores weights in few bits and makes no op integer: activations stay float.

    Where a form of the target holds less than the target computes, the plan is that of the form
    named with --format, or of the default one.

    --json prints {file, target, integer_macs, decisions: [{node, op, becomes, integer, reason,
    group, schemes, macs, origin, macs_on_codes, counted}], shared, maybe_masks, refused};
    integer_macs is a share of the work that could be counted: an op of open size, or a foreign one,
    has none. refused says why the form cannot hold the model.
    """
    from dataclasses import asdict

    from qir import pipeline
    from qir.target import target as named_target

    forms = named_target(target).formats
    # A form may leave ops float that the target computes: the plan is of what would be written.
    usual = forms[0] if forms else None
    graph = open_model(model)
    planned = pipeline.plan(
        graph,
        target=target,
        granularity=granularity,
        rules=shared.all_rules(rules, floats),
        dynamic=dynamic,
        weights=weights,
        format=form or usual,
    )
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "target": planned.target,
                "integer_macs": planned.integer_macs,
                "decisions": [{**asdict(d), "integer": d.integer} for d in planned.decisions],
                "shared": planned.shared,
                "maybe_masks": planned.maybe_masks,
                "refused": planned.refused,
            }
        )
        return
    screen.line(f"{model.name} for {planned.target}", "bold")
    facts = summary(planned)
    if planned.refused:
        facts[form or usual or ""] = f"none: {planned.refused}"
    screen.facts(facts)
    show_plan(screen, planned)


def summary(found: Plan) -> dict[str, str]:
    """Returns what a plan comes to."""
    computing = [d for d in found.decisions if d.becomes != "as it is"]
    integer = [d for d in computing if d.integer]
    already = [d for d in computing if d.becomes == "already"]
    few = [d for d in computing if d.becomes == "weights"]
    out = {}
    if few:
        out["few-bit weights"] = f"{_share(few, computing)}; activations stay float"
    if integer or not few:
        said = f", {len(already):,} of them already" if already else ""
        out["integer"] = _share(integer, computing) + said
    return out


def unrolling(found: Plan) -> str:
    """Returns a hint at `unroll` where loops keep a tenth of the work or more in float."""
    from qir.ir.ops.layers import RECURRENT_OPS

    loops = [d for d in found.decisions if d.op in ("loop", "scan", *RECURRENT_OPS)]
    held = sum(d.macs - d.macs_on_codes for d in loops if d.becomes == "float")
    work = sum(d.macs for d in found.decisions)
    if not held or held < work * _MUCH:
        return ""
    return (
        f"Loops and recurrent layers keep {percent(held / work)} of the multiply-adds float: where "
        "their steps are known, `qir opt MODEL -p 'unroll; fold-constants; prune' -o FILE` makes "
        "ops of them that can be integer."
    )


def _share(part: Sequence[Decision], whole: Sequence[Decision]) -> str:
    """Returns how many ops these are, and how much of the work."""
    # An op that holds graphs may be called float and have products on quantized values within:
    # their share is of all ops, not of those called integer.
    work = sum(d.macs for d in whole)
    few = any(d.becomes == "weights" for d in part)
    done = sum(d.macs if few else d.macs_on_codes for d in (part if few else whole))
    share = f", {percent(done / work)} of {amount(work)} multiply-adds" if work else ""
    if unknown := sum(not d.counted for d in whole):
        share += f"; {plural(unknown, 'op')} not counted: foreign, or of open size"
    return f"{len(part):,} of {plural(len(whole), 'op')}{share}"


def show_plan(screen: Screen, found: Plan) -> None:
    """Prints the decisions, and what must share one scale."""
    from qir.analysis.masks import MASKED

    columns = (
        Column("op"),
        Column("name", fit="fold"),
        Column("becomes"),
        Column("how, or why not", fit="wrap"),
        Column("work", "right"),
    )
    rows = []
    head = ""
    for d in found.decisions:
        kind = _KINDS[d.becomes]
        # A kernel's ops follow its first one, which is named as the group is.
        text = "in the kernel above" if d.group and d.group == head else how(d)
        rows.append((d.op, d.node, kind, text, _work(d)))
        head = d.group or d.node
    screen.table(columns, rows, title="ops")
    sets = [(f"{len(names)}", ", ".join(names)) for names in found.shared]
    together = (Column("values", "right"), Column("of one scale and zero point", fit="wrap"))
    screen.table(together, sets, title="shared")
    if hint := unrolling(found):
        screen.line(hint)
    if any(d.reason.startswith(MASKED) for d in found.decisions):
        said = "where activations have a similar range, quantizing with data gives integers"
        screen.line(f"Constants alone tell of masks here: {said}.")
    if found.maybe_masks:
        names = ", ".join(found.maybe_masks)
        said = "a mask in the data leaves it and the ops between float"
        screen.line(f"A softmax reads what comes of {names}: {said}.")


def _work(decision: Decision) -> str:
    if not decision.counted:
        return "unknown"
    return amount(decision.macs) if decision.macs else ""


_KINDS = {
    "integer": StyledText("integer", "green"),
    "already": StyledText("integer", "green"),
    "weights": StyledText("few-bit weights", "green"),
    "float": StyledText("float", "yellow"),
    "as it is": StyledText("as it is"),
}


def how(decision: Decision) -> str:
    """Returns how an op is stored, or why it stays float."""
    if decision.reason:
        return decision.reason
    texts: dict[str, list[str]] = {}
    for slot, scheme in decision.schemes.items():
        if not scheme.startswith("i32"):  # a bias counts in units of its accumulator
            texts.setdefault(_brief(scheme), []).append(slot)
    return ", ".join(f"{'/'.join(slots)} {text}" for text, slots in texts.items())


def _brief(scheme: str) -> str:
    """Returns a scheme without what is usual: unsigned values are affine, signed ones symmetric."""
    storage, *words = scheme.split()
    usual = "symmetric" if storage.startswith("i") else "affine"
    # What shares one scale is in a table of its own below.
    words = [w for w in words if w not in (usual, "tensor", "minmax") and w[:6] != "share("]
    text = " ".join(["per channel" if w == "channel" else w for w in words])
    return f"{storage.partition('<')[0]} {text}".rstrip()
