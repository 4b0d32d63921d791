"""What the last public wheel of Intel's TensorFlow registers and computes: `make oracle-itex`."""

from pathlib import Path

import numpy as np

import qir

VECTORS = Path(__file__).parents[1] / "vectors" / "itex"
WRITTEN_BY_NEURAL_COMPRESSOR = (
    "_FusedQuantizedConv3D",
    "_FusedQuantizedDeconv2D",
    "_FusedQuantizedDeconv3D",
    "_QuantizedBatchMatMul",
    "_QuantizedBatchMatMulV2AndDequantize",
    "_QuantizedFusedBatchNorm",
    "_QuantizedFusedInstanceNorm",
    "_QuantizedTranspose",
    "QuantizedReluX",
)


def registered() -> list[str]:
    return (VECTORS / "registered.txt").read_text(encoding="utf-8").splitlines()[1:]


def test_the_wheel_has_no_kernel_that_stock_tensorflow_lacks() -> None:
    found = set(registered())
    assert not found & set(WRITTEN_BY_NEURAL_COMPRESSOR)
    assert {"_FusedQuantizedConv2D", "_FusedQuantizedDepthwiseConv2D"} <= found
    assert "_QuantizedMatMul" not in found


def test_its_convolutions_compute_what_is_predicted() -> None:
    graph = qir.load(VECTORS / "network.pb")
    x = np.load(VECTORS / "inputs.npz")["x"]
    (found,) = qir.run(graph, {"x": x}).values()
    assert np.array_equal(found, np.load(VECTORS / "results.npz")["y"])
