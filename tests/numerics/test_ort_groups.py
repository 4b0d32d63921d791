"""The groups of `ort-1.31` are what onnxruntime's optimizer makes, read from what it writes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qir.ir.node import Node
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import GroupEntry as Row
from qir.profiles import profile
from tests.differential.comparison import read
from tests.installed import OPTIMIZED

from .qdq import Model

GROUPS = profile(OPTIMIZED).groups
IMAGE = (1, 4, 8, 8)
MOVES = (
    *("max_pool1d", "max_pool2d", "max_pool3d", "reshape", "flatten", "transpose", "squeeze"),
    *("unsqueeze", "slice", "gather", "gather_elements", "expand", "tile", "resize_nearest"),
    "depth_to_space",
)
"""What only moves integers: dequantize may be moved over it, whoever reads."""
ACTIVATIONS = {"relu": "Relu", "clip": "Clip"}


def conv(m: Model, bias: str | None = "unit") -> str:
    biases = {None: [], "unit": [m.bias(6)], "other": [m.bias(6, 0.1)]}
    return m.op("Conv", m.data(*IMAGE), m.weights(6, 4, 3, 3), *biases[bias])


def convolution(m: Model, axes: int) -> str:
    return m.op("Conv", m.data(1, 4, *[8] * axes), m.weights(6, 4, *[3] * axes), m.bias(6))


def mean(m: Model, axes: int) -> str:
    return m.op("AveragePool", m.data(1, 4, *[8] * axes), kernel_shape=[2] * axes)


def slots(m: Model, kind: str, *numbers: int, **attrs: object) -> str:
    return m.op(kind, m.data(*IMAGE), m.constant(numbers, np.int64), **attrs)


def chosen(m: Model) -> str:
    where = m.constant(np.arange(256).reshape(IMAGE) % 3, np.bool_)
    return m.op("Where", where, m.data(*IMAGE), m.data(*IMAGE, scale=0.07))


def enlarged(m: Model) -> str:
    return m.op("Resize", m.data(*IMAGE), "", m.constant([1, 1, 2, 2]), mode="nearest")


def gemm(m: Model, bias: str = "unit", **attrs: float) -> str:
    made = m.constant(np.ones(6)) if bias == "real" else m.bias(6, 0.1 if bias == "other" else 5e-4)
    return m.op("Gemm", m.data(5, 16), m.weights(16, 6), made, **attrs)


def pool(m: Model, kind: str) -> str:
    return m.op(kind, m.data(*IMAGE), kernel_shape=[2, 2])


def both(m: Model, kind: str, second: str | None = None) -> str:
    return m.op(kind, m.data(*IMAGE), second or m.data(*IMAGE, scale=0.07))


HEADS: dict[str, Callable[[Model], str]] = {
    "conv2d": conv,
    "conv1d": lambda m: convolution(m, 1),
    "conv3d": lambda m: convolution(m, 3),
    "matmul": lambda m: m.op("MatMul", m.data(5, 16), m.weights(16, 6)),
    "gemm": gemm,
    "add": lambda m: both(m, "Add"),
    "mul": lambda m: both(m, "Mul"),
    "sigmoid": lambda m: m.op("Sigmoid", m.data(*IMAGE)),
    "leaky_relu": lambda m: m.op("LeakyRelu", m.data(*IMAGE), alpha=0.1),
    "softmax": lambda m: m.op("Softmax", m.data(*IMAGE), axis=1),
    "avg_pool2d": lambda m: pool(m, "AveragePool"),
    "avg_pool1d": lambda m: mean(m, 1),
    "avg_pool3d": lambda m: mean(m, 3),
    "global_avg_pool": lambda m: m.op("GlobalAveragePool", m.data(*IMAGE)),
    "concat": lambda m: m.op("Concat", m.data(*IMAGE), m.data(*IMAGE, scale=0.07), axis=1),
    "max_pool2d": lambda m: pool(m, "MaxPool"),
    "max_pool1d": lambda m: m.op("MaxPool", m.data(1, 4, 8), kernel_shape=[2]),
    "max_pool3d": lambda m: m.op("MaxPool", m.data(1, 4, 8, 8, 8), kernel_shape=[2] * 3),
    "where": chosen,
    "gather": lambda m: slots(m, "Gather", 1, 3, 2, axis=1),
    "gather_elements": lambda m: m.op(
        "GatherElements", m.data(*IMAGE), m.constant(np.ones((1, 2, 8, 8)), np.int64), axis=1
    ),
    "expand": lambda m: slots(m, "Expand", 3, 4, 8, 8),
    "tile": lambda m: slots(m, "Tile", 1, 2, 1, 1),
    "resize_nearest": enlarged,
    "depth_to_space": lambda m: m.op("DepthToSpace", m.data(*IMAGE), blocksize=2),
    "reshape": lambda m: m.op("Reshape", m.data(*IMAGE), m.constant([1, -1], np.int64)),
    "flatten": lambda m: m.op("Flatten", m.data(*IMAGE)),
    "transpose": lambda m: m.op("Transpose", m.data(*IMAGE), perm=[0, 2, 3, 1]),
    "squeeze": lambda m: m.op("Squeeze", m.data(*IMAGE), m.constant([0], np.int64)),
    "unsqueeze": lambda m: m.op("Unsqueeze", m.data(*IMAGE), m.constant([1], np.int64)),
    "slice": lambda m: m.op(
        "Slice", m.data(*IMAGE), *(m.constant([v], np.int64) for v in (1, 3, 2))
    ),
}


def tail(m: Model, x: str, op: str, *, most: float = 300.0) -> str:
    """An activation; by default one that cuts nothing."""
    if op == "relu":
        return m.op("Relu", x)
    return m.op("Clip", x, m.constant(0.0), m.constant(most))


def kinds(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


def reads_quantized(graph: onnx.GraphProto, kind: str) -> bool:
    """Whether an op reads what no dequantize made."""
    makers = {name: node.op_type for node in graph.node for name in node.output}
    (node,) = (n for n in graph.node if n.op_type == kind)
    return makers.get(node.input[0]) != "DequantizeLinear"


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{'+'.join(g.chain)}-{g.result}")
def test_each_group_of_the_profile_is_one_kernel_of_the_optimized_graph(
    group: Row, tmp_path: Path
) -> None:
    m = Model()
    x = HEADS[group.chain[0]](m)
    head = m.nodes[-1].op_type
    for op in group.chain[1:]:
        x = tail(m, x, op)
    zero = 3 if len(group.chain) == 1 else 0
    if group.result == "codes":
        x = m.coded(x, 0.05, zero)
    graph = m.optimized(x, tmp_path / "o.onnx")
    kernel = group.evidence.split()[0].rstrip(";")
    assert kinds(graph).count(kernel) == 1, kinds(graph)
    assert reads_quantized(graph, kernel)
    real = {head, *ACTIVATIONS.values()} - {kernel}
    assert not real & set(kinds(graph)), kinds(graph)


def test_every_chain_has_a_model_here() -> None:
    assert {g.chain[0] for g in GROUPS} == set(HEADS)


def fuses(m: Model, x: str, kernel: str, path: Path) -> bool:
    return kernel in kinds(m.optimized(x, path / "o.onnx"))


def in_group(chain: tuple[str, ...], need: str, result: str = "codes") -> bool:
    return any(g.chain == chain and g.result == result and need in g.needs for g in GROUPS)


@pytest.mark.parametrize("op", ["relu", "clip"])
@pytest.mark.parametrize("head", ["conv1d", "conv2d", "conv3d", "matmul", "gemm", "add", "mul"])
def test_an_activation_that_cuts_codes_stays_real(head: str, op: str, tmp_path: Path) -> None:
    assert in_group((head, op), "redundant_tail")
    kernel = next(g.evidence.split()[0].rstrip(";") for g in GROUPS if g.chain == (head,))
    for zero, most, wanted in ((0, 300.0, True), (3, 300.0, False), (0, 6.0, op == "relu")):
        m = Model()
        x = m.coded(tail(m, HEADS[head](m), op, most=most), 0.05, zero)
        assert fuses(m, x, kernel, tmp_path) == wanted, (zero, most)


TWICE = sorted(g.chain[0] for g in GROUPS if g.chain[1:] == ("relu",))


@pytest.mark.parametrize("head", TWICE)
def test_of_two_activations_before_codes_the_last_is_dropped_where_it_cuts_none(
    head: str, tmp_path: Path
) -> None:
    kernel = next(g.evidence.split()[0].rstrip(";") for g in GROUPS if g.chain == (head,))
    for ops, zero in (("relu relu", 0), ("relu clip", 0), ("clip relu", 0), ("relu relu", 3)):
        m = Model()
        x = HEADS[head](m)
        for op in ops.split():
            x = tail(m, x, op)
        made = m.coded(x, 0.05, zero)
        there = fuses(m, made, kernel, tmp_path)
        assert there == (zero == 0), (ops, zero)
        graph = read(m.proto(made))
        Group(OPTIMIZED).run(graph, Ledger())
        here = not any(n.op == head and not n.operands[_first(n)].type.quant for n in graph)
        assert here == there, (ops, zero, str(graph))


def _first(node: Node) -> str:
    return next(iter(node.operands))


def test_a_convolutions_bias_counts_in_units_of_its_scales(tmp_path: Path) -> None:
    assert in_group(("conv2d",), "bias_unit")
    unit = float(np.float32(0.05) * np.float32(0.01))
    for scale in (unit, unit * 1.01, unit * 1.013, unit * 1.05):
        m = Model()
        made = m.op("Conv", m.data(*IMAGE), m.weights(6, 4, 3, 3), m.bias(6, scale))
        near = abs(np.float32(scale) - unit) <= 1e-6 + 0.01 * unit
        assert fuses(m, m.coded(made), "QLinearConv", tmp_path) == near, scale
    m = Model()
    real = m.op("Conv", m.data(*IMAGE), m.weights(6, 4, 3, 3), m.constant(np.ones(6)))
    assert fuses(m, m.coded(real), "QLinearConv", tmp_path)


def test_a_gemms_bias_is_codes_whatever_its_scale_and_its_gain_is_one(tmp_path: Path) -> None:
    assert in_group(("gemm",), "bias_codes")
    assert in_group(("gemm",), "unit_gain_with_bias")
    cases: list[tuple[str, dict[str, float], bool]] = [
        ("unit", {}, True),
        ("other", {}, True),
        ("real", {}, True),
    ]
    cases += [("unit", {"alpha": 0.5}, False), ("unit", {"beta": 0.5}, False)]
    for bias, attrs, wanted in cases:
        m = Model()
        assert fuses(m, m.coded(gemm(m, bias, **attrs)), "QGemm", tmp_path) == wanted, (bias, attrs)


def test_a_gemm_to_reals_takes_no_real_bias(tmp_path: Path) -> None:
    assert in_group(("gemm",), "bias_i32", "real")
    for bias in ("unit", "other", "real"):
        m = Model()
        assert fuses(m, gemm(m, bias), "QGemm", tmp_path) == (bias != "real"), bias


@pytest.mark.parametrize("op", MOVES)
def test_codes_are_moved_only_within_one_map(op: str, tmp_path: Path) -> None:
    assert in_group((op,), "same_map")
    for scale, zero in ((0.05, 3), (0.06, 3), (0.05, 4)):
        m = Model()
        x = m.coded(HEADS[op](m), scale, zero)
        kernel = m.nodes[-3].op_type
        graph = m.optimized(x, tmp_path / "o.onnx")
        assert reads_quantized(graph, kernel) == ((scale, zero) == (0.05, 3))


@pytest.mark.parametrize("op", MOVES)
def test_quantize_and_dequantize_are_moved_over_what_propagates(op: str, tmp_path: Path) -> None:
    (group,) = (g for g in GROUPS if g.chain == (op,))
    m = Model()
    x = HEADS[op](m)
    graph = m.optimized(x, tmp_path / "o.onnx")
    assert reads_quantized(graph, m.nodes[-1].op_type) == group.propagates


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_real_constant_operand_keeps_its_op_real(op: str, tmp_path: Path) -> None:
    for second in ("coded", "real"):
        m = Model()
        constant = m.constant(np.ones((1, 4, 1, 1)))
        quantized = m.dequantize(m.constant(np.full((1, 4, 1, 1), 9), np.uint8), 0.05, 3)
        x = m.coded(both(m, op, constant if second == "real" else quantized))
        assert fuses(m, x, f"QLinear{op}", tmp_path) == (second == "coded")


@pytest.mark.parametrize("head", [h for h in HEADS if h not in MOVES])
def test_a_real_result_that_is_read_twice_or_shown_is_not_grouped(
    head: str, tmp_path: Path
) -> None:
    kernel = next(g.evidence.split()[0].rstrip(";") for g in GROUPS if g.chain == (head,))
    m = Model()
    x = HEADS[head](m)
    sum_of_both = m.op("Sub", m.coded(x), m.op("Abs", x))
    assert not fuses(m, sum_of_both, kernel, tmp_path)


@pytest.mark.parametrize(
    "op", ["Sub", "Div", "Tanh", "HardSwish", "Abs", "ReduceMean", "Pad", "Relu"]
)
def test_ops_without_a_group_run_on_reals(op: str, tmp_path: Path) -> None:
    m = Model()
    operands = [m.data(*IMAGE)]
    if op in ("Sub", "Div"):
        operands.append(m.data(*IMAGE, scale=0.07))
    if op == "ReduceMean":
        operands.append(m.constant([2, 3], np.int64))
    if op == "Pad":
        operands.append(m.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    graph = m.optimized(m.coded(m.op(op, *operands)), tmp_path / "o.onnx")
    assert not any(kind.startswith("QLinear") for kind in kinds(graph)), kinds(graph)
    assert kinds(graph).count("DequantizeLinear") >= 2


def test_signed_data_are_grouped_with_weights_only_where_they_can_become_unsigned(
    tmp_path: Path,
) -> None:
    """The note of the profile: one reader, and not shown."""
    for readers in (1, 2):
        m = Model(np.int8)
        q = m.quantize(m.input(*IMAGE), 0.05, 3)
        x = m.op("Conv", m.dequantize(q, 0.05, 3), m.weights(6, 4, 3, 3))
        y = m.op("GlobalAveragePool", m.coded(x))
        if readers == 2:
            y = m.op("Concat", y, m.op("GlobalAveragePool", m.dequantize(q, 0.05, 3)), axis=1)
        assert fuses(m, y, "QLinearConv", tmp_path) == (readers == 1), readers
