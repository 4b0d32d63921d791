"""EmbeddingBag, which ONNX has not, by operators of its own: equal to torch in onnxruntime."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import qir

INDICES = torch.tensor([3, 1, 0, 3, 7, 2, 0, 0, 9])
OFFSETS = torch.tensor([0, 2, 2, 6, 8])  # the second bag is empty, the fourth holds row 0 alone
CASES = [
    (mode, padding, last)
    for mode, padding, last in product(("sum", "mean", "max"), (None, 0, -1), (False, True))
]


class Bags(nn.Module):
    """Bags of a table, as runs between offsets or as rows of indices."""

    def __init__(self, mode: str, padding: int | None = None, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.bags = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding, include_last_offset=last)
        nn.init.normal_(self.bags.weight)

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        made: Tensor = self.bags(indices, offsets, per_sample_weights=weights)
        return made


def check(net: nn.Module, given: tuple[Tensor | None, ...], path: Path, opset: int) -> None:
    """Compares the model that is written with the module."""
    program = torch.export.export(net.eval(), given)
    qir.save(qir.load(program), path, lossy=True, opset=opset)
    session = onnxruntime.InferenceSession(str(path))
    data = [x.numpy() for x in given if x is not None]
    names = [held.name for held in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, data, strict=True)))
    assert np.allclose(found, net(*given).detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("mode", "padding", "last"), CASES)
def test_bags_between_offsets_are_torchs(
    mode: str, padding: int | None, last: bool, tmp_path: Path
) -> None:
    offsets = torch.cat([OFFSETS, torch.tensor([9])]) if last else OFFSETS
    check(Bags(mode, padding, last), (INDICES, offsets), tmp_path / "a.onnx", 21)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_are_torchs(mode: str, opset: int, tmp_path: Path) -> None:
    rows = torch.tensor([[1, 2, 3], [4, 5, 0]])
    check(Bags(mode, 0), (rows,), tmp_path / "a.onnx", opset)


@pytest.mark.parametrize("padding", [None, 3])
def test_weights_of_rows_are_torchs(padding: int | None, tmp_path: Path) -> None:
    weights = torch.randn(9, generator=torch.Generator().manual_seed(4))
    check(Bags("sum", padding), (INDICES, OFFSETS, weights), tmp_path / "a.onnx", 21)


def test_an_open_number_of_bags_stays_open(tmp_path: Path) -> None:
    net, rows = Bags("mean").eval(), torch.tensor([[1, 2, 3], [4, 5, 0]])
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(net, (rows,), dynamic_shapes=({0: batch},))
    qir.save(qir.load(program), tmp_path / "a.onnx", lossy=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    more = torch.arange(15).reshape(5, 3) % 10
    (found,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    assert np.allclose(found, net(more).detach().numpy(), rtol=1e-6, atol=1e-6)
