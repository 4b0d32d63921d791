"""Random graphs for property tests: `graphs()` for hypothesis, `random_graph` for seeded loops.

Every graph is well formed: `verify` finds no error in it, and `sample_inputs` fits it; what
decoration adds prints and parses, but its scales may be NaN. The same choices give the same graph.
The forms `float`, `qdq` and `integer` are networks that passes quantize; `whole` says whatever the
language can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.testing.conformance import (
    Check,
    check_frontend,
    check_method,
    check_metric,
    check_observer,
    check_op,
    check_pass,
    check_plugin,
    check_target,
    require,
)
from qir.testing.edge_cases import (
    DTYPES,
    NAMES,
    odd_array,
    odd_name,
    odd_number,
    odd_quant,
    odd_type,
)
from qir.testing.random_graphs import random_graph, sample_inputs
from qir.testing.random_source import EVERY, FORMS, Form, Pick

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def graphs(form: Form | None = None, *, decorated: bool = False) -> SearchStrategy[Graph]:
    """Graphs for hypothesis, of one form or of any of `FORMS`; PluginError without it."""
    from qir.testing import strategies

    return strategies.graphs(form, decorated)


def tensor_types() -> SearchStrategy[TensorType]:
    """Types of every kind that the grammar has, for hypothesis; PluginError without it."""
    from qir.testing import strategies

    return strategies.tensor_types()


__all__ = [
    "DTYPES",
    "EVERY",
    "FORMS",
    "NAMES",
    "Check",
    "Form",
    "Pick",
    "check_frontend",
    "check_method",
    "check_metric",
    "check_observer",
    "check_op",
    "check_pass",
    "check_plugin",
    "check_target",
    "graphs",
    "odd_array",
    "odd_name",
    "odd_number",
    "odd_quant",
    "odd_type",
    "random_graph",
    "require",
    "sample_inputs",
    "tensor_types",
]
