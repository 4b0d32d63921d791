"""QCDQ models, in which a Clip keeps integers within fewer bits than their storage has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.differential import runtime
from tests.differential.onnxruntime.contrib import same_nodes
from tests.frontends.onnx.models import model, save

FLOAT, I8 = TensorProto.FLOAT, TensorProto.INT8
F = np.float32


def network(kind: Any, bounds: tuple[int | None, int | None], *, channels: bool) -> Any:
    """A convolution whose data and weights are integers of few bits."""
    rng = np.random.default_rng(61)
    node = helper.make_node
    low, high = bounds
    ends: dict[str, Any] = {}
    if low is not None:
        ends["low"] = np.array(low, kind)
    if high is not None:
        ends["high"] = np.array(high, kind)
    named = ["low" if low is not None else "", *(["high"] if high is not None else [])]
    signed = kind is np.int8
    zero = np.array(0 if signed else 3, kind)
    least, most = (low if low is not None else 0), (high if high is not None else 9)
    w = rng.integers(least, most + 1, (4, 2, 3, 3)).astype(kind)
    size = (4,) if channels else ()
    constants: dict[str, Any] = {
        **ends,
        "s": np.array(0.25, F),
        "z": zero,
        "w": w,
        "ws": np.asarray(2.0 ** rng.integers(-4, 0, size), F),
        "wz": np.zeros(size, kind),
    }
    axis: dict[str, Any] = {"axis": 0} if channels else {}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        node("Clip", ["q", *named], ["c"], "narrow"),
        node("DequantizeLinear", ["c", "s", "z"], ["d"], "back"),
        node("Clip", ["w", *named], ["wc"], "narrow_w"),
        node("DequantizeLinear", ["wc", "ws", "wz"], ["wd"], "weights", **axis),
        node("Conv", ["d", "wd"], ["y"], "conv"),
    ]
    outputs = {"y": (FLOAT, [1, 4, 3, 3]), "d": (FLOAT, [1, 2, 5, 5])}
    return model(nodes, {"x": (FLOAT, [1, 2, 5, 5])}, outputs, constants)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (np.int8, (-8, 7)),
        (np.int8, (-7, 7)),
        (np.uint8, (0, 15)),
        (np.uint8, (None, 15)),
        (np.int8, (-3, None)),
    ],
)
def test_codes_within_a_clip_are_narrower(
    tmp_path: Path, kind: Any, bounds: tuple[int | None, int | None], channels: bool
) -> None:
    proto = network(kind, bounds, channels=channels)
    onnx.checker.check_model(proto)
    graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    check(graph)
    info = np.iinfo(kind)
    wanted = tuple(e if b is None else b for b, e in zip(bounds, (info.min, info.max), strict=True))
    for name in ("c", "wc"):
        quant = graph[name].type.quant
        assert quant is not None
        assert (quant.low, quant.high) == wanted
    assert not graph.query('op == "foreign" or op == "clip"')
    written = to_model(graph, Ledger())
    same_nodes(proto, written)
    assert {t.name for t in written.graph.initializer} == {t.name for t in proto.graph.initializer}
    again = OnnxFrontend().load(save(written, tmp_path, "again.onnx"), Ledger())
    assert again == graph
    x = np.random.default_rng(62).integers(-40, 41, (1, 2, 5, 5)).astype(F) / F(8)
    theirs = runtime.run(proto, {"x": x}, optimize=False)
    mine = run(graph, {"x": x})
    for name, data in theirs.items():
        assert np.array_equal(mine[name], data), name
        rewritten = runtime.run(written, {"x": x}, optimize=False)[name]
        assert rewritten.tobytes() == data.tobytes()


def test_a_clip_that_others_see_around_is_kept(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        node("Clip", ["q", "low"], ["c"], "narrow"),
        node("DequantizeLinear", ["c", "s", "z"], ["d"], "back"),
        node("DequantizeLinear", ["q", "s", "z"], ["e"], "whole"),
    ]
    held: dict[str, Any] = {
        "s": np.array(0.5, F),
        "z": np.array(0, np.int8),
        "low": np.array(-8, np.int8),
    }
    proto = model(nodes, {"x": (FLOAT, [9])}, {"d": (FLOAT, [9]), "e": (FLOAT, [9])}, held)
    graph = OnnxFrontend().load(save(proto, tmp_path), Ledger())
    check(graph)
    x = np.arange(-9, 9, 2).astype(F)
    theirs = runtime.run(proto, {"x": x}, optimize=False)
    assert all(np.array_equal(run(graph, {"x": x})[n], d) for n, d in theirs.items())
    same_nodes(proto, to_model(graph, Ledger()))
