"""Sizes of resizes that torch exports as scales: what the guide says of them."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from qir import pipeline


class Grown(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = nn.functional.interpolate(x, **self.how)
        return made


@pytest.mark.parametrize("by_export", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("how", "tall"),
    [
        ({"scale_factor": 1.4}, 63),
        ({"scale_factor": 1.4, "recompute_scale_factor": True}, None),
        ({"size": (62, 14)}, 62),
    ],
)
def test_scales_give_onnxruntimes_sizes(
    tmp_path: Path, how: dict[str, Any], tall: int | None, by_export: bool
) -> None:
    path, x = tmp_path / "m.onnx", torch.arange(450.0).reshape(1, 1, 45, 10)
    net = Grown(**how).eval()
    assert net(x).shape == (1, 1, 62, 14)
    set_ = None if by_export else 17
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, (x,), path, dynamo=by_export, opset_version=set_, verbose=False)
    finally:
        logging.disable(logging.NOTSET)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    (wanted,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    graph = pipeline.load(path)
    (got,) = pipeline.run(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert np.array_equal(got, wanted)
    assert got.shape[2] == (tall or (62 if by_export else 63))
