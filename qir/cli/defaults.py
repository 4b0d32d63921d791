"""What the screen says of inputs with defaults, and of what data hold besides inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qir.cli.screen import Screen

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.workflows.engines import Tensor
    from qir.workflows.inputs import SampleData


_MOST_NAMES = 4
"""The most names that are listed."""


def show_samples_left_out(screen: Screen, graph: Graph, samples: SampleData | None) -> None:
    """Tells how many samples fill no batch of a model that takes one size of them alone."""
    from qir.workflows.inputs import samples_left_out

    if message := samples_left_out(graph, samples):
        screen.aside(message)


def show(
    screen: Screen, graph: Graph, data: Path | None, held: Mapping[str, Tensor] | None = None
) -> None:
    """Tells which inputs have defaults, whether these were taken, and what else was not."""
    from qir.workflows.inputs import array_names, default_overrides, stated_defaults

    held = held if held is not None else default_overrides(graph, data) if data else {}
    with_default = [value.name for value in graph.defaults]
    # These were inputs in the source and are constants here, so that data for them change nothing.
    constants = [n for n in stated_defaults(graph) if n not in with_default]
    _show_names(screen, constants, "constant here, whatever the data say")
    _show_names(screen, [n for n in with_default if n in held], "given by the data")
    missing, names_in_data = (
        [n for n in with_default if n not in held],
        array_names(data) if data else [],
    )
    _show_names(screen, [n for n in missing if n in names_in_data], "not taken from a folder")
    _show_names(screen, [n for n in missing if n not in names_in_data], "not given")
    if data is not None:
        _show_rest(screen, graph, data)


def show_passed_over(screen: Screen, graph: Graph, data: Path) -> None:
    """Tells which arrays calibration ignores: those of defaults, and those that are no input."""
    from qir.workflows.inputs import array_names, stated_defaults

    names = array_names(data)
    _show_names(
        screen,
        [n for n in stated_defaults(graph) if n in names],
        "constant here, whatever the data say",
    )
    _show_rest(screen, graph, data)


def show_both(screen: Screen, graphs: tuple[Graph, Graph], data: Path | None) -> None:
    """Shows of two models that take the same inputs what `show` shows of one."""
    from qir.workflows.inputs import (
        array_names,
        default_overrides,
        defaults_of_one_model,
        stated_defaults,
    )

    a, b = graphs
    names_in_data, unshared = array_names(data) if data else [], defaults_of_one_model(graphs)
    # Nothing tells the models apart, so that one's account is that of both.
    if not unshared and stated_defaults(a) == stated_defaults(b):
        show(screen, a, data)
        return
    given = default_overrides(a, data) if data else {}
    shared = [value.name for value in a.defaults if value.name not in unshared]
    _show_names(
        screen,
        [n for n in unshared if n in names_in_data],
        "left out: one model alone takes another",
    )
    _show_names(screen, [n for n in shared if n in given], "given by the data")
    _show_names(
        screen,
        [n for n in (*shared, *unshared) if n not in given and n not in names_in_data],
        "not given",
    )
    if data is not None:
        _show_rest(screen, a, data, stated_defaults(b))


def _show_rest(screen: Screen, graph: Graph, data: Path, more: Sequence[str] = ()) -> None:
    """Tells which arrays no input is named after: the only one of a file is the only input's."""
    from qir.workflows.inputs import names_by_file, stated_defaults

    ins = [value.name for value in graph.inputs]
    known = {*ins, *stated_defaults(graph), *more}
    taken_as_input: list[str] = []
    unread: list[str] = []
    for names in names_by_file(data).values():
        other = [name for name in names if name not in known]
        # As `require_inputs` reads them: a lone array needs no name.
        (taken_as_input if len(names) == len(ins) == 1 else unread).extend(other)
    for names, outcome in (
        (taken_as_input, f"taken as {ins[0]}" if ins else ""),
        (unread, "not read"),
    ):
        if distinct := list(dict.fromkeys(names)):
            predicate = "are no inputs and are" if len(distinct) > 1 else "is no input and is"
            screen.line(f"  {_name_list(distinct)}: {predicate} {outcome}")


def _show_names(screen: Screen, names: list[str], fate: str) -> None:
    if names:
        predicate = "have defaults and are" if len(names) > 1 else "has a default and is"
        screen.line(f"  {_name_list(names)}: {predicate} {fate}")


def _name_list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
