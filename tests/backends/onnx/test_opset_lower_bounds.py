"""Ops that ONNX has as one operator since some set keep a model in its own set before that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir import pipeline
from qir.backends.onnx.writer.graph import Dialect, to_model
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from tests.frontends.onnx.models import model, save

from .operators import Data, onnxruntime_runs

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(71)
OPS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "hard_swish": (14, "hard_swish(%x)", ()),
    "layer_norm": (17, "layer_norm(%x, %g, beta=%b) {eps = 0.001}", ("g4", "b4")),
    "layer_norm of two axes": (17, "layer_norm(%x, %g) {axis = -2, eps = 0.01}", ("g64",)),
    "mish": (18, "mish(%x)", ()),
    "gelu": (20, "gelu(%x)", ()),
    "gelu by tanh": (20, 'gelu(%x) {approximate = "tanh"}', ()),
    "group_norm": (21, "group_norm(%x, %g, %b) {groups = 3}", ("g6", "b6")),
    "rms_norm": (23, "rms_norm(%x, %g) {eps = 0.001}", ("g4",)),
}
SIZES = {"4": (4,), "6": (6,), "64": (6, 4)}


def _data(*shape: int) -> Data:
    return np.asarray(RNG.normal(size=shape), np.float32)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_an_op_is_said_by_operators_of_the_set(name: str, kind: str) -> None:
    first, said, more = OPS[name]
    rank = 3 if name != "group_norm" else 4
    shape = (2, 6, 4) if rank == 3 else (2, 6, 4, 5)
    feeds = {"x": _data(*shape), **{n[0]: _data(*SIZES[n[1:]]) for n in more}}
    feeds = {n: a.astype(np.float16 if kind == "f16" else np.float32) for n, a in feeds.items()}
    lines = [f"%{n} = input() : {'x'.join(map(str, a.shape))}x{kind}" for n, a in feeds.items()]
    result = f"%y = {said} : {'x'.join(map(str, shape))}x{kind}"
    graph = parse("\n".join(["graph main {", *lines, result, "output(y=%y)", "}"]))
    wanted = np.asarray(run(graph, feeds)["y"], np.float64)
    near = 2e-3 if kind == "f16" else 1e-5
    for opset in sorted({13, 16, 17, 18, first - 1}):
        if opset >= first:
            continue
        ledger = Ledger()
        made = to_model(graph, ledger, Dialect(opset=opset))
        assert [i.version for i in made.opset_import] == [opset]
        onnx.checker.check_model(made, full_check=True)
        told = [e.change for e in ledger if f"opset {opset} has not" in e.reason]
        assert told == [Change.REGROUPED]
        (found,) = onnxruntime_runs(made, feeds)
        assert (found.shape, found.dtype) == (shape, feeds["x"].dtype)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    ledger = Ledger()
    made = to_model(graph, ledger, Dialect(opset=first))
    assert len(made.graph.node) == 1
    assert not [e for e in ledger if "has not" in e.reason]


OWN: dict[str, tuple[list[str], dict[str, tuple[int, ...]]]] = {
    "BiasGelu": (["x", "b"], {"b": (4,)}),
    "FastGelu": (["x", "b"], {"b": (4,)}),
    "Gelu": (["x"], {}),
    "SkipLayerNormalization": (["x", "x", "g", "b"], {"g": (4,), "b": (4,)}),
    "SkipSimplifiedLayerNormalization": (["x", "x", "g"], {"g": (4,)}),
}


@pytest.mark.parametrize("op", OWN)
@pytest.mark.parametrize("opset", [13, 16, 18])
def test_opened_operators_keep_the_models_operator_set(tmp_path: Path, op: str, opset: int) -> None:
    inputs, sizes = OWN[op]
    it = helper.make_node(op, inputs, ["y"], "it", domain="com.microsoft")
    held: dict[str, Any] = {n: _data(*s) for n, s in sizes.items()}
    proto = model(
        [it], {"x": (FLOAT, (2, 3, 4))}, {"y": (FLOAT, (2, 3, 4))}, held, opset, ["com.microsoft"]
    )
    made = tmp_path / "made.onnx"
    ledger = Ledger()
    pipeline.save(
        pipeline.load(save(proto, tmp_path)), made, format="qdq", target="onnx", ledger=ledger
    )
    written = onnx.load(made)
    assert [(i.domain, i.version) for i in written.opset_import] == [("", opset)]
    assert not [e for e in ledger if "what it holds needs it" in e.reason]
    x = _data(2, 3, 4)
    (found,), (wanted,) = (onnxruntime_runs(m, {"x": x}) for m in (written, proto))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


ATTENTION = {
    "heads apart": (("2x3x4x8", "2x3x5x8", "2x3x5x6", ""), "", "2x3x4x6"),
    "heads side by side": (("2x4x24", "2x5x24", "2x5x24", ""), "{heads = 3}", "2x4x24"),
    "causal": (("2x3x5x8", "2x3x5x8", "2x3x5x8", ""), "{causal = true}", "2x3x5x8"),
    "a scale": (("2x3x4x8", "2x3x5x8", "2x3x5x8", ""), "{scale = 0.3}", "2x3x4x8"),
    "a mask": (("2x3x4x8", "2x3x5x8", "2x3x5x8", "2x1x4x5xbool"), "", "2x3x4x8"),
    "numbers": (("2x3x4x8", "2x3x5x8", "2x3x5x8", "4x5xKIND"), "", "2x3x4x8"),
    "both": (("2x4x24", "2x4x24", "2x4x24", "4x4xKIND"), "{heads = 3, causal = true}", "2x4x24"),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_attention_is_said_by_products_and_a_softmax(name: str, kind: str) -> None:
    """Rows of nothing but -inf, and rows that a mask hides, look at nothing and give zeros."""
    shapes, attrs, result = ATTENTION[name]
    carrier = np.float16 if kind == "f16" else np.float32
    feeds: dict[str, Data] = {
        n: _data(*map(int, s.split("x"))).astype(carrier)
        for n, s in zip("qkv", shapes, strict=False)
    }
    lines = [f"%{n} = input() : {s}x{kind}" for n, s in zip("qkv", shapes, strict=False)]
    if shapes[3]:
        said = shapes[3].replace("KIND", kind)
        lines.append(f"%m = input() : {said}")
        sizes = tuple(map(int, said.split("x")[:-1]))
        feeds["m"] = RNG.integers(0, 2, sizes).astype(bool)
        feeds["m"][..., 0, :] = False
        if "bool" not in said:
            feeds["m"] = np.where(feeds["m"], _data(*sizes), -np.inf).astype(carrier)
    mask = ", mask=%m" if shapes[3] else ""
    lines.append(f"%y = attention(%q, %k, %v{mask}) {attrs} : {result}x{kind}")
    graph = parse("\n".join(["graph main {", *lines, "output(y=%y)", "}"]))
    wanted = np.asarray(run(graph, feeds)["y"], np.float64)
    near = 2e-3 if kind == "f16" else 1e-5
    for opset in (13, 17, 18, 22):
        made = to_model(graph, Ledger(), Dialect(opset=opset))
        onnx.checker.check_model(made, full_check=True)
        (found,) = onnxruntime_runs(made, feeds)
        assert found.dtype == carrier
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    made = to_model(graph, Ledger(), Dialect(opset=23))
    assert [n.op_type for n in made.graph.node] == ["Attention"]
