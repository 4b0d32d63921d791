"""What the commands of `qir` do with a model, each as one function that a Python program can call.

`qir.load` gives the model. The functions write the result and return what the command shows.
Messages name arguments in backticks, also those of a recipe, a goal or `SampleData`; the command
line turns them into its flags (`qir/cli/flags.py`).
"""

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
