"""Networks that are frozen, read, quantized, written, and run by TensorFlow: `make test-zoo`."""

from pathlib import Path

import pytest

import qir
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import to_graphdef
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.loops.unroll import Unroll
from tests.differential.tensorflow.kernels import HAS_VNNI

from .applications import SEED, drawn
from .written import TARGET, close, compared_by_regions, here, quantized

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
QUICK = ("mobilenet", "lstm", "bert")
SHARE = {"mobilenet_v3": 0.8}
"""The least share of multiply-adds in int8 kernels, where it is not 95 %."""
LONG = ("mobilenet_v3", "efficientnet", "convnext")


def frozen(model: object, path: Path) -> qir.Graph:
    """Freezes a Keras model into a file, and reads that; loops become their rounds."""
    from tests.frontends.tensorflow import networks

    path.write_bytes(networks.frozen(model))
    graph = qir.load(path)
    if Unroll().run(graph, qir.Ledger()):
        FoldConstants().run(graph, qir.Ledger())
        graph.prune()
    return graph


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_a_network_computes_in_int8_what_is_predicted(name: str, tmp_path: Path) -> None:
    from tests.frontends.tensorflow.networks import network

    model, x, _ = network(name)
    graph = frozen(model, tmp_path / "model.pb")
    (value,) = graph.inputs
    assert qir.plan(graph, target=TARGET).integer_macs >= SHARE.get(name, 0.95)
    made = quantized(graph, {value.name: drawn(x, 4)})
    qir.save(made, tmp_path / "int8.pb", target=TARGET)
    same = to_graphdef(converted(made, qir.Ledger(), kernels=True))
    assert (tmp_path / "int8.pb").read_bytes() == same.data
    found = compared_by_regions(made, {value.name: drawn(x, 16)}, here)
    print(f"{name}: {found}, seed {SEED}")
    assert found.integers > 10_000
    assert found.far <= 1e-5
    assert found.tied <= 1e-5 * found.integers
    close(graph, {value.name: drawn(x, 2)}, here)
