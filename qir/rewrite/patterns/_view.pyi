from array import array
from collections.abc import Mapping

from qir.ir.graph import Graph
from qir.ir.node import Node

class View:
    """Nodes in order, each with the number of its op, most uses of a result, and producers."""

    nodes: list[Node]

    def __init__(self, graph: Graph, numbers: Mapping[str, int], group: str) -> None: ...
    def candidates(
        self, rows: array[int], tests: array[int], wanted: array[int], goals: int
    ) -> list[Node]:
        """The nodes whose bits meet `goals`, producers first."""
