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
    """Runs the cases and prints what they gave."""
    # An import of None raises ImportError.
    for name in FRAMEWORKS[:-1]:
        sys.modules[name] = None  # type: ignore[assignment]
    from tests.frontends.onnx import conformance

    cases = conformance.cases()
    sys.modules[FRAMEWORKS[-1]] = None  # type: ignore[assignment]
    report: dict[str, dict[str, str]] = {
        "quantization": {},
        "differ": {},
        "with constants": {},
        "kept with constants": {},
    }
    kept_counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            result = conformance.in_interpreter(case, Path(folder))
            if not QUANTIZATION.isdisjoint(case.ops):
                report["quantization"][case.name] = result
            if result not in (conformance.SAME, conformance.KEPT):
                report["differ"][case.name] = result
            if result == conformance.KEPT:
                kept_counts[case.ops[0] if len(case.ops) == 1 else conformance.COMPOSED] += 1
            elif (constant_case := conformance.with_constants(case)) is not None:
                constant_result = conformance.in_interpreter(constant_case, Path(folder))
                if not QUANTIZATION.isdisjoint(case.ops):
                    report["with constants"][case.name] = constant_result
                if constant_result == conformance.KEPT:
                    report["kept with constants"][case.name] = constant_result
                elif constant_result not in (conformance.SAME, result):
                    report["differ"][case.name] = constant_result
    print(json.dumps({**report, "kept": kept_counts}))


if __name__ == "__main__":
    main()
