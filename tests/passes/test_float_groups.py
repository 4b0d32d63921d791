"""A float graph is grouped as a runtime will compute it, and integers fall on its kernels'
edges."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import qir
from qir import pipeline
from qir.analysis.kernel_groups import KernelGroup, find_kernel_groups
from qir.errors import UsageError
from qir.inspect.left_float import ops_left_float
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.passes.forms.open_groups import OpenGroups
from qir.profiles import profile, profile_names
from qir.quantizing import lowered
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.target import target
from tests.passes.float_networks import members, network, quantized_kernels, samples
from tests.passes.keeping import keep

SEEDS = range(12)
_BY_CHAINS = {
    frozenset(g.chain for g in profile(name).groups): name for name in sorted(profile_names())
}
PROFILES = sorted(name for chains, name in _BY_CHAINS.items() if chains)
"""One of those that know the same kernels."""


TAKES = {name: "i8 symmetric tensor" for name in ("mxnet", "tf")}
TAKES |= {name: "i8 affine tensor" for name in ("tflite", "litert")}
"""What the kernels take for data that take no u8 with a zero point."""


def grouped(graph: Graph, name: str) -> Graph:
    return run_passes(graph, [Group(name)], Ledger())


def signed(graph: Graph, quantized: str) -> list[str]:
    """Rules by which data have the integers that a runtime's kernels take."""
    ops = {node.op for node in graph}
    wanted = ["op=*", "op=* slot=x"]
    wanted += [f"op={op} slot=a" for op in ("add", "mul", "gemm", "matmul") if op in ops]
    wanted += [f"op={op} slot=b" for op in ("add", "mul") if op in ops]
    rules = [f"{where}: {quantized}" for where in wanted]
    return rules + (["op=softmax: float"] if "softmax" in ops else [])


def predicted(graph: Graph, name: str) -> dict[frozenset[str], KernelGroup]:
    return {members(k): k for k in find_kernel_groups(pipeline.fold(graph), profile(name))}


@pytest.mark.parametrize("name", PROFILES)
def test_no_number_moves_and_each_group_is_one_of_the_profile(name: str) -> None:
    chains = {group.chain for group in profile(name).groups}
    wrapped = 0
    for seed in SEEDS:
        graph = network(seed)
        made = grouped(graph, name)
        inputs = samples(seed, 1)[0]
        found, wanted = run(made, inputs), run(graph, inputs)
        assert {n: v.tobytes() for n, v in found.items()} == {
            n: v.tobytes() for n, v in wanted.items()
        }, f"seed {seed}"
        for node in made:
            row = tuple(stage.op for stage in node.stages)
            layer = ("linear", *row[2 if row[:2] == ("matmul", "add") else 1 :])
            assert not row or row in chains or layer in chains, f"seed {seed}: {row}"
            wrapped += bool(row)
    assert wrapped or all(len(c) == 1 for c in chains)


@pytest.mark.parametrize("name", ["ort-1.31", "torch-2.13.pt2e", "mxnet-1.9"])
def test_grouping_keeps_what_passes_keep_and_opening_takes_it_back(name: str) -> None:
    changed = 0
    for seed in SEEDS:
        graph = network(seed)
        changed += keep(Group(name), graph, seed) > 1
        back = run_passes(grouped(graph, name), [OpenGroups("* |> *", chains=True)], Ledger())
        lines = [sorted(str(g).splitlines()[1:]) for g in (graph, back)]
        assert lines[0] == lines[1], f"seed {seed}"
    assert changed > 5


@pytest.mark.parametrize("name", ["onnxruntime", "onnx", "cpu"])
def test_what_quantizing_puts_into_a_kernel_is_what_grouping_foresaw(name: str) -> None:
    """The kernels of the float graph are those of the quantized one, but for what the target's plan
    leaves in float."""
    named = target(name).profile
    told: Counter[str] = Counter()
    for seed in SEEDS:
        graph = network(seed)
        table = target(name).capability()
        folded = lowered(pipeline.fold(graph), table, Ledger(), sums=True)
        wanted = {members(k): k for k in find_kernel_groups(folded, profile(named))}
        statistics = pipeline.calibrate(graph, samples(seed))
        found = quantized_kernels(grouped(pipeline.quantize(graph, statistics, target=name), named))
        assert found <= set(wanted), f"seed {seed}"
        plan = {d.node: d for d in pipeline.plan(graph, target=name).decisions}
        for missed in set(wanted) - found:
            kernel = wanted[missed]
            assert not plan[kernel.anchor.name].integer, f"seed {seed}: {kernel.chain}"
            told[plan[kernel.anchor.name].reason] += 1
        told["kernels of several ops"] += sum(len(ops) > 1 for ops in found)
    assert told.pop("kernels of several ops") > 6
    assert set(told) <= {"nothing next to it is integer"}


