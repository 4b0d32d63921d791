"""Twenty quantized forms of real models: the language holds each, says it, and runs it.

What a case computes is held to a formula of its own, in float64 or in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.calibration import Batch, Statistics
from qir.calibration.runner import GraphProgram
from qir.ir import file
from qir.ir.graph import Graph
from qir.ir.origin import Lineage
from qir.ir.text import print_graph
from qir.ir.types import QuantType
from qir.ir.verify import verify
from qir.reference.interpreter import run
from qir.testing import sample_inputs
from tests.golden.cases import FILES, Data, make_arrays, read_case
from tests.ir.alike import difference

Real: TypeAlias = NDArray[np.float64]
Made: TypeAlias = dict[str, Data]
SEED = 3

READ_TWICE = {"08-tensorflow", "13-tied-weights", "18-declared-ranges"}
"""Cases where one tensor is read by two maps, which the verifier warns of."""

FORMULAS: dict[str, Callable[[Made, Made, Made], None]] = {}


def formula(*names: str) -> Callable[[Callable[[Made, Made, Made], None]], None]:
    """What the values of a case are: given its inputs, arrays, and every value by name."""

    def enter(check: Callable[[Made, Made, Made], None]) -> None:
        FORMULAS.update(dict.fromkeys(names, check))

    return enter


def _run(graph: Graph, inputs: Made) -> Made:
    """Every value, under the profile that the graph names."""
    names = [name for name, value in graph.values.items() if value.node.op != "output"]
    return run(graph, inputs, values=names)


def _inputs(graph: Graph) -> Made:
    inputs = sample_inputs(graph, SEED)
    if "n" in inputs:
        inputs |= {"n": np.array(5), "cond": np.array(True)}
    return inputs


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_case_reads_verifies_prints_and_travels(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    graph = read_case(path.stem)
    assert print_graph(graph, origins=True) == text
    apart = "one-tensor" if path.stem in READ_TWICE else ""
    assert [str(f) for f in verify(graph) if f.rule != apart] == []
    assert difference(graph.copy(), graph, history=True) == ""
    file.write(tmp_path / "case.qir", file.Bundle(graph))
    assert difference(file.read(tmp_path / "case.qir").graph, graph, history=True) == ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_case_computes_what_its_formula_says(path: Path) -> None:
    graph = read_case(path.stem)
    inputs = _inputs(graph)
    made = _run(graph, inputs)
    FORMULAS[path.stem](inputs, make_arrays(path.read_text()), made)


def test_there_are_twenty() -> None:
    assert len({path.stem[:2] for path in FILES}) == 20
    assert set(FORMULAS) == {path.stem for path in FILES}


# -- plain formulas -------------------------------------------------------------------------------


def _quantized(x: Data, scale: float, zero: int, low: int, high: int) -> Data:
    """Divided in float32, rounded to even, the zero added after."""
    found: Data = np.clip(np.rint(x.astype(np.float32) / np.float32(scale)) + zero, low, high)
    return found


def _conv(x: Data, w: Data, stride: int = 1, pad: int = 1) -> Real:
    """An exact convolution of whole numbers, or one in float64."""
    a, b = (torch.from_numpy(t.astype(np.float64)) for t in (x, w))
    out: Real = torch.nn.functional.conv2d(a, b, stride=stride, padding=pad).numpy()
    return out


def _rounded(acc: Data, m: Data, zero: int, low: int, high: int) -> Data:
    """float32(sum) times a float32 multiplier a channel, rounded once."""
    shape = (1, -1, 1, 1) if acc.ndim == 4 else (1, -1)
    product = acc.astype(np.float32) * np.asarray(m, np.float32).reshape(shape if m.ndim else ())
    found: Data = np.clip(np.rint(product) + zero, low, high)
    return found


def _near(a: Data, b: Data, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), tolerance, tolerance)


def _first(x: Data) -> Data:
    """Channels first, as whole numbers."""
    return x.transpose(0, 3, 1, 2).astype(np.int64)


def _swish(r: Data) -> Data:
    found: Data = r * np.clip(r / 6 + 0.5, 0, 1)
    return found


# -- the cases ------------------------------------------------------------------------------------


@formula("01-integer-form", "01-qdq-conv-relu-add")
def _residual(given: Made, held: Made, made: Made) -> None:
    x = _quantized(given["x"], 0.0235, 128, 0, 255)
    assert np.array_equal(made["xq"], x)
    acc = _conv(x - 128, held["w"]) + held["b"][:, None, None]
    m = np.float32(0.0235) * held["ws"] / np.float32(0.0118)
    exact = np.clip(acc * m[:, None, None].astype(np.float64), 0, 255)
    if "c" not in made:
        assert np.array_equal(made["rq"], _rounded(acc, m, 0, 0, 255))
    assert np.abs(made["rq"] - exact).max() < 0.51
    floats = made["rq"] * 0.0118 + (made["xq"] - 128.0) * 0.0235
    assert np.abs(made["sq"] - np.clip(floats / 0.0301 + 77, 0, 255)).max() < 0.51


@formula("02-qlinear-ops")
def _qlinear(given: Made, held: Made, made: Made) -> None:
    x = given["x"].astype(np.int64) - 119
    acc = _conv(x, held["w"], stride=2) + held["b"][:, None, None]
    m = np.float32(0.02) * held["ws"] / np.float32(0.031)
    assert np.array_equal(made["y"], _rounded(acc, m, 117, 0, 255))
    v = held["v"].astype(np.int64)
    total = (made["f"].astype(np.int64) - 120) @ v.T + held["d"]
    _near(made["g"], total * (0.5 * 0.04 * held["vs"].astype(np.float64)))


@formula("02-qattention")
def _qattention(given: Made, held: Made, made: Made) -> None:
    h = (given["h"].astype(np.float64) - 128) * np.float32(0.02)
    t = h @ (held["wq"] * np.float64(np.float32(0.01))) + held["bq"]
    q, k, v = (part.reshape(1, 5, 2, 4).transpose(0, 2, 1, 3) for part in np.split(t, 3, 2))
    keys = np.concatenate([given["past"][0], k], 2)
    values = np.concatenate([given["past"][1], v], 2)
    qt, kt, vt = (torch.from_numpy(np.ascontiguousarray(a)) for a in (q, keys, values))
    out = torch.nn.functional.scaled_dot_product_attention(qt, kt, vt).numpy()
    _near(made["a"], out.transpose(0, 2, 1, 3).reshape(1, 5, 8))
    _near(made["p"], np.stack([keys, values]))


@formula("03-onnx-dynamic")
def _dynamic(given: Made, held: Made, made: Made) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["a"], ["q", "s", "z"])
    kinds = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [None, 16])],
        [helper.make_tensor_value_info(n, k, None) for n, k in kinds.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    q, s, z = session.run(None, {"a": given["a"]})
    assert np.array_equal(made["qi"], q)
    assert made["s"].tobytes() == np.asarray(s).tobytes()
    assert made["z"] == z
    total = (q.astype(np.int64) - int(z)) @ (held["wi"].astype(np.int64) - 131)
    assert np.array_equal(made["i"], total)
    _near(made["y"], total * (np.float64(s) * 0.0125))
    other = (q.astype(np.int64) - int(z)) @ (held["w"].astype(np.int64) - 131)
    _near(made["y2"], other * (np.float64(s) * 0.0125))


@formula("04-matmul-nbits-gptq")
def _blocks(given: Made, held: Made, made: Made) -> None:
    for quantized, scale, zero, group, out in (
        ("w", "ws", "wz", np.arange(64) // 32, "y"),
        ("g", "gs", "gz", held["gi"], "v"),
    ):
        zeros = held[zero].astype(np.float64)[:, group]
        w = (held[quantized].astype(np.float64) - zeros) * held[scale].astype(np.float64)[:, group]
        _near(made[out], given["x"].astype(np.float64) @ w.T)


@formula("05-pytorch-fx")
def _fx(given: Made, held: Made, made: Made) -> None:
    x = given["x"].astype(np.int64) - 3
    floats = _conv(x, held["w"]) * (0.0173 * held["ws"])[:, None, None]
    floats = np.maximum(floats + held["b"][:, None, None], 0)
    assert np.abs(made["y"] - np.clip(floats / 0.02, 0, 255)).max() < 0.51
    total = made["y"] * 0.02 + x * 0.0173
    assert np.abs(made["s"] - np.clip(total / 0.041 + 64, 0, 255)).max() < 0.51
    assert np.array_equal(made["k"], made["s"])
    # Packing holds the numbers of rows of four bits in half precision.
    scale, plus = (n.astype(np.float16)[:, None] for n in (held["es"], -held["ez"] * held["es"]))
    table = held["t"].astype(np.float64) * scale + plus
    rows = table[[3, 1, 4, 1, 5, 9, 2, 6]]
    _near(made["e"], np.stack([rows[:3].sum(0), rows[3:5].sum(0), rows[5:].sum(0)]))


@formula("06-shared-and-per-token")
def _tokens(given: Made, held: Made, made: Made) -> None:
    both = np.concatenate([given["a"], given["b"]], 1)
    assert np.array_equal(made["q"], np.clip(both, 0, 200))
    x = given["x"].astype(np.float64)
    assert made["s"].shape == (*x.shape[:2], 1)
    step = made["s"].astype(np.float64)
    assert (np.abs(made["r"].astype(np.float64) - x) <= step * 0.51 + np.abs(x) / 128).all()
    spread = np.maximum(x.max(2, keepdims=True), 0) - np.minimum(x.min(2, keepdims=True), 0)
    assert (np.abs(step / (spread / 255) - 1) < 0.02).all()


@formula("07-fake-quantize")
def _fake(given: Made, held: Made, made: Made) -> None:
    quantized = _quantized(given["x"], 0.03, 11, 0, 255)
    _near(made["f"], (quantized - 11) * np.float64(np.float32(0.03)))


@formula("08-tensorflow")
def _tensorflow(given: Made, held: Made, made: Made) -> None:
    x = given["x"]
    gain = np.float32(127.5) / np.float32(6)  # written with 127.5, read with 127
    assert np.array_equal(made["q"], np.clip(np.rint(x * gain), -128, 127))
    assert np.array_equal(made["r"], np.clip(np.rint(x * np.float32(255 / 6)), 0, 255))
    floats = _conv(_first(made["q"]), held["w"]) * (0.047244094 * 0.01)
    floats += made["b"][:, None, None]
    floats = np.maximum(floats + _first(made["r"]) * 0.023529412, 0)
    assert np.abs(_first(made["y"]) - np.clip(floats / 0.023529412, 0, 255)).max() < 0.51
    scaled = np.rint((given["v"] - np.float32(-2.7)) / np.float32(0.039215688))
    assert np.array_equal(made["a"], np.clip(scaled, 0, 255))
    _near(made["ad"], made["a"] * 0.039215688 - 2.7)
    assert np.abs(made["o"] - np.clip(given["v"] / 0.1, -128, 127)).max() < 0.51
    quantized = _quantized(given["v"], 0.023529412, 128, 0, 255)
    _near(made["f"], (quantized - 128) * np.float64(np.float32(0.023529412)))


@formula("09-mxnet")
def _mxnet(given: Made, held: Made, made: Made) -> None:
    gain = np.array([0.5, 1.5, 0.75, 1.25]) / np.sqrt(np.array([1, 0.5, 2, 0.25]) + 0.001)
    folded = held["w"].astype(np.float64) * gain[:, None, None, None]
    steps = 2 * np.abs(folded).max((1, 2, 3), keepdims=True) / 254
    shift = [0.125, -0.25, 0.5, 0.0] - np.array([0.5, -0.5, 0.25, 0.75]) * gain
    floats = _conv(made["d"] * 0.010378, np.rint(folded / steps).clip(-128, 127) * steps)
    floats = np.maximum(floats + shift[:, None, None] + made["r"] * 0.02, 0)
    assert np.abs(made["y"] - np.clip(floats / 0.02, 0, 255)).max() < 0.6
    flat = made["y"].reshape(1, -1).astype(np.float64) * 0.02
    _near(made["o"], flat @ (held["fw"] * 0.0041).T, 1e-4)


@formula("10-tflite")
def _tflite(given: Made, held: Made, made: Made) -> None:
    x = given["x"].astype(np.float64)
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert np.abs(made["sq"] - np.clip(soft * 256 - 128, -128, 127)).max() < 0.51
    assert np.array_equal(made["c"], np.concatenate([given["a"], given["b"]], 3))
    total = given["h"].astype(np.int64) @ held["w"].astype(np.int64).T + held["wb"]
    exact = np.clip(total * (0.0004 * 0.01 / 0.0003), -32768, 32767)
    assert np.abs(made["m"] - exact).max() < 0.51
    layer = torch.nn.LSTM(8, 4)
    order = [0, 2, 3, 1]  # torch has i, f, c, o; the file i, o, f, c
    rows = {"weight_ih_l0": "lw", "weight_hh_l0": "lr", "bias_ih_l0": "lb"}
    for name, said in rows.items():
        parts = held[said][0].reshape(4, 4, -1)[order].reshape(held[said][0].shape)
        getattr(layer, name).data = torch.from_numpy(np.ascontiguousarray(parts))
    layer.bias_hh_l0.data = torch.zeros(16)
    states = (torch.from_numpy(given["h0"]), torch.from_numpy(given["c0"]))
    with torch.no_grad():
        wanted = layer(torch.from_numpy(given["e"]), states)[0].numpy()
    assert 0 < np.abs(made["o"][:, 0] - wanted).max() < 3e-3  # cells are rounded to 2**-11


@formula("11-other-codes")
def _others(given: Made, held: Made, made: Made) -> None:
    whole = np.sign(given["x"]) * np.floor(np.abs(given["x"].astype(np.float64)) / 0.5 + 0.5)
    assert np.abs(made["q"] - given["x"] / 0.5).clip(0, 0.5).max() <= 0.5
    assert set(np.unique(made["q"])) <= set(range(-3, 4))
    assert np.abs(made["q"] - whole.clip(-3, 3)).max() <= 1
    assert np.array_equal(made["bd"], np.where(held["b"], 0.7, -0.7).astype(np.float32))
    assert np.array_equal(made["fd"], held["f"].astype(np.float32) * np.float32(0.013))
    ms = np.repeat(held["ms"].astype(np.float32), 32, 1)
    assert np.array_equal(made["md"], held["m"].astype(np.float32) * ms)
    vs = np.repeat(held["vs"].astype(np.float32) * np.float32(0.0021), 16, 1)
    assert np.array_equal(made["vd"], held["v"].astype(np.float32) * vs)
    ns = (held["nq"].astype(np.float32) - 7) * np.float32(0.002)
    table = held["nf4"][held["n"].astype(np.int64)].astype(np.float64)
    assert np.array_equal(
        made["nd"], (table * ns.astype(np.float64)).astype(np.float32).astype(ml_dtypes.bfloat16)
    )


@formula("12-ipex-recipe")
def _recipe(given: Made, held: Made, made: Made) -> None:
    graph = read_case("12-ipex-recipe")
    origin = graph["q3"].node.origins[0]
    assert (origin.path, origin.call, origin.operands) == ("backbone.conv1", 1, (("x", "q_op_0"),))
    assert str(graph["conv1_out"].node.schemes["w"]) == "i8<-127:127> symmetric channel minmax"
    quantized = _quantized(made["conv1_out"], 0.0314, 132, 0, 255)
    assert np.array_equal(made["q3"], quantized)
    _near(made["t"], np.tanh(made["conv1_out"].astype(np.float64)))


@formula("13-tied-weights")
def _tied(given: Made, held: Made, made: Made) -> None:
    assert np.array_equal(made["w8"], _quantized(held["w"], 0.02, 0, -128, 127))
    assert np.array_equal(made["w4"].astype(np.int64), _quantized(held["w"], 0.3, 0, -8, 7))
    floats = (made["i8"].astype(np.float64) - 128) * np.float32(0.1)
    assert np.array_equal(made["codes"], _quantized(floats, 0.2, -3, -128, 127))
    assert np.array_equal(made["reals"], _quantized(made["z"], 0.2, -3, -128, 127))
    names = [name for _, name in read_case("13-tied-weights")["w"].node.origins[0].operands]
    assert names == ["encoder.weight", "decoder.weight"]


@formula("14-loop")
def _loop(given: Made, held: Made, made: Made) -> None:
    h = given["h0"]
    for i in range(4):  # the condition ends it before the count of 5
        quantized = _quantized(h, 0.05, 0, -128, 127)
        assert np.array_equal(made["hs"][i], quantized)
        floats = (quantized.astype(np.float32) * np.float32(0.05)).astype(np.float64)
        h = np.tanh((floats @ held["w"].astype(np.float64)).astype(np.float32)).astype(np.float32)
    _near(made["y"], h)
    assert made["hs"].shape == (4, 2, 8)


@formula("15-dynamic-shapes")
def _shapes(given: Made, held: Made, made: Made) -> None:
    n = given["x"].shape[0]
    rows = given["x"].transpose(0, 2, 3, 1).reshape(n * 49, 64)
    assert np.array_equal(made["r"], rows)
    assert np.array_equal(made["s"], given["max"][::2])
    assert np.array_equal(made["c"], np.concatenate([given["max"]] * 2))
    floats = held["g"].astype(np.float32) * np.repeat(held["gs"], 4, 1)
    assert np.array_equal(made["ud"], floats[None])


@formula("16-inner-requantization")
def _inner(given: Made, held: Made, made: Made) -> None:
    bias = made["b"]
    acc = _conv(given["x"].astype(np.int64) - 121, held["w"], pad=0) + bias[:, None, None]
    floats = acc * np.float64(np.float32(0.03) * np.float32(0.02))
    assert np.abs(made["y"] - np.clip(_swish(floats) / 0.02 + 14, 0, 255)).max() < 0.51
    quantized = _rounded(
        acc, np.array(np.float32(0.03) * np.float32(0.02) / np.float32(0.05)), 120, 0, 255
    )
    twice = _swish((quantized - 120) * 0.05)
    assert np.abs(made["z"] - np.clip(twice / 0.02 + 14, 0, 255)).max() < 0.51
    assert (made["y"] != made["z"]).any()


@formula("17-mixed-profiles")
def _mixed(given: Made, held: Made, made: Made) -> None:
    assert np.array_equal(made["y"], _quantized(given["x"], 0.1, 128, 0, 255))
    floats = (made["y"].astype(np.float32) - 128) * np.float32(0.1)
    assert np.array_equal(made["z"], _quantized(floats, 0.05, 3, -128, 127))


@formula("18-declared-ranges")
def _declared(given: Made, held: Made, made: Made) -> None:
    graph = read_case("18-declared-ranges")
    quant = graph["q"].type.quant
    assert isinstance(quant, QuantType)
    assert quant.declared is not None
    ends = (quant.declared.low, quant.declared.high)
    assert ends == ((float(np.float32(-1.135)),), (float(np.float32(1.1349999)),))
    other = quant.with_parameters(quant.scale)
    assert other.declared is None
    assert other.has_same_mapping(quant)
    assert other != quant
    assert np.array_equal(made["q"], _quantized(given["x"], 0.008937008, 0, -128, 127))
    rows = np.rint(given["x"] / held["ss"][:, None]).clip(-128, 127)
    assert np.array_equal(made["c"], rows)
    assert np.array_equal(
        made["e"], _quantized(made["q"] * np.float32(0.008937008), 0.009, 0, -128, 127)
    )


def _observe(batch: Batch, tensor: str, data: Data) -> None:
    batch.update(tensor, data)


@formula("19-statistics")
def _statistics(given: Made, held: Made, made: Made) -> None:
    program = GraphProgram(read_case("19-statistics"))
    assert {key.tensor for key in program.keys()} == {"x", "layer/y", "layer/r"}
    rng = np.random.default_rng(SEED)
    parts = []
    for number in range(4):
        statistics = Statistics(program.digest)
        x = (rng.normal(size=(5, 8)) * 10.0**number).astype(np.float32)
        with statistics.batch("data", number) as batch:
            program.run({"x": x}, partial(_observe, batch))
        parts.append(statistics)
    found = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        whole = Statistics(program.digest)
        for i in order:
            whole.merge(parts[i])
        found.append(whole)
    assert found[0] == found[1]


@formula("20-lineage")
def _lineage(given: Made, held: Made, made: Made) -> None:
    graph = read_case("20-lineage")
    stages = graph["y"].node.stages
    assert [o.op for o in stages[0].origins] == ["Conv2d", "BatchNorm2d"]
    assert [o.path for o in stages[1].origins] == ["relu"]
    turned = ("permuted(0, 2, 3, 1)", "coded")
    assert graph["y"].lineage == Lineage("relu_out", turned)
    assert graph["part"].lineage.how[-1] == "part(3, 0:2)"
    assert np.array_equal(made["part"], made["y"][..., :2])
