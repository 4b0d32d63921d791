"""The profiles that rest on recorded results: their files, and what they group."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from qir.ir.node import Value
from qir.ledger import Ledger
from qir.numerics.fields import MethodField
from qir.numerics.rounding import SECOND_ROUNDINGS
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.profiles import Query, dumps, parse, profile
from qir.profiles.methods import reads as method_reads
from qir.reference.interpreter import run
from tests.differential.ipex import test_ipex_vectors as ipex
from tests.differential.one_op import graph_of
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    REFERENCE,
    SAME,
    VALID,
    VECTORS,
    recorded,
    unpadded,
)
from tests.oracles.tflite_cases import OpCase

_EXACT = frozenset({"quantize", "dequantize"})
"""Ops whose rules name no method, but make no sums."""
NAMES = (
    REFERENCE,
    "tflite-2.21.symmetric",
    DELEGATE,
    SAME,
    VALID,
    "tflite-2.21.single",
    "litert-2.3.xnnpack",
    "ipex-2.8",
    "qonnx-1.0",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_reads_back_equal_and_claims_nothing_without_evidence(name: str) -> None:
    found = profile(name)
    assert parse(dumps(found), name, profile) == found
    for entry in found.rules:
        claim = entry.fields.get(("", "claim"), "unknown")
        assert claim == "unknown" or entry.fields.get(("", "evidence")), f"line {entry.line}"
    for group in found.own_groups:
        assert group.claim == "unknown" or group.evidence, f"line {group.line}"


def test_one_rounding_is_claimed_by_nobody() -> None:
    """No wheel rounds once, so what rounds by a multiplier claims nothing; softmax does not."""
    single = profile("tflite-2.21.single")
    claims = {op: entry.fields["", "claim"] for entry in single.rules for op in entry.ops}
    assert set(claims.values()) == {"unknown"}
    for entry in profile(REFERENCE).rules:
        method = entry.fields.get(("", "method"))
        reads = method_reads(method.name) if isinstance(method, MethodField) else ("requant",)
        other = entry.fields.get(("requant", "round")) or entry.fields.get(
            ("requant", "multiplier")
        )
        if "requant" in reads and not other:
            assert set(entry.ops) <= {*claims, *_EXACT}, entry.ops


@pytest.mark.parametrize(
    "op", "conv1d conv2d conv3d conv_transpose1d conv_transpose2d gemm linear matmul".split()
)
@pytest.mark.parametrize("kinds", [*itertools.product(("i8", "u8", "i16"), ("i8", "u8", "i4"))])
def test_no_product_is_rounded_twice_where_it_is_to_be_rounded_once(
    op: str, kinds: tuple[str, str]
) -> None:
    data, weights = kinds
    slots = {"x": data, "a": data, "w": weights, "b": weights, "result": data}
    rule = profile("tflite-2.21.single").resolve(Query(op, slots))
    assert rule.requant.round not in SECOND_ROUNDINGS
    assert rule.claim == "unknown" or (op, rule.requant.multiplier) == ("linear", "f64")


GROUPED = (
    "conv",
    "ends",
    "depthwise",
    "linear",
    "conv16",
    "depthwise16",
    "linear16",
    "conv_i4_int16",
    "linear_i4_int16",
    "ends16",
    "conv_u8",
    "depthwise_u8",
    "linear_u8",
    "ends_u8",
    "add",
    "sub",
    "mul",
    "avg_pool",
    "max_pool",
    "softmax",
    "sigmoid",
    "tanh",
    "hard_swish",
    "leaky_relu",
    "mean",
    "resize",
    "resize_nearest",
    "concat",
    "pad",
    "reshape",
    "reshape16",
    "reshape_u8",
    "matmul",
    "div",
    "prelu",
    "relu",
    "abs",
    "exp",
    "log",
    "rsqrt",
    "gelu",
    "l2_norm",
    "log_softmax",
)


def as_pairs(case: OpCase, name: str) -> tuple[bool, object]:
    """Whether a case that was written as pairs is one kernel again, and what it gives."""
    graph = graph_of(case, name)
    ExpandQdq().run(graph, Ledger())
    pairs = {node.op for node in graph}
    Group(profile=name).run(graph, Ledger())
    graph.prune()
    left = {node.op for node in graph}
    given = {slot.replace(".", ""): case.operands[slot].data for slot in case.fed}
    whole = "dequantize" in pairs and "dequantize" not in left
    return whole, run(graph, given)["y"]


@pytest.mark.parametrize("suite", GROUPED)
@pytest.mark.parametrize(("name", "who"), [(REFERENCE, "ref"), (DELEGATE, "xnnpack")])
def test_pairs_are_grouped_to_the_kernels_that_were_recorded(
    suite: str, name: str, who: str
) -> None:
    for case, wanted in recorded(VECTORS / "tflite", suite, who)[:12]:
        if who == "ref" or not unpadded(case):
            whole, found = as_pairs(case, name)
            assert whole
            assert (found == wanted).all()


@pytest.mark.parametrize("case", ["conv", "conv_relu", "depthwise", "linear", "linear_relu"])
def test_pairs_are_grouped_to_the_kernels_of_ipex(case: str) -> None:
    name, *tails = ipex.LAYERS[case]
    for record in ipex.records(case):
        program = ipex.Program(record)
        operands = {"x": program.input("x0", record.map(name)), **program.weights(name)}
        conv = name == "c"
        attrs = ipex.padding(record, name) if conv else {}
        chain: list[tuple[str, Mapping[str, Value]]] = [(tail, {}) for tail in tails]
        to = record.map("probe")
        made = program.add("conv2d" if conv else "linear", operands, to, *chain, **attrs)
        graph = program.graph
        graph.add("output", {"y": made})
        ExpandQdq().run(graph, Ledger())
        assert "dequantize" in {node.op for node in graph}
        Group(profile=ipex.PROFILE).run(graph, Ledger())
        graph.prune()
        assert "dequantize" not in {node.op for node in graph}
        ipex.same(record, run(graph, program.fed)["y"])
