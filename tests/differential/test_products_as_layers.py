"""Gemm and matmul with constant integers, grouped as runtimes that know linear layers take them."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile, profile_names
from qir.reference.interpreter import run
from tests.differential.torch.profile_in_use import named

from .torch.kernels import F, Held, Map, Product, Tally
from .torch.test_torch_groups import Net, kind_of
from .torch.test_torch_products import claim, linear, made_by

FORMS = (
    *("gemm turned", "gemm", "matmul", "matmul turned", "sum of gemm"),
    *("matmul of transpose", "gemm turned, of transpose", "matmul of transposed codes"),
)


def graph_of(case: Product, form: str) -> Graph:
    """A linear layer as exporters write it: `turned` weights lie [out, in].

    A transpose stands behind weights, before or behind the dequantize.
    """
    net = Net("native")
    add = net.graph.add
    assert case.x.map is not None
    data = add("input", types=[kind_of(case.x.data.shape, case.x.map)], name="x").result
    turned, transposed = "turned" in form, "transpose" in form
    w = net.constant(case.w if turned != transposed else flipped(case.w), "w")
    if form.endswith("codes"):
        quantized = add("transpose", {"x": w.node.operands["x"]}, {"perm": (1, 0)}).result
        w = net.real(quantized)
    elif transposed:
        w = add("transpose", {"x": w}, {"perm": (1, 0)}).result
    given = {"a": net.real(data), "b": w}
    attrs: dict[str, Attr] = {"trans_b": turned}
    bias = None if case.bias is None else net.plain(case.bias, "bias")
    if form.startswith("gemm") and bias is not None:
        given["c"] = bias
    op = "matmul" if "matmul" in form else "gemm"
    y: Value = add(op, given, attrs).result
    if not form.startswith("gemm") and bias is not None:
        pair = {"a": bias, "b": y} if form == "matmul" else {"a": y, "b": bias}
        y = add("add", pair).result
    if case.relu:
        y = add("relu", {"x": y}).result
    y = net.through(y, case.out)
    add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    return net.graph


def flipped(w: Held) -> Held:
    m = w.map
    assert m is not None
    axis = None if m.axis is None else 1 - m.axis
    return Held(np.ascontiguousarray(w.data.T), Map(m.storage, m.scale, m.zero, axis))


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("engine", ["fbgemm", "onednn", "qnnpack"])
def test_a_product_with_constant_codes_is_torchs_linear(
    engine: str, many: bool, vnni: ProcessPoolExecutor
) -> None:
    name, tally = named(engine), Tally()
    cases = [linear(seed, many) for seed in range(24)]
    for number, (case, wanted) in enumerate(zip(cases, made_by(vnni, engine, cases), strict=True)):
        for form in FORMS:
            graph = graph_of(case, form)
            Group(name).run(graph, Ledger())
            check(graph)
            (kernel,) = (n for n in graph if n.op not in ("input", "constant", "output"))
            ops = [stage.op for stage in kernel.stages] or [kernel.op]
            assert ops == ["linear", "relu"][: 1 + case.relu], form
            tally.add(run(graph, {"x": case.x.data})["y"], wanted, f"{form} of case {number}")
    tally.within(claim(engine, "linear", many))


LAYERS = [
    name
    for name in profile_names()
    if {"linear"} == {g.chain[0] for g in profile(name).groups} & {"linear", "gemm"}
]


@pytest.mark.parametrize("name", LAYERS)
def test_each_form_gives_the_bytes_of_the_layer(name: str) -> None:
    """Under every profile that has groups of linear layers and none of gemm."""
    assert {"mxnet-1.9", "ipex-2.8", "tflite-2.21.ref", named("pt2e")} <= set(LAYERS)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        zero = 0 if name in ("mxnet-1.9", "tf-2.21.onednn") else None  # these have none
        x = Held(rng.integers(-128, 128, (3, 11)).astype(np.int8), one(rng, "i8", zero))
        w = Held(rng.integers(-127, 128, (5, 11)).astype(np.int8), one(rng, "i8", 0))
        bias = rng.normal(size=5).astype(F) if seed % 3 else None
        case = Product("linear", x, w, bias, one(rng, "i8", 0))
        layer = Graph(profile=name)
        net = Net(name)
        layer = net.graph
        assert x.map is not None
        data = layer.add("input", types=[kind_of(x.data.shape, x.map)], name="x").result
        given = {"x": net.real(data), "w": net.constant(w, "w")}
        if bias is not None:
            given["bias"] = net.plain(bias, "bias")
        y = net.through(layer.add("linear", given).result, case.out)
        layer.add("output", {"y": y.node.operands["x"]})
        layer.prune()
        assert Group(name).run(layer, Ledger())
        wanted = run(layer, {"x": x.data})["y"]
        for form in FORMS:
            graph = graph_of(case, form)
            Group(name).run(graph, Ledger())
            assert [n.op for n in graph if n.op in ("linear", "gemm", "matmul")] == ["linear"]
            assert "dequantize" not in {n.op for n in graph}, form
            assert np.array_equal(run(graph, {"x": x.data})["y"], wanted), (seed, form)


def one(rng: np.random.Generator, storage: str, zero: int | None = None) -> Map:
    at = int(rng.integers(-20, 20)) if zero is None else zero
    return Map(storage, np.asarray(rng.uniform(0.01, 0.2), F), np.asarray(at))


@pytest.mark.parametrize(
    ("op", "attrs"), [("gemm", {"alpha": 0.5}), ("gemm", {"trans_a": True}), ("matmul", {})]
)
def test_what_is_no_linear_layer_stays(op: str, attrs: dict[str, Attr]) -> None:
    """A gain, turned data, and a product of two tensors that are computed."""
    rng = np.random.default_rng(5)
    net = Net("native")
    m = one(rng, "i8")
    a = net.graph.add("input", types=[kind_of((4, 4), m)], name="a").result
    b = net.graph.add("input", types=[kind_of((4, 4), m)], name="b").result
    right = net.real(b) if op == "matmul" else net.constant(Held(np.ones((4, 4), np.int8), m), "w")
    y = net.through(net.graph.add(op, {"a": net.real(a), "b": right}, attrs).result, m)
    net.graph.add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    Group(named("fbgemm")).run(net.graph, Ledger())
    assert [n.op for n in net.graph if n.op in ("linear", op)] == [op]
