"""The default pipeline over large models: what `qir quantize` does with statistics at hand.

A network of convolutions with batch norms, sums and activations, no two with the same weights;
seconds of processor time, pass by pass with verification, and last how many times as long ten times
the nodes take. The copy that leaves the user's graph as it was is in the first pass of each part.
`fold` and `quantize` are the two halves of the pipeline; `convert` is QDQ form to integer form and
back.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence

import numpy as np

from qir.calibration import Key, Statistics, Summary
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.passes.forms.turn_sums import TurnSums
from qir.passes.quantize.assign_schemes import AssignSchemes
from qir.passes.quantize.materialize import Materialize
from qir.rewrite import Pass, Report, run_passes
from qir.target import target

SIZES = (10_000, 100_000)
LAYER = 12
"""Nodes of a layer."""
KIND = TensorType((1, 8, 4, 4), F32)


def network(count: int) -> Graph:
    """Layers of conv2d, batch_norm, add and relu, with their constants."""
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.add("input", types=[KIND], name="x").result
    for i in range(count // LAYER):
        weight = graph.constant(Array.of(rng.standard_normal((8, 8, 1, 1), np.float32)))
        parts = [rng.uniform(0.5, 2, 8).astype(np.float32) for _ in range(4)]
        norm = [graph.constant(Array.of(part)) for part in parts]
        y = graph.add("conv2d", {"x": x, "w": weight}, name=f"conv{i}").result
        slots = dict(zip(("gamma", "beta", "mean", "var"), norm, strict=True))
        y = graph.add("batch_norm", {"x": y, **slots}, name=f"norm{i}").result
        # A product of constants, for constant folding.
        half = graph.constant(Array.of(np.float32([0.25])))
        folded = graph.add("mul", {"a": half, "b": half}).result
        y = graph.add("add", {"a": graph.add("add", {"a": y, "b": folded}).result, "b": x}).result
        x = graph.add("relu", {"x": y}, name=f"relu{i}").result
    graph.add("output", {"y": x})
    return graph


def statistics(graph: Graph) -> Statistics:
    """Returns what a calibration would have found: the same for every tensor."""
    summary = Summary(None)
    summary.update(np.linspace(-3, 3, 64, dtype=np.float32))
    result = Statistics("bench")
    result._summaries = {Key(v.lineage.tensor, None): summary for v in graph.values.values()}
    return result


def seconds(graph: Graph, passes: Sequence[Pass]) -> tuple[Graph, dict[str, float]]:
    """Returns the rewritten graph, and the seconds of each pass and of all together."""
    rows: dict[str, float] = {}
    gc.collect()
    started = last = time.process_time()

    def after(report: Report, graph: Graph) -> None:
        nonlocal last
        now = time.process_time()
        rows[report.name] = rows.get(report.name, 0.0) + now - last
        last = now

    rewritten = run_passes(graph, passes, Ledger(), after=after)
    rows["together"] = time.process_time() - started
    return rewritten, rows


def measure(count: int, target_name: str = "onnxruntime") -> dict[str, float]:
    """Returns the seconds of each pass of the default pipeline over a network of `count` nodes."""
    graph = network(count)
    backend = target(target_name)
    folded, rows = seconds(graph, (Prune(), FoldConstants(), FoldBatchNorm()))
    columns = {f"fold {name}": time_of_pass for name, time_of_pass in rows.items()}
    steps = (
        AssignSchemes(backend.capability()),
        Materialize(statistics(folded), backend.profile),
        TurnSums(),
        Prune(),
    )
    quantized, rows = seconds(folded, steps)
    columns |= {f"quantize {name}": time_of_pass for name, time_of_pass in rows.items()}
    quantized.profile = backend.profile
    _, rows = seconds(quantized, (FuseQdq(), ExpandQdq()))
    columns |= {f"convert {name}": time_of_pass for name, time_of_pass in rows.items()}
    _, rows = seconds(quantized, (Group(),))
    return columns | {"convert group": rows["group"]}


def main() -> None:
    columns = {count: measure(count) for count in SIZES}
    print(f"{'nodes':28}" + "".join(f"{count:>10,}" for count in SIZES) + f"{'larger':>10}")
    for name in columns[SIZES[0]]:
        row = [columns[count][name] for count in SIZES]
        print(f"{name:28}" + "".join(f"{s:10.2f}" for s in row) + f"{row[1] / row[0]:9.1f}x")
    total = sum(columns[SIZES[-1]][f"{half} together"] for half in ("fold", "quantize"))
    print(f"\nthe default pipeline over {SIZES[-1]:,} nodes: {total:.1f} s")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
