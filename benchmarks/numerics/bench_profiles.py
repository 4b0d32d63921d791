"""MobileNetV2 by the reference under every profile, next to the real network, in one run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import qir
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.profiles import profile_names
from qir.rewrite import run_passes

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.reference.mobilenet import mobilenet_v2

ROUNDS = 3


def seconds(graph: qir.Graph, data: np.ndarray, profile: str | None = None) -> float:
    """The shortest of some runs."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        qir.run(graph, {"x": data}, profile=profile)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Prints a table."""
    float_graph = mobilenet_v2()
    data = np.random.default_rng(1).normal(size=(1, 3, 224, 224)).astype(np.float32)
    # Some profiles have no integer kernel for this op.
    rules = ["op=global_avg_pool: float"]
    quantized = qir.quantize(float_graph, qir.calibrate(float_graph, data), rules=rules)
    on_integers = run_passes(quantized, [FuseQdq()], qir.Ledger())
    print(f"{'s, one image of 224 x 224':28}{'all on codes':>14}{'its groups':>12}")
    print(f"{'real':28}{seconds(float_graph, data):14.2f}", flush=True)
    for name in profile_names():
        grouped = run_passes(quantized, [Group(name)], qir.Ledger())
        cells = f"{seconds(on_integers, data, name):14.2f}{seconds(grouped, data, name):12.2f}"
        print(f"{name:28}{cells}", flush=True)


if __name__ == "__main__":
    main()
