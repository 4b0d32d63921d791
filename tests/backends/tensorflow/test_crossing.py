"""Networks that cross from one framework to another: their bytes are what the profiles predict."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qir
from qir.ledger import Change
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import target
from tests.differential.tensorflow.kernels import HAS_VNNI
from tests.installed import OPTIMIZED

from .networks import residual
from .written import TARGET, Array, compared_by_regions, in_a_child, quantized, sums

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not HAS_VNNI, reason="the profiles speak of processors with VNNI"),
    pytest.mark.slow,
]
NEAR = 1e-4


@pytest.fixture(scope="module")
def keras() -> tuple[object, qir.Graph]:
    """A network of convolutions, one of them depthwise, with batch normalization and relu6."""
    layers, drawn = tf.keras.layers, {"bias_initializer": "random_normal"}
    tf.keras.utils.set_random_seed(5)
    x = given = layers.Input((20, 20, 3), name="image")
    x = layers.ReLU()(layers.Conv2D(8, 3, 2, "same", **drawn)(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization(beta_initializer="random_normal")(x))
    x = layers.MaxPooling2D(2)(layers.Conv2D(12, 1, **drawn)(x))
    model = tf.keras.Model(given, layers.Dense(10, **drawn)(layers.Flatten()(x)))
    return model, qir.load(model)


def drawn(*shape: int) -> Array:
    """Inputs beyond those that were calibrated with: values saturate."""
    return (1.5 * np.random.default_rng(4).normal(size=shape)).astype(np.float32)


X = drawn(128, 20, 20, 3)


def one(found: object) -> Array:
    """Returns the only result of a network."""
    (array,) = found.values()  # type: ignore[attr-defined]
    return np.asarray(array)


def optimized(path: Path) -> Counter[str]:
    """Counts the operators that onnxruntime runs of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def in_onnxruntime(path: Path, x: Array = X) -> Array:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def near(found: Array, wanted: Array) -> bool:
    most = float(np.max(np.abs(np.asarray(wanted, np.float32))))
    return np.allclose(found, wanted, rtol=0, atol=NEAR * most)


def test_keras_in_float_is_the_same_in_every_framework(
    keras: tuple[object, qir.Graph], tmp_path: Path
) -> None:
    model, graph = keras
    wanted = np.asarray(model(X, training=False))  # type: ignore[operator]
    qir.save(graph, tmp_path / "a.onnx")
    assert near(in_onnxruntime(tmp_path / "a.onnx"), wanted)
    for name in ("pytorch-x86", TARGET):
        assert near(one(target(name).compile(graph)(image=X)), wanted)


@pytest.mark.parametrize(("size", "kernel", "stride"), [(17, 2, 2), (9, 2, 1), (10, 3, 2)])
def test_means_of_uneven_padding_are_keras_in_pytorch_and_mxnet(
    size: int, kernel: int, stride: int, tmp_path: Path
) -> None:
    x = drawn(2, size, size, 3)
    given = tf.keras.layers.Input(x.shape[1:])
    pooled = tf.keras.layers.AveragePooling2D(kernel, stride, padding="same")(given)
    model = tf.keras.Model(given, pooled)
    graph, wanted = qir.load(model), np.asarray(model(x))
    (name,) = (value.name for value in graph.inputs)
    assert near(one(target("pytorch-x86").compile(graph)(**{name: x})), wanted)
    qir.save(graph, tmp_path / "m-symbol.json", target="mxnet-onednn")
    back = qir.load(tmp_path / "m-symbol.json")
    assert near(one(qir.run(back, {back.inputs[0].name: x})), wanted)


