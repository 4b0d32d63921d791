"""Models written for TensorFlow compute there what QIR's reference predicts, to the bit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import to_graphdef
from qir.cli.models import file_bytes
from qir.errors import Refused, UsageError
from qir.ir.types import DeclaredBounds
from qir.target import target
from qir.testing.random_graphs import random_graph, sample_inputs
from tests.differential.tensorflow.kernels import HAS_VNNI

from .networks import Net, branches, inverted, padded, residual
from .written import TARGET, close, compared, quantized, sums

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches, "padded": padded}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("low", [True, False], ids=["signed", "unsigned"])
def test_every_quantized_tensor_is_tensorflows(name: str, low: bool) -> None:
    net = NETWORKS[name](7)
    made = quantized(net.graph, net.feeds(4, low=low))
    feeds = net.feeds(16)
    feeds["x"] *= np.float32(1.5)  # beyond what was seen: values saturate
    assert compared(made, feeds) > 10_000


def test_padding_that_a_convolution_alone_reads_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = padded(5)
    made, feeds = quantized(net.graph, net.feeds(4)), net.feeds(8)
    run = target(TARGET).compile
    joined, found = converted(made, qir.Ledger(), kernels=True), run(made)(**feeds)
    monkeypatch.setattr(
        "qir.backends.tensorflow.writer.fused_padding.fuse_pads", lambda graph: None
    )
    apart, wanted = converted(made, qir.Ledger(), kernels=True), run(made)(**feeds)
    counts = [sum(n.op == "pad" for n in graph) for graph in (joined, apart)]
    assert counts == [1, 3]
    (a,), (b,) = found.values(), wanted.values()
    assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_every_quantized_tensor_of_random_networks_is_tensorflows(seed: int) -> None:
    graph = random_graph(seed)
    made = quantized(graph, *(sample_inputs(graph, i) for i in range(3)))
    assert compared(made, sample_inputs(graph, 9))


@pytest.mark.parametrize("name", NETWORKS)
def test_float_networks_are_close(name: str) -> None:
    net = NETWORKS[name](8)
    close(net.graph, net.feeds(4))


@pytest.mark.parametrize("name", NETWORKS)
def test_all_multiply_adds_run_in_int8_kernels(name: str) -> None:
    net = NETWORKS[name](7)
    assert qir.plan(net.graph, target=TARGET).integer_macs >= 0.95
    made = converted(quantized(net.graph, net.feeds(2)), qir.Ledger(), kernels=True)
    floats = [n for n in made if n.op in ("conv2d", "gemm") and n.result.type.quant is None]
    assert not floats


@pytest.mark.parametrize("name", NETWORKS)
def test_no_kernel_meets_a_known_defect(name: str) -> None:
    net = NETWORKS[name](7)
    made = converted(quantized(net.graph, net.feeds(2)), qir.Ledger(), kernels=True)
    found = list(sums(made))
    for node, summand in found:
        assert summand.type.quant is not None
        assert node.result.type.quant is not None
        assert str(summand.type.quant.storage) == str(node.result.type.quant.storage) == "u8"
    for node in made:
        kinds = {str(v.type.quant.storage) for v in node.results if v.type.quant}
        assert "i32" not in kinds
    assert len(found) == {"residual": 2}.get(name, 0)


def test_a_file_is_read_back_as_it_was_meant(tmp_path: Path) -> None:
    net = residual(7)
    made = quantized(net.graph, net.feeds(2))
    qir.save(made, tmp_path / "a.pb", target=TARGET)
    back = qir.load(tmp_path / "a.pb")
    feeds = net.feeds(3)
    whole = converted(made, qir.Ledger(), kernels=True)
    assert np.array_equal(qir.run(back, feeds)["y"], qir.run(whole, feeds)["y"])

    def ranges(graph: qir.Graph) -> list[DeclaredBounds | None]:
        kinds = [v.type.quant for v in graph.values.values() if v.constant is None]
        return [quant.declared for quant in kinds if quant is not None]

    assert all(ranges(back))
    assert {str(each) for each in ranges(back)} == {str(each) for each in ranges(whole)}


@pytest.mark.parametrize("form", ["graphdef", "savedmodel", "float", "float-savedmodel"])
def test_tensorflow_runs_what_is_written(form: str, tmp_path: Path) -> None:
    net = inverted(7)
    made = quantized(net.graph, net.feeds(2))
    path = tmp_path / ("out" if "savedmodel" in form else "out.pb")
    qir.save(made, path, target=TARGET, format=form)
    feeds = net.feeds(2)
    found = target(TARGET).compile_file(path)(**feeds)
    kernels = not form.startswith("float")
    wanted = qir.run(converted(made, qir.Ledger(), kernels=kernels), feeds)
    step = float(np.abs(wanted["y"]).max()) * (0 if kernels else 0.05)
    assert np.abs(np.asarray(found["y"]) - wanted["y"]).max() <= step
    assert list(qir.load(path).outputs) == ["y"]


@pytest.mark.long
def test_tensorflow_loads_the_folder_by_its_signature(tmp_path: Path) -> None:
    net = inverted(7)
    qir.save(net.graph, tmp_path / "out", target=TARGET, format="savedmodel")
    (tmp_path / "frozen").mkdir()
    command = [
        "-m",
        "qir.frontends.tensorflow.child",
        str(tmp_path / "out"),
        str(tmp_path / "frozen"),
    ]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert '"outputs": [["y"' in (tmp_path / "frozen" / "names.json").read_text()


def test_a_frozen_graph_is_written_without_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, qir\n"
        "g = qir.parse('graph main as native { %x = input() : 2x3xf32 %y = relu(%x) : 2x3xf32"
        " output(y=%y) }')\n"
        f"qir.save(g, {str(tmp_path / 'a.pb')!r}, target={TARGET!r})\n"
        "assert 'tensorflow' not in sys.modules and 'google' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "a.pb").stat().st_size > 40


def test_zero_points_are_refused_in_one_line(tmp_path: Path) -> None:
    net = inverted(7)
    statistics = qir.calibrate(net.graph, [net.feeds(2)])
    made = qir.quantize(net.graph, statistics, target="onnxruntime")
    with pytest.raises(Refused, match=r"zero point \d+; .* qir quantize takes its ranges"):
        qir.save(made, tmp_path / "a.pb", target=TARGET)
    assert not list(tmp_path.iterdir())


def test_a_summand_that_is_read_later_is_refused(tmp_path: Path) -> None:
    net = Net(3, 8, 1)
    x = net.relu(net.conv(net.x, 4))
    y = net.relu(net.op("add", net.conv(net.relu(net.conv(x, 4)), 4), x))
    made = quantized(net.ends(y), net.feeds(2))
    summand = made.values[x.name + ".dq"] if x.name + ".dq" in made.values else None
    whole = converted(made, qir.Ledger(), kernels=True)
    ((_, held),) = sums(whole)
    assert summand is not None
    whole.set_operand(whole.output, "also", whole.add("dequantize", {"x": held}).result)
    with pytest.raises(Refused, match="TensorFlow writes the sum over"):
        to_graphdef(whole)


def test_an_op_that_is_not_written_is_named() -> None:
    text = "graph main as native { %x = input() : 3x3xf32  %y = det(%x) : f32  output(y=%y) }"
    with pytest.raises(Refused, match="y: det is not written for TensorFlow; write ONNX"):
        to_graphdef(converted(qir.parse(text), qir.Ledger(), kernels=True))


def test_a_name_must_fit_the_form(tmp_path: Path) -> None:
    graph = inverted(7).graph
    with pytest.raises(
        UsageError, match=r"writes \.pb files, .*`format='savedmodel'` writes a folder"
    ):
        qir.save(graph, tmp_path / "out", target=TARGET)
    qir.save(graph, tmp_path / "out", target=TARGET, format="savedmodel")
    with pytest.raises(UsageError, match="exists; `force=True` overwrites it"):
        qir.save(graph, tmp_path / "out", target=TARGET, format="savedmodel")
    qir.save(graph, tmp_path / "out", target=TARGET, format="savedmodel", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    written = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert file_bytes(tmp_path / "out") == sum(path.stat().st_size for path in written) > 1000


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("count", [False, True])
def test_average_pools_count_their_padding_as_they_say(count: bool, ceil: bool) -> None:
    net = Net(3, 10, 4)
    sides = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
    net.ends(net.op("avg_pool2d", net.x, count_pad=count, ceil=ceil, **sides))
    close(net.graph, net.feeds(2))


def test_products_of_stacks_of_rows_run_in_int8() -> None:
    rng = np.random.default_rng(6)
    graph = qir.parse("graph main as native { %x = input() : (N)x6x8xf32  output(y=%x) }")
    x = graph["x"]
    for _ in range(2):
        w = graph.constant(rng.normal(0, 0.5, (8, 8)).astype(np.float32))
        b = graph.constant(rng.normal(0, 0.1, 8).astype(np.float32))
        x = graph.add("matmul", {"a": x, "b": w}).result
        x = graph.add("relu", {"x": graph.add("add", {"a": x, "b": b}).result}).result
    graph.set_operand(graph.output, "y", x)
    feeds = {"x": rng.normal(0, 1, (5, 6, 8)).astype(np.float32)}
    made = quantized(graph, feeds)
    whole = converted(made, qir.Ledger(), kernels=True)
    heads = [node.stages[0].op if node.stages else node.op for node in whole]
    assert heads.count("linear") == 2
    assert compared(made, feeds) > 400


@pytest.mark.parametrize("way", ["plain", "masked", "chosen", "causal"])
def test_attention_is_close(way: str) -> None:
    rng = np.random.default_rng(2)
    text = (
        "%q = input() : (N)x2x5x4xf32  %k = input() : (N)x2x6x4xf32  %v = input() : (N)x2x6x3xf32"
    )
    graph = qir.parse(f"graph main as native {{ {text}  output(y=%q) }}")
    given = {slot: graph[slot] for slot in "qkv"}
    if way in ("masked", "chosen"):
        mask = rng.normal(size=(5, 6))
        given["mask"] = graph.constant(mask > -1 if way == "chosen" else mask.astype(np.float32))
    made = graph.add("attention", given, {"causal": way == "causal"}).result
    graph.set_operand(graph.output, "y", made)
    shapes = {"q": (3, 2, 5, 4), "k": (3, 2, 6, 4), "v": (3, 2, 6, 3)}
    close(graph, {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()})
