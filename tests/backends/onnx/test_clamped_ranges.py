"""Data that training clamped to seven bits: ONNX has the whole range, which has to be allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.ao.quantization as AO
from torch import nn
from torch.ao.quantization.quantize_fx import prepare_qat_fx

import qir
from qir.errors import Refused


def trained() -> tuple[torch.fx.GraphModule, torch.Tensor]:
    """Returns a module trained with the default fake quantization of engine x86, and data."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).train()
    x = torch.randn(2, 3, 8, 8)
    made = prepare_qat_fx(net, AO.get_default_qat_qconfig_mapping("x86"), (x,))
    made(x)
    made.eval().apply(AO.disable_observer)
    return made, x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_trained_model_is_written_where_that_is_allowed(form: str, tmp_path: Path) -> None:
    made, x = trained()
    graph = qir.load(made, inputs=(x,))
    path = tmp_path / "m.onnx"
    with pytest.raises(Refused, match=r"values beyond 0\.\.127 are not clamped: .* `lossy"):
        qir.save(graph, path, format=form)
    qir.save(graph, path, format=form, lossy=True)
    session = onnxruntime.InferenceSession(path)
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    wanted = made(x).detach().numpy()  # all data were seen, so none lies beyond
    step = np.unique(np.abs(np.diff(np.sort(wanted.ravel()))))
    assert np.abs(np.asarray(theirs) - wanted).max() <= step[step > 1e-6].min() * 1.01