def test_layers_of_both_directions_are_keras_in_pytorch() -> None:
    layers, x = tf.keras.layers, drawn(3, 9, 6)
    given = layers.Input(x.shape[1:])
    made = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(given)
    model = tf.keras.Model(given, layers.Bidirectional(layers.GRU(5))(made[:, ::-1]))
    graph, wanted = qir.load(model), np.asarray(model(x, training=False))
    (name,) = (value.name for value in graph.inputs)
    assert near(one(target("pytorch-x86").compile(graph)(**{name: x})), wanted)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_tensorflows_int8_file_becomes_onnx(
    form: str, keras: tuple[object, qir.Graph], tmp_path: Path
) -> None:
    made = quantized(keras[1], {"image": X[:4]})
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    back = qir.load(tmp_path / "int8.pb")
    ledger = qir.Ledger()
    qir.save(back, tmp_path / "int8.onnx", target="onnxruntime", format=form, ledger=ledger)
    ran = optimized(tmp_path / "int8.onnx")
    assert (ran["QLinearConv"], ran["QGemm"]) == (3, 1)
    assert not {"Conv", "FusedConv", "Gemm", "Max"} & set(ran)
    told = [e for e in ledger if e.step == "round-biases"]
    assert [(e.change, e.codes) for e in told] == [(Change.NUDGED, 1.0)] * 4
    crossed = qir.load(tmp_path / "int8.onnx")
    assert (back.profile, crossed.profile) == ("tf-2.21.onednn", OPTIMIZED)
    crossed = run_passes(crossed, [Group(OPTIMIZED)], qir.Ledger())
    predicted = [one(qir.run(graph, {"image": X})) for graph in (back, crossed)]
    computed = [
        one(target(TARGET).compile_file(tmp_path / "int8.pb")(image=X)),
        in_onnxruntime(tmp_path / "int8.onnx"),
    ]
    for ours, theirs in zip(predicted, computed, strict=True):
        assert np.array_equal(ours, theirs)
    differ = predicted[0] != predicted[1]
    assert np.array_equal(differ, computed[0] != computed[1])
    step = float(np.unique(np.abs(predicted[0][predicted[0] != 0])).min())
    assert np.allclose(predicted[0], predicted[1], rtol=0, atol=1.01 * step)
    assert differ.mean() < 0.1


def test_tensorflows_int8_file_becomes_a_program_of_pytorch(
    keras: tuple[object, qir.Graph], tmp_path: Path
) -> None:
    name = "pytorch-x86"
    made = quantized(keras[1], {"image": X[:4]})
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    back = qir.load(tmp_path / "int8.pb")
    qir.save(back, tmp_path / "int8.pt", target=name)
    crossed = qir.load(tmp_path / "int8.pt")
    assert list(crossed.outputs) == list(back.outputs)
    predicted = one(
        qir.run(run_passes(crossed, [Group(target(name).profile)], qir.Ledger()), {"image": X})
    )
    assert np.array_equal(one(target(name).compile_file(tmp_path / "int8.pt")(image=X)), predicted)
    wanted = one(qir.run(back, {"image": X}))
    step = float(np.unique(np.abs(wanted[wanted != 0])).min())
    assert np.allclose(predicted, wanted, rtol=0, atol=1.01 * step)


@pytest.mark.parametrize("seed", [3, 5])
def test_tensorflows_sums_become_integer_kernels_where_one_step_moves(
    seed: int, tmp_path: Path
) -> None:
    net = residual(seed)
    made, x = quantized(net.graph, net.feeds(8)), net.feeds(16)
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    back = qir.load(tmp_path / "int8.pb")
    added = [node for node, _ in sums(back)]
    convolutions = [n for n in back if "conv2d" in (n.op, *(s.op for s in n.stages[:1]))]
    assert 0 < len(added) < len(convolutions)
    for form in ("qdq", "qoperator"):
        path = tmp_path / f"{form}.onnx"
        ledger = qir.Ledger()
        qir.save(back, path, target="onnxruntime", format=form, ledger=ledger)
        told = [e for e in ledger if e.step == "split-sums"]
        assert [(e.change, e.codes) for e in told] == [(Change.NUDGED, 1.0)] * len(added)
        ran = optimized(path)
        assert ran["QLinearConv"] == len(convolutions)
        assert ran["QLinearAdd"] >= len(added)
        assert not {"Conv", "FusedConv"} & set(ran)
        crossed = run_passes(qir.load(path), [Group(OPTIMIZED)], qir.Ledger())
        predicted = one(qir.run(crossed, x))
        step = float(np.unique(np.abs(predicted[predicted != 0])).min())
        found = in_onnxruntime(path, x["x"])
        assert np.array_equal(found, predicted)
        reference = one(target(TARGET).compile_file(tmp_path / "int8.pb")(**x))
        assert np.allclose(found, reference, rtol=0, atol=4.01 * step)


