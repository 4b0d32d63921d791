"""What TensorFlow's int8 kernels do wrong, each in a process of its own, and that QIR avoids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import qir
from qir.backends.tensorflow.kernel_runs import GraphRequest
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import to_graphdef
from tests.differential.predictions import Array, F
from tests.differential.tensorflow import test_tensorflow_products as products
from tests.differential.tensorflow.kernels import HAS_VNNI, Kind, Kinds, TensorFlow
from tests.differential.tensorflow.test_tensorflow_products import BIAS, RELU, SUM, Form

from .networks import Net, inverted, residual
from .written import quantized

pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")


@pytest.fixture
def runtime() -> Iterator[TensorFlow]:
    made = TensorFlow(onednn=True)
    yield made
    made.close()


class Also(TensorFlow):
    """A runtime that is asked for more results of the same run."""

    def __init__(self, runtime: TensorFlow, *fetches: str) -> None:
        self.runtime, self.fetches, self.found = runtime, fetches, list[Array]()

    def run(self, asked: GraphRequest, *fetches: str) -> list[Array]:
        self.found = self.runtime.run(asked, *fetches, *self.fetches)
        return self.found


@pytest.mark.slow
def test_a_summand_with_another_reader_ends_the_process(runtime: TensorFlow) -> None:
    form = Form("quint8", "quint8", SUM, "quint8")
    of = products.layer(form, 1, flat=False)
    assert products.theirs(runtime, form, of).size  # n0 makes the summand, n1 reads it alone
    with pytest.raises(RuntimeError, match=r"TensorFlow ended: -\d+"):
        products.theirs(Also(runtime, "n0:0"), form, of)


@pytest.mark.slow
def test_a_signed_result_of_a_sum_ends_the_process(runtime: TensorFlow) -> None:
    form = Form("quint8", "qint8", SUM, "quint8")
    with pytest.raises(RuntimeError, match=r"TensorFlow ended: -\d+"):
        products.theirs(runtime, form, products.layer(form, 1, flat=False))


@pytest.mark.slow
def test_sums_of_many_channels_state_ranges_that_they_do_not_have(runtime: TensorFlow) -> None:
    form = Form("quint8", "qint32", ("BiasAdd",))
    of = products.layer(form, 1, flat=False)
    of = replace(of, bias=np.zeros_like(of.bias))
    also = Also(runtime, "n0:1", "n0:2")
    sums = products.theirs(also, form, of)
    high = also.found[2]
    exact = (of.x.astype(np.int64) @ of.w.astype(np.int64)).astype(np.float64)
    real = exact * float(of.x_reach) / 255 * of.w_reach.astype(np.float64) / 127
    stated = sums * (high.astype(np.float64) / 2**31)
    widest = sums * (high.max().astype(np.float64) / 2**31)
    unit = float(of.x_reach) / 255 * float(of.w_reach.max()) / 127
    assert of.w_reach.size > 1
    assert np.abs(widest - real).max() <= unit
    assert np.abs(stated - real).max() > 10 * unit


@pytest.mark.slow
def test_a_product_without_a_bias_is_refused(runtime: TensorFlow) -> None:
    asked = GraphRequest()
    given = [asked.fed(np.ones((2, 4), np.uint8), "quint8")]
    given += [asked.constant(np.ones((4, 3), np.int8), "qint8")]
    given += [asked.constant(F(v)) for v in (0.0, 1.0, -1.0, 1.0, -4.0, 4.0)]
    node = asked.node(
        "_QuantizedMatMul",
        given,
        fused_ops=("Requantize",),
        Thost_inputs=Kinds(("quint8", "qint8", *("float",) * 6)),
        Tdevice_inputs=Kinds(()),
        Thost_outputs=Kinds(("qint8", "float", "float")),
        Tdevice_outputs=Kinds(()),
        T1=Kind("quint8"),
        T2=Kind("qint8"),
        U=Kind("float"),
        Tout=Kind("qint8"),
        Tbias=Kind("float"),
        is_weight_const=True,
        is_bias_const=True,
    )
    with pytest.raises(RuntimeError, match=r"."):
        runtime.run(asked, f"{node}:0")


@pytest.mark.slow
@pytest.mark.parametrize("stages", [BIAS, RELU], ids="-".join)
def test_a_product_with_a_whole_bias_is_wrong(runtime: TensorFlow, stages: tuple[str, ...]) -> None:
    form = Form("quint8", "qint8" if stages == BIAS else "quint8", stages, whole_bias=True)
    of = products.layer(form, 1, flat=True)
    wanted = products.theirs(runtime, form, of)
    assert (products.ours(form, of, wanted.shape) != wanted).mean() > 0.1


def without_biases() -> Net:
    """Two products without a bias, and a sum whose summand two layers read."""
    net = Net(3, 12, 3)
    x = net.relu(net.conv(net.x, 8, bias=False))
    y = net.relu(net.op("add", net.conv(net.relu(net.conv(x, 8)), 8), x))
    y = net.op("add", y, x)
    flat = net.op("flatten", net.op("global_avg_pool", y))
    w = net.graph.constant(net.rng.normal(0, 0.5, (8, 8)).astype(np.float32))
    net.ends(net.op("matmul", net.relu(net.op("matmul", flat, w)), w))
    return net


def before(name: str, reads: dict[str, list[str]]) -> set[str]:
    """Returns the nodes that run before a node."""
    found, todo = set[str](), [name]
    while todo:
        new = set(reads[todo.pop()]) - found
        found |= new
        todo += new
    return found


NETS = {"residual": lambda: residual(3), "inverted": lambda: inverted(3), "bare": without_biases}


@pytest.mark.parametrize("name", NETS)
def test_what_is_written_meets_none_of_them(name: str) -> None:
    from tensorflow.core.framework import graph_pb2

    net = NETS[name]()
    made = quantized(net.graph, net.feeds(4))
    data = to_graphdef(converted(made, qir.Ledger(), kernels=True)).data
    graph = graph_pb2.GraphDef.FromString(data)
    reads = {n.name: [r.strip("^").partition(":")[0] for r in n.input] for n in graph.node}
    kernels = [n for n in graph.node if n.op.startswith(("_Fused", "_QuantizedMatMul"))]
    assert kernels
    for node in kernels:
        stages = [text.decode() for text in node.attr["fused_ops"].list.s]
        outputs = list(node.attr["Thost_outputs"].list.type)
        assert "BiasAdd" in stages
        assert {"Requantize", "Dequantize"} & set(stages)
        assert 13 not in outputs  # qint32
        if node.op == "_QuantizedMatMul":
            assert node.attr["Tbias"].type == 1  # float
        if "Sum" in stages:
            assert outputs[0] == 12  # quint8
            assert node.attr["Tsummand"].type == 12
            others = {n for n, held in reads.items() if reads[node.name][3] in held} - {node.name}
            assert others <= before(node.name, reads)  # the sum is the last reader
