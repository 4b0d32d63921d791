"""The steps of well-known networks with random weights: their shapes are what counts for speed."""

from collections.abc import Callable

import numpy as np

from qir._kernels._cpu import EXTERNAL, Plan

F32 = np.float32
ALIGN = 64


class Builder:
    """Adds layers one after the other, each with a buffer of its own."""

    def __init__(self, batch: int, size: int) -> None:
        self.steps: list[Callable[[Plan], None]] = []
        self.sizes: list[int] = [4 * batch * 3 * size * size]
        self.shape = (batch, size, size, 3)
        self.macs = 0
        self.rng = np.random.default_rng(0)
        x, y = 0, self.buffer(batch * 3 * size * size)
        image_shape = (batch, 3, size, size)
        self.steps.append(
            lambda plan: plan.quantize(
                "x", x, y, shape=image_shape, scale=0.02, zero=114, nhwc=True
            )
        )

    def buffer(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def conv(self, out: int, kernel: int, stride: int = 1, groups: int = 1) -> int:
        """A convolution with "same" padding of what was last made."""
        batch, h, w, c = self.shape
        pad = (kernel // 2,) * 4
        oh, ow = ((v + 2 * (kernel // 2) - kernel) // stride + 1 for v in (h, w))
        weight = self.rng.integers(-127, 128, (out, c // groups, kernel, kernel)).astype(np.int8)
        bias = self.rng.integers(-999, 999, out).astype(np.int32)
        multiplier = np.full(out, 0.01 / weight[0].size ** 0.5, F32)
        x, y, shape = len(self.sizes) - 1, self.buffer(batch * oh * ow * out), self.shape
        self.steps.append(
            lambda plan: plan.conv2d(
                f"conv {kernel}x{kernel} {shape[1]}x{shape[2]} {c}-{out}",
                x,
                y,
                weight,
                bias,
                multiplier,
                shape=shape,
                stride=(stride, stride),
                pad=pad,
                groups=groups,
                x_zero=114,
                y_zero=114,
            )
        )
        self.macs += batch * oh * ow * out * weight[0].size
        self.shape = (batch, oh, ow, out)
        return y

    def add(self, other: int) -> int:
        """The sum of what was last made and another buffer."""
        size = self.sizes[-1]
        x, y = len(self.sizes) - 1, self.buffer(size)
        self.steps.append(
            lambda plan: plan.add(
                "add", x, other, y, shape=(1, 1, size), a_gain=0.6, b_gain=0.5, offset=-11.0
            )
        )
        return y

    def max_pool(self) -> None:
        n, h, w, c = self.shape
        x, y, shape = len(self.sizes) - 1, self.buffer(n * h * w * c // 4), self.shape
        self.steps.append(
            lambda plan: plan.max_pool2d(
                "pool", x, y, shape=shape, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1)
            )
        )
        self.shape = (n, h // 2, w // 2, c)

    def head(self, classes: int) -> None:
        """Global average and scores."""
        n, _, _, c = self.shape
        x, y, shape = len(self.sizes) - 1, self.buffer(n * c), self.shape
        self.steps.append(
            lambda plan: plan.global_avg_pool(
                "mean", x, y, shape=shape, x_scale=0.02, x_zero=114, y_scale=0.01, y_zero=0
            )
        )
        z = self.buffer(4 * n * classes)
        weight = self.rng.integers(-127, 128, (classes, c)).astype(np.int8)
        self.steps.append(
            lambda plan: plan.linear(
                "scores", y, z, weight, None, np.ones(1, F32), rows=n, y_type="f32"
            )
        )
        self.macs += n * weight.size

    def plan(self, isa: str | None = None) -> Plan:
        """The plan; its external buffers are the picture and the scores."""
        buffers, offset = [(EXTERNAL, self.sizes[0])], 0
        for size in self.sizes[1:-1]:
            buffers.append((offset, size))
            offset += -(-size // ALIGN) * ALIGN
        buffers.append((EXTERNAL, self.sizes[-1]))
        plan = Plan(offset, buffers, isa=isa)
        for step in self.steps:
            step(plan)
        return plan


def resnet50(batch: int) -> Builder:
    net = Builder(batch, 224)
    net.conv(64, 7, 2)
    net.max_pool()
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            shortcut, shape = len(net.sizes) - 1, net.shape
            step = stride if i == 0 else 1
            net.conv(width, 1)
            net.conv(width, 3, step)
            last, result = net.conv(4 * width, 1), net.shape
            if i == 0:  # the shortcut is a convolution too, of the same input
                net.shape = shape
                net.sizes.append(net.sizes[shortcut])
                net.conv(4 * width, 1, step)
                shortcut, net.shape = last, result
            net.add(shortcut)
    net.head(1000)
    return net


def mobilenetv2(batch: int) -> Builder:
    net = Builder(batch, 224)
    net.conv(32, 3, 2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expand, out, blocks, stride in stages:
        for i in range(blocks):
            shortcut, c = len(net.sizes) - 1, net.shape[3]
            if expand > 1:
                net.conv(c * expand, 1)
            net.conv(c * expand, 3, stride if i == 0 else 1, groups=c * expand)
            net.conv(out, 1)
            if i > 0:
                net.add(shortcut)
    net.conv(1280, 1)
    net.head(1000)
    return net
