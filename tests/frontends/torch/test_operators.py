"""Each operator that is read computes what PyTorch computes."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from qir.frontends.torch import TorchFrontend
from qir.ledger import Ledger
from tests.frontends.comparison import difference

from .cases import Case, cases
from .comparison import export, run_graph, run_module

CASES = cases()


@lru_cache(len(CASES))
def exported(case: Case) -> torch.export.ExportedProgram:
    return export(case.module(), case.inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_computes_what_pytorch_computes(case: Case) -> None:
    graph = TorchFrontend().load(exported(case), Ledger())
    assert not [str(n.attrs["op"]) for n in graph if n.op == "foreign"]
    pairs = zip(run_graph(graph, case.inputs), run_module(case.module(), case.inputs), strict=True)
    assert [why for a, b in pairs if (why := difference(a, b, case.near))] == []


@pytest.mark.slow
def test_every_operator_that_is_read_is_compared() -> None:
    from qir.frontends.torch.dynamic import OPS as DYNAMIC
    from qir.frontends.torch.dynamic_recurrent import OPS as LAYERS
    from qir.frontends.torch.operators import OPS
    from qir.frontends.torch.pointwise import OPS as POINTWISE
    from qir.frontends.torch.program import functionalized_if_needed

    read = [exported(case) for case in CASES]
    programs = [*read, *map(functionalized_if_needed, read)]
    compared = {str(node.target) for program in programs for node in program.graph.nodes}
    # test_lowered_programs.py, test_torchscript.py
    elsewhere = POINTWISE.keys() | DYNAMIC.keys() | {f"aten.{name}" for name in LAYERS}
    assert OPS.keys() - compared - elsewhere == set()
