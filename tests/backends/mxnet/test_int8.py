"""Networks that QIR quantized for MXNet: each quantized tensor is the one that MXNet computes."""

from __future__ import annotations

import json
import os
import re
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import qir
from qir.backends.mxnet.session import MxnetSession
from qir.errors import Refused
from qir.frontends.mxnet import MxnetFrontend
from qir.frontends.mxnet.parameters import read_parameters
from qir.frontends.mxnet.samples import parameter_bytes
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from tests.frontends.mxnet.recorded_cases import Case, cases
from tests.frontends.mxnet.test_networks import network
from tests.oracles.mxnet_weights import images

from .networks import NETWORKS, data
from .written import TARGET, differing, digest, files, integers, of_mxnet, quantized, recorded

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
DEFECT = "conv2d_add_unsigned"
"""A recorded model in which MXNet writes unsigned integers and calls them signed."""
CASES = [c for c in cases("quantized") if c.name not in (DEFECT, "residual in float")]
ZOO = ("mobilenet0_25", "mobilenet_v2_0_25", "resnet18_v1", "resnet18_v2", "squeezenet1_1")


@pytest.fixture
def mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where MXNet is not there, and says so in a line."""
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): recorded results alone are held"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    monkeypatch.setenv("QIR_MXNET", str(PYTHON))


@lru_cache
def quantized_network(name: str) -> qir.Graph:
    return quantized(NETWORKS[name](), data())


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_written_is_what_mxnet_ran(name: str, tmp_path: Path) -> None:
    said, _ = recorded(name)
    assert digest(files(quantized_network(name), tmp_path)) == said


@pytest.mark.parametrize("name", NETWORKS)
def test_each_quantized_tensor_is_that_of_mxnet(name: str) -> None:
    _, tensors = recorded(name)
    assert len(tensors) > 5
    assert differing(integers(quantized_network(name), data()), tensors) == []


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_read_back_gives_the_same_integers(name: str, tmp_path: Path) -> None:
    _, tensors = recorded(name)
    path = files(quantized_network(name), tmp_path)
    back = qir.load(path, inputs=[data()])
    made: dict[str, Any] = {}
    run(back, {"data": data()}, observe=lambda value, d: made.update({value.name: np.asarray(d)}))
    assert differing(made, tensors) == []
    assert list(back.outputs) == list(quantized_network(name).outputs)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_of_it_is_exact(name: str, tmp_path: Path) -> None:
    ledger = Ledger()
    files(quantized_network(name), tmp_path, ledger)
    assert set(ledger.counts()) == {Change.EXACT}


def ranged_to_nothing(folder: Path) -> Path:
    """Returns a network with a tensor of zeros, calibrated to 0 and 0 as MXNet has it."""
    path = files(quantized_network("pruned"), folder)
    text = path.read_text()
    assert '"255.5"' in text
    path.write_text(text.replace('"255.5"', '"0.000000"').replace('"0.0"', '"0.000000"'))
    return path


def test_a_range_of_nothing_is_read(tmp_path: Path) -> None:
    """MXNet computes the same integers for it as for any other range of a tensor of zeros."""
    _, tensors = recorded("pruned")
    ledger = Ledger()
    graph = MxnetFrontend().load_object(ranged_to_nothing(tmp_path), ledger, [data()])
    made: dict[str, Any] = {}
    run(graph, {"data": data()}, observe=lambda value, d: made.update({value.name: np.asarray(d)}))
    assert differing(made, tensors) == []
    assert set(ledger.counts()) == {Change.EXACT}


def test_what_is_quantized_by_a_range_of_nothing_is_not_claimed(tmp_path: Path) -> None:
    path = files(quantized_network("pruned"), tmp_path)
    path.write_text(re.sub(r'"-?2\.302797"', '"0.000000"', path.read_text()))
    ledger = Ledger()
    MxnetFrontend().load_object(path, ledger, [data()])
    (entry,) = (e for e in ledger if e.change is Change.UNVERIFIED)
    assert entry.subject == "data.q"
    assert "MXNet divides by its range, which is 0 to 0" in entry.reason


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_mxnet_counts_the_same_steps_where_small_values_have_a_range_of_nothing(
    tmp_path: Path,
) -> None:
    """Calibration of values below 5e-7 writes 0 to 0."""
    path = files(quantized_network("pruned"), tmp_path)
    store = path.with_name("model-0000.params")
    held = {name: np.array(array) for name, array in read_parameters(store).items()}
    for name in ("constant_1", "constant_2"):  # weights and bias of the first layer
        held[name] *= np.float32(1e-8)
    store.write_bytes(parameter_bytes({f"arg:{name}": array for name, array in held.items()}))
    symbol = json.loads(path.read_text())
    (layer,) = (node for node in symbol["nodes"] if node["name"] == "relu.q")
    layer["attrs"].update(min_calib_range="0.000000", max_calib_range="0.000000")
    path.write_text(json.dumps(symbol))
    theirs = of_mxnet(MxnetSession(path).run({"data": data()}, all_nodes=True))
    assert len(np.unique(theirs["relu.q"])) > 50
    made: dict[str, Any] = {}
    graph = MxnetFrontend().load_object(path, Ledger(), [data()])
    run(graph, {"data": data()}, observe=lambda value, d: made.update({value.name: np.asarray(d)}))
    assert differing(made, theirs) == []


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_mxnet_dequantizes_a_range_of_nothing_to_0(tmp_path: Path) -> None:
    symbol = {
        "nodes": [
            {"op": "null", "name": "low", "inputs": []},
            {"op": "null", "name": "q", "inputs": []},
            {"op": "_contrib_dequantize", "name": "y", "inputs": [[1, 0, 0], [0, 0, 0], [0, 0, 0]]},
        ],
        "arg_nodes": [0, 1],
        "heads": [[2, 0, 0]],
    }
    path = tmp_path / "model-symbol.json"
    path.write_text(json.dumps(symbol))
    held = {"low": np.zeros(1, np.float32), "q": np.array([[-128, -1, 0, 127]], np.int8)}
    path.with_name("model-0000.params").write_bytes(parameter_bytes(held))
    (theirs,) = MxnetSession(path).run({}).values()
    (ours,) = qir.run(qir.load(path), {}).values()
    assert ours.tobytes() == theirs.tobytes()
    assert not ours.any()


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_mxnet_runs_a_range_of_nothing_so(tmp_path: Path) -> None:
    theirs = of_mxnet(
        MxnetSession(ranged_to_nothing(tmp_path)).run({"data": data()}, all_nodes=True)
    )
    assert differing(recorded("pruned")[1], theirs) == []


def test_layers_are_fused_as_mxnet_fuses_them(tmp_path: Path) -> None:
    path = files(quantized_network("residual"), tmp_path)
    nodes = json.loads(path.read_text())["nodes"]
    layers = [n["attrs"] for n in nodes if n["op"] == "_sg_mkldnn_conv"]
    flags = ("with_act", "with_sum", "with_postsum_act")
    assert [[f for f in flags if a.get(f) == "true"] for a in layers] == [
        ["with_act"],
        ["with_sum", "with_postsum_act"],
        [],
        ["with_sum"],
        ["with_sum", "with_postsum_act"],
    ]
    kinds = {n["op"] for n in nodes} - {"null"}
    assert kinds == {"_contrib_quantize_v2", "_sg_mkldnn_conv", "_contrib_dequantize"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_that_mxnet_quantized_is_written_with_its_integers(
    case: Case, tmp_path: Path
) -> None:
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    path = tmp_path / "again-symbol.json"
    qir.save(graph, path, target=TARGET, format="int8")
    back = qir.load(path, inputs=case.given())
    made: dict[str, Any] = {}
    run(back, case.inputs, observe=lambda value, d: made.update({value.name: np.asarray(d)}))
    wanted = of_mxnet(case.inner)
    assert wanted
    assert differing(made, wanted) == []


def test_what_mxnet_adds_wrongly_is_not_written_unasked(tmp_path: Path) -> None:
    case = next(case for case in cases("quantized") if case.name == DEFECT)
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    with pytest.raises(Refused, match="MXNet adds uint8 wrongly where no activation follows"):
        qir.save(graph, tmp_path / "again-symbol.json", target=TARGET, format="int8")


def test_weights_that_no_kernel_makes_again_are_nudged(tmp_path: Path) -> None:
    """Weights of which none is 127 or -128, as other tools make them, get another scale."""
    graph = quantized_network("residual").copy()
    node = next(n for n in graph if n.op == "constant" and n.result.type.quant is not None)
    held = node.attrs["data"]
    assert isinstance(held, Array)
    kind = TensorType(held.type.shape, held.type.element)
    smaller = Array(np.clip(held.data, -90, 90).astype(np.int8), kind)
    graph.set_attrs(node, data=smaller)
    ledger = Ledger()
    with pytest.raises(Refused, match="another scale"):
        files(graph, tmp_path, ledger)
    (entry,) = (e for e in ledger if e.change is Change.NUDGED)
    assert entry.codes > 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
@pytest.mark.parametrize("name", [*NETWORKS, *ZOO])
def test_mxnet_computes_what_is_predicted(name: str, tmp_path: Path) -> None:
    if name in NETWORKS:
        graph, x = quantized_network(name), data()
    else:
        held = network(name)
        x = images(2, held.side)
        graph = quantized(qir.load(held.write(tmp_path), inputs=[("n", *x.shape[1:])]), x)
    ledger = Ledger()
    path = files(graph, tmp_path, ledger)
    assert set(ledger.counts()) == {Change.EXACT}
    theirs = of_mxnet(MxnetSession(path).run({"data": x}, all_nodes=True))
    assert len(theirs) > 5
    assert differing(integers(graph, x), theirs) == []


def rescaled() -> qir.Graph:
    """Integers of one scale that a layer reads by another, as TensorFlow's files have them."""
    first, second = "!quant.uniform<u8:f32, 0.00390625>", "!quant.uniform<u8:f32, 0.0078125>"
    return qir.parse(
        "graph rescaled as native { %x = input() : 2x8xf32"
        f" %q = quantize(%x) : 2x8x{first} %r = recode(%q) : 2x8x{second}"
        " %y = dequantize(%r) : 2x8xf32 output(y=%y) }"
    )


