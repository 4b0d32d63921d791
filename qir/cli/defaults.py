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


def alone(graph: Graph, data: Path) -> Sequence[Tensors]:
    """The one batch of a model all of whose inputs have defaults; DataError for other data."""
    from qir.errors import DataError

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


def show(screen: Screen, graph: Graph, data: Path, held: Mapping[str, Tensor]) -> None:
    """Tells which inputs have defaults, whether these were taken, and what else was not."""
    spare = [value.name for value in graph.defaults]
    fixed = [n for n in _stated(graph) if n not in spare]
    _told(screen, fixed, "constant here, whatever the data say")
    _told(screen, [n for n in spare if n in held], "given by the data")
    left, names = [n for n in spare if n not in held], _named(data)
    _told(screen, [n for n in left if n in names], "not taken from a folder")
    _told(screen, [n for n in left if n not in names], "not given")
    _show_rest(screen, graph, names)


def show_passed_over(screen: Screen, graph: Graph, data: Path) -> None:
    """Tells what calibration takes no notice of: defaults that data give, and what is no input."""
    names = _named(data)
    _told(screen, [n for n in _stated(graph) if n in names], "constant here, whatever the data say")
    _show_rest(screen, graph, names)


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
    ins = [value.name for value in graph.inputs]
    rest = [n for n in names if n not in (*ins, *_stated(graph))]
    if rest and (len(ins) != 1 or ins[0] in names):
        what = "are no inputs and are" if len(rest) > 1 else "is no input and is"
        screen.line(f"  {_listed(rest)}: {what} not read")


def _told(screen: Screen, names: list[str], what: str) -> None:
    if names:
        said = "have defaults and are" if len(names) > 1 else "has a default and is"
        screen.line(f"  {_listed(names)}: {said} {what}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return f"{', '.join(names[:FIRST])}{more}"
