"""Inputs with defaults, as data give them, and what data hold besides inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qir.cli.screen import Screen

if TYPE_CHECKING:
    from qir.cli.engines import Tensor, Tensors
    from qir.ir.graph import Graph

FIRST = 4
"""The most names that are listed."""
NO_INPUTS = "the model has no inputs"


def given_defaults(graph: Graph, data: Path) -> dict[str, Tensor]:
    """Returns what an .npz file holds for defaults of a model, each as a whole: they have no
    samples."""
    from qir.calibration.rows import open_npz

    names = {value.name for value in graph.defaults}
    if not names or data.suffix != ".npz" or not data.is_file():
        return {}
    return {
        name: rows.read(0, rows.shape[0] if rows.shape else 1)
        for name, rows in open_npz(data).items()
        if name in names
    }


def require_whole(feeds: bool, batch: int | None) -> None:
    """Raises UsageError where complete feeds should be put into batches."""
    from qir.errors import UsageError

    if feeds and batch is not None:
        raise UsageError("--feeds takes each file as one run: leave --batch out")


def batches(
    graph: Graph,
    data: Path | None,
    *,
    batch: int | None = None,
    limit: int | None = None,
    feeds: bool = False,
    preprocess: Path | None = None,
) -> Iterable[Tensors]:
    """Returns what a model is run on, defaults that data give among it; with `feeds` file by file.

    One empty batch where there are no data, which a model without inputs needs none of. UsageError
    where it needs some, DataError for data that do not fit it.
    """
    from qir.calibration import open_data, open_feeds
    from qir.cli.engines import input_specs
    from qir.errors import UsageError

    require_whole(feeds, batch)

    if data is None:
        if graph.inputs:
            first_inputs = ", ".join(f"{v.name} {v.type}" for v in graph.inputs[:FIRST])
            raise UsageError(f"--data is missing: the model takes {first_inputs}")
        return [{}]
    require_inputs(data, graph)
    default_arrays = given_defaults(graph, data)
    if not graph.inputs:
        return with_defaults(default_only_batch(graph, data), default_arrays)
    if feeds:
        return with_defaults(open_feeds(data, input_specs(graph), limit=limit), default_arrays)
    source = open_data(data, input_specs(graph), batch=batch, limit=limit, preprocess=preprocess)
    return with_defaults(source, default_arrays)


def show_samples_left_out(
    screen: Screen,
    graph: Graph,
    data: Path | None,
    *,
    limit: int | None = None,
    feeds: bool = False,
    preprocess: Path | None = None,
) -> None:
    """Tells how many samples fill no batch of a model that takes one size of them alone."""
    from qir.calibration import open_data
    from qir.cli.engines import input_specs

    if data is None or feeds or not graph.inputs:
        return
    source = open_data(data, input_specs(graph), limit=limit, preprocess=preprocess)
    if message := source.what_is_left_out:
        screen.aside(message)


def require_inputs(data: Path, graph: Graph) -> None:
    """Raises DataError where the only array of a file is a default's: it is not the input's."""
    from qir.errors import DataError

    with_default = _stated(graph)
    # The only array stands for the only input whatever its name, a default's array too.
    for file, names in _files(data).items() if len(graph.inputs) == 1 else ():
        if len(names) == 1 and names[0] in with_default and names[0] != graph.inputs[0].name:
            message = f"no array for input {graph.inputs[0].name!r}; {names[0]} has a default"
            raise DataError(f"{file}: {message}")


def default_only_batch(graph: Graph, data: Path) -> Sequence[Tensors]:
    """Returns the one batch of a model all of whose inputs have defaults; raises DataError for
    other data."""
    from qir.errors import DataError

    if not graph.defaults:
        raise DataError(f"{data}: {NO_INPUTS}: leave --data out")
    if not data.exists():
        raise DataError(f"{data}: there is no such file or folder")
    if data.suffix != ".npz" or data.is_dir():
        first_names = ", ".join(value.name for value in graph.defaults[:FIRST])
        raise DataError(
            f"{data}: all inputs have defaults ({first_names}): give them by name, in an .npz"
        )
    return [{}]


def with_defaults(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterable[Tensors]:
    """Batches, each with what is given for defaults."""
    return _joined(batches, held) if held else batches


def _joined(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterator[Tensors]:
    for batch in batches:
        yield {**batch, **held}


def show(
    screen: Screen, graph: Graph, data: Path | None, held: Mapping[str, Tensor] | None = None
) -> None:
    """Tells which inputs have defaults, whether these were taken, and what else was not."""
    held = held if held is not None else given_defaults(graph, data) if data else {}
    with_default = [value.name for value in graph.defaults]
    constants = [n for n in _stated(graph) if n not in with_default]
    _show_names(screen, constants, "constant here, whatever the data say")
    _show_names(screen, [n for n in with_default if n in held], "given by the data")
    missing, names_in_data = (
        [n for n in with_default if n not in held],
        _names_in(data) if data else [],
    )
    _show_names(screen, [n for n in missing if n in names_in_data], "not taken from a folder")
    _show_names(screen, [n for n in missing if n not in names_in_data], "not given")
    if data is not None:
        _show_rest(screen, graph, data)


def show_passed_over(screen: Screen, graph: Graph, data: Path) -> None:
    """Tells what calibration takes no notice of: defaults that data give, and what is no input."""
    names = _names_in(data)
    _show_names(
        screen, [n for n in _stated(graph) if n in names], "constant here, whatever the data say"
    )
    _show_rest(screen, graph, data)


def defaults_of_one_model(graphs: tuple[Graph, Graph]) -> list[str]:
    """Returns the defaults that one of two models alone takes: data give them to neither."""
    a, b = ([value.name for value in graph.defaults] for graph in graphs)
    return [*(name for name in a if name not in b), *(name for name in b if name not in a)]


def show_both(screen: Screen, graphs: tuple[Graph, Graph], data: Path | None) -> None:
    """Shows of two models that take the same inputs what `show` shows of one."""
    a, b = graphs
    names_in_data, unshared = _names_in(data) if data else [], defaults_of_one_model(graphs)
    if not unshared and _stated(a) == _stated(b):
        show(screen, a, data)
        return
    given = given_defaults(a, data) if data else {}
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
        _show_rest(screen, a, data, _stated(b))


def _stated(graph: Graph) -> list[str]:
    """Returns the inputs with defaults, those too that are constants here."""
    from qir.ir.origin import default_input_names

    spare = [value.name for value in graph.defaults]
    return list(dict.fromkeys((*default_input_names(graph.output.origins), *spare)))


def _files(data: Path) -> dict[Path, list[str]]:
    """Returns the names that arrays have in an .npz file, or in each of those of a folder."""
    from qir.calibration.rows import open_npz

    files = sorted(data.iterdir()) if data.is_dir() else [data]
    return {f: list(open_npz(f)) for f in files if f.suffix == ".npz" and f.exists()}


def _names_in(data: Path) -> list[str]:
    return list(dict.fromkeys(name for names in _files(data).values() for name in names))


def _show_rest(screen: Screen, graph: Graph, data: Path, more: Sequence[str] = ()) -> None:
    """Tells which arrays no input is named after: the only one of a file is the only input's."""
    ins = [value.name for value in graph.inputs]
    known = {*ins, *_stated(graph), *more}
    taken_as_input: list[str] = []
    unread: list[str] = []
    for names in _files(data).values():
        other = [name for name in names if name not in known]
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
    more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f"{', '.join(names[:FIRST])}{more}"
