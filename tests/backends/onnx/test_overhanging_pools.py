"""Averages whose last windows hang over the padding keep their numbers in every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from tests.differential.runtime import run
from tests.frontends.onnx.models import model

FLOAT, U8 = TensorProto.FLOAT, TensorProto.UINT8
WINDOW: dict[str, Any] = {
    "kernel_shape": [3, 3],
    "strides": [2, 2],
    "pads": [1, 1, 1, 1],
    "ceil_mode": 1,
}
HELD: dict[str, NDArray[np.generic]] = {
    "s": np.asarray(np.float32(0.0625)),
    "z": np.asarray(np.uint8(120)),
}


def integer_model(*, last: bool = False) -> onnx.ModelProto:
    node = helper.make_node(
        "QLinearAveragePool",
        ["x", "s", "z", "s", "z"],
        ["y"],
        domain="com.microsoft",
        count_include_pad=1,
        channels_last=int(last),
        **WINDOW,
    )
    shape = [2, 8, 6, 3] if last else [2, 3, 8, 6]
    return model([node], {"x": (U8, shape)}, {"y": (U8, None)}, HELD, domains=["com.microsoft"])


def float_model() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("AveragePool", ["a"], ["b"], count_include_pad=1, **WINDOW),
        node("QuantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    return model(nodes, {"x": (U8, [2, 3, 8, 6])}, {"y": (U8, None)}, HELD, opset=19)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("kind", ["codes", "last", "reals"])
def test_no_form_changes_what_a_window_is_divided_by(
    tmp_path: Path, form: str, target: str, kind: str
) -> None:
    proto = float_model() if kind == "reals" else integer_model(last=kind == "last")
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    ledger = Ledger()
    pipeline.save(pipeline.load(path), out, format=form, target=target, ledger=ledger, force=True)
    shape = (2, 8, 6, 3) if kind == "last" else (2, 3, 8, 6)
    feeds = {"x": np.random.default_rng(7).integers(0, 256, shape).astype(np.uint8)}
    wanted = run(proto, feeds, optimize=False)["y"]
    np.testing.assert_array_equal(run(onnx.load(out), feeds, optimize=False)["y"], wanted)
    if (kind == "reals") == (form == "qoperator"):
        assert any(e.change is Change.EXACT and "window" in e.reason for e in ledger)


def test_sizes_that_nobody_knows_keep_the_pool_on_codes_or_are_refused(tmp_path: Path) -> None:
    proto = integer_model()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    graph = pipeline.load(path)
    pipeline.save(graph, out, format="qdq", force=True)
    assert [n.op_type for n in onnx.load(out).graph.node] == ["QLinearAveragePool"]
    for form in ("qdq", "qoperator"):
        with pytest.raises(Refused, match="exceed the padding"):
            pipeline.save(graph, out, format=form, target="onnx", force=True)
