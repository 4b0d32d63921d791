"""Float networks of PyTorch with seeded weights, exported, and what QIR makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import qir
from qir import pipeline
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Target

Array = NDArray[np.generic]


class Block(nn.Module):
    """Two convolutions and a sum, as ResNet has them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm_one = nn.BatchNorm2d(outer)
        self.two = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm_two = nn.BatchNorm2d(outer)
        down = nn.Conv2d(inner, outer, 1, stride, bias=False)
        self.down = nn.Sequential(down, nn.BatchNorm2d(outer)) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(torch.add(self.norm_two(self.two(y)), self.down(x)))


class ResNet(nn.Module):
    """ResNet-18 of a width of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks = []
        for stage in range(4):
            wide = width << stage
            blocks += [Block(wide if stage == 0 else wide // 2, wide, 1 + (stage > 0))]
            blocks += [Block(wide, wide, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(width << 3, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        made: torch.Tensor = self.classes(torch.flatten(x, 1))
        return made


class Inverted(nn.Module):
    """A block of MobileNetV3: depthwise, squeeze and excite, hard swish."""

    def __init__(self, wide: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(wide, inner, 1), nn.BatchNorm2d(inner))
        self.depth = nn.Sequential(
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner), nn.BatchNorm2d(inner)
        )
        self.less, self.more = nn.Conv2d(inner, wide, 1), nn.Conv2d(wide, inner, 1)
        self.project = nn.Conv2d(inner, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.expand(x))
        y = nn.functional.hardswish(self.depth(y))
        gate = nn.functional.adaptive_avg_pool2d(y, 1)
        gate = nn.functional.hardsigmoid(self.more(torch.relu(self.less(gate))))
        return torch.add(x, self.project(y * gate))


class Mobile(nn.Module):
    """A small MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.Sequential(Inverted(8, 24), Inverted(8, 32))
        self.classes = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(nn.functional.hardswish(self.stem(x)))
        made: torch.Tensor = self.classes(x.mean((2, 3)))
        return made


class Encoder(nn.Module):
    """Patches, one transformer layer, classes."""

    def __init__(self, wide: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, wide, 8, 8)
        self.norm = nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.classes = nn.Linear(wide, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / 6, -1) @ v)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        made: torch.Tensor = self.classes(x.mean(1))
        return made


class Plain(nn.Module):
    """Ops of which some engine has no kernel, or one that goes wrong behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6(), nn.AvgPool2d(2)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.Hardtanh(), nn.MaxPool2d(2, ceil_mode=True)),
            *(nn.Conv2d(8, 12, 3), nn.Sigmoid(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten()),
            *(nn.Linear(48, 20), nn.ReLU(), nn.Linear(20, 4), nn.Softmax(1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return made


class Steps(nn.Module):
    """Convolutions along a line of channels, and a recurrent layer without a given state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(8, 16, 5, 2, 2), nn.Conv1d(16, 24, 1)
        self.memory, self.classes = nn.LSTM(24, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.elu(self.second(nn.functional.hardswish(self.first(x))))
        made: torch.Tensor = self.classes(self.memory(x.transpose(1, 2))[0][:, -1])
        return made


def make(name: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """Returns a network in evaluation mode, and data for it."""
    torch.manual_seed(seed)
    net: nn.Module = {
        "resnet": lambda: ResNet(8),
        "mobile": Mobile,
        "encoder": Encoder,
        "plain": Plain,
        "steps": Steps,
    }[name]().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features) / 10
            module.running_var = torch.rand(module.num_features) + 0.5
    return net, torch.randn(8, 8, 40) if name == "steps" else torch.randn(8, 3, 32, 32)


def export(name: str) -> tuple[torch.export.ExportedProgram, Array]:
    """Returns a network exported with an open batch, and its data."""
    net, data = make(name)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (data,), dynamic_shapes=({0: batch},))
    return program, data.numpy()


@cache
def read(name: str) -> tuple[Graph, Array]:
    """Returns a network as QIR reads it, and its data."""
    program, data = export(name)
    return qir.load(program), data


def save_exported(name: str, folder: Path) -> None:
    """Writes a network and its data for the command line."""
    program, data = export(name)
    torch.export.save(program, folder / "model.pt2")
    np.save(folder / "x.npy", data)


def quantized(name: str, target: str) -> tuple[Graph, Array]:
    """Returns a network quantized for a target, and its data."""
    graph, data = read(name)
    return pipeline.quantize(graph, pipeline.calibrate(graph, data), target=target), data


def watched(graph: Graph) -> Graph:
    """Returns a graph that gives every quantized tensor too."""
    made = graph.copy()
    for node in list(made):
        if node.op == "quantize" and node.result.name not in made.output.operands:
            made.set_operand(made.output, node.result.name, node.result)
    return made


def differing(target: Target, graph: Graph, inputs: Mapping[str, Array]) -> tuple[int, int]:
    """Returns how many integers differ between a target and the reference, and of how many."""
    found = target.compile(graph)(**inputs)
    grouped = target.computed(graph, Ledger()) or graph
    wanted = qir.run(grouped, inputs, profile=target.profile)
    wrong = total = 0
    for name, data in wanted.items():
        given = np.asarray(found[name])
        assert (given.shape, given.dtype) == (data.shape, data.dtype), name
        if data.dtype.kind in "iu":
            wrong, total = wrong + int((given != data).sum()), total + data.size
        else:
            near = 1e-4 * float(np.abs(data).max(initial=1e-30))
            off = float(np.abs(given.astype(np.float64) - data.astype(np.float64)).max())
            assert off <= near, name
    return wrong, total
