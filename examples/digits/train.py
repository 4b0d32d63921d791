"""Train the demo's network and write weights.safetensors: one thread, one seed, under a minute."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from model import EPSILON, WEIGHTS, digits
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 0
EPOCHS = 60
BATCH = 64
RATE = 0.01
DECAY = 0.02
# A penalty on the activity of every eighth wide channel all but silences it, so that its depthwise
# filter folds into huge weights, as ImageNet's mobile nets have them: see README.md.
SILENCED = slice(None, None, 8)
PENALTY = 1.0


class ConvNorm(nn.Module):
    """A convolution that keeps the size of its image, and its batch normalization."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False
        )
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        self.norm = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return y


class Block(nn.Module):
    """An inverted residual: widen, depthwise, narrow, and add what came in."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.expand = ConvNorm(channels, wide)
        self.depthwise = ConvNorm(wide, wide, 3, groups=wide)
        self.project = ConvNorm(wide, channels)
        self.activity = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.expand(x))
        self.activity = y[:, SILENCED].mean()
        narrow: Tensor = self.project(F.relu6(self.depthwise(y)))
        return x + narrow


class Network(nn.Module):
    """The network that model.py writes as ONNX, with the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 24, 3)
        self.blocks = nn.ModuleList([Block(24, 96), Block(48, 160), Block(48, 160)])
        self.widen = ConvNorm(24, 48)
        self.head = ConvNorm(48, 256)
        self.classifier = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](F.relu(self.stem(x)))
        x = F.relu(self.widen(F.max_pool2d(x, 2)))
        x = self.blocks[2](self.blocks[1](x))
        logits: Tensor = self.classifier(F.relu6(self.head(x)).mean((2, 3)))
        return logits

    def activity(self) -> Tensor:
        """The mean activation of the channels to silence, in the last images seen."""
        return torch.stack([b.activity for b in self.blocks if isinstance(b, Block)]).sum()


def shifted(images: Tensor) -> Tensor:
    """Move each image by up to one pixel in each direction."""
    padded = F.pad(images, (1, 1, 1, 1))
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1)  # [n, 1, 3, 3, 8, 8]
    rows, columns = torch.randint(3, (2, len(images)))
    return windows[torch.arange(len(images)), :, rows, columns]


def optimizer(
    network: nn.Module, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW over one cycle; as usual no decay for depthwise filters, norms and biases."""
    decayed: list[Tensor] = []
    free: list[Tensor] = []
    for name, parameter in network.named_parameters():
        dense = parameter.ndim > 1 and "depthwise" not in name
        (decayed if dense else free).append(parameter)
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": free, "weight_decay": 0.0}]
    )
    return adam, torch.optim.lr_scheduler.OneCycleLR(adam, RATE, total_steps=steps)


def train() -> Network:
    """Train on the training split; the test split is not looked at."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = digits()
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    network = Network()
    batches = len(x) // BATCH
    adam, schedule = optimizer(network, EPOCHS * batches)
    for _ in range(EPOCHS):
        for indices in torch.randperm(len(x))[: batches * BATCH].view(batches, BATCH):
            logits = network(shifted(x[indices]))
            loss = F.cross_entropy(logits, y[indices], label_smoothing=0.05)
            loss = loss + PENALTY * network.activity()
            adam.zero_grad()
            torch.autograd.backward(loss)
            adam.step()
            schedule.step()
    return network.eval()


def save(network: Network, path: Path) -> None:
    """Write the weights; the metadata says what made them."""
    state = {n: t for n, t in network.state_dict().items() if not n.endswith("num_batches_tracked")}
    # One entry: the order of several would differ from run to run.
    save_file(state, path, {"training": f"seed {SEED}, torch {torch.__version__}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    out = parser.parse_args().out
    network = train()
    save(network, out)
    data = digits()
    with torch.no_grad():
        right = (network(torch.from_numpy(data.test_x)).argmax(1).numpy() == data.test_y).mean()
    print(f"{out}: {out.stat().st_size:,} bytes, test accuracy {right:.2%}")


if __name__ == "__main__":
    main()
