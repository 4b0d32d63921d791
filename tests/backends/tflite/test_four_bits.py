"""Linear layers whose weights have 4 bits: two in a byte, and the interpreter's bytes."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from qir.errors import SchemeError
from qir.frontends.tflite.model_file import TfliteFile
from tests.backends.tensorflow.networks import Net
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import TARGET, compared, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
FOUR = "i4 symmetric channel"


def _network(channels: int, size: int) -> Net:
    net = Net(channels, size, 3)
    net.ends(net.dense(net.relu(net.dense(net.op("flatten", net.x), 20)), 7))
    return net


def _weights(graph: qir.Graph) -> list[str]:
    held = (v.type.quant for n in graph for v in n.operands.values() if v.constant is not None)
    return [str(quant.storage) for quant in held if quant is not None]


@pytest.mark.parametrize("size", [5, 12])
def test_layers_that_quantize_their_data_take_weights_of_4_bits(size: int, tmp_path: Path) -> None:
    net = _network(8, size)
    made = qir.quantize(net.graph, dynamic=True, target=TARGET, rules=[f"op=* slot=w: {FOUR}"])
    whole, feeds = converted(made, qir.Ledger()), net.feeds(5)
    assert _weights(whole) == ["i4", "i4"]
    content = to_tflite(whole)
    (found,) = TfliteSession(content, 1)(**feeds).values()
    (wanted,) = qir.run(whole, feeds).values()
    assert np.array_equal(np.asarray(found), wanted)
    path = tmp_path / "four.tflite"
    path.write_bytes(content)
    (again,) = qir.run(qir.load(path), feeds).values()
    assert np.array_equal(again, wanted)
    (subgraph,) = TfliteFile(path).subgraphs
    layers = [each for each in subgraph.operators if each.op == "FULLY_CONNECTED"]
    assert [each.version for each in layers] == [10, 10]
    plain = qir.quantize(net.graph, dynamic=True, target=TARGET)
    saved = len(to_tflite(converted(plain, qir.Ledger()))) - len(content)
    assert saved >= (8 * size * size * 20 + 20 * 7) // 2 - 64


@pytest.mark.parametrize("target", ["tflite", "tflite-16x8"])
@pytest.mark.parametrize("shape", [(8, 12), (3, 3)])
def test_layers_on_integers_take_weights_of_4_bits(shape: tuple[int, int], target: str) -> None:
    net = _network(*shape)
    statistics = qir.calibrate(net.graph, [net.feeds(4)])
    rules = [f"op=gemm slot=b: {FOUR}"]
    made = qir.quantize(net.graph, statistics, target=target, rules=rules)
    whole = converted(made, qir.Ledger())
    assert kernels(whole) == ["flatten", "linear |> relu", "linear"]
    assert _weights(whole).count("i4") == 2
    assert compared(made, net.feeds(3)).integers > 200


def test_what_has_no_kernel_of_4_bits_is_float_or_refused() -> None:
    net = _network(3, 3)  # rows of 27 weights
    made = qir.quantize(net.graph, dynamic=True, target=TARGET, rules=[f"op=* slot=w: {FOUR}"])
    ledger = qir.Ledger()
    assert _weights(converted(made, ledger)) == ["i4"]
    assert ["odd length" in e.reason for e in ledger if "in float" in e.reason] == [True]
    net = Net(3, 8, 1)
    net.ends(net.conv(net.x, 4))
    with pytest.raises(SchemeError, match="i8 and u8, not i4"):
        qir.quantize(net.graph, dynamic=True, target=TARGET, rules=[f"op=* slot=w: {FOUR}"])
