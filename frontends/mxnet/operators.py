"""The table of converters, by operator, and aliases of operators."""

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
from .call import SymbolCall
from .results import Result

Handler = Callable[[SymbolCall], "Result | list[Result]"]
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
    "_Equal": "_equal",
    "_EqualScalar": "_equal_scalar",
    "_Greater": "_greater",
    "_GreaterEqualScalar": "_greater_equal_scalar",
    "_GreaterScalar": "_greater_scalar",
    "_Greater_Equal": "_greater_equal",
    "_Lesser": "_lesser",
    "_LesserEqualScalar": "_lesser_equal_scalar",
    "_LesserScalar": "_lesser_scalar",
    "_Lesser_Equal": "_lesser_equal",
    "_LogicalAndScalar": "_logical_and_scalar",
    "_LogicalOrScalar": "_logical_or_scalar",
    "_LogicalXorScalar": "_logical_xor_scalar",
    "_Logical_And": "_logical_and",
    "_Logical_Or": "_logical_or",
    "_Logical_Xor": "_logical_xor",
    "_Mod": "_mod",
    "_ModScalar": "_mod_scalar",
    "_NotEqualScalar": "_not_equal_scalar",
    "_Not_Equal": "_not_equal",
    "_RModScalar": "_rmod_scalar",
    "_add": "elemwise_add",
    "_div": "elemwise_div",
    "_minus": "elemwise_sub",
    "_mul": "elemwise_mul",
    "_plus": "elemwise_add",
    "_sub": "elemwise_sub",
    "broadcast_axes": "broadcast_axis",
    "broadcast_minus": "broadcast_sub",
    "broadcast_plus": "broadcast_add",
    "cast": "Cast",
    "choose_element_0index": "pick",
    "concat": "Concat",
    "crop": "slice",
    "flatten": "Flatten",
    "flip": "reverse",
    "identity": "_copy",
    "linalg_gemm2": "_linalg_gemm2",
    "max_axis": "max",
    "min_axis": "min",
    "pad": "Pad",
    "reshape": "Reshape",
    "split": "SliceChannel",
    "stop_gradient": "BlockGrad",
    "sum_axis": "sum",
    "swapaxes": "SwapAxis",
}
"""Aliases by which MXNet loads operators with the same attributes."""


def converter(name: str) -> Handler | None:
    """Returns the converter of an operator; None for an unknown one."""
    return OPS.get(ALIASES.get(name, name))
