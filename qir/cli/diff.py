"""`qir diff`: what differs between two models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import (
    count_opaque_differences,
    measured,
    number,
    run_all,
    show_measurements,
)
from qir.cli.models import open_model
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qir.cli.engines import Tensor, Tensors
    from qir.ir.graph import Graph
    from qir.query.diff import GraphDifference, Lone

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
    from qir.query.diff import diff as compare

    chosen = [metric(name) for name in dict.fromkeys(metrics or ("sqnr",))]
    graphs = open_model(a), open_model(b)
    can_run = data is not None or not any(graph.inputs for graph in graphs)
    if ((metrics or isa) and not can_run) or (limit and data is None):
        raise UsageError("--metric, --isa and --limit are for --data: give samples to run on")
    difference = compare(*graphs)
    screen = Screen(quiet=quiet)
    measures = data is not None or metrics or isa is not None
    results = _results(screen, graphs, data, limit, isa) if measures else []
    distances = measured(chosen, *results) if results else {}
    opaque_differences = count_opaque_differences(*results) if results else {}
    if as_json:
        ran_names = results[0] if results else {}
        rows = ((n, {m: number(x) for m, x in distances.get(n, {}).items()}) for n in ran_names)
        head: dict[str, object] = {"a": str(a), "b": str(b), **difference.to_json()}
        head["samples"] = next((len(r) for r in results[0].values()), 0) if results else None
        head["outputs"] = [
            {"name": n, "metrics": r, "differ": opaque_differences.get(n)} for n, r in rows
        ]
        screen.json(head)
    else:
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        _show(screen, names, difference)
        if results:
            screen.line()
            defaults.show_both(screen, graphs, data)
            show_measurements(screen, chosen, distances)
            for name, count in opaque_differences.items():
                size = results[0][name].size
                outcome = f"{count:,} of {size:,} differ" if count else "the same in both"
                screen.line(f"  {name} is no numbers: {outcome}", "yellow" if count else "")
    if not difference.equal:
        context.exit(1)


def _results(
    screen: Screen,
    graphs: tuple[Graph, Graph],
    data: Path | None,
    limit: int | None,
    isa: str | None,
) -> list[dict[str, Tensor]]:
    """Returns the outputs that both models have, for all samples, dequantized."""
    from qir.cli.engines import Engine
    from qir.errors import UsageError

    input_types = [{value.name: value.type.element for value in graph.inputs} for graph in graphs]
    if input_types[0] != input_types[1]:
        a, b = (", ".join(f"{n} {e}" for n, e in each.items()) for each in input_types)
        raise UsageError(f"--data: the models take other inputs, {a} and {b}")
    names = [name for name in graphs[0].outputs if name in graphs[1].outputs]
    if not names:
        raise UsageError("--data: the models have no output of one name")
    engines = [Engine("reference", partial(_reals, graph, names, isa), None) for graph in graphs]
    batches = defaults.batches(graphs[0], data, limit=limit)
    unshared_defaults = defaults.defaults_of_one_model(graphs)
    if unshared_defaults:
        batches = (
            {n: a for n, a in each.items() if n not in unshared_defaults} for each in batches
        )
    results = run_all(screen, engines, batches)
    defaults.show_samples_left_out(screen, graphs[0], data, limit=limit)
    return results


def _reals(
    graph: Graph, names: Sequence[str], isa: str | None, inputs: Tensors
) -> dict[str, Tensor]:
    """Returns results by name, dequantized."""
    from qir import pipeline
    from qir.profiles import dequantize_by_profile, profile_in

    results = pipeline.run(graph, inputs, isa=isa)
    kinds = {name: graph.outputs[name].type.quant for name in names}
    known = profile_in(graph, graph.profile)
    return {
        name: results[name]
        if quant is None or quant.dynamic
        else dequantize_by_profile(known, results[name], quant)
        for name, quant in kinds.items()
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
