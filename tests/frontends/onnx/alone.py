"""The node tests whose ops QIR knows, run where no framework can be imported.

`python -m tests.frontends.onnx.alone` prints one line of JSON: the cases of quantization, what
differs, how many cases of each operator are kept as foreign ops, and which cases are kept with
constants in place of their inputs though they are read without. The package's own cases need its
evaluator to be made; it is gone before the first is read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
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
    found: dict[str, dict[str, str]] = {
        "quantization": {},
        "differ": {},
        "with constants": {},
        "kept with constants": {},
    }
    kept: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            said = conformance.in_interpreter(case, Path(folder))
            if not QUANTIZATION.isdisjoint(case.ops):
                found["quantization"][case.name] = said
            if said not in (conformance.SAME, conformance.KEPT):
                found["differ"][case.name] = said
            if said == conformance.KEPT:
                kept[case.ops[0] if len(case.ops) == 1 else conformance.COMPOSED] += 1
            elif (held := conformance.with_constants(case)) is not None:
                again = conformance.in_interpreter(held, Path(folder))
                if not QUANTIZATION.isdisjoint(case.ops):
                    found["with constants"][case.name] = again
                if again == conformance.KEPT:
                    found["kept with constants"][case.name] = again
                elif again not in (conformance.SAME, said):
                    found["differ"][case.name] = again
    print(json.dumps({**found, "kept": kept}))


if __name__ == "__main__":
    main()
