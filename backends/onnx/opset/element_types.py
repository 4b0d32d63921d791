"""Operators that accept more element types since a newer operator set."""

from __future__ import annotations

from functools import lru_cache

import onnx
from onnx import TensorProto

from qir.ir.node import Node

from ..writer.elements import ELEMENT_TYPES

_OLDEST = 13
_OPERATORS_BY_FAMILY = {
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
    **{f"{op}{n}d": name for op, name in _OPERATORS_BY_FAMILY.items() for n in (1, 2, 3)},
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
"""The operator that an op is written as, or the one of its operators that limits the element
type."""


def first_opset(node: Node) -> int:
    """Returns the first operator set that accepts a node's elements; 0 where the oldest or none
    does."""
    name = OPERATORS.get(node.op)
    value = next(iter(node.operands.values()), None)
    if name is None or value is None or value.type.quant is not None:
        return 0
    number = ELEMENT_TYPES.get(value.type.dtype.name)
    return 0 if number is None else _first_opset_of(name, TensorProto.DataType.Name(number).lower())


@lru_cache(1024)
def _first_opset_of(name: str, kind: str) -> int:
    """Returns the first operator set in which an operator accepts an element type that older
    ones do not."""
    older = 0
    for opset in range(_OLDEST, onnx.defs.onnx_opset_version() + 1):
        try:
            schema = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:  # it is newer
            continue
        if f"tensor({kind})" in schema.inputs[0].types:
            # Accepted by the oldest schema that is written: no operator set is too old.
            return opset if older else 0
        older = opset
    return 0
