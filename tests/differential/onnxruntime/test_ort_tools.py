"""What onnxruntime's tools quantized, read and written in every form, gives the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from tests.differential.runtime import run
from tests.installed import UNOPTIMIZED

from . import ort_tools

FORMS = (None, "qdq", "qoperator", "integer", "nbits")
FEW = (
    "qdq-QUInt8-QInt8-channel",
    "qoperator-QUInt8-QInt8",
    "dynamic-QUInt8",
    "nbits-4-affine-qdq",
    "nbits-hqq",
)
"""One of each kind, for every run of the tests."""
MARKED = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in ort_tools.ALL]
SUMS = 1e-5
"""Sums of floats that another kernel takes in another order, of results about 1."""


@lru_cache(4)
def model(name: str) -> onnx.ModelProto:
    return ort_tools.quantized(name)


def feeds() -> ort_tools.Feeds:
    return ort_tools.samples(1, seed=9)[0]


def output(proto: onnx.ModelProto) -> NDArray[np.generic]:
    return run(proto, feeds(), optimize=False)["y"]


def near(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> None:
    """Asserts that the numbers differ by the last bits of sums alone."""
    assert np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max() <= SUMS


def domains(proto: onnx.ModelProto) -> set[str]:
    return {n.domain for n in proto.graph.node}


@pytest.mark.parametrize("name", MARKED)
def test_every_form_gives_the_bytes_that_the_tools_model_gives(tmp_path: Path, name: str) -> None:
    every_form(tmp_path, model(name), feeds())


def every_form(tmp_path: Path, given: onnx.ModelProto, feed: Mapping[str, Any]) -> None:
    """Writes a model in every form, for both targets: the same bytes, or near where it is said."""
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(given, source)
    wanted = run(given, feed, optimize=False)["y"]
    graph = pipeline.load(source)
    assert not [n for n in graph if n.op == "foreign"]
    written, refused = 0, list[tuple[str | None, str]]()
    for target in ("onnxruntime", "onnx"):
        for form in FORMS:
            ledger = Ledger()
            try:
                pipeline.save(graph, made, target=target, format=form, ledger=ledger, force=True)
            except Refused as error:
                refused.append((form, str(error).partition(": ")[2][:15]))
                continue
            written += 1
            proto = onnx.load(made)
            if target == "onnx":
                own = {f.domain for f in proto.functions}
                assert domains(proto) - own == {""}
            found = run(proto, feed, optimize=False)["y"]
            assert found.dtype == wanted.dtype
            if Change.REGROUPED in ledger.counts():
                # What is said to round elsewhere may, by the last bits of sums alone.
                near(found, wanted)
            else:
                assert (found == wanted).all(), (target, form)
    assert set(refused) <= {("nbits", "no product here")}
    assert written >= 8


@pytest.mark.parametrize("name", MARKED)
def test_the_interpreter_gives_what_onnxruntime_gives(tmp_path: Path, name: str) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(model(name), source)
    found = pipeline.run(pipeline.load(source), feeds(), profile=UNOPTIMIZED)["y"]
    wanted = output(model(name))
    if name in ort_tools.STATIC and "16" not in name:
        assert (found == wanted).all()  # the result is dequantized integers
    else:
        near(found, wanted)


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in proto.graph.node)


def written(tmp_path: Path, name: str, form: str, target: str = "onnxruntime") -> Counter[str]:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(model(name), source)
    pipeline.save(pipeline.load(source), made, target=target, format=form, force=True)
    return ops(onnx.load(made))


def test_each_form_has_the_operators_that_it_is_named_for(tmp_path: Path) -> None:
    static = "qoperator-QUInt8-QInt8"
    assert written(tmp_path, static, "qoperator") == ops(model(static))
    lifted = written(tmp_path, static, "qdq")
    assert lifted["Conv"] == 3
    assert not [op for op in lifted if op.startswith("QLinear") or op == "QGemm"]
    summed = written(tmp_path, static, "integer")
    assert (summed["ConvInteger"], summed["MatMulInteger"]) == (3, 2)
    dynamic = written(tmp_path, "dynamic-QUInt8", "integer")
    assert dynamic == ops(model("dynamic-QUInt8"))
    blocks = written(tmp_path, "nbits-4-affine-qdq", "nbits")
    assert blocks["MatMulNBits"] == 1
    assert written(tmp_path, "nbits-4-affine-qdq", "nbits", "onnx")["DequantizeLinear"] == 1


@pytest.mark.slow
def test_weights_in_blocks_go_to_and_fro_unchanged(tmp_path: Path) -> None:
    """The packed bytes, scales and zero points of MatMulNBits after a way by QDQ form."""
    source, there, back = (tmp_path / f"{n}.onnx" for n in ("m", "there", "back"))
    proto = model("nbits-4-affine-qoperator")
    onnx.save(proto, source)
    pipeline.save(pipeline.load(source), there, format="qdq")
    pipeline.save(pipeline.load(there), back, format="nbits")
    (node,) = [n for n in onnx.load(back).graph.node if n.op_type == "MatMulNBits"]
    (old,) = [n for n in proto.graph.node if n.op_type == "MatMulNBits"]
    one, other = ({t.name: t for t in p.graph.initializer} for p in (onnx.load(back), proto))
    for mine, theirs in zip(node.input[1:4], old.input[1:4], strict=True):
        found, wanted = (
            onnx.numpy_helper.to_array(p[n]) for p, n in ((one, mine), (other, theirs))
        )
        rest = 15 if found.size == 64 and found.dtype == np.uint8 else 255  # a row has one block
        if found.dtype == np.uint8:
            found, wanted = found & rest, wanted & rest
        assert (found == wanted).all()
