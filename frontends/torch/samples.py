"""Small exported programs and an archive that hold what the frontend reads, to check it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn


class _Recurrent(nn.Module):
    """An LSTM in two directions, and a linear layer on its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """A quantized linear layer on data that it quantizes."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._packed_params = torch.ops.quantized.linear_prepack(weight, torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.02, 128, torch.quint8)
        result: torch.Tensor = torch.ops.quantized.linear(q, self._packed_params, 0.05, 100)
        return result.dequantize()


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and returns their paths."""
    networks: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "convolutional": (
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(128, 4),
            ),
            torch.zeros(2, 3, 8, 8),
        ),
        "attention": (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            torch.zeros(1, 5, 8),
        ),
        "recurrent": (_Recurrent(), torch.zeros(2, 7, 6)),
    }
    paths = []
    for name, (network, x) in networks.items():
        paths.append(folder / f"{name}.pt2")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.3)
        torch.export.save(torch.export.export(network.eval(), (x,)), paths[-1])
    paths.append(folder / "int8.pt")
    torch.jit.save(_int8(), paths[-1])
    return paths


def _int8() -> torch.jit.ScriptModule:
    """Returns a traced module with a quantized layer."""
    weights = torch.linspace(-1, 1, 24).reshape(4, 6)
    quantized = torch.quantize_per_tensor(weights, 0.01, 0, torch.qint8)
    traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
        _Layer(quantized).eval(), torch.zeros(2, 6), check_trace=False
    )
    return traced
