"""QuantizeV2, Dequantize and products in every mode give TensorFlow's values."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.frontends.tensorflow.kernels import LEGACY_MATMULS
from tests.differential.tensorflow.kernels import HAS_VNNI

from .comparison import save_graph_def
from .test_kernels import Builder, layer

pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
F = np.float32
U, S, W, R = tf.quint8, tf.qint8, tf.qint32, tf.float32
EVEN, AWAY = "HALF_TO_EVEN", "HALF_AWAY_FROM_ZERO"
RANGES = [(-1.0, 3.0), (-4.0, 0.5), (0.25, 2.0), (-0.001, 0.002)]
"""Uneven ones, one without zero, and one that TensorFlow widens."""


@pytest.mark.parametrize("kind", [U, S], ids=["u8", "i8"])
@pytest.mark.parametrize(
    ("mode", "how", "narrow", "axis"),
    [
        *(("SCALED", how, narrow, a) for how, narrow, a in product((EVEN, AWAY), (0, 1), (-1, 1))),
        ("MIN_FIRST", AWAY, 0, -1),
        ("MIN_COMBINED", AWAY, 0, -1),
        ("MIN_COMBINED", AWAY, 0, 1),
    ],
)
def test_quantizing_and_dequantizing(
    mode: str, how: str, narrow: int, axis: int, kind: tf.DType, tmp_path: Path
) -> None:
    b = Builder()
    attrs: dict[str, Any] = {"T": kind, "mode": mode, "narrow_range": bool(narrow)}
    for i, (low, high) in enumerate(RANGES):
        x = b.quantized(f"x{i}", (41, 4), kind, 1.5 * max(-low, high))
        node = b.proto.node[-1]
        low = 0.0 if axis < 0 and kind == U and mode == "SCALED" else low
        ends = np.asarray((low, high) if axis < 0 else np.transpose(RANGES), F)
        for name, end in zip(("low", "high"), ends, strict=True):
            b.proto.node.remove(next(n for n in b.proto.node if n.name == f"x{i}.{name}"))
            b.constant(f"x{i}.{name}", end)
        node = next(n for n in b.proto.node if n.name == x)
        node.attr["mode"].s, node.attr["round_mode"].s = mode.encode(), how.encode()
        node.attr["narrow_range"].b = bool(narrow)
        node.attr["axis"].i = axis
        out = b.node("Dequantize", f"y{i}", [x, f"{x}:1", f"{x}:2"], **attrs)
        b.proto.node[-1].attr["axis"].i = axis
        assert out == f"y{i}"
    b.states_shapes()
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    kept = {n.attrs["op"] for n in graph if n.op == "foreign"}
    wanted_kept = {"QuantizeV2", "Dequantize"} if narrow and kind == U else set()
    assert kept == wanted_kept | ({"Dequantize"} if narrow and axis >= 0 else set())
    values = [f"x{i}" for i in range(len(RANGES)) if graph.has(f"x{i}")]
    ours = qir.run(graph, b.feeds) | qir.run(graph, b.feeds, values=values)
    names = [*values, *(f"y{i}" for i in range(len(RANGES)))]
    assert wanted_kept or len(values) == len(RANGES)
    for name, wanted in zip(names, b.wanted(*names), strict=True):
        assert np.array_equal(ours[name], wanted), name


FIRST = [
    (U, R, ("MIN_FIRST", "SCALED"), ("BiasAdd", "Dequantize")),
    (U, R, ("MIN_FIRST", "SCALED"), ("BiasAdd", "Relu", "Dequantize")),
    (U, U, ("MIN_FIRST", "SCALED"), ("BiasAdd", "Relu", "Requantize")),
    (U, S, ("MIN_FIRST", "SCALED"), ("BiasAdd", "Requantize")),
    (U, U, ("MIN_FIRST", "MIN_FIRST"), ("BiasAdd", "Requantize")),
    (S, U, ("SCALED", "MIN_FIRST"), ("BiasAdd", "Requantize")),
]


def from_low(b: Builder, *, data: bool, made: bool) -> Builder:
    """Makes data, and the range of the result, those of MIN_FIRST."""
    for node in b.proto.node:
        if node.name == "x" and data:
            node.attr["mode"].s, node.attr["round_mode"].s = b"MIN_FIRST", AWAY.encode()
        if (node.name == "x.low" and data) or (node.name == "low" and made):
            node.attr["value"].tensor.tensor_content = F(-1.5).tobytes()
    return b


@pytest.mark.parametrize(("data", "made", "modes", "stages"), FIRST, ids=str)
def test_products_of_steps_from_the_low_end(
    data: Any, made: Any, modes: tuple[str, str], stages: tuple[str, ...], tmp_path: Path
) -> None:
    more = {"input_quant_mode": modes[0], "output_quant_mode": modes[1]}
    b = layer("_QuantizedMatMul", data, made, stages, **more)
    b = from_low(b, data=modes[0] == "MIN_FIRST", made=modes[1] == "MIN_FIRST")
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    assert not any(n.op == "foreign" for n in graph)
    (ours,) = qir.run(graph, b.feeds).values()
    (wanted,) = b.wanted("y")
    assert np.array_equal(ours, wanted)
    assert len(np.unique(wanted)) > 20


def old_product(op: str, whole: bool, mode: str = "SCALED") -> Builder:
    """Returns a graph of a product by its older name."""
    stages = LEGACY_MATMULS[op].stages
    b = Builder()
    x = b.quantized("x", (90, 24), U, 4.0)
    w = b.constant("w", b.random.integers(-127, 128, (24, 7)), S)
    bias = b.random.integers(-999, 999, 7) if whole else b.random.normal(size=7)
    inputs = [x, w, b.constant("bias", bias, W if whole else R), "x:1", "x:2"]
    inputs += [b.constant("w.low", -0.75), b.constant("w.high", 0.5)]
    if "Requantize" in stages or "Dequantize" in stages:
        inputs += [b.constant("low", 0.0), b.constant("high", 30.0)]
    made = {"Requantize": U, "Dequantize": R}.get(stages[-1], W)
    types = {"T1": U, "T2": S, "Tbias": W if whole else R, "Toutput": made}
    b.node(op, "y", inputs, **types, input_quant_mode=mode)
    return from_low(b, data=mode == "MIN_FIRST", made=False)


@pytest.mark.parametrize(
    ("op", "whole"),
    [
        (op, whole)
        for op, whole in product(LEGACY_MATMULS, (False, True))
        if not (whole and op.endswith("AndRelu"))  # which has no kernel
    ],
)
def test_products_by_their_older_names(op: str, whole: bool, tmp_path: Path) -> None:
    b = old_product(op, whole)
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    assert not any(n.op == "foreign" for n in graph)
    (ours,) = qir.run(graph, b.feeds).values()
    (wanted,) = b.wanted("y")
    assert ours.dtype == wanted.dtype
    assert np.array_equal(ours, wanted)


# -- what is kept, and run by TensorFlow ----------------------------------------------------------


def requantized(per_channel: bool) -> Builder:
    """Returns 32-bit sums that are brought to 8 bits by the range that they have."""
    stage = "PerChannel" if per_channel else ""
    b = layer(f"QuantizedConv2D{stage}", U, W, (), one=True)
    sums = ["y", "y:1", "y:2"]
    more = {"clip_value_max": 1e9} if per_channel else {}
    b.node(f"RequantizationRange{stage}", "r", sums, **({"T": W} if per_channel else {"Tinput": W}))
    for name, value in more.items():
        b.proto.node[-1].attr[name].f = value
    kinds = {"T" if per_channel else "Tinput": W, "out_type": S if per_channel else U}
    b.node(f"Requantize{stage}", "q", [*sums, "r", "r:1"], **kinds)
    b.node("Dequantize", "z", ["q", "q:1", "q:2"], T=kinds["out_type"], mode="SCALED")
    return b


def uniform() -> Builder:
    """Returns a product of TensorFlow's uniform quantized ops."""
    b = Builder()
    node = b.proto.node.add(op="Placeholder", name="x")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape((5, 6)).as_proto())
    b.feeds["x"] = b.random.normal(size=(5, 6)).astype(F)
    ends = {"quantization_min_val": -128, "quantization_max_val": 127}

    def made(op: str, name: str, inputs: list[str], **attrs: Any) -> None:
        whole = {k: attrs.pop(k) for k in list(attrs) if isinstance(attrs[k], int)}
        b.node(op, name, inputs, **attrs)
        for key, value in whole.items():
            b.proto.node[-1].attr[key].i = value

    def zero(name: str) -> str:
        node = b.proto.node.add(op="Const", name=name)
        node.attr["dtype"].type = tf.int32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int32(3)))
        return name

    scale, other, out = (b.constant(n, s) for n, s in (("s", 0.03), ("t", 0.05), ("u", 0.0015)))
    zeros = zero("zs"), zero("zt"), zero("zu")
    made("UniformQuantize", "q", ["x", scale, zeros[0]], Tin=R, Tout=S, **ends)
    w = b.constant("w", b.random.integers(-128, 128, (6, 4)), S)
    wide = {f"output_quantization_{e}_val": v for e, v in (("min", -(2**31)), ("max", 2**31 - 1))}
    more = {f"{side}_{k}": v for side in ("lhs", "rhs") for k, v in ends.items()} | wide
    inputs = ["q", w, scale, zeros[0], other, zeros[1], out, zeros[2]]
    made("UniformQuantizedDot", "d", inputs, Tin=S, Tout=W, **more)
    made(
        "UniformDequantize", "z", ["d", out, zeros[2]], Tin=W, Tout=R,
        quantization_min_val=-(2**31), quantization_max_val=2**31 - 1,
    )  # fmt: skip
    return b


KEPT = {
    "Requantize": lambda: requantized(False),
    "RequantizePerChannel": lambda: requantized(True),
    "older product of MIN_FIRST": lambda: old_product(
        "QuantizedMatMulWithBiasAndReluAndRequantize", True, "MIN_FIRST"
    ),
    "Uniform": uniform,
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_read_is_run_by_tensorflow_and_written_back(name: str, tmp_path: Path) -> None:
    b = KEPT[name]()
    b.states_shapes()
    (last,) = [n.name for n in b.proto.node if n.name in ("y", "z")][-1:]
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    assert any(n.op == "foreign" for n in graph)
    (wanted,) = b.wanted(last)
    assert np.array_equal(qir.run(graph, b.feeds)[last], wanted)
    assert len(np.unique(wanted)) > 5
    if name == "Uniform":  # the writer refuses 32-bit sums and steps from the low end
        qir.save(graph, tmp_path / "h.pb", target="tensorflow-onednn")
        again = qir.load(tmp_path / "h.pb")
        assert np.array_equal(next(iter(qir.run(again, b.feeds).values())), wanted)
