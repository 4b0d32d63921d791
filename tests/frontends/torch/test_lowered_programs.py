"""Exported programs after lowering: oneDNN's fused kernels as groups, every integer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.fx_passes.quantization
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

import qir
from qir.errors import InputError
from tests.processors import has

from .comparison import computed, export

pytestmark = pytest.mark.skipif(
    not has("vnni") or has("amx"), reason="the profile is exact with VNNI and without AMX"
)
OPS: Any = torch.ops.onednn
Q: Any = torch.ops.quantized_decomposed
ONES = [1, 1]
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(9))


class Lowered(nn.Module):
    """A residual network of packed weights, as freezing leaves it."""

    def __init__(self, tail: str = "relu", numbers: tuple[float, ...] = (), how: str = "") -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tail, self.numbers, self.how = tail, list(numbers), how
        self.scales, self.zeros = torch.rand(8) * 0.01 + 0.005, torch.zeros(8, dtype=torch.int64)
        self.first, self.second = (
            torch.randint(-90, 90, (8, count, 3, 3), dtype=torch.int8) for count in (3, 8)
        )
        self.last = torch.randint(-90, 90, (8, 128), dtype=torch.int8)
        self.bias = torch.randn(8)
        pack = OPS.qconv_prepack
        self.packed = [
            pack(self.first, self.scales, 0.02, 121, ONES, ONES, ONES, 1, None),
            pack(self.second, self.scales, 0.2, 0, ONES, ONES, ONES, 1, None),
            OPS.qlinear_prepack(self.last, None),
        ]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, two, three = self.packed
        numbers, end = (self.scales, self.zeros, self.bias), (ONES, ONES, ONES, 1)
        q = Q.quantize_per_tensor(x, 0.02, 121, 0, 255, torch.uint8)
        a = OPS.qconv_pointwise(
            q, 0.02, 121, one, *numbers, *end, 0.2, 0, torch.uint8, "relu", [], ""
        )
        b = OPS.qconv_pointwise(
            a, 0.2, 0, two, *numbers, *end, 0.3, 100, torch.uint8, self.tail, self.numbers, self.how
        )
        summed: tuple[Any, ...] = (0.3, 100, "sum", 1.0, "relu", [], "")
        scales = self.scales, self.zeros
        c = OPS.qconv2d_pointwise.binary(
            a, 0.2, 0, two, *scales, b, self.bias, *end, 0.4, 0, torch.uint8, *summed
        )
        c = torch.nn.functional.max_pool2d(c.float(), 2).to(torch.uint8).flatten(1)
        d = OPS.qlinear_pointwise(c, 0.4, 0, three, *numbers, 1.0, 0, torch.float32, "none", [], "")
        return c, d


@pytest.mark.parametrize(
    ("tail", "numbers", "how"),
    [
        ("none", (), ""),
        ("relu", (), ""),
        ("hardtanh", (0.0, 6.0), ""),
        ("hardswish", (), ""),
        ("swish", (1.0,), ""),
    ],
)
def test_a_lowered_program_gives_onednns_integers(
    tail: str, numbers: tuple[float, ...], how: str
) -> None:
    module = Lowered(tail, numbers, how).eval()
    graph = qir.load(export(module, (X,)))
    assert graph.profile.endswith(".pt2e")
    groups = [" |> ".join(stage.op for stage in n.stages) for n in graph if n.stages]
    assert groups[0] == "conv2d |> relu"
    assert "conv2d |> add |> relu" in groups
    held = next(
        v.constant for v in graph.values.values() if v.type.quant and v.type.shape == (8, 128)
    )
    assert held is not None
    assert np.array_equal(held.data, module.last.numpy())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    theirs = [t.numpy() for t in module(X)]
    torch.set_num_threads(threads)
    for a, b in zip(computed(graph, [X]), theirs, strict=True):
        assert np.array_equal(a, b)


def test_an_activation_that_is_not_known_is_refused_by_name() -> None:
    module = Lowered("mish").eval()
    program = export(module, (X,))
    with pytest.raises(InputError, match="its activation mish is not read"):
        qir.load(program)
