"""Operators that sort, write and look up elements, and unknown ones, are written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qir
from qir.errors import Refused
from tests.frontends.comparison import difference
from tests.frontends.torch.cases import Case
from tests.frontends.torch.comparison import export, flatten_tensors, run_module
from tests.frontends.torch.picked_cases import INDEXING_CASES, LINES, ROWS

FORMS = ("fx", "torchscript", "pt2", "float")
FOREIGN: dict[str, Any] = {
    "cummax": (lambda x: torch.cummax(x, 1), (LINES,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (LINES,)),
    "erfinv": (lambda x: torch.erfinv(x / 2), (ROWS,)),
    "bincount": (lambda x: torch.bincount((x[0] > 0).long(), minlength=3), (ROWS,)),
    "copysign in place": (lambda x: x.clone().copysign_(x.flip(0)) + 1, (ROWS,)),
    "unique": (lambda x: torch.unique((x > 0).long()), (ROWS,)),
}
"""Operators that the language has not, with their forms of results and of numbers."""
CASES: dict[str, Any] = {**INDEXING_CASES, **FOREIGN}


def again(graph: qir.Graph, form: str, inputs: tuple[Tensor, ...]) -> list[Any]:
    """Returns what the written program computes."""
    made: Any = qir.build(graph, target="pytorch-x86", format=form)
    run = made.module() if form in ("pt2", "float") else made
    with torch.no_grad():
        return [x.numpy() for x in flatten_tensors(run(*inputs))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_written_back(name: str, form: str) -> None:
    function, inputs = CASES[name]
    module = Case(name, function, inputs).module()
    graph = qir.load(export(module, inputs))
    pairs = zip(again(graph, form, inputs), run_module(module, inputs), strict=True)
    assert [why for a, b in pairs if (why := difference(a, b, 1e-5))] == []


class Sorting(nn.Module):
    """Two layers around an operator that the language has not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.cummax(self.first(x), 1)[0])


@pytest.mark.filterwarnings("ignore")
def test_layers_around_an_unknown_operator_are_quantized(tmp_path: Path) -> None:
    graph = qir.load(Sorting(), inputs=(ROWS,))
    statistics = qir.calibrate(graph, ROWS.numpy())
    made = qir.quantize(graph, statistics, target="pytorch-x86")
    assert sum(node.op == "foreign" for node in made) == 1
    path = tmp_path / "net.pt"
    qir.save(made, path, target="pytorch-x86")
    load: Any = torch.jit.load
    theirs = load(str(path))(ROWS)
    (ours,) = qir.run(qir.load(path), {qir.load(path).inputs[0].name: ROWS.numpy()}).values()
    assert np.array_equal(ours, theirs.numpy())


def test_onnx_refuses_an_unknown_operator_in_a_line_that_names_it(tmp_path: Path) -> None:
    graph = qir.load(Sorting(), inputs=(ROWS,))
    with pytest.raises(Refused, match=r"cummax.*write it for torch instead"):
        qir.save(graph, tmp_path / "net.onnx")