def test_the_same_integers_of_another_scale_are_given_its_range(tmp_path: Path) -> None:
    graph, x = rescaled(), np.linspace(-0.1, 1.1, 16, dtype=np.float32).reshape(2, 8)
    path = files(graph, tmp_path)
    (wanted,) = qir.run(graph, {"x": x}).values()
    (found,) = qir.run(qir.load(path, inputs=[x]), {"x": x}).values()
    assert np.array_equal(found, wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_mxnet_reads_integers_by_another_range(tmp_path: Path) -> None:
    graph, x = rescaled(), np.linspace(-0.1, 1.1, 16, dtype=np.float32).reshape(2, 8)
    (wanted,) = qir.run(graph, {"x": x}).values()
    (theirs,) = MxnetSession(files(graph, tmp_path)).run({"x": x}).values()
    assert np.array_equal(theirs, wanted)


def test_kernels_with_channels_last_alone_are_turned(tmp_path: Path) -> None:
    """Their layout stands in a stage of theirs: it was not seen, and what was written is wrong."""
    tensor, w = "!quant.uniform<u8:f32, 0.0078125>", "!quant.uniform<i8:f32:0, {0.01, 0.02}>"
    x = np.random.default_rng(0).uniform(0, 2, (2, 5, 5, 3)).astype(np.float32)
    weights = np.random.default_rng(1).integers(-127, 128, (2, 3, 3, 3)).astype(np.int8)
    weights[:, 0, 0, 0] = 127
    graph = qir.parse(
        "graph last as mxnet-1.9 { %x = input() : 2x5x5x3xf32"
        f" %w = constant(@w) : 2x3x3x3x{w} %q = quantize(%x) : 2x5x5x3x{tensor}"
        f' %c = conv2d(%q, %w) {{layout = "NHWC"}} |> relu : 2x3x3x2x{tensor}'
        " %y = dequantize(%c) : 2x3x3x2xf32 output(y=%y) }",
        {"w": weights},
    )
    (wanted,) = qir.run(graph, {"x": x}).values()
    (found,) = qir.run(qir.load(files(graph, tmp_path), inputs=[x]), {"x": x}).values()
    assert np.array_equal(found, wanted)


class _Attention(nn.Module):
    """A layer of attention between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 4, -1)
        made: Tensor = self.norm(x + self.o(shares @ self.v(x)))
        return made


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_each_op_gives_mxnets_integers_on_mxnets_floats(tmp_path: Path) -> None:
    """MXNet adds floats in an order of its own, so whole runs may part next to a tie."""
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(4, 32, 16)).astype(np.float32)
    graph = qir.load(_Attention().eval(), inputs=(torch.from_numpy(x),))
    path = files(quantized(graph, x), tmp_path)
    (name,) = (value.name for value in graph.inputs)
    theirs = of_mxnet(MxnetSession(path).run({name: x}, all_nodes=True))
    parting, compared = [], 0

    def forced(value: Value, made: NDArray[np.generic]) -> NDArray[np.generic] | None:
        nonlocal compared
        wanted = theirs.get(value.name)
        if wanted is None or wanted.shape != made.shape:
            return None
        if wanted.dtype.kind in "iu":
            compared += wanted.size
            parting.extend([value.name] * (not np.array_equal(made, wanted)))
        return wanted

    run(qir.load(path, inputs=[x]), {name: x}, observe=forced)
    assert parting == []
    assert compared > 10000


def test_the_label_of_a_loss_needs_no_data(mxnet: None, tmp_path: Path) -> None:
    """Networks of MXNet's Module end in losses, whose labels no file of data holds."""
    names = ("data", "w", "softmax_label")
    nodes: list[dict[str, object]]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    attrs = {"num_hidden": "2", "no_bias": "True"}
    nodes += [
        {"op": "FullyConnected", "name": "y", "attrs": attrs, "inputs": [[0, 0, 0], [1, 0, 0]]},
        {"op": "SoftmaxOutput", "name": "softmax", "inputs": [[3, 0, 0], [2, 0, 0]]},
    ]
    text = {"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[4, 0, 0]]}
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(text), encoding="utf-8")
    held = parameter_bytes({"arg:w": np.eye(2, dtype=np.float32)})
    path.with_name("net-0000.params").write_bytes(held)
    (made,) = (
        MxnetSession(path, ("softmax",))
        .run({"data": np.array([[0, 0], [0, np.log(3)]], np.float32)})
        .values()
    )
    assert np.allclose(made, [[0.5, 0.5], [0.25, 0.75]])
