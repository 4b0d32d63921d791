"""Every op between 8-bit and 16-bit data: the interpreter takes the file and gives its bytes."""

from collections.abc import Callable

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.forms import converted
from qir.backends.tflite.writer.kernels import FIXED_RESULTS, ON_16_BITS
from qir.errors import SchemeError
from qir.ir.dtype import I16
from qir.ir.node import Node, Value
from qir.ir.types import uniform
from tests.backends.tensorflow.networks import Net, branches, inverted
from tests.differential.tensorflow.kernels import HAS_VNNI

from .test_int8 import CASES, Build
from .written import TARGET, compared, quantized_net

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
F = np.float32


def widen(graph: qir.Graph, asked: Callable[[Node], bool]) -> int:
    """Gives 16 bits to the quantized values whose `quantize` is asked for; returns how many."""
    count = 0
    for node in graph:
        quant = node.results[0].type.quant if node.op == "quantize" else None
        if quant is None or not asked(node):
            continue
        zero = int(quant.zeros())
        scale = F(quant.scales()) * F(max(zero + 128, 127 - zero) / 32767)
        made = node.operands["x"].node.op
        if made in FIXED_RESULTS:
            scale = F(FIXED_RESULTS[made]["i16"][0])
        graph.set_type(node.result, node.result.type.with_element(uniform(I16, scale, 0)))
        count += 1
    return count


def transposed(net: Net, x: Value, *, bias: bool = True, **attrs: object) -> Value:
    inner = x.type.shape[1]
    assert isinstance(inner, int)
    operands = {"x": x, "w": net.graph.constant(net.rng.normal(0, 0.3, (inner, 4, 2, 2)).astype(F))}
    if bias:
        operands["bias"] = net.graph.constant(net.rng.normal(0, 1, 4).astype(F))
    return net.graph.add("conv_transpose2d", operands, {"stride": (2, 2), **attrs}).result  # type: ignore[dict-item]


def upsampled(net: Net) -> qir.Graph:
    """Convolutions around a transposed one with a relu, and a transposed one without a bias."""
    y = net.relu(transposed(net, net.relu(net.conv(net.x, 6))))
    return net.ends(net.conv(transposed(net, y, bias=False, pad=(1, 1, 0, 0)), 5))


def between(op: str, *more: str, **attrs: object) -> Build:
    """Ops on positive data and a convolution that reads their result, as other runtimes' files
    have them between quantized values."""

    def build(net: Net, x: Value) -> Value:
        y = net.op("sigmoid", net.conv(x, 6))
        if op in ("max", "min"):
            y = net.graph.add(op, {"xs.0": y, "xs.1": net.conv(x, 6)}).result
        else:
            read = (net.conv(x, 6), y) if op == "div" else (y,)
            y = net.op(op, *read, **attrs)  # type: ignore[arg-type]
        for each in more:
            y = net.op(each, y, **attrs)  # type: ignore[arg-type]
        return net.conv(y, 5, 1)

    return build


ROWS: dict[str, object] = {"axes": (2,), "keep": True}
ALL: dict[str, Build] = {
    **{name: build for name, (build, _) in CASES.items()},
    **{op: between(op) for op in ("abs", "exp", "log", "sqrt", "rsqrt", "div", "max", "min")},
    **{f"reduce_{op}": between(f"reduce_{op}", **ROWS) for op in ("max", "min", "sum", "prod")},
    "squeeze": between("unsqueeze", "squeeze", axes=(2,)),
}
UNREACHED = {"flip", "gather_nd", "where", "expand"}
"""Ops that move elements as `slice`, `gather` and `concat` do, which are drawn."""


def test_all_ops_with_kernels_on_16_bits_are_drawn() -> None:
    drawn = {"linear"}  # what `gemm` becomes
    for build in ALL.values():
        net = Net(8, 12, 3)
        drawn |= {node.op for node in net.ends(build(net, net.x))}
    assert drawn >= ON_16_BITS - UNREACHED


