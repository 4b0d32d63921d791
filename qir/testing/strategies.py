"""What hypothesis draws: graphs and types."""

from __future__ import annotations

from qir.errors import PluginError
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.testing.edge_cases import odd_type
from qir.testing.random_graphs import build
from qir.testing.random_source import FORMS, Form, Pick

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as error:
    said = 'strategies of qir.testing need hypothesis: pip install "qir[test]"'
    raise PluginError(said) from error


def graphs(form: Form | None, decorated: bool) -> SearchStrategy[Graph]:
    """Graphs of one form or of any of `FORMS`."""

    @st.composite
    def made(draw: DrawFn) -> Graph:
        pick = _picking(draw)
        return build(pick, form or FORMS[pick(len(FORMS))], decorated)

    return made()


def tensor_types() -> SearchStrategy[TensorType]:
    """Types of every kind."""

    @st.composite
    def made(draw: DrawFn) -> TensorType:
        return odd_type(_picking(draw))

    return made()


def _picking(draw: DrawFn) -> Pick:
    return lambda count: draw(st.integers(0, count - 1))