def makes(kernel: KernelGroup, quantized: str | None) -> bool:
    """Whether a kernel may have a result of such integers."""
    storage = (quantized or "u8").partition(" ")[0]
    assert kernel.entry is not None
    return storage in kernel.entry.when.storage.get("result", (storage,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROFILES)
def test_codes_fall_on_the_edges_of_the_kernels_of_any_profile(name: str) -> None:
    """Grouped first, then quantized: the profile's kernels are those that were predicted."""
    several = 0
    for seed in SEEDS:
        graph = network(seed)
        kind = TAKES.get(name.partition("-")[0])
        several_ops = {o: k for o, k in predicted(graph, name).items() if len(o) > 1}
        wanted = {ops for ops, kernel in several_ops.items() if makes(kernel, kind)}
        first = grouped(graph, name)
        statistics = pipeline.calibrate(first, samples(seed))
        rules = signed(graph, kind) if kind else []
        made = pipeline.quantize(first, statistics, target="cpu", rules=rules)
        found = {ops for ops in quantized_kernels(grouped(made, name)) if len(ops) > 1}
        assert found == wanted, f"seed {seed}"
        several += len(found)
    assert several > 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROFILES)
def test_codes_that_a_profile_takes_make_all_of_its_kernels(name: str) -> None:
    """Quantized as the profile has it; a pool that stands alone between floats moves no
    integers."""
    count = 0
    for seed in SEEDS[::2]:
        graph = network(seed)
        wanted = predicted(graph, name)
        first = grouped(graph, name)
        statistics = pipeline.calibrate(first, samples(seed))
        made = grouped(pipeline.quantize(first, statistics, profile=name), name)
        missed = {wanted[ops].chain for ops in set(wanted) - quantized_kernels(made)}
        assert missed <= {("max_pool2d",)}, f"seed {seed}"
        count += len(wanted) - len(missed)
    assert count > 25


def test_codes_by_a_profile_are_refused_where_it_has_no_kernels_or_others_are_meant() -> None:
    graph = network(1)
    statistics = pipeline.calibrate(graph, samples(1))
    with pytest.raises(UsageError, match=r"^qonnx-1\.0 makes no kernels of 8-bit integers"):
        pipeline.quantize(graph, statistics, profile="qonnx-1.0")
    with pytest.raises(UsageError, match=r"is grouped as mxnet-1\.9: quantize it as that"):
        pipeline.plan(grouped(graph, MXNET), profile="tflite-2.21.ref")


RESIDUAL = """graph main {
  %x = input() : 1x1x2x2xf32
  %w = constant([2.0]) : 1x1x1x1xf32
  %b = constant([0.5]) : 1xf32
  %c = conv2d(%x, %w, bias=BIAS) : 1x1x2x2xf32
  %d = conv2d(%x, %w) : 1x1x2x2xf32
  %s = add(%c, %d) : 1x1x2x2xf32
  %r = relu(%s) : 1x1x2x2xf32
  output(y=%r)
}
"""


def test_of_two_products_the_first_operand_takes_the_sum() -> None:
    made = grouped(parse(RESIDUAL.replace("BIAS", "%b")), "torch-2.13.pt2e")
    assert "conv2d(%x, %w, bias=%b) |> add(., %d) |> relu" in str(made)
    turned = grouped(parse(RESIDUAL.replace("BIAS", "%b").replace("(%c, %d)", "(%d, %c)")), MXNET)
    assert "conv2d(%x, %w) |> add(., %c) |> relu" in str(turned)


MXNET = "mxnet-1.9"


def test_what_is_in_no_kernel_is_told_with_the_reason() -> None:
    text = RESIDUAL.replace("BIAS", "%k").replace(
        "%w = const", "%k = input() : 1xf32\n  %w = const"
    )
    made = grouped(parse(text), MXNET)
    assert "conv2d(%x, %w) |> add(%c, .) |> relu" in str(made)
    assert [(one.node, one.reason) for one in ops_left_float(made)] == [("c", "bias is computed")]
    made = grouped(parse(RESIDUAL.replace("BIAS", "%b").replace("relu(", "exp(")), MXNET)
    assert [one.reason for one in ops_left_float(made)] == ["no group of mxnet-1.9 takes it"]


def test_a_graph_with_codes_has_no_groups_of_reals() -> None:
    graph = network(1)
    statistics = pipeline.calibrate(graph, samples(1))
    made = grouped(pipeline.quantize(graph, statistics), "tf-2.21.core")
    assert not any(node.stages for node in made)


def test_a_group_that_the_target_does_not_have_is_told() -> None:
    first = grouped(parse(RESIDUAL.replace("BIAS", "%b")), MXNET)
    inputs = {"x": np.ones((1, 1, 2, 2), np.float32)}
    ledger = qir.Ledger()
    qir.quantize(first, qir.calibrate(first, [inputs]), ledger=ledger)
    (said,) = [e.reason for e in ledger if e.step == "assign-schemes"]
    assert said == (
        "conv2d |> add |> relu as mxnet-1.9 has it, float between quantized values: "
        "onnxruntime has no such kernel"
    )
    plan = pipeline.plan(first)
    real = "float between quantized values: onnxruntime has no kernel conv2d |> add |> relu"
    told = [(d.node, d.integer, d.reason) for d in plan.decisions]
    assert told == [("d", True, ""), *((n, False, real) for n in ("c", "s", "r"))]
    assert plan.integer_macs == 0.5
