"""Layers that another framework computes with channels last reach the kernels on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import qir
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from qir.target import target

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
RNG = np.random.default_rng(5)
IMAGE = "!quant.uniform<u8:f32, 0.02:128>"
MADE = "!quant.uniform<u8:f32, 0.03>"
ARRAYS: dict[str, NDArray[np.generic]] = {
    "v": RNG.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8),
    "w": RNG.integers(-90, 90, (4, 4, 3, 3)).astype(np.int8),
    "s": RNG.uniform(0.002, 0.01, 4).astype(np.float32),
}
TEXT = f"""array @s : 4xf32
graph main as native {{
  %x = input() : 2x6x5x3xf32
  %xq = quantize(%x) : 2x6x5x3x{IMAGE}
  %v = constant(@v) : 4x3x3x3x!quant.uniform<i8:f32:0, @s>
  %a = conv2d(%xq, %v) {{pad = (1, 1, 1, 1), layout = "NHWC"}} |> relu : 2x6x5x4x{MADE}
  %w = constant(@w) : 4x4x3x3x!quant.uniform<i8:f32:0, @s>
  %b = conv2d(%a, %w) {{pad = (1, 1, 1, 1), layout = "NHWC"}} |> relu : 2x6x5x4x{MADE}
  %y = dequantize(%b) : 2x6x5x4xf32
  output(y=%y)
}}"""


def network() -> Graph:
    return qir.parse(TEXT, ARRAYS)


def test_transposes_are_at_the_ends_alone(tmp_path: Path) -> None:
    qir.save(network(), tmp_path / "m.pt2", target="pytorch-x86")
    read = qir.load(tmp_path / "m.pt2")
    ops = Counter(node.op for node in read)
    assert (ops["conv2d"], ops["transpose"]) == (2, 2)
    for node in read:
        if node.op == "conv2d":
            assert node.operands["x"].node.op == "dequantize"
            assert [use.node.op for use in node.result.uses] == ["relu"]


def test_layers_are_kernels_on_integers_and_keep_their_numbers(tmp_path: Path) -> None:
    graph, ledger = network(), Ledger()
    engine = target("pytorch-x86")
    engine.emit(graph, tmp_path / "m.pt", ledger)
    assert [e.change for e in ledger if e.step == "layout"] == [Change.REGROUPED] * 2
    read = qir.load(tmp_path / "m.pt")
    assert Counter(node.op for node in read if node.op in ("conv2d", "relu")) == {}
    x = RNG.normal(0, 1, (2, 6, 5, 3)).astype(np.float32)
    made = np.asarray(engine.compile_file(tmp_path / "m.pt")(x=x)["y"])
    assert np.array_equal(made, np.asarray(engine.compile(graph)(x=x)["y"]))
    assert np.array_equal(made, qir.run(read, {"x": x})["y"])
