"""Weights of conv3d, which qnnpack packs and does not unpack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qir
from qir.errors import InputError


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("reading", ["qnnpack", "fbgemm"])
def test_volumes_that_qnnpack_packed_are_refused_by_name(reading: str) -> None:
    engines: Any = torch.backends.quantized
    before, x = engines.engine, torch.randn(1, 2, 4, 5, 6)
    try:
        engines.engine = "qnnpack"
        net = nn.Sequential(nn.Conv3d(2, 6, 3), nn.ReLU()).eval()
        prepared = prepare_fx(net, get_default_qconfig_mapping("qnnpack"), (x,))
        prepared(x)
        int8 = convert_fx(prepared)
        assert int8(x).shape == (1, 6, 2, 3, 4)
        engines.engine = reading
        with pytest.raises(InputError, match=r"0: PyTorch does not unpack its weights: .*under en"):
            qir.load(int8, inputs=(x,))
    finally:
        engines.engine = before
