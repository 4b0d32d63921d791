"""Branches and loops of exported programs, which become bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

import qir
from qir.errors import InputError
from tests.frontends.comparison import difference

from .comparison import export, run_graph, run_module

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(8))
NEAR = 1e-6


class Branches(nn.Module):
    """Computes with one layer or another, as the sum of the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def small(x: Tensor) -> Tensor:
            return torch.cond(x.amax() > 1, torch.neg, lambda x: x * 3, (x,))  # type: ignore[no-any-return]

        def large(x: Tensor) -> Tensor:
            return self.linear(x).relu()  # type: ignore[no-any-return]

        made: Tensor = torch.cond(x.sum() > 0, large, small, (x,))
        return made + 1


class Loops(nn.Module):
    """Applies a layer until a count or the norm of the data ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        def goes_on(i: Tensor, x: Tensor) -> Tensor:
            return (i < most) & (x.abs().sum() < 50)

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, self.linear(x) * 1.5 + most

        loop: Any = while_loop
        i, made = loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))
        return i, made


def test_branches_become_if_with_closed_bodies() -> None:
    module = Branches()
    shapes = ({0: torch.export.Dim("rows", min=2)},)
    for more in ({}, {"dynamic_shapes": shapes}):
        graph = qir.load(export(module, (X,), **more))
        (node,) = [n for n in graph if n.op == "if"]
        assert any(n.op == "if" for n in graph.body(node, "else")), "a branch in a branch"
        for x in (X.abs(), -X.abs(), X.abs() - 5, torch.tensor([[2.0, -9, 0, 0]] * 3)):
            (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
            assert difference(ours, theirs, NEAR) == ""


def test_loops_carry_their_values() -> None:
    module = Loops()
    graph = qir.load(export(module, (X, torch.tensor(3))))
    assert [n.op for n in graph].count("loop") == 1
    for count in (0, 1, 4, 100):
        given = [X, torch.tensor(count)]
        for ours, theirs in zip(run_graph(graph, given), run_module(module, given), strict=True):
            assert difference(ours, theirs, 1e-5) == ""


def test_bodies_are_written_to_onnx(tmp_path: Path) -> None:
    module = Branches()
    qir.save(qir.load(export(module, (X,))), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    for x in (X.abs(), -X.abs()):
        (ours,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert difference(np.asarray(ours), run_module(module, [x])[0], 1e-5) == ""


class Blocks(nn.Module):
    """Computes a part without gradients, and a part without autocast."""

    def __init__(self, *, autocast: bool = False) -> None:
        super().__init__()
        self.linear, self.autocast = nn.Linear(4, 4), autocast

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            places = torch.arange(x.shape[0]).float()[:, None] + self.linear.bias
            made = self.linear(x) * places
        with torch.autocast("cpu", enabled=self.autocast):
            y = made @ self.linear.weight
        return x + made, y.relu()


def test_blocks_are_read_in_their_place() -> None:
    module = Blocks()
    shapes = ({0: torch.export.Dim("rows", min=2)},)
    for more in ({}, {"dynamic_shapes": shapes}):
        program = export(module, (X,), **more)
        called = {str(node.target) for node in program.graph.nodes}
        assert {"wrap_with_set_grad_enabled", "wrap_with_autocast"} <= called
        graph = qir.load(program)
        pairs = zip(run_graph(graph, [X]), run_module(module, [X]), strict=True)
        assert [why for a, b in pairs if (why := difference(a, b, NEAR))] == []


def test_autocast_is_refused() -> None:
    program = export(Blocks(autocast=True), (X,))
    with pytest.raises(InputError, match="export it without autocast"):
        qir.load(program)
