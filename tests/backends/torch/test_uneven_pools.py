"""Average pools that leave uneven padding out run in PyTorch, between quantized layers too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import qir
from qir.target import target

GRAPH = """graph main as native {
  %x = input() : 2x3x20x28xf32
  %w = constant(@w) : 4x3x3x3xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : 2x4x20x28xf32
  %r = relu(%c) : 2x4x20x28xf32
  %a = avg_pool2d(%r) {kernel = (3, 3), stride = (2, 2), pad = (0, 0, 1, 1)} : 2x4x10x14xf32
  %m = max_pool2d(%r) {kernel = (3, 3), stride = (2, 2), pad = (0, 0, 1, 1)} : 2x4x10x14xf32
  %y = concat(xs.0=%a, xs.1=%m) {axis = 1} : 2x8x10x14xf32
  output(y=%y)
}"""


@pytest.mark.parametrize("engine", ["pytorch-x86", "pytorch-fbgemm", "pytorch-qnnpack"])
def test_a_pool_of_uneven_padding_stays_float_between_quantized_layers(
    engine: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    graph = qir.parse(GRAPH, {"w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32)})
    x = rng.normal(size=(2, 3, 20, 28)).astype(np.float32)
    pool = next(d for d in qir.plan(graph, target=engine).decisions if d.op == "avg_pool2d")
    assert pool.becomes == "float"
    assert "uneven padding" in pool.reason
    quantized = qir.quantize(graph, qir.calibrate(graph, [x]), target=engine)
    qir.save(quantized, tmp_path / "m.pt", target=engine, format="torchscript")
    found = np.asarray(torch.jit.load(tmp_path / "m.pt")(torch.from_numpy(x)))  # type: ignore[no-untyped-call]
    (wanted,) = qir.run(qir.load(tmp_path / "m.pt"), {"x": x}).values()
    assert np.array_equal(found, wanted)


def test_a_quantized_pool_of_uneven_padding_is_written_in_float() -> None:
    u8 = "!quant.uniform<u8:f32, 0.5:3>"
    graph = qir.parse(
        f"graph main as torch-2.13.fbgemm {{ %x = input() : 1x2x4x4x{u8} %y = avg_pool2d(%x) "
        "{kernel = (3, 3), stride = (2, 2), pad = (0, 0, 1, 1)}"
        f" : 1x2x2x2x{u8} output(y=%y) }}"
    )
    x = np.random.default_rng(6).integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)
    found = np.asarray(target("pytorch-fbgemm").compile(graph)(x=x)["y"])
    windows = [x[0, c, i : i + 3, j : j + 3].mean() for c in (0, 1) for i in (0, 2) for j in (0, 2)]
    assert np.array_equal(found.ravel(), np.rint(windows))
