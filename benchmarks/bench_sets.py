"""Two networks in int8 with the kernels of each instruction set that this processor has, in turns.

What QIR_ISA (or `isa=`) gains or costs: median milliseconds of a run, and how many times as fast as
with AVX2 that is. Sets that are used only where they are named are among them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import onnx

from qir._kernels import _cpu
from qir.backends.cpu import CpuTarget

sys.path.insert(0, str(Path(__file__).parent))
from bench_engine import medians, quantized
from engine_networks import IMAGE, NETWORKS, Size, inputs

BASE = "avx2"


def row(name: str, args: argparse.Namespace, folder: Path) -> None:
    """Prints the milliseconds of one network with each set."""
    model = NETWORKS[name](Size(1, IMAGE))
    feed, source = inputs(model, 1), folder / "float.onnx"
    onnx.save(model, source)
    graph = quantized(source, feed, folder / "int8.onnx")
    runs = {
        isa: partial(CpuTarget().compile(graph, threads=args.threads, isa=isa), **feed)
        for isa in args.isa
    }
    clock = time.process_time if args.processor_time else time.perf_counter
    seconds = medians(runs, args.rounds, args.seconds, clock, args.threads)
    base = seconds.get(BASE)
    for isa, taken in seconds.items():
        ratio = f"{base / taken:6.2f}x" if base else ""
        print(f"{name:18}{isa:16}{taken * 1e3:9.2f} ms {ratio}", flush=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS),
                        default=["ResNet-50", "MobileNetV2"])  # fmt: skip
    sets = [isa for isa in _cpu.caps() if isa != "scalar"]
    parser.add_argument("--isa", nargs="+", choices=_cpu.caps(), default=sets)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--processor-time", action="store_true", help="for one thread beside other jobs"
    )
    parser.add_argument("--rounds", type=int, default=30, help="runs of each, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one network, about")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    with tempfile.TemporaryDirectory() as folder:
        for name in args.networks:
            row(name, args, Path(tempfile.mkdtemp(dir=folder)))


if __name__ == "__main__":
    main()
