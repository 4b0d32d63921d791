"""Networks of 16-bit data and 8-bit weights, whole or in part, integer by integer."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.analysis.wide_activations import wide_rules
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.errors import SchemeError
from qir.frontends.tflite.model_file import TfliteFile
from qir.ir.dtype import I8, I16
from qir.ir.numerals import number_text
from qir.ir.types import uniform
from qir.mixed_precision import search_recipe
from qir.quantizing import prepare
from qir.recipe import Recipe
from tests.backends.tensorflow.networks import Net, branches, inverted, padded, residual
from tests.differential.tensorflow.kernels import HAS_VNNI

from .test_int8 import CASES
from .written import TARGET, compared, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
WIDE = "tflite-16x8"
NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches, "padded": padded}
FLOAT = {"clip", "hard_swish", "gelu", "silu", "prelu", "tile"}
"""Ops of `CASES` that TensorFlow Lite has no kernel of on 16 bits, or none that is used."""
SCALES = [(1.7e-5, 9.1e-5, 8.3e-5), (8.8e-5, 2.3e-5, 6.1e-5), (3.1e-5, 3.0e-5, 4.4e-5)]
F = np.float32


def quantized(net: Net, *rules: str, target: str = TARGET) -> qir.Graph:
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    return qir.quantize(net.graph, statistics, target=target, rules=rules)


def decibels(exact: np.ndarray, found: np.ndarray) -> float:
    noise = np.square(np.subtract(exact, found, dtype=np.float64)).sum()
    return float(10 * np.log10(np.square(exact, dtype=np.float64).sum() / noise))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_of_16_bits_is_the_interpreters(name: str) -> None:
    net = NETWORKS[name](7)
    made = quantized(net, target=WIDE)
    feeds = net.feeds(8)
    feeds["x"] *= F(1.5)  # beyond what was seen: values saturate
    assert compared(made, feeds).integers > 10_000
    whole = converted(made, qir.Ledger())
    computed = [v.type.quant for n in whole for v in n.results if n.op != "constant"]
    assert {quant.storage for quant in computed if quant is not None} == {I16}
    assert all(not np.any(quant.zeros()) for quant in computed if quant is not None)
    assert [n.op for n in whole].count("dequantize") == 1
    feeds = net.feeds(8)
    exact, wide, narrow = (
        next(iter(qir.run(graph, feeds).values())) for graph in (net.graph, whole, quantized(net))
    )
    assert decibels(exact, wide) > decibels(exact, narrow)


@pytest.mark.parametrize("name", CASES)
def test_an_op_on_16_bits_is_the_interpreters_kernel(name: str) -> None:
    build, wanted = CASES[name]
    net = Net(8, 12, 3)
    net.ends(build(net, net.x))
    made = quantized(net, target=WIDE)
    whole = converted(made, qir.Ledger())
    assert kernels(whole) == wanted
    moves = ("input", "constant", "output", "quantize", "dequantize", "transpose")
    floats = [n.op for n in whole if n.op not in moves and n.results[0].type.quant is None]
    assert set(floats) <= FLOAT
    compared(made, net.feeds(3))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_layers_of_16_bits_next_to_8_are_the_interpreters(seed: int) -> None:
    """Layers drawn by a seed; QUANTIZE and DEQUANTIZE stand where 8 and 16 bits meet."""
    rng = np.random.default_rng(seed)
    net = list(NETWORKS.values())[seed % 4](7)
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    prepared = prepare(net.graph, statistics, Recipe(TARGET), qir.Ledger())
    rules: list[str] = []
    for node in prepared.graph:
        if node.op in ("conv2d", "add", "gemm") and rng.random() < 0.3:
            more = wide_rules(node, prepared.capability, node.name)
            try:
                prepared.plan((*rules, *more))
            except SchemeError:
                continue
            rules += more
    made = qir.quantize(net.graph, statistics, target=TARGET, rules=rules)
    whole, ledger = converted(made, qir.Ledger()), qir.Ledger()
    converted(made, ledger)
    kinds = {v.type.quant.storage for n in whole for v in n.results if v.type.quant is not None}
    assert (I16 in kinds) == bool(rules)
    feeds = net.feeds(8)
    feeds["x"] *= F(1.5)
    compared(made, feeds)
    for node in whole:  # kernels have one type of data and results
        if node.op in ("conv2d", "linear", "add", "fused") and node.result.type.quant is not None:
            data = node.operands["x" if "x" in node.operands else "a"].type.quant
            assert data is not None
            assert data.storage == node.result.type.quant.storage


def test_biases_have_64_bits_and_linear_layers_have_one(tmp_path: Path) -> None:
    net = Net(8, 12, 3)
    x = net.op("flatten", net.conv(net.x, 6, bias=False))
    w = net.graph.constant(net.rng.normal(0, 0.1, (864, 9)).astype(F))
    net.ends(net.op("matmul", x, w))
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    made = qir.quantize(net.graph, statistics, target=WIDE, corrections="none")
    compared(made, net.feeds(3))
    path = tmp_path / "wide.tflite"
    qir.save(made, path, target=WIDE)
    (subgraph,) = TfliteFile(path).subgraphs
    layers = [each for each in subgraph.operators if each.op in ("CONV_2D", "FULLY_CONNECTED")]
    assert len(layers) == 2
    biases = [subgraph.tensors[layer.inputs[2]] for layer in layers]
    assert [bias.element for bias in biases] == ["i64"] * 2
    back, feeds = qir.load(path), net.feeds(2)
    (wanted,) = qir.run(converted(made, qir.Ledger()), feeds).values()
    assert np.array_equal(next(iter(qir.run(back, feeds).values())), wanted)


@pytest.mark.slow
def test_a_goal_is_reached_by_16_bits_without_floats() -> None:
    net = residual(7)
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    data = net.feeds(16)
    narrow = search_recipe(net.graph, statistics, data, sqnr=0.0, recipe=Recipe(TARGET))
    assert not narrow.wide
    goal = narrow.value + 0.5
    found = search_recipe(net.graph, statistics, data, sqnr=goal, recipe=Recipe(TARGET))
    assert found.reached
    assert found.wide
    assert not found.kept
    made = qir.quantize(net.graph, statistics, target=TARGET, rules=found.recipe.rules)
    compared(made, net.feeds(3))
    kinds = {v.type.quant.storage for v in made.values.values() if v.type.quant is not None}
    assert {I8, I16} <= kinds


@pytest.mark.parametrize("bounds", [(0.0, 6.0), (-1.0, 1.0)])
def test_bounds_that_32_bits_do_not_hold_are_dropped(bounds: tuple[float, float]) -> None:
    """TensorFlow Lite refuses a model in which a bound is 2^31 steps or more."""
    net = Net(8, 12, 3)
    small = net.graph.constant(np.full(1, 1e-6, F))
    x = net.conv(net.op("mul", net.conv(net.x, 6), small), 6, bias=False)
    net.ends(net.conv(net.op("clip", x, min=bounds[0], max=bounds[1]), 4))
    made = quantized(net, target=WIDE)
    feeds = net.feeds(3)
    feeds["x"] *= F(1.5)
    compared(made, feeds)


@pytest.mark.parametrize("op", ["add", "sub"])
def test_sums_of_scales_that_are_powers_of_two_have_the_usual_kernel(op: str) -> None:
    net = Net(8, 12, 3)
    a = net.op("tanh", net.conv(net.x, 6))
    net.ends(net.op(op, a, net.op("sigmoid", net.conv(net.x, 6))))
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    made = qir.quantize(net.graph, statistics, target=WIDE)
    for node in list(made):
        quant = node.results[0].type.quant if node.results else None
        if quant is not None and node.op == "quantize" and node.operands["x"].node.op == op:
            kind = uniform(I16, F(2.0**-16), 0)
            made.set_type(node.result, node.result.type.with_element(kind))
    whole = converted(made, qir.Ledger())
    (total,) = (node for node in whole if node.op == op)
    quants = [value.type.quant for value in (*total.operands.values(), total.result)]
    assert [float(q.scales()) for q in quants if q is not None] == [2.0**-15, 2.0**-15, 2.0**-16]
    compared(made, net.feeds(3))


def test_a_bias_fits_the_sums_that_kernels_take() -> None:
    """A sum of 2^47 or more overflows: weight scales are raised where a bias is so large."""
    net = Net(8, 12, 3)
    small = net.graph.constant(np.full(1, 1e-7, F))
    x = net.op("mul", net.conv(net.x, 6), small)
    w = net.graph.constant(net.rng.normal(0, 1e-4, (4, 6, 1, 1)).astype(F))
    bias = net.graph.constant(np.array([3, 1, 0.5, 1e-4], F))
    net.ends(net.graph.add("conv2d", {"x": x, "w": w, "bias": bias}).result)
    feeds = net.feeds(3)
    made = quantized(net, target=WIDE)
    compared(made, feeds)
    (exact,), (found,) = (qir.run(graph, feeds).values() for graph in (net.graph, made))
    assert decibels(exact, found) > 60


@pytest.mark.parametrize("row", [(40, 64), (1,), (64,), (40, 1)])
def test_operands_of_a_sum_are_rounded_twice_where_one_is_broadcast(row: tuple[int, ...]) -> None:
    """Those of one shape are rounded once; -32048 and 32767 tell it by these scales."""
    rng = np.random.default_rng(len(row))
    for a, b, made in [(2.0**-15, 3.0518509447574615e-05, 6.095050412113778e-05), *SCALES]:
        kinds = [
            f"!quant.uniform<i16:f32, {number_text(float(F(scale)))}>" for scale in (a, b, made)
        ]
        sizes = "x".join(map(str, row))
        graph = qir.parse(
            f"graph main as tflite-2.21.xnnpack {{ %a = input() : 40x64x{kinds[0]} "
            f"%b = input() : {sizes}x{kinds[1]} %y = add(%a, %b) : 40x64x{kinds[2]} output(y=%y) }}"
        )
        shapes = ((40, 64), row)
        left, right = (rng.integers(-32768, 32768, s).astype(np.int16) for s in shapes)
        left.flat[0], right.flat[0] = -32048, 32767
        feeds = {"a": left, "b": right}
        (found,) = TfliteSession(to_tflite(graph), 1)(**feeds).values()
        (wanted,) = qir.run(graph, feeds).values()
        assert np.array_equal(np.asarray(found), wanted)
        if made == 6.095050412113778e-05:
            assert wanted.flat[0] == (361 if row == (40, 64) else 360)


@pytest.mark.parametrize(("part", "floats"), [(1.0, True), (0.999, False)])
def test_sums_whose_scales_are_too_far_apart_are_computed_in_float(
    part: float, floats: bool
) -> None:
    """The kernel of `x - x` would shift by less than nothing: it is refused from 2^14 on."""
    net = Net(8, 12, 3)
    x = net.conv(net.x, 6)
    net.ends(net.op("sub", x, net.op("leaky_relu", x, alpha=1.0)))
    made = quantized(net, target=WIDE)
    for node in made:
        if node.op == "quantize" and node.operands["x"].node.op == "sub":
            (first, *_) = node.operands["x"].node.operands.values()
            quant = first.node.operands["x"].type.quant
            assert quant is not None
            kind = uniform(I16, F(quant.scales() * F(2**-14 / part)), 0)
            made.set_type(node.result, node.result.type.with_element(kind))
    compared(made, net.feeds(3))
    (sub,) = (node for node in converted(made, qir.Ledger()) if node.op == "sub")
    assert (sub.result.type.quant is None) == floats
