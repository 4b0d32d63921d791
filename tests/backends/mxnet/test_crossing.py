"""Int8 models for MXNet that go by ONNX, where signed data become unsigned, and back."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qir
from qir.backends.mxnet.session import MxnetSession
from qir.errors import Refused
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run

from .networks import NETWORKS, data
from .written import TARGET, differing, files, of_mxnet, quantized, recorded

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
WHOLE = sorted(set(NETWORKS) - {"pruned", "residual"})
"""Networks without layers that stay float, and without sums that MXNet cuts off."""


def crossed(name: str, folder: Path, form: str = "qdq", ledger: Ledger | None = None) -> Path:
    """Returns the symbol of a model of MXNet that was written for ONNX and for MXNet again."""
    first = files(quantized(NETWORKS[name](), data()), folder)
    graph = qir.load(first, inputs=[("n", *data().shape[1:])])
    qir.save(graph, folder / "model.onnx", format=form)
    path = folder / "model-symbol.json"
    qir.save(qir.load(folder / "model.onnx"), path, target=TARGET, ledger=ledger, force=True)
    return path


def computed(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = {}
    graph = qir.load(path, inputs=[data()])
    run(graph, {"data": data()}, observe=lambda value, d: made.update({value.name: np.asarray(d)}))
    return made


@pytest.mark.parametrize("name", WHOLE)
def test_a_network_comes_back_from_onnx(name: str, tmp_path: Path) -> None:
    """Scales are rounded once more on the way, so a value at a tie may be another."""
    ours, (_, theirs) = computed(crossed(name, tmp_path)), recorded(name)
    for tensor, wanted in theirs.items():
        assert ours[tensor].dtype == wanted.dtype, tensor
        apart = np.abs(ours[tensor].astype(int) - wanted.astype(int))
        assert apart.max() <= 1, tensor
        assert apart.mean() <= 0.01, tensor


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_data_around_128_become_signed(form: str, tmp_path: Path) -> None:
    ledger = Ledger()
    path = crossed("mobile", tmp_path, form, ledger)
    model = onnx.load(tmp_path / "model.onnx")
    first = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert held[first.input[2]] == 128
    said = [e.subject for e in ledger if "stored as i8 without its zero point" in e.reason]
    assert first.output[0] in said
    assert {e.change for e in ledger} <= {Change.EXACT, Change.REGROUPED}
    nodes = json.loads(path.read_text())["nodes"]
    start = next(n for n in nodes if n["op"] == "_contrib_quantize_v2")
    assert start["attrs"]["out_type"] == "int8"


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_zero_points_that_mxnet_lacks_are_refused(form: str, tmp_path: Path) -> None:
    """Sums that onnxruntime's kernels take have some, where losses are allowed."""
    first = files(quantized(NETWORKS["residual"](), data()), tmp_path)
    graph, path = qir.load(first, inputs=[("n", *data().shape[1:])]), tmp_path / "model.onnx"
    qir.save(graph, path, format=form, lossy=True)
    with pytest.raises(Refused, match=r"no zero point; quantize with `target=.mxnet-onednn.`"):
        qir.save(qir.load(path), tmp_path / "back-symbol.json", target=TARGET)


SUM = """
graph main as mxnet-1.9 {
  %x = input() : 1x2x3x3xf32
  %q = quantize(%x) : 1x2x3x3x!quant.uniform<i8:f32, 0.5>
  %w = constant(@w) : 2x2x1x1x!quant.uniform<i8:f32, 1.0>
  %s = conv2d(%q, %w) |> add(., %q) |> relu : 1x2x3x3x!quant.uniform<u8:f32, 0.25>
  %y = dequantize(%s) : 1x2x3x3xf32
  output(y=%y)
}
"""


@pytest.mark.parametrize("form", [None, "qdq", "qoperator"])
def test_a_sum_that_mxnet_cuts_off_is_no_silent_change(form: str | None, tmp_path: Path) -> None:
    """MXNet stores it as int8, like its other operand, before the relu makes it uint8."""
    graph = qir.parse(SUM, {"w": np.eye(2, dtype=np.int8).reshape(2, 2, 1, 1)})
    x = np.full((1, 2, 3, 3), 30.0, np.float32)
    (cut,) = qir.run(graph, {"x": x}).values()
    assert np.unique(cut).tolist() == [127 * 0.25]
    with pytest.raises(Refused, match="stores the sum as i8 like its summand, and saturates"):
        qir.save(graph, tmp_path / "model.onnx", format=form)
    ledger = Ledger()
    qir.save(graph, tmp_path / "model.onnx", format=form, lossy=True, ledger=ledger)
    assert any(e.change is Change.APPROXIMATED and e.subject == "s" for e in ledger)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_mxnet_computes_it_as_predicted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): files are read back alone"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    monkeypatch.setenv("QIR_MXNET", str(PYTHON))
    path = crossed(name, tmp_path)
    theirs = of_mxnet(MxnetSession(path).run({"data": data()}, all_nodes=True))
    assert len(theirs) > 5
    assert differing(computed(path), theirs) == []
