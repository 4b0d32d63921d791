"""Inputs with defaults, as data give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


def beside(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterable[Tensors]:
    """Batches, each with what is given for defaults."""
    return _joined(batches, held) if held else batches


def _joined(batches: Iterable[Tensors], held: Mapping[str, Tensor]) -> Iterator[Tensors]:
    for batch in batches:
        yield {**batch, **held}


def show(screen: Screen, graph: Graph, held: Mapping[str, Tensor]) -> None:
    """Tells which inputs have defaults, and whether these were taken."""
    from qir.ir.origin import defaults

    spare = [value.name for value in graph.defaults]
    fixed = [n for n in defaults(graph.output.origins) if n not in spare]
    _told(screen, fixed, "constant here, whatever the data say")
    _told(screen, [n for n in spare if n in held], "given by the data")
    _told(screen, [n for n in spare if n not in held], "not given")


def _told(screen: Screen, names: list[str], what: str) -> None:
    if names:
        more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
        said = "have defaults and are" if len(names) > 1 else "has a default and is"
        screen.line(f"  {', '.join(names[:FIRST])}{more}: {said} {what}")
