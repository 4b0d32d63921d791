"""The modules whose recipes are read and written: as IPEX's samples have it, and like BERT."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sample(nn.Module):
    """The module of the recorded recipes `ipex_*.json`, which IPEX 2.8 wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.r = nn.ReLU()
        self.c2, self.b2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.c3, self.b3 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.p, self.a = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.r(self.b1(self.c1(x)))
        y = self.b3(self.c3(self.r(self.b2(self.c2(x)))))
        x = self.a(self.p(self.r(x + y)))
        made: Tensor = self.fc(torch.flatten(x, 1))
        return made


class Own(nn.Module):
    """A convolution whose data are added to its result, a pool by its function, another one."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (nn.Conv2d(n, 6, 3, padding=1) for n in (3, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.c1(x))
        x = nn.functional.max_pool2d(torch.relu(self.c2(x) + x), 2)
        made: Tensor = self.c3(x)
        return made


class Attention(nn.Module):
    """Attention of two heads."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.v, self.o = nn.Linear(wide, wide), nn.Linear(wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, 2, d // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / (d // 2) ** 0.5, -1)
        made: Tensor = self.o(torch.matmul(a, v).transpose(1, 2).reshape(b, t, d))
        return made


class Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.att, self.n1, self.n2 = Attention(wide), nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.f1, self.g, self.f2 = nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x + self.att(x))
        made: Tensor = self.n2(x + self.f2(self.g(self.f1(x))))
        return made


class Bert(nn.Module):
    """Two layers of BERT and a classifier; torch.fx does not trace its condition."""

    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.layers, self.fc = nn.Sequential(Layer(wide), Layer(wide)), nn.Linear(wide, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 100:
            raise ValueError("takes up to 100 texts")
        made: Tensor = self.fc(self.layers(x)[:, 0])
        return made


class Mixed(nn.Module):
    """A mean, and a layer of torch's own transformer, between layers that IPEX quantizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).mean((2, 3))[:, None]
        made: Tensor = self.last(self.layer(x))
        return made


class Inplace(nn.Module):
    """A block that adds in place, an activation in place, and a view of a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.c3 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.r, self.p, self.fc = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu(self.b1(self.c1(x)), inplace=True)
        y = self.c2(y)
        y += self.c3(x)
        y = self.p(self.r(y))
        y = y + y
        made: Tensor = self.fc(y.view(-1, 8))
        return made


class Functions(nn.Module):
    """Layers as functions of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.Parameter(torch.randn(8))
        self.v = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(nn.functional.conv2d(x, self.w, self.b, 2, 1))
        return nn.functional.linear(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1), self.v)


class Recurrent(nn.Module):
    """An LSTM, which recipes number, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(16, 4)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.lstm(self.first(x))[0])
        return made


def made(name: str) -> tuple[nn.Module, Tensor]:
    """Returns a module with seeded weights, and data."""
    torch.manual_seed(0)
    nets: dict[str, tuple[nn.Module, tuple[int, ...]]]
    nets = {"sample": (Sample(), (2, 3, 8, 8)), "bert": (Bert(), (2, 5, 16))}
    if name in ("mixed", "encoder"):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        nets[name] = (Mixed(), (2, 3, 8, 8)) if name == "mixed" else (encoder, (2, 5, 8))
    # Made after the others, whose weights and data are recorded.
    if name == "own":
        nets[name] = Own(), (2, 3, 8, 8)
    if name == "inplace":
        nets[name] = Inplace(), (2, 3, 8, 8)
    if name == "functions":
        nets[name] = Functions(), (2, 3, 8, 8)
    if name == "recurrent":
        nets[name] = Recurrent(), (5, 2, 6)
    net, shape = nets[name]
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0.0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return net.eval(), torch.randn(*shape)
