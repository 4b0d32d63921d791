"""What every pass is held to, on graphs of every kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from qir.errors import PassError, QirError
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph
from qir.ledger import Ledger
from qir.reference.interpreter import run
from qir.rewrite import Pass, Report, run_passes
from qir.rewrite.runner.options import options, options_text, parse_passes
from qir.rewrite.runner.properties import find_property, first_missing
from qir.rewrite.runner.validation import Validation
from qir.testing.conformance.checklist import Broken, Check, Checklist, Unseen, demand
from qir.testing.random_graphs import random_graph, sample_inputs
from qir.testing.random_source import EVERY

COUNT = 10
"""Random graphs of each form."""
SECONDS = 60
"""For one small graph: a pass that takes longer has no end."""
Case = tuple[str, Pass, Graph]


def check_pass(
    given: Pass | type[Pass], graphs: Iterable[Graph] = (), *, count: int = COUNT
) -> tuple[Check, ...]:
    """Holds a pass to its contract: on these graphs, on its `samples`, on random ones.

    A class is tried with its default options, and with those of its `samples()`, if it has that:
    a class method that gives pairs of a pass and a graph that it changes.
    """
    kind = given if isinstance(given, type) else type(given)
    checks = Checklist()
    checks.check("is a frozen dataclass with a name", partial(_form, kind))
    checks.check("its options have defaults", partial(_options, kind))
    checks.check("its properties are known ones", partial(_properties, kind))
    try:
        cases = list(_cases(given, tuple(graphs), count))
    except Exception as error:
        checks.check("is made with its defaults", partial(_raise, error))
        return checks.told()
    checks.check("reads back from text with its options", partial(_text, cases))
    work = _PassChecks(cases)
    held = checks.check("keeps its word: honest counts, whole graphs", work.run)
    checks.check("moves no number further than it declares", work.tolerance)
    if held:
        checks.check("done twice is done once", work.twice)
        checks.check("leaves the graph that it was given", work.apart)
        checks.check("same graph, same result", work.same)
        checks.check("what it makes prints and parses back", work.prints)
        checks.check("does something", work.busy)
    return checks.told()


def _raise(error: Exception) -> None:
    raise error


def _form(kind: type[Pass]) -> None:
    settings = getattr(kind, "__dataclass_params__", None)
    demand(settings and settings.frozen, f"{kind.__name__} is no @dataclass(frozen=True)")
    demand(isinstance(getattr(kind, "name", None), str), f"{kind.__name__} has no name")
    demand(kind.__doc__, f"{kind.__name__} has no docstring; `qir passes` shows its first line")


def _options(kind: type[Pass]) -> str:
    known = options(kind)
    for one in known:
        demand(not one.required, f"option {one.name} has no default")
    bare = [one.name for one in known if not one.doc]
    said = ", ".join(one.name for one in known) or "none"
    return f"{said}; not explained by a text below: {', '.join(bare)}" if bare else said


def _properties(kind: type[Pass]) -> str:
    names = (*kind.requires, *kind.ensures)
    for name in names:
        find_property(name, f"pass {kind.name}")
    return ", ".join(names) or "none"


def _cases(given: Pass | type[Pass], graphs: Sequence[Graph], count: int) -> Iterator[Case]:
    kind = given if isinstance(given, type) else type(given)
    for i, (one, graph) in enumerate(getattr(kind, "samples", tuple)()):
        yield f"sample {i}", one, graph
    one = given() if isinstance(given, type) else given
    for i, graph in enumerate(graphs):
        yield f"graph {i}", one, graph
    for form in EVERY:
        for seed in range(count):
            yield f"random_graph({seed}, {form!r})", one, random_graph(seed, form)


def _text(cases: Sequence[Case]) -> str:
    text = ""
    for one in {id(case[1]): case[1] for case in cases}.values():
        text = options_text(one)
        if "=.." in text:
            continue  # an option that no text can hold
        try:
            (again,) = parse_passes(text)
        except QirError as error:
            if one.name in str(error) and "no pass" in str(error):
                raise Unseen("it is not installed, so it has no text yet") from None
            raise
        demand(again == one, f"{text} reads back as {options_text(again)}")
    return text


class _PassChecks:
    """A pass on many graphs."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = [(n, one, g) for n, one, g in cases if not _unfit(one, g)]
        self.texts = [print_graph(graph) for _, _, graph in self.cases]
        self.made: list[Graph] = []
        self.changed: list[int] = []

    def run(self) -> str:
        for name, one, graph in self.cases:
            reports: list[Report] = []
            self.made.append(_run(name, one, graph, reports))
            self.changed.append(sum(r.changed for r in reports))
        return f"{len(self.cases)} graphs, {sum(map(bool, self.changed))} changed"

    def tolerance(self) -> str:
        compared = 0
        for name, one, graph in self.cases:
            if one.tolerance.compared:
                compared += _validated(name, one, graph)
        some = self.cases[0][1].tolerance if self.cases else ""
        return f"{compared} graphs run before and after; it declares {some}"

    def twice(self) -> str:
        for (name, one, _), graph in zip(self.cases, self.made, strict=True):
            # A pass may use up what it requires, so that it cannot run twice.
            if _unfit(one, graph):
                continue
            reports: list[Report] = []
            _run(name, one, graph, reports)
            again = sum(r.changed for r in reports)
            demand(not again, f"{name}: {again} changes when it runs on what it made")
        return f"{len(self.cases)} graphs"

    def apart(self) -> None:
        for (name, _, graph), text in zip(self.cases, self.texts, strict=True):
            demand(print_graph(graph) == text, f"{name}: the graph that was given has changed")

    def same(self) -> None:
        for (name, one, graph), made in zip(self.cases, self.made, strict=True):
            again = print_graph(_run(name, one, graph, []))
            demand(again == print_graph(made), f"{name}: another result when it is run again")

    def prints(self) -> None:
        for (name, _, _), made in zip(self.cases, self.made, strict=True):
            text = print_graph(made)
            held = {key: array.data for key, array in array_table(made).items()}
            demand(
                print_graph(parse(text, held)) == text, f"{name}: its text reads as another graph"
            )

    def busy(self) -> str:
        some = next((n for (n, _, _), c in zip(self.cases, self.changed, strict=True) if c), None)
        said = "none of the graphs was changed: give it one that is, by a class method samples()"
        demand(some, said)
        return f"{some}, for one"


def _unfit(one: Pass, graph: Graph) -> bool:
    """Returns whether a graph is not what the pass requires."""
    return first_missing(graph, one.requires, f"pass {one.name}") is not None


def _run(name: str, one: Pass, graph: Graph, reports: list[Report]) -> Graph:
    try:
        done = run_passes(
            graph, [one], Ledger(), after=lambda r, _: reports.append(r), seconds=SECONDS
        )
    except PassError as error:
        raise Broken(f"{name}: {error}") from error
    if not reports[-1].changed:
        said = f"{name}: reports no change, but what it gives is another graph"
        demand(print_graph(done) == print_graph(graph), said)
    return done


def _validated(name: str, one: Pass, graph: Graph) -> bool:
    """Runs a graph before and after; False where the graph itself cannot be run."""
    samples = [sample_inputs(graph, seed) for seed in (0, 1)]
    try:
        for inputs in samples:
            run(graph, inputs)
    except QirError:
        return False
    try:
        held = Validation(run, samples)
        run_passes(graph, [one], Ledger(), validation=held, seconds=SECONDS)
    except PassError as error:
        raise Broken(f"{name}: {error}") from error
    return True


__all__ = ["check_pass"]
