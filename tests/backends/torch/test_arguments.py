"""Programs whose inputs have names that Python keeps for itself, and numbers without an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import max_pool2d, pad

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.reference.interpreter import run
from qir.target import target

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
X = -torch.rand(1, 2, 8, 8, generator=torch.Generator().manual_seed(4)) - 0.5
POOL = "{kernel = (3, 3), stride = (2, 2), pad = (0, 0, 1, 1)}"
TARGETS = [
    *((f"pytorch-{engine}", "pt") for engine in ("x86", "fbgemm", "onednn", "qnnpack")),
    ("pytorch-x86", "pt2"),
    ("pt2e", "pt2"),
]


def pools(*names: str) -> Graph:
    """Returns a graph that pools inputs of those names, each padded on one side."""
    made = "".join(
        f'  %"{n}" = input() : 1x2x8x8xf32\n  %y{i} = max_pool2d(%"{n}") {POOL} : 1x2x4x4xf32\n'
        for i, n in enumerate(names)
    )
    outputs = ", ".join(f"y{i}=%y{i}" for i in range(len(names)))
    return parse(f"graph main as native {{\n{made}  output({outputs})\n}}\n")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "suffix"), TARGETS)
def test_names_of_inputs_come_back(name: str, suffix: str, tmp_path: Path) -> None:
    names = ["in", "import", "inf", "float", "self", "a.b", "a_b"]
    path = tmp_path / f"m.{suffix}"
    qir.save(pools(*names), path, target=name)
    again = qir.load(path)
    assert [value.name for value in again.inputs] == names
    given = {n: (X - i).numpy() for i, n in enumerate(names)}
    found = target(name).compile(again)(**given)
    for i in range(len(names)):
        wanted = max_pool2d(pad(X - i, (0, 1, 0, 1), value=float("-inf")), 3, 2)
        assert np.array_equal(np.asarray(found[f"y{i}"]), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["u8:f32, 0.03:250", "i8:f32, 0.03:20"])
@pytest.mark.parametrize("engine", ["x86", "fbgemm", "onednn", "qnnpack"])
def test_integers_are_padded_by_the_lowest(engine: str, kind: str, tmp_path: Path) -> None:
    kind = f"!quant.uniform<{kind}>"
    graph = parse(
        f"graph main as native {{\n  %x = input() : 1x2x8x8xf32\n"
        f"  %q = quantize(%x) : 1x2x8x8x{kind}\n"
        f"  %p = max_pool2d(%q) {POOL} : 1x2x4x4x{kind}\n"
        f"  %y = dequantize(%p) : 1x2x4x4xf32\n  output(y=%y)\n}}\n"
    )
    scale, zero, storage = (0.03, 250, torch.quint8) if "u8" in kind else (0.03, 20, torch.qint8)
    x = 5 * X
    floats = torch.quantize_per_tensor(x, scale, zero, storage).dequantize()
    wanted = max_pool2d(pad(floats, (0, 1, 0, 1), value=float("-inf")), 3, 2)
    path = tmp_path / "m.pt"
    qir.save(graph, path, target=f"pytorch-{engine}")
    opened: Any = torch.jit.load
    assert torch.equal(opened(str(path))(x), wanted)
    (predicted,) = run(qir.load(path), {"x": x.numpy()}).values()
    assert np.array_equal(predicted, wanted)
