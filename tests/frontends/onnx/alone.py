"""The node tests whose ops QIR knows, run where no framework can be imported.

`python -m tests.frontends.onnx.alone` prints one line of JSON: the cases of quantization, and what
differs. The package's own cases need its evaluator to be made; it is gone before the first is read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

FRAMEWORKS = ("onnxruntime", "torch", "tensorflow", "mxnet", "onnx.reference")
QUANTIZATION = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "MatMulInteger".split()
)


def main() -> None:
    """Runs them."""
    for name in FRAMEWORKS[:-1]:
        sys.modules[name] = None  # type: ignore[assignment]
    from tests.frontends.onnx import conformance

    cases = conformance.cases()
    sys.modules[FRAMEWORKS[-1]] = None  # type: ignore[assignment]
    found: dict[str, dict[str, str]] = {"quantization": {}, "differ": {}}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            said = conformance.in_interpreter(case, Path(folder))
            if not QUANTIZATION.isdisjoint(case.ops):
                found["quantization"][case.name] = said
            if said not in (conformance.SAME, conformance.KEPT):
                found["differ"][case.name] = said
    print(json.dumps(found))


if __name__ == "__main__":
    main()
