"""What MXNet lacks and other frameworks have, written as ops that it has, at any batch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.mxnet.session import MxnetSession
from qir.errors import Refused
from qir.frontends.mxnet.symbol import read_symbol
from qir.ir.attrs import Attr
from qir.ir.types import Array
from tests.frontends.comparison import difference

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
TARGET = "mxnet-onednn"
HEAD = "graph main as native {\n  %x = input() : (N)x3x2x4xf32\n"


def attention() -> qir.Graph:
    """The products of a Keras attention: queries by keys, and scores by values."""
    return qir.parse(
        HEAD + "  %v = input() : (N)x3x2x5xf32\n"
        '  %s = einsum(xs.0=%x, xs.1=%x) {equation = "BTNH,BSNH->BNTS"} : (N)x2x3x3xf32\n'
        '  %y = einsum(xs.0=%s, xs.1=%v) {equation = "BNTS,BSNH->BTNH"} : (N)x3x2x5xf32\n'
        "  output(y=%y)\n}\n"
    )


def token() -> qir.Graph:
    """A row that is put before the data of each sample."""
    graph = qir.parse(HEAD + "  output(x=%x)\n}\n")
    x = graph.inputs[0]
    row = graph.constant(np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 2, 4))
    one = graph.constant(np.array([1, 2, 4], np.int64))
    batch = graph.add("shape", {"x": x}, {"start": 0, "end": 1}).result
    shape = graph.add("concat", {"xs.0": batch, "xs.1": one}, {"axis": 0}).result
    wide = graph.add("expand", {"x": row, "shape": shape}).result
    made = graph.add("concat", {"xs.0": wide, "xs.1": x}, {"axis": 1}).result
    graph.set_operand(graph.output, "x", made)
    return graph


def padded() -> qir.Graph:
    """Channels and rows that are padded by a number."""
    graph = qir.parse("graph main as native { %x = input() : (N)x3x(H)x4xf32  output(x=%x) }")
    attrs: dict[str, Attr] = {
        "pads": (0, 1, 2, 0, 0, 2, 0, 0),
        "mode": "constant",
        "value": 1.5,
    }
    made = graph.add("pad", {"x": graph.inputs[0]}, attrs).result
    graph.set_operand(graph.output, "x", made)
    return graph


def layer() -> qir.Graph:
    """An LSTM whose states are zeros as long as its batch."""
    rng = np.random.default_rng(4)
    graph = qir.parse("graph main as native { %x = input() : 5x(N)x3xf32  output(x=%x) }")
    x = graph.inputs[0]
    sizes = graph.add("shape", {"x": x}, {"start": 1, "end": 2}).result
    parts = {"xs.0": sizes, "xs.1": graph.constant(np.array([6], np.int64))}
    shape = graph.add("concat", parts, {"axis": 0}).result
    zero = {"value": Array.of(np.zeros(1, np.float32), "zero")}
    states = [graph.add("constant_of_shape", {"shape": shape}, zero).result for _ in range(2)]
    cut = {"starts": (0,), "ends": (6,), "axes": (1,), "steps": (1,)}
    states[0] = graph.add("slice", {"x": states[0]}, cut).result
    h, c = (graph.add("unsqueeze", {"x": s}, {"axes": (0,)}).result for s in states)
    w, r = (graph.constant(rng.normal(size=(1, 24, n)).astype(np.float32)) for n in (3, 6))
    made = graph.add("lstm", {"x": x, "w": w, "r": r, "h0": h, "c0": c}).results[0]
    graph.set_operand(graph.output, "x", made)
    return graph


GRAPHS = {made.__name__: made for made in (attention, token, padded, layer)}


def feeds(graph: qir.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = ([s if isinstance(s, int) else 3 for s in v.type.shape] for v in graph.inputs)
    names = [value.name for value in graph.inputs]
    return {n: rng.normal(size=s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_written_means_the_same(name: str, tmp_path: Path) -> None:
    graph, path = GRAPHS[name](), tmp_path / "model-symbol.json"
    x = feeds(graph)
    qir.save(graph, path, target=TARGET)
    back = qir.load(path, inputs=[x[value.name] for value in graph.inputs])
    pairs = zip(qir.run(back, x).values(), qir.run(graph, x).values(), strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-6))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_mxnet_computes_what_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): files are read back alone"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    monkeypatch.setenv("QIR_MXNET", str(PYTHON))
    graph, path = GRAPHS[name](), tmp_path / "model-symbol.json"
    qir.save(graph, path, target=TARGET)
    theirs = MxnetSession(path).run(feeds(graph)).values()
    pairs = zip(qir.run(graph, feeds(graph)).values(), theirs, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-5))] == []


def test_zeros_of_states_are_mxnets_own(tmp_path: Path) -> None:
    path = tmp_path / "model-symbol.json"
    qir.save(layer(), path, target=TARGET)
    ops = [node.op for node in read_symbol(path).nodes]
    assert ops.count("_zeros") == 2


@pytest.mark.parametrize("equation", ["BTNH,BTNH->BT", "BTNH,BSNH->BT", "BTNH,BTNH->BTNH"])
def test_an_einsum_that_is_no_product_is_refused(equation: str, tmp_path: Path) -> None:
    graph = attention()
    node = next(n for n in graph if n.op == "einsum")
    made = graph.add("einsum", {"xs.0": graph.inputs[0], "xs.1": graph.inputs[0]},
                     {"equation": equation})  # fmt: skip
    graph.set_operand(graph.output, "y", made.result)
    graph.prune()
    assert node not in list(graph)
    with pytest.raises(Refused, match=r"einsum cannot be written for MXNet: MXNet 1\.9 has no"):
        qir.save(graph, tmp_path / "model-symbol.json", target=TARGET)


def test_means_of_rows_stay_float(tmp_path: Path) -> None:
    """MXNet pools integers of images alone."""
    kind = "!quant.uniform<i8:f32, 0.05>"
    graph = qir.parse(
        f"graph main as mxnet-1.9 {{\n  %x = input() : (N)x4x6xf32\n"
        f"  %q = quantize(%x) : (N)x4x6x{kind}\n  %d = dequantize(%q) : (N)x4x6xf32\n"
        f"  %p = global_avg_pool(%d) : (N)x4x1xf32\n  %r = quantize(%p) : (N)x4x1x{kind}\n"
        f"  %y = dequantize(%r) : (N)x4x1xf32\n  output(y=%y)\n}}\n"
    )
    path, x = tmp_path / "model-symbol.json", feeds(graph)
    qir.save(graph, path, target=TARGET)
    assert "_contrib_quantized_pooling" not in path.read_text()
    (ours,) = qir.run(qir.load(path, inputs=[x["x"]]), x).values()
    (wanted,) = qir.run(graph, x).values()
    assert difference(ours, wanted, 1e-6) == ""
