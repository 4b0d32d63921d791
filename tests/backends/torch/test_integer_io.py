"""Exported programs that take and give integers: PyTorch's are those of the program with floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import qir
from qir.ir.types import QuantType
from tests.backends.tensorflow.networks import inverted, residual


def run(path: Path, x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Runs a program as PyTorch loads it, without QIR."""
    with torch.no_grad():
        found = torch.export.load(str(path)).module()(torch.from_numpy(x))
    (result,) = found if isinstance(found, (tuple, list)) else (found,)
    made: NDArray[np.generic] = result.numpy()
    return made


def meaning(quant: QuantType, integers: NDArray[np.generic]) -> NDArray[np.float32]:
    signed = integers.astype(np.int32) - int(quant.zeros())
    made: NDArray[np.float32] = np.float32(quant.scales()) * signed.astype(np.float32)
    return made


@pytest.mark.parametrize("build", [residual, inverted])
def test_a_program_gives_the_integers_of_the_program_with_floats(
    build: type, tmp_path: Path
) -> None:
    net = build(7)
    feeds = {"x": np.random.default_rng(4).normal(0, 1, (4, 3, 24, 24)).astype(np.float32)}
    statistics = qir.calibrate(net.graph, [feeds])
    for io in ("float", "integer"):
        made = qir.quantize(net.graph, statistics, target="pt2e", io=io)
        qir.save(made, tmp_path / f"{io}.pt2", target="pt2e")
    x, y = made["x"].type.quant, made.outputs["y"].type.quant
    assert x is not None
    assert y is not None
    given = np.random.default_rng(5).integers(0, 256, (4, 3, 24, 24)).astype(np.uint8)
    found = run(tmp_path / "integer.pt2", given)
    assert found.dtype == np.uint8
    assert len(np.unique(found)) > 10
    assert np.array_equal(meaning(y, found), run(tmp_path / "float.pt2", meaning(x, given)))
    back = qir.load(tmp_path / "integer.pt2")
    assert str(back.inputs[0].type.quant) == str(x)
    (result,) = back.outputs.values()
    assert str(result.type.quant) == str(y)
    qir.save(back, tmp_path / "again.pt2", target="pt2e")
    assert np.array_equal(run(tmp_path / "again.pt2", given), found)


def test_an_input_that_is_read_as_two_types_stays_plain() -> None:
    # With it the operators are there.
    pytest.importorskip("torch.ao.quantization.fx._decomposed")

    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
            a: torch.Tensor = dequantize(x, 0.5, 3, 0, 255, torch.uint8)
            b: torch.Tensor = dequantize(x, 0.25, 3, 0, 255, torch.uint8)
            return a + b

    data = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    graph = qir.load(torch.export.export(Two(), (data,)))
    assert graph.inputs[0].type.quant is None
    (found,) = qir.run(graph, {graph.inputs[0].name: data.numpy()}).values()
    assert np.array_equal(found, Two()(data).numpy())
