"""What is in a model, said in numbers: pure functions that give frozen records with `to_json`."""

from qir.analysis.sensitive_values import sensitive_values as sensitive
from qir.inspect.compare import OutputDifference, compare
from qir.inspect.environment import Environment, environment
from qir.inspect.explain import Explanation, explain
from qir.inspect.export import to_dot, to_graphml, to_json, to_mermaid
from qir.inspect.integer_ops import islands, longest_chain, quantized_nodes
from qir.inspect.metrics import Metric, metric
from qir.inspect.overflow import SumRange, overflow
from qir.inspect.quantization_noise import QuantizationNoise, quantization_noise
from qir.inspect.ranges import TensorRange, ranges
from qir.inspect.summary import ModelSummary, bytes_by_dtype, summarize
from qir.inspect.timing import Timing, settle, time_interleaved
from qir.inspect.type_sharing import sharing

__all__ = [
    "Environment",
    "Explanation",
    "Metric",
    "ModelSummary",
    "OutputDifference",
    "QuantizationNoise",
    "SumRange",
    "TensorRange",
    "Timing",
    "bytes_by_dtype",
    "compare",
    "environment",
    "explain",
    "islands",
    "longest_chain",
    "metric",
    "overflow",
    "quantization_noise",
    "quantized_nodes",
    "ranges",
    "sensitive",
    "settle",
    "sharing",
    "summarize",
    "time_interleaved",
    "to_dot",
    "to_graphml",
    "to_json",
    "to_mermaid",
]
