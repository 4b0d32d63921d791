"""Graphs of TensorFlow's int8 kernels give TensorFlow's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import qir
from qir.frontends.tensorflow import kernels
from qir.frontends.tensorflow.kernels import LEGACY
from tests.differential.tensorflow.kernels import HAS_VNNI

from .comparison import Array, save_graph_def

pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
F = np.float32
RELU = ("BiasAdd", "Relu", "Requantize")
SUM = ("BiasAdd", "Sum", "Relu", "Requantize")
CONV, DEPTHWISE = "_FusedQuantizedConv2D", "_FusedQuantizedDepthwiseConv2D"
SEED = 19


class Builder:
    """A GraphDef, node by node."""

    def __init__(self) -> None:
        self.proto = graph_pb2.GraphDef()
        self.proto.versions.producer = 1882
        self.random = np.random.default_rng(SEED)
        self.feeds: dict[str, Array] = {}

    def node(self, op: str, name: str, inputs: list[str], **attrs: Any) -> str:
        node = self.proto.node.add(op=op, name=name, input=inputs)
        for key, value in attrs.items():
            held = node.attr[key]
            match value:
                case tf.DType():
                    held.type = value.as_datatype_enum
                case bool():
                    held.b = value
                case str():
                    held.s = value.encode()
                case [tf.DType(), *_]:
                    held.list.type.extend(t.as_datatype_enum for t in value)
                case [str(), *_]:
                    held.list.s.extend(t.encode() for t in value)
                case []:
                    held.list.SetInParent()
                case _:
                    held.list.i.extend(value)
        return name

    def constant(self, name: str, data: Any, kind: tf.DType = tf.float32) -> str:
        held = np.asarray(data, F if kind == tf.float32 else kind.as_numpy_dtype[0])
        node = self.proto.node.add(op="Const", name=name)
        node.attr["dtype"].type = kind.as_datatype_enum
        tensor = node.attr["value"].tensor
        tensor.dtype = kind.as_datatype_enum
        tensor.tensor_shape.SetInParent()
        for size in held.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = held.tobytes()
        return name

    def quantized(self, name: str, shape: tuple[int, ...], kind: tf.DType, reach: float) -> str:
        """Adds an input that is quantized."""
        node = self.proto.node.add(op="Placeholder", name=f"{name}.x")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["shape"].shape.unknown_rank = True
        self.feeds[f"{name}.x"] = self.random.uniform(-reach, reach, shape).astype(F)
        ends = [self.constant(f"{name}.low", -reach if kind == tf.qint8 else 0.0),
                self.constant(f"{name}.high", reach)]  # fmt: skip
        how = {"mode": "SCALED", "round_mode": "HALF_TO_EVEN", "T": kind}
        return self.node("QuantizeV2", name, [f"{name}.x", *ends], **how)

    def states_shapes(self) -> None:
        """States the shapes of inputs."""
        for node in self.proto.node:
            if node.name in self.feeds:
                node.attr["shape"].shape.CopyFrom(
                    tf.TensorShape(self.feeds[node.name].shape).as_proto()
                )

    def wanted(self, *fetches: str) -> list[Array]:
        graph = tf.Graph()
        with graph.as_default():
            tf.compat.v1.import_graph_def(self.proto, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            feeds = {f"{name}:0": x for name, x in self.feeds.items()}
            made = session.run([f"{f}:0" for f in fetches], feeds)
        held = [np.asarray(m) for m in made]
        return [m.view(m.dtype[0]) if m.dtype.names else m for m in held]


def layer(op: str, data: tf.DType, made: tf.DType, stages: tuple[str, ...], **more: Any) -> Builder:
    """Returns a graph of one fused kernel."""
    b, flat = Builder(), op == "_QuantizedMatMul"
    legacy, depthwise = op.startswith("Quantized"), "Depthwise" in op
    x = b.quantized("x", (90, 24) if flat else (2, 9, 8, 6), data, 4.0)
    shape = (24, 7) if flat else (3, 3, 6, 1) if depthwise else (3, 3, 6, 7)
    many = shape[-2] if depthwise else shape[-1]
    w = b.constant("w", b.random.integers(-127, 128, shape), tf.qint8)
    whole = more.pop("whole", False)
    bias = b.random.integers(-999, 999, many) if whole else b.random.normal(size=many)
    kind = tf.qint32 if whole else tf.float32
    held = [b.constant("bias", bias, kind)] if "BiasAdd" in stages else []
    scalar = op in ("QuantizedConv2D", "QuantizedConv2DAndRelu", "QuantizedConv2DAndRequantize")
    reach = np.full(many, 0.5) if more.pop("one", False) else b.random.uniform(0.2, 2, many)
    reach = np.asarray(reach[0]) if scalar else reach
    ranges = ["x:1", "x:2", b.constant("w.low", -reach), b.constant("w.high", reach)]
    types = [data, tf.qint8, *[kind for _ in held]]
    summand, ends = [], []
    if "Sum" in stages:
        of = more.pop("of")
        summand, ends = [b.quantized("s", (2, 9, 8, 7), of, 3.0)], ["s:1", "s:2"]
        types.append(of)
        more["Tsummand"] = of
    out = []
    if "Requantize" in stages:
        most = 1.0 if "Tanh" in stages else 6.0 if "Relu6" in stages else 30.0
        low = -most if made == tf.qint8 else 0.0
        out = [b.constant("low", low), b.constant("high", most)]
    if legacy:
        inputs = [x, w, *held, *ranges, *out, *summand, *ends]
    else:
        inputs = [x, w, *held, *summand, *ranges, *ends, *out]
        results = [made] if made == tf.float32 else [made, tf.float32, tf.float32]
        floats = [tf.float32] * (len(inputs) - len(types))
        more |= {"fused_ops": list(stages), "Thost_inputs": [*types, *floats],
                 "Thost_outputs": results, "Tdevice_inputs": [], "Tdevice_outputs": []}  # fmt: skip
    if "BiasAdd" in stages:
        more |= {"Tbias": kind}
        more |= {} if legacy else {"is_bias_const": True}
    if flat:
        more |= {"T1": data, "T2": tf.qint8, "U": tf.float32, "Tout": made, "is_weight_const": True}
    else:
        more |= {"Tinput": data, "Tfilter": tf.qint8, "out_type": made, "strides": [1, 1, 1, 1],
                 "padding": more.get("padding", "SAME"), "dilations": [1, 1, 1, 1]}  # fmt: skip
        more |= {} if legacy else {"data_format": "NHWC", "is_filter_const": True}
        if not legacy:
            more.setdefault("Tsummand", made)
    b.node(op, "y", inputs, **more)
    return b


U, S, W, R = tf.quint8, tf.qint8, tf.qint32, tf.float32
KERNELS: dict[str, tuple[str, Any, Any, tuple[str, ...], dict[str, Any]]] = {
    **{
        f"{op} {data.name} {made.name} {'+'.join(stages)}": (op, data, made, stages, {})
        for op in (CONV, DEPTHWISE)
        for data in (U, S)
        for made, stages in ((U, RELU), (S, ("BiasAdd", "Requantize")))
    },
    "valid": (CONV, U, U, RELU, {"padding": "VALID"}),
    "one scale": (CONV, U, U, RELU, {"one": True}),
    "qint32 bias": (CONV, U, U, RELU, {"whole": True}),
    "no bias": (CONV, S, S, ("Requantize",), {}),
    "qint32 result": (CONV, U, W, ("BiasAdd",), {"one": True}),
    "unsigned summand": (CONV, U, U, SUM, {"of": U}),
    "signed summand": (CONV, S, U, SUM, {"of": S}),
    **{
        f"_QuantizedMatMul {data.name} {made.name} {stage}": (
            "_QuantizedMatMul", data, made, ("BiasAdd", *stage, "Requantize"), {}
        )
        for data in (U, S)
        for made, stage in ((S, ()), (U, ("Relu",)), (U, ("Relu6",)), (S, ("Tanh",)), (S, ("Elu",)))
    },
    "_QuantizedMatMul to float": ("_QuantizedMatMul", U, R, ("BiasAdd", "Dequantize"), {}),
}  # fmt: skip


KERNELS |= {
    name: (
        name,
        U,
        W if "Requantize" not in form.stages else U if "Relu" in form.stages else S,
        form.stages,
        {"one": "Requantize" not in form.stages}
        | ({"of": S if "Signed" in name else U} if "Sum" in form.stages else {}),
    )
    for name, form in LEGACY.items()
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gives_the_values_of_tensorflow(name: str, tmp_path: Path) -> None:
    op, data, made, stages, more = KERNELS[name]
    b = layer(op, data, made, stages, **more)
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    assert graph.profile == "tf-2.21.onednn"
    (wanted,) = b.wanted("y")
    (ours,) = qir.run(graph, b.feeds).values()
    assert ours.dtype == wanted.dtype
    assert np.array_equal(ours, wanted), f"seed {SEED}"
    assert len(np.unique(wanted)) > 20 or made == W


def test_chains_of_kernels_pass_their_ranges_on(tmp_path: Path) -> None:
    b = layer(CONV, U, U, RELU)
    b.node("Dequantize", "z", ["y", "y:1", "y:2"], T=tf.quint8, mode="SCALED")
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    assert np.array_equal(qir.run(graph, b.feeds)["z"], b.wanted("z")[0])


MOVES = ("QuantizedMaxPool", "QuantizedAvgPool", "QuantizedConcatV2")


@pytest.mark.parametrize("kind", [U, S], ids=["u8", "i8"])
@pytest.mark.parametrize("op", MOVES)
def test_pools_and_joins_of_quantized_values_are_tensorflows(
    op: str, kind: tf.DType, tmp_path: Path
) -> None:
    b = Builder()
    x = b.quantized("x", (2, 9, 8, 6), kind, 4.0)
    if op == "QuantizedConcatV2":
        other = b.quantized("z", (2, 9, 8, 3), kind, 2.5)
        axis = b.proto.node.add(op="Const", name="axis")
        axis.attr["dtype"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int32(3)))
        given = [x, other, "axis", "x:1", "z:1", "x:2", "z:2"]
        b.node(op, "y", given, T=kind, Tidx=tf.int32)
        b.proto.node[-1].attr["N"].i = 2
    else:
        sides = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1]}
        padding = "SAME" if op == "QuantizedMaxPool" else "VALID"
        b.node(op, "y", [x, "x:1", "x:2"], T=kind, padding=padding, **sides)
    b.states_shapes()
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    (ours,) = qir.run(graph, b.feeds).values()
    assert np.array_equal(ours, b.wanted("y")[0])
    assert len(np.unique(ours)) > 20


@pytest.mark.parametrize(
    ("how", "narrow"), [("HALF_AWAY_FROM_ZERO", False), ("HALF_TO_EVEN", True)]
)
def test_quantizing_by_the_own_kernel_and_its_stated_range(
    how: str, narrow: bool, tmp_path: Path
) -> None:
    b = Builder()
    b.quantized("x", (40, 50), S, 3.0)
    node = b.proto.node[-1]
    node.attr["round_mode"].s = how.encode()
    node.attr["narrow_range"].b = narrow
    b.feeds["x.x"] = np.multiply(b.feeds["x.x"], F(1.2), dtype=F)
    b.node("Dequantize", "y", ["x", "x:1", "x:2"], T=S, mode="SCALED")  # of the range it states
    b.node("Dequantize", "z", ["x", "x.low", "x.high"], T=S, mode="SCALED")
    b.states_shapes()
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    ours = qir.run(graph, b.feeds)
    for name, wanted in zip("yz", b.wanted("y", "z"), strict=True):
        assert np.array_equal(ours[name], wanted), name


def test_every_kernel_that_is_read_is_compared() -> None:
    compared = {k[0] for k in KERNELS.values()} | set(MOVES)
    elsewhere = {"QuantizeV2", "Dequantize", *kernels.LEGACY_MATMULS}  # test_modes.py
    elsewhere |= kernels.INTEL.keys()  # test_intel.py
    assert kernels.OPS.keys() - elsewhere == compared
