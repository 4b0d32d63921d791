"""Models with signed data, as TensorFlow and MXNet have them, run on kernels that take u8 alone."""

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


@pytest.mark.parametrize("engine", ["x86", "onednn", "fbgemm"])
def test_signed_data_are_written_as_unsigned(engine: str, tmp_path: Path) -> None:
    graph, data = quantized("mobile", "tensorflow-onednn")
    signed = [v for v in graph.values.values() if v.node.op == "quantize" and "i8" in str(v.type)]
    assert signed, "the first layer reads signed data"
    path = tmp_path / "int8.pt"
    pipeline.save(graph, path, target=f"pytorch-{engine}")
    read = pipeline.load(path)
    kinds = {str(v.type.quant.storage) for v in read.values.values() if v.type.quant}
    assert kinds == {"u8", "i8"}, "weights stay i8"
    held = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = engine
        program = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        made = program(torch.from_numpy(data[:2]))
    finally:
        torch.backends.quantized.engine = held
    theirs = (made[0] if isinstance(made, tuple | list) else made).numpy()
    ours = next(iter(pipeline.run(read, {read.inputs[0].name: data[:2]}).values()))
    if engine != "fbgemm":  # a file does not name its engine, and is read as one of x86
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=1e-5)
    wrong, total = differing(
        target(f"pytorch-{engine}"), watched(read), {read.inputs[0].name: data[:2]}
    )
    assert total > 1_000
    assert wrong == 0, f"{wrong} of {total} integers differ"
