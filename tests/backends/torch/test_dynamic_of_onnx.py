"""Dynamic models of ONNX, whose range rule is another, become linear_dynamic of PyTorch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnxruntime.quantization as ort_quantization
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

import qir
from qir.errors import Refused
from qir.ir.graph import Graph

AO: Any = quantization
LOAD: Any = torch.jit.load
NET = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 9)).eval()


def sample() -> Tensor:
    torch.manual_seed(5)
    return torch.randn(6, 24)


def of_onnxruntime(folder: Path) -> Graph:
    """Returns what onnxruntime's own tool makes: MatMulInteger and DynamicQuantizeLinear."""
    logging.disable(logging.WARNING)
    qir.save(qir.load(NET, inputs=(sample(),)), folder / "f.onnx")
    signed = ort_quantization.QuantType.QInt8
    ort_quantization.quantize_dynamic(folder / "f.onnx", folder / "q.onnx", weight_type=signed)
    logging.disable(logging.NOTSET)
    return qir.load(folder / "q.onnx")


def of_qir(folder: Path) -> Graph:
    """Returns an int8 model of PyTorch that was converted to QDQ form."""
    with torch.no_grad():
        dynamic = AO.quantize_dynamic(NET, {nn.Linear})
    qir.save(qir.load(dynamic, inputs=(sample(),)), folder / "q.onnx", lossy=True)
    return qir.load(folder / "q.onnx")


@pytest.mark.parametrize("made", [of_onnxruntime, of_qir])
def test_its_layers_call_the_dynamic_kernel_and_lossy_agrees(made: object, tmp_path: Path) -> None:
    assert callable(made)
    graph = made(tmp_path)
    path = tmp_path / "m.pt"
    with pytest.raises(Refused, match=r"torch\.dynamic chooses scale"):
        qir.save(graph, path, target="pytorch-x86")
    qir.save(graph, path, target="pytorch-x86", lossy=True)
    module = LOAD(path)
    assert module.code.count("quantized.linear_dynamic") == 2
    with torch.no_grad():
        wanted = NET(sample())
        assert (module(sample()) - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_it_is_an_exported_program_by_the_rule_of_observers(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    qir.save(of_onnxruntime(tmp_path), path, target="pt2e", lossy=True)
    program = torch.export.load(path)
    assert str(program.graph).count("choose_qparams.tensor") == 2
    with torch.no_grad():
        wanted = NET(sample())
        assert (program.module()(sample()) - wanted).abs().max() < 0.03 * wanted.abs().max()
