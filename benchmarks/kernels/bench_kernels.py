"""Speed of the kernels by layer, and of the steps of whole networks, on each instruction set.

python benchmarks/kernels/bench_kernels.py [--threads N] [--isa NAME] [--peak]

A layer is timed as in a network: several of them in one call where one takes microseconds.
"""

import argparse
import ctypes
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import networks
import peak

from qir._kernels._cpu import Plan, caps, isa

LAYERS = {  # height, width, channels, output channels, window, stride, groups
    "product 784x512x128": (28, 28, 128, 512, 1, 1, 1),
    "product 1024x1024x1024": (32, 32, 1024, 1024, 1, 1, 1),
    "product 128x768x768": (128, 1, 768, 768, 1, 1, 1),
    "product 1x1000x1280": (1, 1, 1280, 1000, 1, 1, 1),
    "1x1 64-64 @56": (56, 56, 64, 64, 1, 1, 1),
    "1x1 16-96 @112": (112, 112, 16, 96, 1, 1, 1),
    "1x1 24-144 @56": (56, 56, 24, 144, 1, 1, 1),
    "1x1 320-1280 @7": (7, 7, 320, 1280, 1, 1, 1),
    "3x3 64-64 @56": (56, 56, 64, 64, 3, 1, 1),
    "3x3 512-512 @7": (7, 7, 512, 512, 3, 1, 1),
    "7x7/2 3-64 @224": (224, 224, 3, 64, 7, 2, 1),
    "3x3/2 3-32 @224": (224, 224, 3, 32, 3, 2, 1),
    "grouped 3x3 128-128 /32 @56": (56, 56, 128, 128, 3, 1, 32),
    "grouped 3x3 256-256 /32 @28": (28, 28, 256, 256, 3, 1, 32),
    "grouped 3x3 512-512 /32 @14": (14, 14, 512, 512, 3, 1, 32),
    "grouped 3x3 1024-1024 /32 @7": (7, 7, 1024, 1024, 3, 1, 32),
    "depthwise 3x3 32 @112": (112, 112, 32, 32, 3, 1, 32),
    "depthwise 3x3 64 @112": (112, 112, 64, 64, 3, 1, 64),
    "depthwise 3x3/2 96 @112": (112, 112, 96, 96, 3, 2, 96),
    "depthwise 3x3 384 @14": (14, 14, 384, 384, 3, 1, 384),
    "depthwise 5x5 240 @14": (14, 14, 240, 240, 5, 1, 240),
}


LEAST = 100e-6
"""Seconds of a run, at least: of a shorter layer it holds several, one after the other."""
TURN = 0.03
"""Seconds after which the peak is measured again, as the clock of a core changes."""


@dataclass
class Peaks:
    """What the cores can do at most, measured in turns with the layers."""

    library: ctypes.CDLL
    threads: int
    weights: int
    """Bytes of the weights of the product with a vector."""
    rate: float = 0.0
    read: float = 0.0

    def measure(self, seconds: float) -> None:
        """Keeps the best of what it measures now and since `forget`."""
        self.rate = max(self.rate, peak.multiply_adds(self.library, self.threads, seconds))
        here = peak.bytes_read(self.library, self.weights, seconds)
        self.read = max(self.read, here * self.threads)

    def forget(self) -> None:
        self.rate = self.read = 0.0

    def share(self, macs: int, weights: int, seconds: float) -> str:
        """Returns the share of what bounds a layer: reading, where each weight is used once."""
        if macs == weights:
            return f"{weights / seconds / self.read:5.0%} of what can be read"
        return f"{macs / seconds / self.rate:5.0%} of the peak"


def best(
    plan: Plan,
    arrays: list[np.ndarray],
    threads: int,
    seconds: float = 0.3,
    peaks: Peaks | None = None,
) -> float:
    """Returns the shortest time of one run; measures the peaks in turns with the runs."""
    shortest, end = float("inf"), time.perf_counter() + seconds
    if peaks is not None:
        peaks.forget()
    while (begun := time.perf_counter()) < end:
        if peaks is not None:
            peaks.measure(TURN / 10)
        while (start := time.perf_counter()) < begun + TURN:
            plan.run(arrays, threads=threads)
            shortest = min(shortest, time.perf_counter() - start)
    return shortest


