"""Random graphs for property tests: `graphs()` for hypothesis, `random_graph` for seeded loops.

Every graph is well formed: `verify` finds no error in it, and `sample_inputs` fits it; what
decoration adds prints and parses, but its scales may be NaN. The same choices give the same graph.
The forms `float`, `qdq` and `integer` are networks that passes quantize; `whole` says whatever the
language can.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from qir.errors import PluginError
from qir.ir import dims
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.testing.chance import EVERY, FORMS, Form, Pick
from qir.testing.codes import Codes
from qir.testing.history import decorate
from qir.testing.odd import DTYPES, NAMES, odd_array, odd_name, odd_number, odd_quant, odd_type
from qir.testing.pairs import insert_pairs
from qir.testing.reals import Reals
from qir.testing.whole import whole_graph

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as error:
    raise PluginError('qir.testing needs hypothesis: pip install "qir[test]"') from error


def random_graph(seed: int, form: Form = "float", *, decorated: bool = False) -> Graph:
    """The graph of a seed; `decorated` ones have odd names, types, history and plans."""
    return _build(random.Random(seed).randrange, form, decorated)


def graphs(form: Form | None = None, *, decorated: bool = False) -> SearchStrategy[Graph]:
    """Graphs for hypothesis, of one form or of any of `FORMS`."""

    @st.composite
    def build(draw: DrawFn) -> Graph:
        pick = _picking(draw)
        return _build(pick, form or FORMS[pick(len(FORMS))], decorated)

    return build()


def tensor_types() -> SearchStrategy[TensorType]:
    """Types of every kind that the grammar has."""

    @st.composite
    def build(draw: DrawFn) -> TensorType:
        return odd_type(_picking(draw))

    return build()


def _picking(draw: DrawFn) -> Pick:
    return lambda count: draw(st.integers(0, count - 1))


def sample_inputs(graph: Graph, seed: int) -> dict[str, NDArray[np.generic]]:
    """Arrays that fit the inputs of a graph; unknown sizes are small."""
    rng = np.random.default_rng(seed)
    out: dict[str, NDArray[np.generic]] = {}
    for value in graph.inputs:
        names = sorted(dims.names(value.type.shape))
        sizes = {name: 2 + len(name) % 3 for name in names}
        shape = tuple(2 if d is None else dims.bind(d, sizes) for d in value.type.shape)
        known = dims.known(shape)
        assert known is not None
        kind = value.type.dtype
        if kind.is_float:
            out[value.name] = rng.normal(0, 2, known).astype(kind.carrier)
        elif kind.is_integer:
            low, high = value.type.bounds
            low, high = max(low, -(1 << 62)), min(high, 1 << 62)
            out[value.name] = rng.integers(low, high, known, endpoint=True).astype(kind.carrier)
        else:
            out[value.name] = rng.integers(0, 2, known).astype(kind.carrier)
    return out


def _build(pick: Pick, form: Form, decorated: bool) -> Graph:
    if form == "whole":
        graph = whole_graph(pick)
    else:
        maker = Codes(pick) if form == "integer" else Reals(pick)
        graph = maker.build()
    if form == "qdq":
        insert_pairs(pick, graph)
    if decorated:
        decorate(pick, graph)
    return graph


__all__ = [
    "DTYPES",
    "EVERY",
    "FORMS",
    "NAMES",
    "Form",
    "Pick",
    "graphs",
    "odd_array",
    "odd_name",
    "odd_number",
    "odd_quant",
    "odd_type",
    "random_graph",
    "sample_inputs",
    "tensor_types",
]
