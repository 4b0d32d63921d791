"""`qir certify`: what is certain of the sums of every layer, on any input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Column, Row, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.inspect.certificates import Certificate, Ties


@shared.verb(
    "qir certify quantized.onnx",
    "qir certify quantized.onnx --profiles ort-1.31,native --json > sums.json",
)
@shared.model
@click.option("--layer", metavar="NAME", help="Certify this layer alone.")
@click.option(
    "--profiles",
    metavar="A,B",
    default="",
    help="Runtimes whose results are compared, or .toml files.",
)
@shared.isa("Processor whose rules apply")
@shared.whole("--most", "Ulps by which a scale is nudged at most.", 1024)
@shared.as_json
@shared.quiet
@click.pass_context
def certify(
    context: click.Context,
    model: Path,
    layer: str | None,
    profiles: str,
    isa: str | None,
    most: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Prove bounds of integer sums from the weights, for any input.

    Reports whether 32 bits hold every sum, and whether 16-bit sums of pairs saturate: on processors
    without VNNI, and, for each runtime, on this one or that of --isa, since depthwise layers have
    kernels of their own.

    With --profiles it also reports whether runtimes round every possible sum to the same integer;
    if not, by how many float32 ulps the scale of the weights, or of each channel, must change at
    least for that. All sums are tried, or those around each step of the result, which is monotonic.
    If sums have gaps, and more than 4,194,304 multiples of the weights' greatest common divisor are
    between their ends, all these multiples count as sums. Rules are those of this processor, or of
    --isa; kernels are those that each runtime fuses. A layer that one runtime computes in float32
    is listed as not covered. Agreement is proved of the runtimes where both profiles claim their
    rule exact; other claims are listed.

    Ops that other versions of the model's runtime compute differently are warnings. Ends with
    status 1 if sums overflow or profiles differ.

    --json prints {file, profiles, releases: [{path, node, op, runtime, versions}], layers: [{node,
    op, path, origin, least, greatest, bits, wraps, classes, saturated_by, why, ties: {profiles,
    claims, proof, sums, differ, free, unclaimed, nudges, scales, why}}]}; least, greatest, bits and
    wraps are null where nothing bounds a sum, ties without --profiles.
    """
    from qir.workflows import certify_model

    certified = certify_model(open_model(model), profiles, layer=layer, most=most, isa=isa)
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "profiles": list(certified.profiles),
                "releases": [asdict(release) for release in certified.releases],
                "layers": [_to_json(each) for each in certified.layers],
            }
        )
    else:
        _show(screen, certified.layers, certified.profiles, isa)
        for release in certified.releases:
            is_in_body = "/" in release.path
            where = f"{release.path}: {release.node}" if is_in_body else release.node
            screen.line(f"{where}: {release.warning}", "yellow")
    if certified.has_findings:
        context.exit(1)


def _to_json(found: Certificate) -> dict[str, object]:
    sums, ties = found.sums, found.ties
    return {
        "node": sums.node,
        "op": sums.op,
        "path": sums.path,
        "origin": sums.origin,
        "least": sums.least,
        "greatest": sums.greatest,
        "bits": sums.bits,
        "wraps": sums.wraps,
        "classes": dict(found.classes),
        "saturated_by": list(found.saturated_by),
        "why": sums.why,
        "ties": None
        if ties is None
        else {**asdict(ties), "free": ties.free, "unclaimed": list(ties.unclaimed)},
    }


def _show(
    screen: Screen, found: Sequence[Certificate], names: Sequence[str], isa: str | None
) -> None:
    if not found:
        screen.line("no op sums quantized products")
        return
    here, where = any(c.saturated_by for c in found), f"on {isa}" if isa else "here"
    columns = [
        Column("layer", fit="fold"),
        Column("op"),
        Column("bits", "right"),
        Column("in 32 bits"),
        Column("pairs without VNNI"),
        *([Column(f"pairs saturate {where} under", fit="wrap")] if here else []),
    ]
    if names:
        columns += [Column("on how many sums they differ", "right"), Column("nudge", fit="wrap")]
        columns += [Column("claims", fit="wrap")]
    screen.table(columns, [_row(c, here) for c in found])
    if names:
        # To agree by rules that a profile only assumes is no proof of what the runtimes do.
        free = [c.ties for c in found if c.ties is not None and c.ties.free]
        proven = sum(not ties.unclaimed for ties in free)
        said = (
            f"{', '.join(names)} agree on every sum of {proven:,} of {plural(len(found), 'layer')}"
        )
        if left := len(free) - proven:
            said += f"; of {left:,} more by rules that are not claimed to be the runtime's"
        screen.line(said, "green" if proven == len(found) else "yellow")


def _row(found: Certificate, here: bool) -> Row:
    sums, ties = found.sums, found.ties
    held = {None: StyledText(sums.why or "?", "yellow"), True: StyledText("can wrap", "red")}
    pairs = {
        "saturate": StyledText("can saturate", "yellow"),
        "exact": StyledText("exact", "green"),
    }
    row: list[str | StyledText] = [
        f"{sums.path}: {sums.node}" if "/" in sums.path else sums.node,
        sums.op,
        "" if sums.bits is None else str(sums.bits),
        held.get(sums.wraps, StyledText("never wrap", "green")),
        pairs.get(found.classes.get("avx2", ""), "none"),
    ]
    if here:
        row.append(StyledText(", ".join(found.saturated_by) or "none", _warn(found.saturated_by)))
    return row if ties is None else [*row, *_ties(ties), _claims(ties)]


def _claims(ties: Ties) -> StyledText:
    """What profiles claim of their rules, where it is not that these are the runtime's."""
    told = dict(zip(ties.profiles, ties.claims, strict=True))
    said = "; ".join(f"{name}: {told[name]}" for name in ties.unclaimed)
    return StyledText(said or "exact", _warn(ties.unclaimed))


def _warn(names: Sequence[str]) -> str:
    return "yellow" if names else "green"


def _ties(ties: Ties) -> tuple[str | StyledText, str | StyledText]:
    if not ties.proof:
        return "?", StyledText(ties.why, "yellow")
    count = f"{ties.differ:,} of {ties.sums:,}"
    if ties.free:
        return StyledText(count, "green"), StyledText("none needed", "green")
    if ties.why:
        return StyledText(count, "red"), StyledText(f"refused: {ties.why}", "red")
    moved = sum(n != 0 for n in ties.nudges)
    # One scale for the whole layer can be written out; those of channels are in the JSON.
    if len(ties.nudges) == 1:
        return StyledText(count, "yellow"), f"{ties.furthest:+d} ulp: {ties.scales[0]!r}"
    return StyledText(
        count, "yellow"
    ), f"{moved:,} of {len(ties.nudges):,} scales, {ties.furthest:+d} ulp at most"
