"""`qir diff`: what differs between two models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import number, show_measurements
from qir.cli.models import open_model
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qir.query.diff import GraphDifference, Lone
    from qir.workflows.comparison import ModelComparison

MAX_ROWS = 60
"""Rows of one table; --json has all."""


@shared.verb(
    "qir diff model.onnx model.qir",
    "qir diff quantized.onnx again.onnx --json > changes.json",
    "qir diff quantized.onnx again.onnx --data samples.npy --metric sqnr",
)
@click.argument("a", type=shared.PATH)
@click.argument("b", type=shared.PATH)
@shared.data("Run both models on these samples too, by the reference, and measure their results.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="What to measure with --data, the first model being right: sqnr unless said, or cosine,"
    " mean-error, top1, or a plugin's; may be given several times.",
)
@shared.isa("Processor by whose rules both are run")
@shared.whole("--limit", "Run only so many samples.")
@shared.as_json
@shared.quiet
@click.pass_context
def diff(
    context: click.Context,
    a: Path,
    b: Path,
    data: Path | None,
    metrics: tuple[str, ...],
    isa: str | None,
    limit: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what differs between two models.

    Ops are paired by their origin, then by the tensors they make, then by what they compute. Then
    structure, types, scales, zero points, quantized values and weights are compared. Names of inner
    values and the order of ops do not count. Ends with status 1 if there is a difference. --data
    also measures the distance of their results, dequantized; rules of profiles for a processor are
    those of this one, or of --isa.

    --json prints {a, b, equal, nodes, matched, graph, changed: [{a, b, op, how, changes: [{what,
    where, a, b, measure}]}], only_a: [{name, op, held_by}], only_b, bodies, samples, outputs:
    [{name, metrics, differ}]}; samples is null without --data, metrics are as in `qir run`, of
    numbers alone; differ is how many texts, lists and the like are others, null of numbers.
    """
    from qir.errors import UsageError
    from qir.inspect.metrics import metric
    from qir.workflows import SampleData, compare_models

    chosen_metrics = [metric(name) for name in dict.fromkeys(metrics or ("sqnr",))]
    graphs = open_model(a), open_model(b)
    # Models without inputs run without data: asking for a measure is then enough.
    can_run = data is not None or not any(graph.inputs for graph in graphs)
    if ((metrics or isa) and not can_run) or (limit and data is None):
        raise UsageError("--metric, --isa and --limit are for --data: give samples to run on")
    screen = Screen(quiet=quiet)
    samples = SampleData(data, limit=limit) if data is not None else None
    comparison = compare_models(
        *graphs,
        samples,
        run=data is not None or bool(metrics) or isa is not None,
        metrics=[each.name for each in chosen_metrics],
        isa=isa,
        progress=screen.progress,
    )
    measured = comparison.measured
    if measured is not None:
        defaults.show_samples_left_out(screen, graphs[0], samples)
    if as_json:
        screen.json({"a": str(a), "b": str(b), **_json(comparison)})
    else:
        # Two files of one name in two folders are distinguished by their folders.
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        _show(screen, names, comparison.difference)
        if measured is not None:
            screen.line()
            defaults.show_both(screen, graphs, data)
            show_measurements(screen, chosen_metrics, measured.distances)
            for name, count in measured.opaque_differences.items():
                size = measured.results[name].size
                outcome = f"{count:,} of {size:,} differ" if count else "the same in both"
                screen.line(f"  {name} is no numbers: {outcome}", "yellow" if count else "")
    if not comparison.difference.equal:
        context.exit(1)


def _json(comparison: ModelComparison) -> dict[str, object]:
    measured = comparison.measured
    outputs = [
        {
            "name": name,
            "metrics": {m: number(x) for m, x in measured.distances.get(name, {}).items()},
            "differ": measured.opaque_differences.get(name),
        }
        for name in (measured.results if measured is not None else ())
        if measured is not None
    ]
    return {
        **comparison.difference.to_json(),
        "samples": measured.samples if measured is not None else None,
        "outputs": outputs,
    }


def _show(screen: Screen, names: tuple[str, str], found: GraphDifference) -> None:
    count = plural(found.nodes[0], "node")
    if found.equal:
        screen.line(f"{names[0]} and {names[1]}: no difference in {count}", "green")
        return
    screen.line(f"{names[0]} -> {names[1]}", "bold")
    how = ", ".join(f"{number:,} by {kind}" for kind, number in found.matched.items())
    screen.facts(
        {
            "nodes": f"{found.nodes[0]:,} and {found.nodes[1]:,}",
            "matched": f"{len(found.pairs):,}" + (f" ({how})" if how else ""),
            "changed": f"{len(found.changed):,}",
            f"only in {names[0]}": f"{len(found.only_a):,}",
            f"only in {names[1]}": f"{len(found.only_b):,}",
        }
    )
    _show_changes(screen, names, found)
    for name, lone, other in (
        (names[0], found.only_a, names[1]),
        (names[1], found.only_b, names[0]),
    ):
        _show_lone(screen, name, other, lone)
    for path, body in found.bodies.items():
        screen.line()
        _show(screen, (f"{names[0]} {path}", f"{names[1]} {path}"), body)


def _show_changes(screen: Screen, names: tuple[str, str], found: GraphDifference) -> None:
    rows = [("", "", c.what, c.where, c.a, c.b, "") for c in found.graph]
    for pair in found.changed:
        for i, change in enumerate(pair.changes):
            # A node is named once, above all that changed in it.
            head = (_pair(pair.a, pair.b), pair.op) if i == 0 else ("", "")
            values = (change.a, change.b)
            rows.append((*head, change.what, change.where, *values, change.far))
    columns = (
        Column("node", fit="fold"),
        Column("op", fit="drop"),
        Column("what"),
        Column("where"),
        Column(names[0], fit="fold"),
        Column(names[1], fit="fold"),
        Column("how far", fit="wrap"),
    )
    screen.table(columns, rows[:MAX_ROWS], title="changed")
    _more(screen, len(rows))


def _pair(a: str, b: str) -> str:
    return a if a == b else f"{a} ~ {b}"


def _show_lone(screen: Screen, name: str, other: str, lone: Sequence[Lone]) -> None:
    columns = (Column("node", fit="fold"), Column("op"), Column(f"in {other}", fit="wrap"))
    rows = [
        (StyledText(n.name), n.op, f"a part of {n.held_by}" if n.held_by else "")
        for n in lone[:MAX_ROWS]
    ]
    screen.table(columns, rows, title=f"only in {name}")
    _more(screen, len(lone))


def _more(screen: Screen, count: int) -> None:
    if count > MAX_ROWS:
        screen.line(f"  and {count - MAX_ROWS:,} more; --json has all", "dim")
