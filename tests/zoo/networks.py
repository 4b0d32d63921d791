"""The networks of the zoo by name, with weights and data of a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.frontends.torch.networks import ResNet18

from .text import WORDS, Bert, Gpt2, Llama
from .vision import (
    ConvNeXt,
    MobileNetV2,
    MobileNetV3Small,
    ShuffleNetV2,
    SqueezeNet,
    VisionTransformer,
)

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": ResNet18,
    "mobilenet_v2": MobileNetV2,
    "mobilenet_v3_small": MobileNetV3Small,
    "shufflenet_v2": ShuffleNetV2,
    "squeezenet": SqueezeNet,
    "convnext": ConvNeXt,
    "vit": VisionTransformer,
    "bert": Bert,
    "gpt2": Gpt2,
    "llama": Llama,
}
_TEXT = ("bert", "gpt2", "llama")


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network in evaluation mode, and two samples of 64 pixels or 16 words."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = NETWORKS[name]().eval()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
                nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        if name not in _TEXT:
            return net, (torch.randn(2, 3, 64, 64),)
        ids = torch.randint(1, WORDS, (2, 16))
        if name != "bert":
            return net, (ids,)
        mask = torch.ones_like(ids)
        mask[1, 12:] = 0
        return net, (ids, mask)
