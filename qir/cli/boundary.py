"""`--io`: inputs and outputs of integers, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qir.cli.screen import Column, Screen

if TYPE_CHECKING:
    from qir.analysis.integer_boundary import BoundaryValue

option = click.option(
    "--io",
    default="float",
    show_default=True,
    metavar="TYPE",
    help="Types of inputs and outputs: float; integer, as the model computes with; or i8, u8."
    " Inputs and outputs apart: u8:float.",
)


def recipe_text(asked: str) -> str:
    """Returns what a recipe says of `--io`; raises UsageError for no types."""
    from qir.analysis.integer_boundary import BoundaryTypes

    return "" if BoundaryTypes.parse(asked).floats else asked


def to_json(boundary: Sequence[BoundaryValue]) -> list[dict[str, object]]:
    """Returns the inputs and outputs that were asked to be integers."""
    return [
        {
            "name": end.name,
            "side": end.side,
            "type": "float" if end.quant is None else str(end.quant.storage),
            "scale": None if end.quant is None else float(end.quant.scales()),
            "zero": None if end.quant is None else int(end.quant.zeros()),
            "reason": end.reason,
        }
        for end in boundary
    ]


def show(screen: Screen, boundary: Sequence[BoundaryValue]) -> None:
    """Prints which inputs and outputs are integers now, and why others are not."""
    from qir.cli.words import scale
    from qir.inspect.summary import QuantizedStorage

    if not boundary:
        return
    if all(end.quant is None for end in boundary):
        screen.line("warning: --io: no input or output can be integers", "yellow")
    rows = [
        (
            end.name,
            end.side,
            "float" if end.quant is None else str(end.quant.storage),
            scale(QuantizedStorage.of(end.quant)),
            end.reason,
        )
        for end in boundary
    ]
    columns = (
        Column("name", fit="fold"),
        Column("is"),
        Column("holds"),
        Column("scale:zero"),
        Column("why float", fit="wrap"),
    )
    screen.table(columns, rows, title="inputs and outputs")
