"""Operators that take more types of elements since some operator set, newer than the oldest."""

from __future__ import annotations

from functools import lru_cache

import onnx
from onnx import TensorProto

from qir.ir.node import Node

from ..writer.elements import NUMBERS

_OLDEST = 13
_NAMED = {
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "max_pool": "MaxPool",
    "avg_pool": "AveragePool",
    "lp_pool": "LpPool",
}
_SAME = (
    "Add Sub Mul Div Relu Equal Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Det Elu "
    "Mish Round Selu Softplus Softsign"
).split()
OPERATORS = {
    **{name.lower(): name for name in _SAME},
    **{f"{op}{n}d": name for op, name in _NAMED.items() for n in (1, 2, 3)},
    "sum": "Add",
    "not_equal": "Equal",
    "less_equal": "LessOrEqual",
    "greater_equal": "GreaterOrEqual",
    "is_inf": "IsInf",
    "batch_norm": "BatchNormalization",
    "instance_norm": "InstanceNormalization",
    "lp_normalize": "LpNormalization",
    "cumsum": "CumSum",
    "eye_like": "EyeLike",
    "global_avg_pool": "GlobalAveragePool",
    "global_lp_pool": "GlobalLpPool",
    "global_max_pool": "GlobalMaxPool",
    "grid_sample": "GridSample",
    "hard_swish": "HardSwish",
    "hard_sigmoid": "HardSigmoid",
    "leaky_relu": "LeakyRelu",
    "thresholded_relu": "ThresholdedRelu",
    "prelu": "PRelu",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "top_k": "TopK",
    "max_unpool": "MaxUnpool",
    "gru": "GRU",
    "lstm": "LSTM",
    "rnn": "RNN",
}
"""Our ops that are written as such an operator, or with one among others."""


def since(node: Node) -> int:
    """Returns the first operator set that takes a node's elements; 0 where the oldest does, or
    none."""
    name = OPERATORS.get(node.op)
    value = next(iter(node.operands.values()), None)
    if name is None or value is None or value.type.quant is not None:
        return 0
    number = NUMBERS.get(value.type.dtype.name)
    return 0 if number is None else _first(name, TensorProto.DataType.Name(number).lower())


@lru_cache(1024)
def _first(name: str, kind: str) -> int:
    """Returns the first set in which an operator takes such elements, if it had other forms
    before."""
    before = 0
    for opset in range(_OLDEST, onnx.defs.onnx_opset_version() + 1):
        try:
            schema = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:  # it is newer
            continue
        if f"tensor({kind})" in schema.inputs[0].types:
            return opset if before else 0
        before = opset
    return 0
