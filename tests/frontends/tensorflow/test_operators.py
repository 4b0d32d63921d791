"""Each op that is read computes what TensorFlow computes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from qir.frontends.tensorflow import TensorFlowFrontend
from qir.ledger import Ledger

from .cases import Case, cases
from .comparison import Array, built, computed, difference, saved

CASES = cases()


@lru_cache(len(CASES))
def _built(case: Case) -> tuple[Any, list[Array]]:
    return built(case.function, case.inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_op_computes_what_tensorflow_computes(case: Case, tmp_path: Path) -> None:
    proto, wanted = _built(case)
    graph = TensorFlowFrontend().load(saved(proto, tmp_path / "graph.pb"), Ledger())
    pairs = zip(computed(graph, case.inputs), wanted, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, case.near))] == []


def test_every_op_that_is_read_is_compared() -> None:
    from qir.frontends.tensorflow import kernels, loops
    from qir.frontends.tensorflow.operators import OPS

    compared = {node.op for case in CASES for node in _built(case)[0].node}
    elsewhere = kernels.OPS.keys() | loops.OPS.keys()
    assert OPS.keys() - elsewhere - compared == set()
