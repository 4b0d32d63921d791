"""Graphs of a seed, and inputs that fit them."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.graph import Graph
from qir.testing.decoration import decorate
from qir.testing.float_networks import Reals
from qir.testing.integer_networks import IntegerNetwork
from qir.testing.qdq_networks import insert_pairs
from qir.testing.random_source import Form, Pick
from qir.testing.whole_language import whole_graph


def random_graph(seed: int, form: Form = "float", *, decorated: bool = False) -> Graph:
    """Returns the graph of a seed; `decorated` ones have odd names, types, history and plans."""
    return build(random.Random(seed).randrange, form, decorated)


def sample_inputs(graph: Graph, seed: int) -> dict[str, NDArray[np.generic]]:
    """Arrays that fit the inputs of a graph; unknown sizes are small."""
    rng = np.random.default_rng(seed)
    out: dict[str, NDArray[np.generic]] = {}
    for value in graph.inputs:
        names = sorted(dims.names(value.type.shape))
        sizes = {name: 2 + len(name) % 3 for name in names}
        shape = tuple(2 if d is None else dims.bind(d, sizes) for d in value.type.shape)
        known = dims.known_shape(shape)
        assert known is not None
        kind = value.type.dtype
        if kind.is_float:
            out[value.name] = rng.normal(0, 2, known).astype(kind.carrier)
        elif kind.is_integer:
            low, high = value.type.bounds
            # Room for the 64-bit generator, whose span must itself fit 64 bits.
            low, high = max(low, -(1 << 62)), min(high, 1 << 62)
            out[value.name] = rng.integers(low, high, known, endpoint=True).astype(kind.carrier)
        else:
            out[value.name] = rng.integers(0, 2, known).astype(kind.carrier)
    return out


def build(pick: Pick, form: Form, decorated: bool) -> Graph:
    """Returns the graph of a source of chance."""
    if form == "whole":
        graph = whole_graph(pick)
    else:
        maker = IntegerNetwork(pick) if form == "integer" else Reals(pick)
        graph = maker.build()
    if form == "qdq":
        insert_pairs(pick, graph)
    # Last, as decoration must not change which network a seed gives.
    if decorated:
        decorate(pick, graph)
    return graph
