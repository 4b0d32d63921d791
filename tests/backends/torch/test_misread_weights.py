"""Modules that FX converted: transposed convolutions whose weights oneDNN misreads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qir
from qir.errors import Refused
from qir.ledger import Change, Ledger

ENGINES: Any = torch.backends.quantized
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _keeping_the_engine() -> Iterator[None]:
    before = ENGINES.engine
    yield
    ENGINES.engine = before


def converted(net: nn.Module, x: torch.Tensor, engine: str) -> nn.Module:
    ENGINES.engine = engine
    prepared = prepare_fx(net.eval(), get_default_qconfig_mapping(engine), (x,))
    prepared(x)
    module: nn.Module = convert_fx(prepared)
    return module


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
@pytest.mark.parametrize("out", [8, 6])
def test_float_weights_in_place_of_misread_ones_need_lossy(out: int, tmp_path: Path) -> None:
    """Of as many channels out as in, the weights that are read are the same."""
    torch.manual_seed(0)
    x, path = torch.randn(2, 8, 9), tmp_path / "int8.pt"
    int8 = converted(nn.Sequential(nn.ConvTranspose1d(8, out, 4, 2, 1)), x, "x86")
    wanted = int8(x).numpy()
    graph = qir.load(int8, inputs=(x,))
    (ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert np.array_equal(ours, wanted)
    load: Any = torch.jit.load
    quant = next(n for n in graph if n.op == "conv_transpose1d").result.type.quant
    assert quant is not None
    step = float(quant.scales())
    if out == 8:
        qir.save(graph, path, target="pytorch-x86")
        assert np.abs(load(path)(x).numpy() - wanted).max() < 1.5 * step
        return
    with pytest.raises(Refused, match=r"its kernel of torch-.*\.x86 misreads them; `lossy=True`"):
        qir.save(graph, path, target="pytorch-x86")
    ledger = Ledger()
    qir.save(graph, path, target="pytorch-x86", lossy=True, ledger=ledger)
    assert [e.change for e in ledger if "misreads" in e.reason] == [Change.APPROXIMATED]
    assert np.abs(load(path)(x).numpy() - wanted).max() > 1.5 * step
