"""Integers that an int8 model moves: the average pool after them is the one of their layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.nn.quantized as quantized
import torch.nn.functional as F
from torch import Tensor, nn

import qir
from qir.backends.torch.session import engine

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "channel_shuffle": lambda q: torch.channel_shuffle(q, 4),
    "chunk": lambda q: q.chunk(2, 1)[1],
    "clone": lambda q: q.clone(),
    "contiguous": lambda q: q.contiguous(),
    "contiguous before a view": lambda q: q.contiguous().view(2, 24, 18, 9),
    "flip": lambda q: q.flip(1),
    "movedim": lambda q: torch.movedim(q, 2, 3),
    "pixel_unshuffle": lambda q: torch.pixel_unshuffle(q, 3),
    "repeat_interleave": lambda q: q.repeat_interleave(2, 1),
    "shuffle by views": lambda q: q.view(2, 4, 12, 9, 9).transpose(1, 2).reshape(2, 48, 9, 9),
    "tile": lambda q: q.tile((1, 2, 1, 1)),
}


class Pooled(nn.Module):
    """Moves integers, after a convolution or none, and averages them: many means are ties."""

    def __init__(self, move: Callable[[Tensor], Tensor], after_convolution: bool) -> None:
        super().__init__()
        self.move = move
        layer: Any = nn.Identity()
        if after_convolution:
            layer = quantized.Conv2d(48, 48, 1)  # type: ignore[no-untyped-call]
            weights = torch.quantize_per_tensor(torch.randn(48, 48, 1, 1), 0.02, 0, torch.qint8)
            layer.set_weight_bias(weights, torch.randn(48))
            layer.scale, layer.zero_point = 0.1, 91
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        q = self.layer(torch.quantize_per_tensor(x, 0.1, 91, torch.quint8))
        return torch.dequantize(F.avg_pool2d(self.move(q), 2))


@pytest.mark.parametrize("after_convolution", [True, False])
@pytest.mark.parametrize("move", MOVES)
def test_an_average_of_moved_integers_is_pytorchs_read_and_written(
    move: str, after_convolution: bool
) -> None:
    torch.manual_seed(0)
    with engine("fbgemm"):
        module = Pooled(MOVES[move], after_convolution).eval()
        x = torch.randn(2, 48, 9, 9) * 3
        graph = qir.load(module, inputs=(x,))
        (ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
        assert (ours == module(x).numpy()).all()
        written = qir.build(graph, target="pytorch-fbgemm", format="fx", lossy=True)
        assert torch.equal(written(x), module(x))  # type: ignore[operator]


def test_parts_of_integers_stay_integers() -> None:
    with engine("fbgemm"):
        graph = qir.load(Pooled(MOVES["chunk"], True).eval(), inputs=(torch.randn(2, 48, 9, 9),))
    written = qir.build(graph, target="pytorch-fbgemm", format="fx", lossy=True)
    calls = [str(n.target) for n in written.graph.nodes]  # type: ignore[attr-defined]
    assert sum("dequantize" in call for call in calls) == 1
