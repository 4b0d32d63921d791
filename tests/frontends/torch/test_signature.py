"""Files that QIR wrote are read back with the names of inputs and outputs that they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import qir
from qir.ir.graph import Graph
from qir.reference.interpreter import run
from qir.target import target as named_target

TRANSPOSED = """graph main as native {
  %x = input() : 2x4x3x3xf32
  %v = constant(@v) : 4x4x1x1xf32
  %c = conv2d(%x, %v) : 2x4x3x3xf32
  %w = constant(@w) : 4x2x2x2xf32
  %y = conv_transpose2d(%c, %w) {stride = (2, 2)} : 2x2x6x6xf32
  output("c"=%c, "y"=%y)
}
"""
NETWORK = """graph main as native {
  %add = input() : 4x3xf32
  %"1:0" = input() : 4x3xf32
  %w = constant(@w) : 3x5xf32
  %s = add(%add, %"1:0") : 4x3xf32
  %y = matmul(%s, %w) : 4x5xf32
  output("35"=%y, "s/out"=%s)
}
"""


def network() -> Graph:
    """Returns a network whose names are no identifiers, or those of operators."""
    return qir.parse(NETWORK, {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)})


@pytest.mark.parametrize(
    ("target", "suffix"), [("pytorch-x86", "pt"), ("pytorch-fbgemm", "pt"), ("pt2e", "pt2")]
)
def test_names_come_back(target: str, suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    data = {name: rng.normal(size=(4, 3)).astype(np.float32) for name in ("add", "1:0")}
    graph = network()
    quantized = qir.quantize(graph, qir.calibrate(graph, data), target=target)
    path = tmp_path / f"q.{suffix}"
    qir.save(quantized, path, target=target)
    back = qir.load(path)
    assert [value.name for value in back.inputs] == ["add", "1:0"]
    assert list(back.outputs) == ["35", "s/out"]
    theirs = named_target(target).compile_file(path)(**data)
    ours = run(back, data)
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(np.asarray(theirs[name]), ours[name]) for name in ours)


@pytest.mark.parametrize("engine", ["fbgemm", "x86", "onednn", "qnnpack"])
def test_a_file_is_read_by_the_engine_that_it_was_written_for(engine: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    shapes = {"v": (4, 4, 1, 1), "w": (4, 2, 2, 2)}
    weights = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    data = {"x": rng.normal(size=(2, 4, 3, 3)).astype(np.float32)}
    graph = qir.parse(TRANSPOSED, weights)
    target = f"pytorch-{engine}"
    quantized = qir.quantize(graph, qir.calibrate(graph, data), target=target)
    path = tmp_path / "q.pt"
    qir.save(quantized, path, target=target)
    chosen = torch.backends.quantized.engine
    back = qir.load(path)
    assert torch.backends.quantized.engine == chosen
    assert back.profile.endswith(f".{engine}")
    theirs = named_target(target).compile_file(path)(**data)
    integers = ("c", "y") if engine == "fbgemm" else ("c",)  # others transpose in float32
    ours = run(back, data)
    assert all(np.array_equal(np.asarray(theirs[name]), ours[name]) for name in integers)
