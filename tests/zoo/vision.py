"""Networks of images, block for block as torchvision has them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 100


def _conv(into: int, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(into, out, size, stride, size // 2, groups=groups, bias=False)


def _block(
    into: int, out: int, size: int, stride: int, groups: int, act: type[nn.Module] | None
) -> Iterator[nn.Module]:
    """Convolution, batch norm and activation."""
    yield _conv(into, out, size, stride, groups)
    yield nn.BatchNorm2d(out)
    if act is not None:
        yield act(inplace=True)


class InvertedResidual(nn.Module):
    """The block of MobileNetV2: expand, depthwise, project."""

    def __init__(self, into: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = into * expand
        parts = list(_block(into, wide, 1, 1, 1, nn.ReLU6)) if expand != 1 else []
        parts += _block(wide, wide, 3, stride, wide, nn.ReLU6)
        parts += _block(wide, out, 1, 1, 1, None)
        self.conv = nn.Sequential(*parts)
        self.same = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(x)
        return x + made if self.same else made


class MobileNetV2(nn.Module):
    """MobileNetV2 1.0."""

    SIZES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    REST = ((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self) -> None:
        super().__init__()
        parts, into = list(_block(3, 32, 3, 2, 1, nn.ReLU6)), 32
        for expand, out, count, stride in (*self.SIZES, *self.REST):
            for index in range(count):
                parts.append(InvertedResidual(into, out, 1 if index else stride, expand))
                into = out
        self.features = nn.Sequential(*parts, *_block(into, 1280, 1, 1, 1, nn.ReLU6))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    """A factor for each channel, from its mean."""

    def __init__(self, wide: int, less: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(wide, less, 1), nn.Conv2d(less, wide, 1)
        self.pool, self.relu, self.gate = nn.AdaptiveAvgPool2d(1), nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.relu(self.fc1(self.pool(x)))))  # type: ignore[no-any-return]


class Mobile3(nn.Module):
    """The block of MobileNetV3."""

    def __init__(self, into: int, row: tuple[int, int, int, bool, bool, int]) -> None:
        super().__init__()
        kernel, wide, out, excite, hard, stride = row
        act = nn.Hardswish if hard else nn.ReLU
        parts = list(_block(into, wide, 1, 1, 1, act)) if wide != into else []
        parts += _block(wide, wide, kernel, stride, wide, act)
        if excite:
            parts.append(SqueezeExcite(wide, max(8, (wide // 4 + 4) // 8 * 8)))
        self.block = nn.Sequential(*parts, *_block(wide, out, 1, 1, 1, None))
        self.same = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.block(x)
        if self.same:
            made += x
        return made


class MobileNetV3Small(nn.Module):
    """MobileNetV3-small 1.0."""

    ROWS = (
        (3, 16, 16, True, False, 2),
        (3, 72, 24, False, False, 2),
        (3, 88, 24, False, False, 1),
        (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1),
        (5, 240, 40, True, True, 1),
        (5, 120, 48, True, True, 1),
        (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2),
        (5, 576, 96, True, True, 1),
        (5, 576, 96, True, True, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        parts, into = list(_block(3, 16, 3, 2, 1, nn.Hardswish)), 16
        for row in self.ROWS:
            parts.append(Mobile3(into, row))
            into = row[2]
        self.features = nn.Sequential(*parts, *_block(into, 576, 1, 1, 1, nn.Hardswish))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, CLASSES)
        )
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))  # type: ignore[no-any-return]


class ShuffleUnit(nn.Module):
    """The block of ShuffleNetV2: channels split or reduced, joined and shuffled."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        half, self.stride = out // 2, stride
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                *_block(into, into, 3, stride, into, None), *_block(into, half, 1, 1, 1, nn.ReLU)
            )
        self.branch2 = nn.Sequential(
            *_block(into if stride > 1 else half, half, 1, 1, 1, nn.ReLU),
            *_block(half, half, 3, stride, half, None),
            *_block(half, half, 1, 1, 1, nn.ReLU),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            left, right = x.chunk(2, dim=1)
            y = torch.cat((left, self.branch2(right)), dim=1)
        else:
            y = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        batch, channels, height, width = y.size()
        y = y.view(batch, 2, channels // 2, height, width)
        return torch.transpose(y, 1, 2).contiguous().view(batch, channels, height, width)


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2 x0.5."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*_block(3, 24, 3, 2, 1, nn.ReLU))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        units, into = [], 24
        for out, count in ((48, 4), (96, 8), (192, 4)):
            units += [
                ShuffleUnit(into, out, 2),
                *(ShuffleUnit(out, out, 1) for _ in range(count - 1)),
            ]
            into = out
        self.stages = nn.Sequential(*units)
        self.conv5 = nn.Sequential(*_block(into, 1024, 1, 1, 1, nn.ReLU))
        self.fc = nn.Linear(1024, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv5(self.stages(self.maxpool(self.conv1(x))))
        return self.fc(x.mean([2, 3]))  # type: ignore[no-any-return]


class Fire(nn.Module):
    """The block of SqueezeNet."""

    def __init__(self, into: int, squeeze: int, half: int) -> None:
        super().__init__()
        self.squeeze, self.act = nn.Conv2d(into, squeeze, 1), nn.ReLU(inplace=True)
        self.expand1, self.expand3 = (
            nn.Conv2d(squeeze, half, 1),
            nn.Conv2d(squeeze, half, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.expand1(x)), self.act(self.expand3(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True)),
            *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        )
        self.classifier = nn.Sequential(
            *(nn.Dropout(0.5), nn.Conv2d(512, CLASSES, 1), nn.ReLU(True), nn.AdaptiveAvgPool2d(1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """The block of ConvNeXt: depthwise 7x7, layers over channels last, a factor each channel."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(wide, wide, 7, padding=3, groups=wide)
        self.norm = nn.LayerNorm(wide, eps=1e-6)
        self.up, self.act, self.down = (
            nn.Linear(wide, 4 * wide),
            nn.GELU(),
            nn.Linear(4 * wide, wide),
        )
        self.factor = nn.Parameter(torch.ones(wide, 1, 1) / 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(self.act(self.up(y))).permute(0, 3, 1, 2)
        return self.factor * y + x  # type: ignore[no-any-return]


class ConvNeXt(nn.Module):
    """ConvNeXt with narrow stages."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((24, 1), (48, 1), (96, 2), (192, 1))
        parts: list[nn.Module] = [nn.Conv2d(3, 24, 4, 4), LayerNorm2d(24, eps=1e-6)]
        for (wide, count), following in zip(sizes, (*sizes[1:], None), strict=True):
            parts += [ConvNeXtBlock(wide) for _ in range(count)]
            if following is not None:
                parts += [LayerNorm2d(wide, eps=1e-6), nn.Conv2d(wide, following[0], 2, 2)]
        self.features, self.pool = nn.Sequential(*parts), nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            LayerNorm2d(192, eps=1e-6), nn.Flatten(1), nn.Linear(192, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)))  # type: ignore[no-any-return]


class VisionLayer(nn.Module):
    """The layer of ViT, with torch's own attention."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(wide, eps=1e-6), nn.LayerNorm(wide, eps=1e-6)
        self.attention = nn.MultiheadAttention(wide, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """ViT of two layers, patches of 16."""

    def __init__(self, wide: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, wide, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, wide) / 10)
        self.places = nn.Parameter(torch.randn(1, 17, wide) / 10)
        self.layers = nn.Sequential(VisionLayer(wide), VisionLayer(wide))
        self.norm, self.head = nn.LayerNorm(wide, eps=1e-6), nn.Linear(wide, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = self.patches(x).reshape(batch, -1, 16).permute(0, 2, 1)
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])  # type: ignore[no-any-return]
