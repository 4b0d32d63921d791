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
"""So many names are told."""
NO_INPUTS = "the model has no inputs"


def given_in(graph: Graph, data: Path) -> dict[str, Tensor]:
    """What an .npz file holds for defaults of a model, each as a whole: they have no samples."""
    from qir.calibration.rows import open_npz

    names = {value.name for value in graph.defaults}
    if not names or data.suffix != ".npz" or not data.is_file():
        return {}
    return {
        name: rows.read(0, rows.shape[0] if rows.shape else 1)
        for name, rows in open_npz(data).items()
        if name in names
    }


def batches(
    graph: Graph, data: Path | None, *, batch: int | None = None, limit: int | None = None
) -> Iterable[Tensors]:
    """What a model is run on, defaults that data give among it.

    One empty batch where there are no data, which a model without inputs needs none of. UsageError
    where it needs some, DataError for data that do not fit it.
    """
    from qir.calibration import open_data
    from qir.cli.engines import input_specs
    from qir.errors import UsageError

    if data is None:
        if graph.inputs:
            some = ", ".join(f"{v.name} {v.type}" for v in graph.inputs[:FIRST])
            raise UsageError(f"--data is missing: the model takes {some}")
        return [{}]
    held = given_in(graph, data)
    if not graph.inputs:
        return beside(alone(graph, data), held)
    return beside(open_data(data, input_specs(graph), batch=batch, limit=limit), held)


def require_known(data: Path, *graphs: Graph) -> None:
    """DataError where data hold arrays that no input of the models is named after."""
    from qir.errors import DataError

    ins = list(dict.fromkeys(v.name for g in graphs for v in g.inputs))
    spare = list(dict.fromkeys(n for g in graphs for n in _stated(g) if n not in ins))
    rest = _rest(_named(data), ins, spare) if data.exists() else []
    if rest:
        more = f" ({_listed(spare)} by default)" if spare else ""
        known = f"the model takes {_listed([*ins, *spare])}{more}" if ins or spare else NO_INPUTS
        what = "are no inputs" if len(rest) > 1 else "is no input"
        raise DataError(f"{data}: {_listed(rest)} {what}; {known}")


def alone(graph: Graph, data: Path) -> Sequence[Tensors]:
    """The one batch of a model all of whose inputs have defaults; DataError for other data."""
    from qir.errors import DataError

    if not graph.defaults:
        raise DataError(f"{data}: {NO_INPUTS}: leave --data out")
    if not data.exists():
        raise DataError(f"{data}: there is no such file or folder")
    if data.suffix != ".npz" or data.is_dir():
        some = ", ".join(value.name for value in graph.defaults[:FIRST])
        raise DataError(f"{data}: all inputs have defaults ({some}): give them by name, in an .npz")
    return [{}]


def beside(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterable[Tensors]:
    """Batches, each with what is given for defaults."""
    return _joined(batches, held) if held else batches


def _joined(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterator[Tensors]:
    for batch in batches:
        yield {**batch, **held}


def show(
    screen: Screen, graph: Graph, data: Path | None, held: Mapping[str, Tensor] | None = None
) -> None:
    """Tells which inputs have defaults, whether these were taken, and what else was not."""
    held = held if held is not None else given_in(graph, data) if data else {}
    spare = [value.name for value in graph.defaults]
    fixed = [n for n in _stated(graph) if n not in spare]
    _told(screen, fixed, "constant here, whatever the data say")
    _told(screen, [n for n in spare if n in held], "given by the data")
    left, names = [n for n in spare if n not in held], _named(data) if data else []
    _told(screen, [n for n in left if n in names], "not taken from a folder")
    _told(screen, [n for n in left if n not in names], "not given")
    _show_rest(screen, graph, names)


def show_passed_over(screen: Screen, graph: Graph, data: Path) -> None:
    """Tells what calibration takes no notice of: defaults that data give, and what is no input."""
    names = _named(data)
    _told(screen, [n for n in _stated(graph) if n in names], "constant here, whatever the data say")
    _show_rest(screen, graph, names)


def names(graph: Graph) -> tuple[list[str], list[str]]:
    """The inputs with defaults that a caller may give, and those too that are constants here."""
    return [value.name for value in graph.defaults], _stated(graph)


def _stated(graph: Graph) -> list[str]:
    """The inputs with defaults, those too that are constants here."""
    from qir.ir.origin import defaults

    spare = [value.name for value in graph.defaults]
    return list(dict.fromkeys((*defaults(graph.output.origins), *spare)))


def _named(data: Path) -> list[str]:
    """The names that arrays have in an .npz file, or in those of a folder."""
    from qir.calibration.rows import open_npz

    files = sorted(data.iterdir()) if data.is_dir() else [data]
    return list(dict.fromkeys(n for f in files if f.suffix == ".npz" for n in open_npz(f)))


def _show_rest(screen: Screen, graph: Graph, names: list[str]) -> None:
    """Tells which arrays no input is named after; a single one may be the only input's."""
    if rest := _rest(names, [value.name for value in graph.inputs], _stated(graph)):
        what = "are no inputs and are" if len(rest) > 1 else "is no input and is"
        screen.line(f"  {_listed(rest)}: {what} not read")


def _rest(names: Sequence[str], ins: Sequence[str], spare: Sequence[str]) -> list[str]:
    """The names that are none of a model's; a single one may stand for the only input."""
    rest = [n for n in names if n not in ins and n not in spare]
    return rest if len(ins) != 1 or ins[0] in names else []


def _told(screen: Screen, names: list[str], what: str) -> None:
    if names:
        said = "have defaults and are" if len(names) > 1 else "has a default and is"
        screen.line(f"  {_listed(names)}: {said} {what}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f"{', '.join(names[:FIRST])}{more}"