def test_tensorflows_sums_become_kernels_of_pytorch(tmp_path: Path) -> None:
    name, net = "pytorch-x86", residual(3)
    made, x = quantized(net.graph, net.feeds(8)), net.feeds(16)
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    back, ledger = qir.load(tmp_path / "int8.pb"), qir.Ledger()
    qir.save(back, tmp_path / "int8.pt", target=name, ledger=ledger)
    told = [e for e in ledger if e.step == "split-sums"]
    assert [(e.change, e.codes) for e in told] == [(Change.NUDGED, 1.0)] * 2
    crossed = qir.load(tmp_path / "int8.pt")
    convolutions = [n for n in crossed if "conv2d" in (n.op, *(s.op for s in n.stages))]
    assert all(n.result.type.quant for n in convolutions)
    predicted = one(qir.run(run_passes(crossed, [Group(target(name).profile)], qir.Ledger()), x))
    assert np.array_equal(one(target(name).compile_file(tmp_path / "int8.pt")(**x)), predicted)


def test_tensorflows_int8_files_are_exported_programs_on_integers(
    keras: tuple[object, qir.Graph], tmp_path: Path
) -> None:
    net = residual(3)
    made = {"padded": (quantized(keras[1], {"image": X[:4]}), {"image": X[:16]})}
    made["sums"] = (quantized(net.graph, net.feeds(8)), net.feeds(16))
    for name, (graph, x) in made.items():
        first, path = tmp_path / f"{name}.pb", tmp_path / f"{name}.pt2"
        qir.save(graph, first, target=TARGET)
        back = qir.load(first)
        qir.save(back, path, target="pt2e")
        crossed = qir.load(path)
        layers = [
            d for d in qir.plan(crossed, target="pt2e").decisions if d.op in ("conv2d", "linear")
        ]
        assert layers
        assert all(layer.integer for layer in layers), name
        grouped = run_passes(crossed, [Group(target("pt2e").profile)], qir.Ledger())
        predicted = one(qir.run(grouped, x))
        assert np.array_equal(one(target("pt2e").compile(crossed)(**x)), predicted), name
        wanted = one(qir.run(back, x))
        step = float(np.unique(np.abs(predicted[predicted != 0])).min())
        assert np.allclose(predicted, wanted, rtol=0, atol=4.01 * step), name


@pytest.mark.parametrize("name", ["pytorch-x86", "pytorch-fbgemm", "pytorch-onednn"])
def test_keras_in_pytorchs_int8_kernels_is_what_is_predicted(
    name: str, keras: tuple[object, qir.Graph]
) -> None:
    graph = keras[1]
    statistics = qir.calibrate(graph, [{"image": X[:4]}])
    made, backend = qir.quantize(graph, statistics, target=name), target(name)
    grouped = backend.computed(made, qir.Ledger())
    assert grouped is not None
    found = one(backend.compile(made)(image=X))
    assert np.array_equal(found, one(qir.run(grouped, {"image": X}, profile=backend.profile)))


def test_pytorch_in_tensorflows_int8_kernels_is_what_is_predicted() -> None:
    torch.manual_seed(5)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 12, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 25, 10),
    ).eval()  # fmt: skip
    x = drawn(16, 3, 20, 20)
    graph = qir.load(model, inputs=(torch.from_numpy(x),))
    (given,) = (value.name for value in graph.inputs)
    wanted = model(torch.from_numpy(x)).detach().numpy()
    assert near(one(target(TARGET).compile(graph)(**{given: x})), wanted)
    made = quantized(graph, {given: x[:16]})
    found = compared_by_regions(made, {given: x}, in_a_child)
    assert found.integers > 10_000
    assert found.tied == 0
