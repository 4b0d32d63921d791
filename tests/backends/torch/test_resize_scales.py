"""Resizes written for PyTorch: places go by the scales that the graph holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.nn import functional

import qir
from qir.errors import Refused
from qir.ir.parser import parse

MODES = {1: ("nearest", "linear"), 2: ("nearest", "bilinear", "bicubic"), 3: ("trilinear",)}
CASES = [(rank, mode) for rank, modes in MODES.items() for mode in modes]


class _Resized(torch.nn.Module):
    def __init__(self, mode: str, scales: tuple[float, ...], *, layers: bool = False) -> None:
        super().__init__()
        self.mode, self.scales = mode, scales
        self.first = torch.nn.Conv2d(3, 8, 3) if layers else torch.nn.Identity()
        self.last = torch.nn.Conv2d(8, 4, 3) if layers else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.interpolate(self.first(x), scale_factor=self.scales, mode=self.mode)
        made: torch.Tensor = self.last(y)
        return made


@pytest.mark.parametrize(("rank", "mode"), CASES)
def test_a_float_resize_by_scales_is_torchs(rank: int, mode: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 2, *(9, 7, 5)[:rank])
    for scales in ((1.7, 0.6, 2.0), (0.6, 2.0, 1.3), (2.45, 1.7, 0.6)):
        module = _Resized(mode, scales[:rank]).eval()
        graph = qir.load(module, inputs=(x,))
        made: Any = qir.build(graph, target="pytorch-x86", format="float")
        assert torch.equal(made.module()(x), module(x)), scales


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_int8_resize_by_scales_is_predicted_and_near_the_float_one(mode: str) -> None:
    torch.manual_seed(2)
    x, module = torch.randn(2, 3, 12, 11), _Resized(mode, (1.7, 0.6), layers=True).eval()
    graph = qir.load(module, inputs=(x,))
    made = qir.quantize(graph, qir.calibrate(graph, [x.numpy()]), target="pytorch-x86")
    program: Any = qir.build(made, target="pytorch-x86", format="torchscript")
    assert "1.7" in program.code
    found, wanted = program(x).numpy(), module(x).detach().numpy()
    assert np.abs(found - wanted).max() < np.abs(wanted).max() / 10
    (read,) = qir.run(qir.load(program, inputs=(x,)), {"x": x.numpy()}).values()
    assert np.array_equal(read, found)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.7, 0.6)], ids=str)
def test_a_resize_between_kernels_of_fx_is_written_back(
    mode: str, scales: tuple[float, ...], tmp_path: Path
) -> None:
    torch.manual_seed(3)
    x, module = torch.randn(2, 3, 12, 11), _Resized(mode, scales, layers=True).eval()
    prepared = prepare_fx(module, get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    traced: Any = torch.jit.trace(convert_fx(prepared), x, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(traced, tmp_path / "theirs.pt")
    graph = qir.load(tmp_path / "theirs.pt", inputs=[tuple(x.shape)])
    qir.save(graph, tmp_path / "ours.pt", target="pytorch-x86")
    written: Any = torch.jit.load(tmp_path / "ours.pt")  # type: ignore[no-untyped-call]
    assert torch.equal(written(x), traced(x))


def test_a_nearest_resize_of_halves_by_a_scale_of_its_own_is_refused() -> None:
    text = """
graph half {
  %x = input() : 1x1x2x2xf32
  %y = resize_nearest(%x) {axes = (2, 3), scales = (2.4, 2.0)} : 1x1x4x4xf32
  output(y=%y)
}
"""
    with pytest.raises(
        Refused, match="y: resize_nearest cannot be written for PyTorch: PyTorch takes the element"
    ):
        qir.build(parse(text), target="pytorch-x86", format="float")
