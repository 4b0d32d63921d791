"""Where things came from: nodes have origins, values have a tensor id and a lineage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from qir.records import record


@record
class Origin:
    """One operator of the source model, by the names it has there."""

    framework: str
    op: str = ""
    name: str = ""
    path: str = ""
    call: int = 0
    operands: tuple[tuple[str, str], ...] = ()
    """Slot and the source's name of what stood there; all names of a tied parameter."""
    layer: str = ""
    """The framework's own layer class that called it, such as `torch.nn.modules.conv.Conv2d`."""

    def __str__(self) -> str:
        where = self.name or self.path
        return f"{self.framework} {self.op}{f' {where}' if where else ''}".strip()

    def __repr__(self) -> str:
        return f"<{self}>"

    def items(self) -> list[tuple[str, str | int | tuple[tuple[str, str], ...]]]:
        """Returns the fields that say something, in order."""
        defaults = Origin(self.framework)
        return [
            (f.name, getattr(self, f.name))
            for f in fields(self)
            if f.name == "framework" or getattr(self, f.name) != getattr(defaults, f.name)
        ]


def default_input_names(origins: Iterable[Origin]) -> list[str]:
    """Names that a source calls inputs and gives a default, which they are in the graph.

    They are among the origins of a graph's output.
    """
    return [origin.name for origin in origins if origin.op == "Default"]


@record
class Lineage:
    """The source tensor that a value represents, and how it differs from it."""

    tensor: str
    how: tuple[str, ...] = ()
    """Steps such as `coded`, `permuted(0, 2, 3, 1)`, `scaled(@v)`; none: the same tensor."""

    def then(self, step: str) -> Lineage:
        """Returns the lineage after one more step."""
        return Lineage(self.tensor, (*self.how, step))
