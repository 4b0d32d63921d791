"""The two float networks, with committed weights, and the digits that they tell apart."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qir
from qir.ir.graph import Graph

HERE = Path(__file__).parent
WEIGHTS = HERE / "resnet.safetensors"
EXAMPLE = HERE.parents[1] / "examples" / "digits" / "model.py"
SEED, EPOCHS, BATCH, RATE = 0, 25, 64, 0.01


class Block(nn.Module):
    """Two convolutions and a sum, as ResNet has them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU()
        down = nn.Conv2d(inner, outer, 1, stride, bias=False)
        self.down = nn.Sequential(down, nn.BatchNorm2d(outer)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        made: Tensor = self.relu(y + (x if self.down is None else self.down(x)))
        return made


class ResNet(nn.Module):
    """ResNet of three blocks, for images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.classes(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))
        return made


def train() -> None:
    """Trains the ResNet and writes its weights: one thread, one seed."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    net, data = ResNet(), example().digits()
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    for epoch in range(EPOCHS):
        for part in torch.chunk(torch.randperm(len(x)), -(-len(x) // BATCH)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - epoch / EPOCHS)
    save_file(net.state_dict(), WEIGHTS)


def example() -> ModuleType:
    """Returns the module of the digits example, which has the data and the other network."""
    spec = importlib.util.spec_from_file_location("digits_model", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def resnet() -> nn.Module:
    """Returns the trained ResNet."""
    net = ResNet()
    net.load_state_dict(load_file(WEIGHTS))
    return net.eval()


@cache
def network(name: str) -> Graph:
    """Returns a float network: `resnet` or `mobilenet`."""
    if name == "resnet":
        batch = torch.export.Dim("N", min=1, max=4096)
        shapes = ({0: batch},)
        return qir.load(
            torch.export.export(resnet(), (torch.zeros(4, 1, 8, 8),), dynamic_shapes=shapes)
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mobilenet.onnx")
        example().write(path)
        return qir.load(path)


@cache
def digits() -> Mapping[str, NDArray[np.generic]]:
    """Returns the images to calibrate with, and those to measure with, with their labels."""
    data = example().digits()
    return {"calibration": data.calib_x, "x": data.test_x, "labels": data.test_y}


if __name__ == "__main__":
    train()
