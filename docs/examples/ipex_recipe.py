"""Quantizes a module of PyTorch and writes its recipe for IPEX; IPEX is not needed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import qir
from qir.backends.ipex import read_recipe


class Net(nn.Module):
    """Two convolutions, a sum, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.two, self.three = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.pool, self.classes = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.one(x)))
        x = self.relu(self.three(self.relu(self.two(x))) + x)
        made: Tensor = self.classes(torch.flatten(self.pool(x), 1))
        return made


def main() -> None:
    """Writes a recipe, prints what it quantizes, and reads it back."""
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(8, 3, 16, 16)
    graph = qir.load(net, inputs=(x,))
    quantized = qir.quantize(graph, qir.calibrate(graph, x.numpy()), target="ipex-onednn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.json")
        qir.save(quantized, path, target="ipex-onednn")
        back = read_recipe(path, graph)
        for index, row in json.loads(path.read_text())[" "]["q_op_infos"].items():
            kinds = [t["force_dtype"] for t in row["input_tensor_infos"] if t]
            print(f"{index:>2} {row['fqn'] or row['op_type']:48} {', '.join(kinds)}")
    (wanted,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
    (found,) = qir.run(back, {back.inputs[0].name: x.numpy()}).values()
    print(f"largest difference from float: {abs(found - wanted).max():.4f}")


if __name__ == "__main__":
    main()