def layer_plan(name: str, kind: str, copies: int) -> tuple[Plan, int, int]:
    """Returns a plan of copies of a layer, its multiply-adds and the size of its weights."""
    h, w, c, out, kernel, stride, groups = LAYERS[name]
    pad = kernel // 2
    oh, ow = ((v + 2 * pad - kernel) // stride + 1 for v in (h, w))
    size = -(-h * w * c // 64) * 64
    plan = Plan(size + oh * ow * out, [(0, h * w * c), (size, oh * ow * out)], isa=kind)
    weight = np.random.default_rng(0).integers(-127, 128, (out, c // groups, kernel, kernel))
    for _ in range(copies):
        plan.conv2d(
            name,
            0,
            1,
            weight.astype(np.int8),
            np.zeros(out, np.int32),
            np.full(out, 5e-4, np.float32),
            shape=(1, h, w, c),
            stride=(stride, stride),
            pad=(pad,) * 4,
            groups=groups,
            y_zero=128,
        )
    return plan, oh * ow * out * c // groups * kernel * kernel, weight.size


def layer(name: str, kind: str, threads: int, peaks: Peaks | None) -> None:
    plan, macs, weights = layer_plan(name, kind, 1)
    copies = 1 if macs == weights else int(LEAST / best(plan, [], threads, 0.01)) + 1
    plan, _, _ = layer_plan(name, kind, copies)
    seconds = best(plan, [], threads, peaks=peaks) / copies
    share = "" if peaks is None else f" {peaks.share(macs, weights, seconds)}"
    rate = f"{macs / seconds / 1e9:8.1f} GMAC/s"
    print(f"  {name:28s} {seconds * 1e6:10.1f} us {rate}{share}", flush=True)


def network(name: str, kind: str, threads: int, profile: bool) -> None:
    net = getattr(networks, name)(1)
    plan = net.plan(kind)
    arrays = [np.zeros(net.sizes[0] // 4, np.float32), np.zeros(net.sizes[-1] // 4, np.float32)]
    seconds = best(plan, arrays, threads, 1.5)
    rate = net.macs / seconds / 1e9
    print(f"  {name:28s} {seconds * 1e3:10.3f} ms {rate:8.1f} GMAC/s", flush=True)
    if not profile:
        return
    for _ in range(50):
        plan.run(arrays, threads=threads, profile=True)
    for step, kernel, total, _ in sorted(plan.profile(), key=lambda row: -row[2])[:25]:
        print(f"    {total / 50 * 1e6:8.1f} us  {kernel:12s} {step}")


def measured_peaks(threads: int) -> Peaks:
    """Measures the peaks with instructions alone, and prints them."""
    library = peak.compiled()
    _, _, width, height, *_ = LAYERS["product 1x1000x1280"]
    alone = peak.multiply_adds(library)
    peaks = Peaks(library, threads, height * width)
    peaks.measure(1.0)
    print(f"peak: {peaks.rate / 1e9:.1f} GMAC/s, {peaks.rate / alone:.2f} times one thread's")
    print(f"read: {peaks.read / 1e9:.1f} GB/s of {height * width / 1e6:.1f} MB", flush=True)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=caps(), action="append")
    parser.add_argument("--profile", action="store_true", help="the slowest steps of each network")
    parser.add_argument("--peak", action="store_true", help="shares of what the cores can do")
    options = parser.parse_args()
    peaks = measured_peaks(options.threads) if options.peak else None
    for kind in options.isa or isa():
        print(f"{kind}, {options.threads} threads")
        for name in LAYERS:
            layer(name, kind, options.threads, peaks)
        for name in ("mobilenetv2", "resnet50"):
            network(name, kind, options.threads, options.profile)


if __name__ == "__main__":
    main()
