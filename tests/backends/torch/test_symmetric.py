"""The target of symmetric activations: FBGEMM computes what the reference says, to the byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qir import pipeline
from qir.target import target

from .networks import differing, quantized, watched

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
NAME = "pytorch-fbgemm-symmetric"


def test_every_quantized_tensor_is_that_of_torch(tmp_path: Path) -> None:
    graph, data = quantized("mobile", NAME)
    kinds = [node.result.type.quant for node in graph if node.op == "quantize"]
    free = [kind for kind in kinds if kind is not None and kind.scales() != np.float32(2**-8)]
    assert len(free) > 10
    assert {int(np.asarray(kind.zeros())) for kind in free} == {64}, "7 bits about their middle"
    wrong, total = differing(target(NAME), watched(graph), {graph.inputs[0].name: data[:3]})
    assert total > 5_000
    assert wrong == 0, f"{wrong} of {total} integers differ"
    pipeline.save(graph, tmp_path / "int8.pt", target=NAME)
    assert len(pipeline.load(tmp_path / "int8.pt")) > len(graph) // 2
