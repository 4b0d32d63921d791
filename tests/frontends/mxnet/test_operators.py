"""Each operator that is read computes what MXNet 1.9.1 computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import qir
from qir.errors import InputError
from qir.frontends.mxnet.operators import ALIASES, OPS
from qir.reference.interpreter import run
from tests.frontends.comparison import difference

from .recorded_cases import Case, cases

FAMILIES = ("layers", "moves", "points")
CASES = [case for family in FAMILIES for case in cases(family)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_computes_what_mxnet_computed(case: Case, tmp_path: Path) -> None:
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    made = list(run(graph, case.inputs).values())
    pairs = zip(made, case.results, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-5))] == []


def test_what_is_read_with_open_sizes_computes_the_same(tmp_path: Path) -> None:
    refused: list[str] = []
    for case in CASES:
        opened = [(None,) * data.ndim for data in case.given()]
        try:
            graph = qir.load(case.write(tmp_path), inputs=opened)
        except InputError:
            refused.append(case.name)
            continue
        made = list(run(graph, case.inputs).values())
        pairs = zip(made, case.results, strict=True)
        said = [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-5))]
        assert said == [], case.name
    assert len(refused) < len(CASES) / 10, refused


def test_every_operator_that_is_read_is_compared() -> None:
    compared = {
        name
        for case in (*CASES, *cases("quantized"), *cases("uncalibrated"))
        for name in case.operators
    }
    compared |= {name.replace("_sg_mkldnn_", "_sg_onednn_") for name in compared}
    assert OPS.keys() - compared == set()
    assert set(ALIASES.values()) <= OPS.keys()
