"""Layers whose data are quantized while the model runs, as IPEX 2.8 computed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir import pipeline
from qir.errors import Refused
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.types import uniform
from qir.ledger import Ledger
from qir.target import target
from tests.differential.torch.profile_in_use import named

RECORDED = Path(__file__).with_name("recorded") / "dynamic.npz"
TARGET = "ipex-onednn"
CASES = ("linear", "linear_relu", "linear_ties")
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="IPEX's results were recorded on AVX512 with VNNI, which this processor has not",
)


def recorded(case: str) -> dict[str, np.ndarray[Any, Any]]:
    """Returns what `ipex.quantization.convert` made of a layer, its data and its result."""
    with np.load(RECORDED) as held:
        start = f"{case}."
        return {n.removeprefix(start): held[n] for n in held.files if n.startswith(start)}


def dynamic(case: str) -> Graph:
    """Returns the same layer quantized by QIR."""
    held = recorded(case)
    net = nn.Sequential(nn.Linear(32, 16), *([nn.ReLU()] if case == "linear_relu" else []))
    net[0].weight.data = torch.from_numpy(held["weight"])
    net[0].bias.data = torch.from_numpy(held["bias"])
    graph = qir.load(net.eval(), inputs=(torch.from_numpy(held["x"]),))
    return pipeline.quantize_dynamic(graph, target=TARGET)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_ipex(case: str) -> None:
    wanted = recorded(case)
    (weight,) = (n for n in dynamic(case) if n.op == "constant" and n.result.type.quant)
    constant, quant = weight.result.constant, weight.result.type.quant
    assert constant is not None
    assert quant is not None
    assert np.array_equal(constant.data, wanted["integers"])
    assert np.array_equal(quant.scales().reshape(-1), wanted["scale"].astype(np.float32))


def require_rounding_of_ipex(case: str) -> None:
    """Skips ties where the installed torch rounds data of fbgemm's dynamic layers otherwise."""
    if case == "linear_ties" and named("fbgemm") != "torch-2.13.fbgemm":
        pytest.skip("torch 2.14 and later round ties otherwise than torch 2.8, which IPEX extends")


@pytest.mark.parametrize("case", CASES)
def test_the_module_computes_what_ipex_computed(case: str) -> None:
    require_rounding_of_ipex(case)
    module: Any = qir.build(dynamic(case), target=TARGET, format="module")
    held = recorded(case)
    x = torch.from_numpy(held["x"])
    jit: Any = torch.jit
    frozen = jit.freeze(jit.trace(module.eval(), x))
    for run in (module, frozen):
        found = run(x)
        found = found[0] if isinstance(found, (list, tuple)) else found
        assert np.array_equal(found.detach().numpy(), held["y"])


@pytest.mark.parametrize("case", CASES)
def test_the_prediction_is_that_of_torchs_layer(case: str) -> None:
    require_rounding_of_ipex(case)
    torchs = target("pytorch-x86")
    grouped, held = torchs.computed(dynamic(case), Ledger()), recorded(case)
    assert grouped is not None
    feeds = {grouped.inputs[0].name: held["x"]}
    (found,) = qir.run(grouped, feeds, profile=torchs.profile).values()
    assert np.array_equal(np.asarray(found), held["y"])


def test_a_recipe_of_it_is_refused_in_one_line() -> None:
    with pytest.raises(Refused, match=r"recipes of IPEX hold no data .* format='module'"):
        qir.build(dynamic("linear"), target=TARGET)


def test_a_module_for_both_kinds_is_refused_in_one_line() -> None:
    graph = dynamic("linear")
    (output,) = (node for node in graph if node.op == "output")
    ((slot, value),) = output.operands.items()
    kind = value.type.with_element(uniform(dtype("u8"), np.float32(0.5), 3))
    held = graph.add("quantize", {"x": value}, types=[kind], before=output).result
    graph.set_operand(output, slot, graph.add("dequantize", {"x": held}, before=output).result)
    with pytest.raises(Refused, match="IPEX converts a module for one of both"):
        qir.build(graph, target=TARGET, format="module")


class First(nn.Module):
    """The states of all steps of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)[0]
        return made


def lstm() -> Graph:
    """Returns the LSTM that was recorded, quantized by QIR."""
    held, net = recorded("lstm"), First()
    names = [name for name in held if name.endswith("_l0")]
    net.layer.load_state_dict({name: torch.from_numpy(held[name]) for name in names})
    graph = qir.load(net.eval(), inputs=(torch.from_numpy(held["x"]),))
    return pipeline.quantize_dynamic(graph, target=TARGET)


def test_the_module_of_an_lstm_computes_what_ipex_computed() -> None:
    module: Any = qir.build(lstm(), target=TARGET, format="module")
    held = recorded("lstm")
    x = torch.from_numpy(held["x"])
    jit: Any = torch.jit
    for run in (module, jit.freeze(jit.trace(module.eval(), x))):
        found = run(x)
        found = found[0] if isinstance(found, (list, tuple)) else found
        assert np.array_equal(found.detach().numpy(), held["y"])
    (near,) = qir.run(lstm(), {"x": held["x"]}).values()
    assert np.allclose(np.asarray(near), held["y"], atol=0.01)


def test_a_gru_stays_float_and_the_plan_says_why() -> None:
    graph = qir.load(nn.GRU(8, 6).eval(), inputs=(torch.randn(5, 2, 8),))
    plan = pipeline.plan(graph, target=TARGET, dynamic=True)
    assert {d.reason for d in plan.decisions if d.op == "gru"} == {
        "only matrix products and convolutions are quantized without data"
    }


@pytest.mark.parametrize("ways", [1, 2])
def test_an_lstm_with_its_states_is_a_module_too(ways: int) -> None:
    """Its results are nested, and its two directions share the scales of their weights."""
    torch.manual_seed(3)
    net, x = nn.LSTM(8, 16, bidirectional=ways == 2).eval(), torch.randn(3, 5, 8)
    light = qir.quantize(qir.load(net, inputs=(x,)), dynamic=True, target=TARGET)
    module: Any = qir.build(light, target=TARGET, format="module")
    found, (h, c) = module(x)
    wanted, (h_wanted, c_wanted) = net(x)
    for ours, theirs in ((found, wanted), (h, h_wanted), (c, c_wanted)):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() < 0.02
    assert "quantized_lstm" in str(next(module.children()).graph)


class Named(nn.Module):
    """A layer whose results have names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"logits": y, "sizes": y.abs()}


def test_a_static_module_keeps_the_names_of_its_results() -> None:
    torch.manual_seed(5)
    net, x = Named().eval(), torch.randn(20, 6)
    graph = qir.load(net, inputs=(x,))
    quantized = qir.quantize(graph, qir.calibrate(graph, x.numpy()), target=TARGET)
    module: Any = qir.build(quantized, target=TARGET, format="module")
    found, wanted = module(x), net(x)
    assert found.keys() == wanted.keys()
    assert all((found[name] - wanted[name]).abs().max() < 0.05 for name in wanted)
