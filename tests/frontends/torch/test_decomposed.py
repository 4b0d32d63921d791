"""Operators that PyTorch says in others are read as these, and none stays foreign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qir
from qir.frontends.torch import TorchFrontend
from qir.ledger import Ledger
from tests.frontends.comparison import difference

from .comparison import export, run_graph, run_module

NEAR = 2e-6


def _data(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


X, ROWS, LINES = _data(2, 4, 8, 8), _data(5, 6), _data(2, 5, 6)
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "swapaxes": (lambda x: x.swapaxes(1, 2), (LINES,)),
    "movedim": (lambda x: x.movedim(0, 2), (LINES,)),
    "reshape_as": (lambda x: x.reshape_as(x.transpose(1, 2)), (LINES,)),
    "rot90": (lambda x: torch.rot90(x, 1, (2, 3)), (X,)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (X,)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (X,)),
    "hstack": (lambda x: torch.hstack((x, x)), (ROWS,)),
    "tensor_split": (lambda x: torch.tensor_split(x, [1, 3], dim=1), (LINES,)),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[:, 0], indexing="xy"), (ROWS,)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, dim=1), (LINES,)),
    "one_hot": (lambda x: F.one_hot((x > 0).long(), 3), (ROWS,)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5])), (ROWS,)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, (x > 0).long(), 0), (ROWS,)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x.flip(-1), dim=-1), (LINES,)),
    "lerp": (lambda x: torch.lerp(x, x.flip(0), 0.3), (ROWS,)),
    "nan_to_num": (lambda x: torch.nan_to_num(x / 0, 0.0, 1.0, -1.0), (ROWS,)),
    "mse_loss": (lambda x: F.mse_loss(x, x.flip(0)), (ROWS,)),
    "LSTMCell": (nn.LSTMCell(6, 4), (ROWS,)),
    "GRUCell": (nn.GRUCell(6, 4), (ROWS,)),
    "RNNCell": (nn.RNNCell(6, 4), (ROWS,)),
    "affine_grid": (lambda x: F.affine_grid(x[:, :2, :3], [2, 3, 5, 6]), (LINES,)),
}


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_that_is_said_in_others_is_read(name: str) -> None:
    function, inputs = CASES[name]
    module = _Called(function)
    graph = TorchFrontend().load(export(module, inputs), Ledger())
    assert not [str(n.attrs["op"]) for n in graph if n.op == "foreign"]
    pairs = zip(run_graph(graph, inputs), run_module(module, inputs), strict=True)
    assert [why for a, b in pairs if (why := difference(a, b, NEAR))] == []


def test_sizes_stay_open_in_what_an_operator_is_said_in() -> None:
    module = _Called(lambda x: F.pixel_unshuffle(x.swapaxes(0, 1), 2))
    program = export(module, (X,), dynamic_shapes=(({0: torch.export.Dim.AUTO},),))
    graph = qir.load(program)
    assert not [n for n in graph if n.op == "foreign"]
    for batch in (3, 7):
        x = _data(batch, 4, 8, 8)
        (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
        assert not difference(ours, theirs, 0)


def test_nodes_of_such_an_operator_name_the_module_of_the_user() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(6, 4)

        def forward(self, x: Tensor) -> Any:
            return self.cell(x)

    graph = qir.load(Named(), inputs=(ROWS,))
    assert {node.origins[0].path for node in graph if node.op == "tanh"} == {"cell"}