@pytest.mark.parametrize("reads", [8, 16])
@pytest.mark.parametrize("name", ALL)
def test_an_op_that_reads_one_width_and_makes_the_other(name: str, reads: int) -> None:
    """The first op reads the input, so widths alternate from one op to the next."""
    net = Net(8, 12, 3)
    net.ends(ALL[name](net, net.x))
    made = quantized_net(net)
    depth: dict[Value, int] = {}
    for node in made:
        before = max((depth.get(value, 0) for value in node.operands.values()), default=0)
        depth |= dict.fromkeys(node.results, before + (node.op == "quantize"))
    assert widen(made, lambda node: (depth[node.result] % 2 == 1) == (reads == 16))
    compared(made, net.feeds(3))


@pytest.mark.parametrize("seed", range(6))
def test_networks_whose_values_have_8_or_16_bits_by_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = Net(8, 12, seed) if seed % 3 == 0 else (inverted, branches)[seed % 3 - 1](seed)
    if seed % 3 == 0:
        upsampled(net)
    made = quantized_net(net)
    widen(made, lambda node: bool(rng.random() < 0.5))
    feeds = net.feeds(3)
    feeds["x"] *= F(1.5)
    compared(made, feeds)


@pytest.mark.parametrize("reads", [8, 16])
def test_transposed_convolutions_compute_in_16_bits(reads: int) -> None:
    net = Net(8, 12, 5)
    upsampled(net)
    rules = ["op=conv_transpose2d: i16 symmetric tensor"]
    if reads == 16:
        rules = ["op=conv_transpose2d slot=x: i16 symmetric tensor"]
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    made = qir.quantize(net.graph, statistics, target=TARGET, rules=rules)
    compared(made, net.feeds(3))
    layers = [node for node in converted(made, qir.Ledger()) if node.op == "conv_transpose2d"]
    kinds = [value.type.quant for n in layers for value in (n.operands["x"], n.result)]
    assert [quant.storage for quant in kinds if quant is not None] == [I16] * 4


def activated(net: Net) -> qir.Graph:
    y = net.op("hard_swish", net.conv(net.x, 6))
    y = net.op("sigmoid", net.op("gelu", net.conv(y, 6)))
    return net.ends(net.op("softmax", net.op("tanh", net.conv(y, 5)), axis=1))


@pytest.mark.parametrize(
    ("rule", "floats"),
    [
        ("name=conv*: i16 symmetric tensor", {"hard_swish", "gelu"}),
        ("op=*: i16 symmetric tensor", {"hard_swish", "gelu"}),
        ("op=sigmoid: i16 symmetric tensor", set()),
        ("op=tanh: i16 symmetric tensor", set()),
        ("op=softmax: i16 symmetric tensor", set()),
    ],
)
def test_a_rule_for_16_bits_leaves_ops_without_such_a_kernel_in_float(
    rule: str, floats: set[str]
) -> None:
    net = Net(8, 12, 5)
    activated(net)
    for i, node in enumerate(node for node in list(net.graph) if node.op == "conv2d"):
        net.graph.rename(node.result, f"conv{i}")
    plan = qir.plan(net.graph, target=TARGET, rules=[rule])
    left = {each.op: each.reason for each in plan.decisions if each.becomes == "float"}
    assert left == {
        op: f"tflite has no integer {op} on i16, which a rule asks for" for op in floats
    }
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    made = qir.quantize(net.graph, statistics, target=TARGET, rules=[rule])
    compared(made, net.feeds(3))
    wide = [
        float(value.type.quant.scales())
        for node in converted(made, qir.Ledger())
        for value in node.results
        if value.type.quant is not None and value.type.quant.storage == I16
    ]
    assert wide
    assert "conv" in rule or 2.0**-15 in wide


def test_a_rule_for_16_bits_on_an_op_that_has_no_such_kernel_is_refused() -> None:
    net = Net(8, 12, 5)
    activated(net)
    with pytest.raises(SchemeError, match=r"rule 'op=gelu: i16 symmetric tensor': .* takes i8"):
        qir.plan(net.graph, target=TARGET, rules=["op=gelu: i16 symmetric tensor"])
