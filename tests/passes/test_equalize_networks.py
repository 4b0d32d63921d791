"""Random networks whose channels are divided: float outputs stay equal on the calibration data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import qir
from qir.ledger import Ledger
from qir.passes.quantize.equalize import Equalize
from qir.quantizing import fold
from qir.rewrite import run_passes

LAYERS = ("conv", "depthwise", "doubled", "residual", "joined", "transposed")
ENDS = ("relu", "leaky_relu", "relu6", "hardtanh", "prelu", "none")
MOVES = ("none", "pad", "pad with a half", "reflect", "max pool", "average pool")


class Drawn(nn.Module):
    """Three to seven layers with channels of very different sizes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        self.layers, self.steps, wide = nn.ModuleList(), [], 3
        for _ in range(int(rng.integers(3, 8))):
            kind, out = str(rng.choice(LAYERS)), int(rng.choice([4, 6, 8]))
            made, wide = self.layer(kind, wide, out)
            self.layers.append(made)
            self.steps.append((kind, str(rng.choice(ENDS)), str(rng.choice(MOVES))))
        self.classes = nn.Linear(wide, 5)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                weight = module.weight.data
                spread = np.exp(rng.normal(0, 1.5, (len(weight), *(1,) * (weight.ndim - 1))))
                weight *= torch.from_numpy(spread.astype(np.float32))
                weight *= 0.5 / float(weight.abs().mean()) / weight[0].numel() ** 0.5

    @staticmethod
    def layer(kind: str, wide: int, out: int) -> tuple[nn.Module, int]:
        if kind in ("depthwise", "doubled"):
            out = wide * (1 + (kind == "doubled"))
            return nn.Conv2d(wide, out, 3, padding=1, groups=wide), out
        if kind == "residual":
            return nn.ModuleList([nn.Conv2d(wide, out, 1), nn.Conv2d(out, wide, 3, 1, 1)]), wide
        if kind == "joined":
            return nn.ModuleList([nn.Conv2d(wide, out, 1), nn.Conv2d(wide, out, 3, 1, 1)]), out
        made = nn.ConvTranspose2d if kind == "transposed" else nn.Conv2d
        return made(wide, out, 3, padding=1), out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, (kind, end, move) in zip(self.layers, self.steps, strict=True):
            if isinstance(layer, nn.ModuleList):
                one, two = layer
                x = x + two(ended(one(x), end)) if kind == "residual" else one(x) + two(x)
            else:
                x = layer(x)
            x = moved(ended(x, end), move)
        made: torch.Tensor = self.classes(x.mean((2, 3)))
        return made


def ended(x: torch.Tensor, end: str) -> torch.Tensor:
    if end == "prelu":
        return functional.prelu(x, torch.tensor([0.2]))
    if end == "hardtanh":
        return functional.hardtanh(x, -1, 2)
    made: torch.Tensor = x if end == "none" else getattr(functional, end)(x)
    return made


def moved(x: torch.Tensor, move: str) -> torch.Tensor:
    if move.startswith("pad"):
        return functional.pad(x, (1, 1, 1, 1), value=0.5 if "half" in move else 0.0)
    if move == "reflect":
        return functional.pad(x, (1, 1, 1, 1), mode="reflect")
    if move == "max pool" and x.shape[-1] > 3:
        return functional.max_pool2d(x, 2)
    return functional.avg_pool2d(x, 2, 1, 1) if move == "average pool" else x


@pytest.mark.parametrize("seed", range(60))
def test_float_outputs_stay_equal(seed: int) -> None:
    net, x = Drawn(seed).eval(), torch.randn(6, 3, 10, 10)
    graph = fold(qir.load(torch.export.export(net, (x,))))
    inputs, ledger = {graph.inputs[0].name: x.numpy()}, Ledger()
    made = run_passes(graph, [Equalize(qir.calibrate(graph, inputs))], ledger)
    wanted = net(x).detach().numpy()
    (found,) = (np.asarray(array) for array in qir.run(made, inputs).values())
    most = np.abs(wanted).max()
    assert np.abs(found - wanted).max() <= 1e-4 * most, f"seed {seed}: {net.steps}"
