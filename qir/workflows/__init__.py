"""What the commands of `qir` do with a model, each as one function that a Python program can call.

`qir.load` gives the model. The functions write the result and return what the command shows.
Messages name arguments in backticks, also those of a recipe, a goal or `SampleData`; the command
line turns them into its flags (`qir/cli/flags.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from qir.workflows.benchmarking import ModelBenchmark, benchmark_model
    from qir.workflows.bisecting import BisectedModel, bisect_model
    from qir.workflows.calibration import CalibratedModel, calibrate_model
    from qir.workflows.certification import CertifiedModel, certify_model
    from qir.workflows.comparison import MeasuredDifference, ModelComparison, compare_models
    from qir.workflows.explaining import MatchExplanation, explain_match
    from qir.workflows.grouping import GroupedModel, group_model
    from qir.workflows.inputs import SampleData
    from qir.workflows.optimizing import optimize_model
    from qir.workflows.probing import ProbedRuntimes, probe_runtimes
    from qir.workflows.quantization import QuantizedModel, quantize_model
    from qir.workflows.running import EngineComparison, ModelRun, compare_engines, run_model
    from qir.workflows.verification import VerifiedModel, verify_model

_HOMES = {
    "BisectedModel": "qir.workflows.bisecting",
    "CalibratedModel": "qir.workflows.calibration",
    "CertifiedModel": "qir.workflows.certification",
    "EngineComparison": "qir.workflows.running",
    "GroupedModel": "qir.workflows.grouping",
    "MatchExplanation": "qir.workflows.explaining",
    "MeasuredDifference": "qir.workflows.comparison",
    "ModelBenchmark": "qir.workflows.benchmarking",
    "ModelComparison": "qir.workflows.comparison",
    "ModelRun": "qir.workflows.running",
    "ProbedRuntimes": "qir.workflows.probing",
    "QuantizedModel": "qir.workflows.quantization",
    "SampleData": "qir.workflows.inputs",
    "VerifiedModel": "qir.workflows.verification",
    "benchmark_model": "qir.workflows.benchmarking",
    "bisect_model": "qir.workflows.bisecting",
    "calibrate_model": "qir.workflows.calibration",
    "certify_model": "qir.workflows.certification",
    "compare_engines": "qir.workflows.running",
    "compare_models": "qir.workflows.comparison",
    "explain_match": "qir.workflows.explaining",
    "group_model": "qir.workflows.grouping",
    "optimize_model": "qir.workflows.optimizing",
    "probe_runtimes": "qir.workflows.probing",
    "quantize_model": "qir.workflows.quantization",
    "run_model": "qir.workflows.running",
    "verify_model": "qir.workflows.verification",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = [
    "BisectedModel",
    "CalibratedModel",
    "CertifiedModel",
    "EngineComparison",
    "GroupedModel",
    "MatchExplanation",
    "MeasuredDifference",
    "ModelBenchmark",
    "ModelComparison",
    "ModelRun",
    "ProbedRuntimes",
    "QuantizedModel",
    "SampleData",
    "VerifiedModel",
    "benchmark_model",
    "bisect_model",
    "calibrate_model",
    "certify_model",
    "compare_engines",
    "compare_models",
    "explain_match",
    "group_model",
    "optimize_model",
    "probe_runtimes",
    "quantize_model",
    "run_model",
    "verify_model",
]
