"""What is in a model, said in numbers: pure functions that give frozen records with `to_json`."""

from qir.inspect.compare import Difference, compare
from qir.inspect.environment import Environment, environment
from qir.inspect.explain import Explanation, explain
from qir.inspect.ranges import TensorRange, ranges
from qir.inspect.summary import Summary, summarize
from qir.inspect.timing import Timing, interleave

__all__ = [
    "Difference",
    "Environment",
    "Explanation",
    "Summary",
    "TensorRange",
    "Timing",
    "compare",
    "environment",
    "explain",
    "interleave",
    "ranges",
    "summarize",
]
