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

from .comparison import export, run_graph

pytestmark = pytest.mark.skipif(
    not has("vnni") or has("amx"), reason="the profile is exact with VNNI and without AMX"
)
OPS: Any = torch.ops.onednn
Q: Any = torch.ops.quantized_decomposed
ONES = [1, 1]
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(9))


class Lowered(nn.Module):
    """A residual network of packed weights, as freezing leaves it."""

    def __init__(
        self,
        tail: str = "relu",
        numbers: tuple[float, ...] = (),
        how: str = "",
        *,
        tensors: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tail, self.numbers, self.how = tail, list(numbers), how
        self.tensors = tensors
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

    def at(self, scale: float, zero: int) -> tuple[Any, Any]:
        """Scale and zero point of data, as numbers or as tensors."""
        return (torch.tensor(scale), torch.tensor(zero)) if self.tensors else (scale, zero)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two, three = self.packed
        numbers, end = (self.scales, self.zeros, self.bias), (ONES, ONES, ONES, 1)
        scales, u8 = numbers[:2], torch.uint8
        q = Q.quantize_per_tensor(x, 0.02, 121, 0, 255, u8)
        a = OPS.qconv_pointwise(
            q, *self.at(0.02, 121), one, *numbers, *end, 0.2, 0, u8, "relu", [], ""
        )
        tail = (self.tail, self.numbers, self.how)
        again = OPS.qconv_pointwise if self.tensors else OPS.qconv2d_pointwise
        b = again(a, *self.at(0.2, 0), two, *numbers, *end, 0.3, 100, u8, *tail)
        summed: tuple[Any, ...] = (0.3, 100, "sum", 1.0, "relu", [], "")
        joined = OPS.qconv2d_pointwise
        c = (joined.binary_tensor if self.tensors else joined.binary)(
            a, *self.at(0.2, 0), two, *scales, b, self.bias, *end, 0.4, 0, u8, *summed
        )
        c = torch.nn.functional.max_pool2d(c.float(), 2).to(u8).flatten(1)
        d = OPS.qlinear_pointwise(c, *self.at(0.4, 0), three, *numbers, 0.7, 90, u8, "none", [], "")
        added: tuple[Any, ...] = (0.7, 90, "sum", 1.0, "relu", [], "")
        e = OPS.qlinear_pointwise(
            c, *self.at(0.4, 0), three, *scales, d.clone(), self.bias, 0.8, 0, u8, *added
        )
        end_of: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        return c, e, OPS.qlinear_pointwise(c, *self.at(0.4, 0), three, *numbers, *end_of)


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
    assert "linear |> add |> relu" in groups
    held = next(
        v.constant for v in graph.values.values() if v.type.quant and v.type.shape == (8, 128)
    )
    assert held is not None
    assert np.array_equal(held.data, module.last.numpy())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    theirs = [t.numpy() for t in module(X)]
    torch.set_num_threads(threads)
    for a, b in zip(run_graph(graph, [X]), theirs, strict=True):
        assert np.array_equal(a, b)


def test_every_form_of_a_kernel_is_compared() -> None:
    from qir.frontends.torch.pointwise import OPS as READ

    compared = set()
    for tensors in (False, True):
        module = Lowered(tensors=tensors).eval()
        program = export(module, (X,))
        compared |= {str(node.target) for node in program.graph.nodes}
        for a, b in zip(run_graph(qir.load(program), [X]), module(X), strict=True):
            assert np.array_equal(a, b.numpy())
    assert READ.keys() - compared == set()


def test_an_activation_that_is_not_known_is_refused_by_name() -> None:
    module = Lowered("mish").eval()
    program = export(module, (X,))
    with pytest.raises(InputError, match="its activation mish is not read"):
        qir.load(program)
