"""quantized::conv2d_add writes into its summand: nobody who reads that later may see it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.target import target

from .networks import differing

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
RNG = np.random.default_rng(11)
ARRAYS: dict[str, NDArray[np.generic]] = {
    "w": RNG.integers(-90, 90, (4, 4, 3, 3)).astype(np.int8),
    "s": RNG.uniform(0.002, 0.02, 4).astype(np.float32),
}
TEXT = """array @s : 4xf32
graph main as native {
  %x = input() : 2x4x6x5xf32
  %xq = quantize(%x) : 2x4x6x5x!quant.uniform<u8:f32, 0.03:121>
  %xd = dequantize(%xq) : 2x4x6x5xf32
  %w = constant(@w) : 4x4x3x3x!quant.uniform<i8:f32:0, @s>
  %wd = dequantize(%w) : 4x4x3x3xf32
  %a = conv2d(%xd, %wd) {pad = (1, 1, 1, 1)} : 2x4x6x5xf32
  %aq = quantize(%a) : 2x4x6x5x!quant.uniform<u8:f32, 0.05:117>
  %ad = dequantize(%aq) : 2x4x6x5xf32
  %b = conv2d(%xd, %wd) {pad = (1, 1, 1, 1)} : 2x4x6x5xf32
  %c = add(%b, %ad) : 2x4x6x5xf32
  %d = relu(%c) : 2x4x6x5xf32
  %dq = quantize(%d) : 2x4x6x5x!quant.uniform<u8:f32, 0.06:3>
  output(REST)
}"""


def network(*outputs: str) -> Graph:
    rest = ", ".join(f"{name}=%{name}" for name in outputs)
    return parse(TEXT.replace("REST", rest), ARRAYS)


def called(graph: Graph) -> list[str]:
    made = qir.build(graph, target="pytorch-onednn", format="fx")
    assert isinstance(made, GraphModule)
    return [str(node.target) for node in made.graph.nodes if node.op == "call_function"]


def test_the_last_reader_of_a_summand_may_write_into_it() -> None:
    names = called(network("dq"))
    assert "quantized.conv2d_add_relu" in names
    assert "aten.clone" not in names


def test_a_summand_that_is_read_later_is_copied_first() -> None:
    names = called(network("dq", "aq"))
    assert names.index("aten.clone") < names.index("quantized.conv2d_add_relu")


@pytest.mark.parametrize("outputs", [("dq",), ("dq", "aq")], ids=["last", "read later"])
def test_every_integer_is_pytorchs(outputs: tuple[str, ...]) -> None:
    data = np.random.default_rng(2).normal(size=(2, 4, 6, 5)).astype(np.float32) * 2
    graph = network(*outputs)
    wrong, total = differing(target("pytorch-onednn"), graph, {"x": data})
    assert (wrong, total) == (0, 240 * len(outputs))


def test_a_sum_that_moves_results_by_several_steps_is_split_where_loss_is_agreed() -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "w": np.random.default_rng(5).integers(-127, 128, (6, 8, 3, 3)).astype(np.int8)
    }
    graph = parse(
        """graph main as tf-2.21.onednn {
  %x = input() : 4x8x5x5x!quant.uniform<u8:f32, 0.02>
  %w = constant(@w) : 6x8x3x3x!quant.uniform<i8:f32:0, {0.01, 0.02, 0.005, 0.01, 0.015, 0.02}>
  %s = input() : 4x6x3x3x!quant.uniform<u8:f32, 0.6>
  %y = conv2d(%x, %w) |> add(., %s) |> relu : 4x6x3x3x!quant.uniform<u8:f32, 0.2>
  output(y=%y)
}""",
        arrays,
    )
    for lossy, integer in ((False, 0), (True, 1)):
        made = qir.build(graph, target="pytorch-x86", format="fx", lossy=lossy)
        assert isinstance(made, GraphModule)
        names = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
        assert names.count("quantized.conv2d") == integer, names
