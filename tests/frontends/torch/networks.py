"""Networks as PyTorch users write them, with weights of a seed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Residual(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            conv = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.downsample(x)
        return self.relu(y)  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """The residual network of 18 layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        sizes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.layers = nn.Sequential(
            *(
                block
                for channels_in, channels_out, stride in sizes
                for block in (
                    _Residual(channels_in, channels_out, stride),
                    _Residual(channels_out, channels_out, 1),
                )
            )
        )
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.layers(self.stem(x)))
        return self.fc(torch.flatten(y, 1))  # type: ignore[no-any-return]


class _Inverted(nn.Module):
    def __init__(
        self, channels_in: int, channels_out: int, stride: int, activation: nn.Module
    ) -> None:
        super().__init__()
        hidden_channels = channels_in * 4
        self.squeeze = nn.Sequential(nn.Conv2d(hidden_channels, hidden_channels // 4, 1), nn.ReLU())
        self.excite = nn.Sequential(
            nn.Conv2d(hidden_channels // 4, hidden_channels, 1), nn.Hardsigmoid()
        )
        self.expand = nn.Sequential(
            nn.Conv2d(channels_in, hidden_channels, 1, bias=False),
            nn.BatchNorm2d(hidden_channels),
            activation,
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(
                hidden_channels, hidden_channels, 3, stride, 1, groups=hidden_channels, bias=False
            ),
            nn.BatchNorm2d(hidden_channels),
            activation,
        )
        self.project = nn.Sequential(
            nn.Conv2d(hidden_channels, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out)
        )
        self.same = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = y * self.excite(self.squeeze(F.adaptive_avg_pool2d(y, 1)))
        projected: Tensor = self.project(y)
        return x + projected if self.same else projected


class MobileNet(nn.Module):
    """A small MobileNetV3: inverted residuals, squeeze and excitation, hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(True)
        )
        self.blocks = nn.Sequential(
            _Inverted(16, 16, 1, nn.ReLU(True)),
            _Inverted(16, 24, 2, nn.Hardswish(True)),
            _Inverted(24, 24, 1, nn.ReLU6(True)),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(24, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


class Shuffle(nn.Module):
    """A network whose channels are split, shuffled and joined, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)
        self.branch = nn.Sequential(
            nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        )
        self.linear = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        kept_half, branch_half = self.conv(x).chunk(2, 1)
        y = torch.cat((kept_half, self.branch(branch_half)), 1)
        batch, channels, height, width = y.shape
        # Swapping the two axes of channels takes one from each half in turn.
        y = y.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return self.linear(y.view(batch, channels, height, width).mean([2, 3]))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A text encoder: embeddings, attention with a padding mask, GELU."""

    def __init__(self, words: int = 50, wide: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, wide), nn.Embedding(64, wide)
        layer = nn.TransformerEncoderLayer(
            wide, heads, 64, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(self.layers(x, src_key_padding_mask=mask == 0))
        weights = mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1).clamp(min=1e-9))  # type: ignore[no-any-return]


class _Decoder(nn.Module):
    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(wide), nn.RMSNorm(wide)
        self.qkv = nn.Linear(wide, 3 * wide, bias=False)
        self.out = nn.Linear(wide, wide, bias=False)
        self.gate = nn.Linear(wide, 2 * wide, bias=False)
        self.up = nn.Linear(wide, 2 * wide, bias=False)
        self.down = nn.Linear(2 * wide, wide, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, wide = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(wide, 2)
        q, k, v = (
            t.view(batch, length, self.heads, wide // self.heads).transpose(1, 2) for t in (q, k, v)
        )
        q, k = (t * cos + _turned(t) * sin for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, wide))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class Decoder(nn.Module):
    """A language model of two layers: RMS norm, rotary embedding, causal attention, gated SiLU."""

    def __init__(self, words: int = 50, wide: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.layers = nn.ModuleList(_Decoder(wide, heads) for _ in range(2))
        self.norm = nn.RMSNorm(wide)
        self.head = nn.Linear(wide, words, bias=False)
        self.head.weight = self.words.weight  # tied, as language models have it
        size = wide // heads
        self.steps: Tensor
        self.register_buffer("steps", 1 / 10000 ** (torch.arange(0, size, 2) / size))

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1]).float()[:, None] * self.steps
        angles = torch.cat((angles, angles), -1)
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Two LSTM layers over embedded characters, and a decision by the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True)
        self.linear = nn.Linear(24, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.lstm(self.words(ids))[0][:, -1])  # type: ignore[no-any-return]


class Segment(nn.Module):
    """Down and up again with skipped connections, as U-Net does."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 1, 1)
        self.up1, self.up2 = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, 1, 1)
        self.norm, self.last = nn.GroupNorm(4, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = F.leaky_relu(self.down1(x), 0.1)
        b = F.leaky_relu(self.down2(F.max_pool2d(a, 2)), 0.1)
        y = self.norm(F.elu(self.up2(torch.cat((self.up1(b), a), 1))))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return {"out": self.last(y), "features": b}


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Returns each network with example inputs; batch norms have statistics of their own."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        image, ids = torch.randn(2, 3, 32, 32), torch.randint(0, 30, (2, 12))
        mask = torch.ones(2, 12, dtype=torch.int64)
        mask[1, 9:] = 0
        built: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
            "resnet18": (ResNet18(), (image,)),
            "mobilenet": (MobileNet(), (image,)),
            "shuffle": (Shuffle(), (image,)),
            "encoder": (Encoder(), (ids, mask)),
            "decoder": (Decoder(), (ids,)),
            "recurrent": (Recurrent(), (ids,)),
            "segment": (Segment(), (image,)),
        }
        for network, _ in built.values():
            for part in network.modules():
                if isinstance(part, nn.BatchNorm2d):
                    nn.init.uniform_(part.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
                    nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return built
