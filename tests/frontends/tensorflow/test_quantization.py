"""Scales and zero points of simulated quantization are those that TensorFlow nudges to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from qir.frontends.tensorflow import TensorFlowFrontend
from qir.ir.types import QuantType
from qir.ledger import Ledger

from .comparison import build_graph_def, save_graph_def

F = np.float32
COUNT = 2000
SEED = 2026


def ranges() -> tuple[np.ndarray, np.ndarray]:
    """Returns random ranges: about zero, above it, below it, and off it by little."""
    random = np.random.default_rng(SEED)
    low = -np.exp(random.uniform(-6, 4, COUNT))
    high = np.exp(random.uniform(-6, 4, COUNT))
    low[:200] = np.abs(low[:200]) / 10
    high[:200] = low[:200] * 1.5
    low[200:400], high[200:400] = -high[200:400] * 9, -high[200:400]
    return low.astype(F), high.astype(F)


def quant(graph: object) -> QuantType:
    (node,) = [n for n in graph if n.op == "quantize"]  # type: ignore[attr-defined]
    found: QuantType | None = node.result.type.quant
    assert found is not None
    return found


@pytest.mark.parametrize(("bits", "narrow"), [(8, False), (8, True), (4, False), (16, True)])
def test_fake_quantization_is_nudged_alike(bits: int, narrow: bool, tmp_path: Path) -> None:
    low, high = ranges()
    far = np.array([[-1e9] * COUNT, [1e9] * COUNT, [0.0] * COUNT], F)
    proto, (wanted,) = build_graph_def(
        lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(
            x, low, high, bits, narrow
        ),
        (far,),
    )
    found = quant(TensorFlowFrontend().load(save_graph_def(proto, tmp_path / "g.pb"), Ledger()))
    scales, zeros = found.scales(), found.zeros()
    assert np.array_equal((F(found.low) - zeros.astype(F)) * scales, wanted[0]), f"seed {SEED}"
    assert np.array_equal(scales, (high - low) / F(found.high - found.low))
    assert (found.low, found.high) == (int(narrow), 2**bits - 1)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("narrow", [True, False])
def test_round_trips_scale_alike(signed: bool, narrow: bool, tmp_path: Path) -> None:
    low, high = (end[::40] for end in ranges())
    low, high = -np.abs(low) * signed, np.abs(high)
    more = {"signed_input": signed, "narrow_range": narrow, "range_given": True}
    proto, wanted = build_graph_def(
        lambda x: [
            tf.raw_ops.QuantizeAndDequantizeV2(input=x, input_min=a, input_max=b, **more)
            for a, b in zip(low, high, strict=True)
        ],
        (np.array([-1e9, 1e9], F),),
    )
    graph = TensorFlowFrontend().load(save_graph_def(proto, tmp_path / "g.pb"), Ledger())
    for i, (least, most) in enumerate(wanted):
        (kind,) = [n.operands["x"].type.quant for n in [graph.outputs[f"out{i}"].node]]
        assert kind is not None
        assert F(kind.low) * kind.scales() == least, f"seed {SEED}"
        assert F(kind.high) * kind.scales() == most, f"seed {SEED}"
