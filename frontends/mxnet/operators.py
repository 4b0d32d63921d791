"""The converter of each operator of MXNet, by its name in a symbol, and other names of some."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    convolution,
    creation,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    quantized,
    recurrent,
    reduction,
    resizing,
    subgraphs,
)
from .call import Call, Made

Handler = Callable[[Call], "Made | list[Made]"]
OPS: dict[str, Handler] = {
    name: handler
    for family in (
        convolution,
        creation,
        elementwise,
        indexing,
        movement,
        normalization,
        pooling,
        quantized,
        recurrent,
        reduction,
        resizing,
        subgraphs,
    )
    for name, handler in family.OPS.items()
}
ALIASES = {
    "BatchNorm_v1": "BatchNorm",
    "Convolution_v1": "Convolution",
    "Pooling_v1": "Pooling",
    "_contrib_SyncBatchNorm": "BatchNorm",
    "ElementWiseSum": "add_n",
    "Softmax": "SoftmaxOutput",
    "_Plus": "elemwise_add",
    "_Minus": "elemwise_sub",
    "_Mul": "elemwise_mul",
    "_Div": "elemwise_div",
    "_Maximum": "_maximum",
    "_Minimum": "_minimum",
    "_Power": "_power",
    "_PlusScalar": "_plus_scalar",
    "_MinusScalar": "_minus_scalar",
    "_RMinusScalar": "_rminus_scalar",
    "_MulScalar": "_mul_scalar",
    "_DivScalar": "_div_scalar",
    "_RDivScalar": "_rdiv_scalar",
    "_PowerScalar": "_power_scalar",
    "_RPowerScalar": "_rpower_scalar",
    "_MaximumScalar": "_maximum_scalar",
    "_MinimumScalar": "_minimum_scalar",
}
"""Names that older files have for operators with the same attributes."""


def converter(name: str) -> Handler | None:
    """Returns the converter of an operator; None for one that is not read."""
    return OPS.get(ALIASES.get(name, name))
