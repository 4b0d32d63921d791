"""Observers of torch.ao as schemes: equal scales and zero points on the same data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import ao

from qir.calibration import Statistics
from qir.errors import Refused
from qir.frontends.torch.observers import ObserverRecord, observed, observed_by
from qir.ir.dtype import U8
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ir.types import QuantType
from qir.ledger import Ledger
from qir.passes.quantize.materialize import Materialize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
AO: Any = ao.quantization
RNG = np.random.default_rng(20)
BATCHES = [(RNG.normal(size=(6, 5)) * (1 + i) + 0.3).astype(np.float32) for i in range(4)]
WEIGHT = RNG.normal(size=(7, 5)).astype(np.float32)
TENSORS = (
    "default_observer default_fixed_qparams_range_0to1_observer default_fake_quant"
    " default_fixed_qparams_range_neg1to1_observer MinMaxObserver MovingAverageMinMaxObserver"
    " default_fused_act_fake_quant default_fixed_qparams_range_0to1_fake_quant"
    " default_fixed_qparams_range_neg1to1_fake_quant"
).split()
"""Observers of activations."""
CHANNELS = (
    "default_weight_observer default_per_channel_weight_observer"
    " weight_observer_range_neg_127_to_127 per_channel_weight_observer_range_neg_127_to_127"
    " PerChannelMinMaxObserver"
    " MovingAveragePerChannelMinMaxObserver default_weight_fake_quant default_fused_wt_fake_quant"
    " default_per_channel_weight_fake_quant default_fused_per_channel_wt_fake_quant"
    " fused_wt_fake_quant_range_neg_127_to_127"
    " fused_per_channel_wt_fake_quant_range_neg_127_to_127"
).split()
"""Observers of weights, which stand still."""
ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")


def ours(found: ObserverRecord, slot: str) -> QuantType:
    """Returns the type that QIR gives to the data or weights of a layer by a scheme."""
    text = "graph main as native {\n  %x = input() : 6x5xf32\n  %w = constant(@w) : 7x5xf32\n"
    text += "  %y = linear(%x, %w) : 6x7xf32\n  output(y=%y)\n}\n"
    graph = parse(text, {"w": WEIGHT})
    statistics = Statistics("data")
    for index, data in enumerate(BATCHES):
        with statistics.batch("data", index) as batch:
            batch.update("x", data)
    graph.set_scheme(graph["y"].node, "x", Scheme(U8))
    graph.set_scheme(graph["y"].node, slot, found.scheme)
    Materialize(statistics, "torch-2.13.x86", found.scales).run(graph, Ledger())
    layer = graph["y"].node
    kind = layer.operands[slot].node.operands["x"].type.quant
    assert kind is not None
    return kind


def seen(made: Any, batches: list[NDArray[np.float32]]) -> Any:
    """Returns an observer that has seen data."""
    made = made() if not isinstance(made, torch.nn.Module) else made
    for data in batches:
        made(torch.from_numpy(data))
    return made


def same(found: ObserverRecord, watcher: Any, slot: str) -> None:
    """Asserts that types have the scales and zero points of an observer."""
    kind = ours(found, slot)
    scale, zero = watcher.calculate_qparams()
    assert np.array_equal(np.ravel(kind.scales()), scale.numpy().astype(np.float32).ravel())
    assert np.array_equal(np.broadcast_to(kind.zeros(), zero.shape).ravel(), zero.numpy().ravel())


@pytest.mark.parametrize("name", TENSORS)
def test_an_observer_of_data_is_a_scheme_with_its_numbers(name: str) -> None:
    make = getattr(AO, name)
    same(observed(make), seen(make, BATCHES), "x")


@pytest.mark.parametrize("name", CHANNELS)
def test_an_observer_of_weights_is_a_scheme_with_its_numbers(name: str) -> None:
    make = getattr(AO, name)
    same(observed(make), seen(make, [WEIGHT]), "w")


@pytest.mark.parametrize("bits", [True, False])
@pytest.mark.parametrize(
    "name", ["default_histogram_observer", "HistogramObserver", "default_histogram_fake_quant"]
)
def test_a_histogram_is_read_by_the_numbers_that_it_found(name: str, bits: bool) -> None:
    make = getattr(AO, name)
    made = seen(make.with_args(reduce_range=True) if bits and name[0] == "H" else make, BATCHES)
    same(observed(made), made, "x")
    with pytest.raises(Refused, match="HistogramObserver has seen no data"):
        observed(make)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_configuration_of_an_engine_is_two_schemes(engine: str, training: bool) -> None:
    get = AO.get_default_qat_qconfig if training else AO.get_default_qconfig
    config = get(engine)
    weight = config.weight()
    held = config.activation() if training else seen(config.activation, BATCHES)
    told = observed_by(AO.QConfig(lambda: held, config.weight))
    assert told["activation"] is not None
    assert told["weight"] is not None
    same(told["activation"], seen(held, BATCHES if training else []), "x")
    same(told["weight"], seen(weight, [WEIGHT]), "w")


def test_what_a_configuration_leaves_float_has_no_scheme() -> None:
    found = observed_by(AO.default_weight_only_qconfig)
    assert found["activation"] is None
    assert found["weight"] is not None
    dynamic = observed_by(AO.default_dynamic_qconfig)["activation"]
    assert str(dynamic and dynamic.scheme) == "u8 affine tensor minmax"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("RecordingObserver", "finds no scale and zero point"),
        ("ReuseInputObserver", "finds no scale"),
        ("default_float_qparams_observer", "no real zero points"),
        ("default_float_qparams_observer_4bit", "no real zero points"),
    ],
)
def test_what_finds_no_numbers_is_refused(name: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        observed(getattr(AO, name))
