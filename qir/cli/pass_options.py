"""What the verbs that run passes share: the options, the samples, and what is said of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli.failures import printable
from qir.cli.screen import Column, Screen, plural

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.rewrite import Pass, Report
    from qir.workflows.engines import Tensors

_GIVE = {
    "group": "say whose kernels: group{as=ort-1.31}",
    "assign-schemes": "say for whom: assign-schemes{target=onnxruntime}",
    "quantize-dynamic": "qir quantize --dynamic says for whom",
    "materialize": "it carries out plans, of assign-schemes{target=onnxruntime} before it, and"
    " takes materialize{statistics=FILE}",
}
"""Of passes that do nothing with their defaults alone: what to give them."""
MAX_SHOWN_REWRITES = 20
"""Rows of rewrites that are shown; --json has all."""
SEED = 1
"""Of samples that nobody gives."""

passes = click.option(
    "-p",
    "--pass",
    "--passes",
    "texts",
    multiple=True,
    required=True,
    metavar="TEXT",
    help="A pass with its options, 'fold-constants{limit=4096}', or several: 'prune; cse'. May be"
    " given several times.",
)
size = click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="DIM=N",
    help="Size of a named dimension that is left open, for samples that are drawn.",
)


def parse(texts: Sequence[str]) -> tuple[Pass, ...]:
    """Returns the passes that were named, in order."""
    from qir.rewrite.runner.options import parse_passes

    return tuple(one for text in texts for one in parse_passes(text))


def text_of(one: Pass) -> str:
    """Returns a pass as text, with the options that are not its defaults."""
    from qir.rewrite.runner.options import options_text

    return options_text(one)


def samples(graph: Graph, data: Path | None, sizes: Sequence[str], limit: int) -> Iterable[Tensors]:
    """Batches to run a graph on: of data, or drawn."""
    from qir.workflows.inputs import SampleData, input_batches, random_inputs

    if data is not None:
        # A list: samples are run before the passes and again after each.
        return list(input_batches(graph, SampleData(data, limit=limit)))
    return [random_inputs(graph, SEED, limit, _sizes(sizes))]


def _sizes(texts: Sequence[str]) -> Mapping[str, int]:
    from qir.errors import UsageError

    out: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise UsageError(f"--size {text!r} is not NAME=NUMBER")
        out[name] = int(number)
    return out


@contextmanager
def surroundings() -> Iterator[None]:
    """Prints the nodes around the place where a pass went wrong, before the line that says it."""
    from qir.errors import QirError

    try:
        yield
    except QirError as error:
        # The failure itself is one line; the runner adds the graph around the place as notes.
        for note in getattr(error, "__notes__", ()):
            for line in note.splitlines():
                print(f"  {printable(line)}", file=sys.stderr)
        raise


def hints(reports: Iterable[Report]) -> Iterator[str]:
    """Yields what to give a pass that had nothing to do because nothing was given."""
    for report in reports:
        # `options` is the bare name where all are defaults: with options given, it was not for lack
        # of them.
        if not report.changed and (said := _GIVE.get(report.options)):
            yield f"{report.options} changed nothing; {said}"


def show(screen: Screen, reports: Sequence[Report]) -> None:
    """Prints what each pass did, and where."""
    columns = (
        Column("pass", fit="fold"),
        Column("changes", "right"),
        Column("nodes", "right"),
        Column("seconds", "right"),
    )
    rows = [
        (r.options, f"{r.changed:,}", f"{r.nodes[0]:,} -> {r.nodes[1]:,}", f"{r.seconds:.2f}")
        for r in reports
    ]
    screen.table(columns, rows, title="passes")
    show_steps(screen, reports)


def show_steps(screen: Screen, reports: Sequence[Report]) -> None:
    """Prints the rewrites, those that are alike in one row."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for report in reports:
        for step in report.steps:
            origin = str(step.origins[0]) if step.origins else ""
            alike.setdefault((step.by, step.rewrite), []).append((step.node, origin))
    rows = [(f"{len(found):,}", by, rewrite, *found[0]) for (by, rewrite), found in alike.items()]
    columns = (
        Column("count", "right"),
        Column("pass", fit="drop"),
        Column("rewrite", fit="wrap"),
        Column("such as", fit="fold"),
        Column("came from", fit="drop"),
    )
    screen.table(columns, rows[:MAX_SHOWN_REWRITES], title="rewrites")
    if len(rows) > MAX_SHOWN_REWRITES:
        more = plural(len(rows) - MAX_SHOWN_REWRITES, "more kind")
        screen.line(f"  and {more}; --json has all", "dim")


def report_json(report: Report) -> dict[str, object]:
    """Returns what a pass did, as JSON takes it."""
    return {
        "name": report.name,
        "text": report.options,
        "changed": report.changed,
        "seconds": report.seconds,
        "nodes_before": report.nodes[0],
        "nodes_after": report.nodes[1],
        "rewrites": [
            {
                "number": step.number,
                "rewrite": step.rewrite,
                "node": step.node,
                "origins": [str(origin) for origin in step.origins],
            }
            for step in report.steps
        ],
    }
