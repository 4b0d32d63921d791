"""TensorFlow Lite's operator names and options, and the operands that are attributes in QIR.

It imports nothing of QIR: a case is that of `models`, the schema comes with a wheel of TensorFlow
Lite.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Value = int | float | bool | str | tuple[int, ...]

OPERATORS: Mapping[str, str] = {
    "abs": "ABS",
    "add": "ADD",
    "arg_max": "ARG_MAX",
    "arg_min": "ARG_MIN",
    "avg_pool2d": "AVERAGE_POOL_2D",
    "concat": "CONCATENATION",
    "conv_transpose2d": "TRANSPOSE_CONV",
    "depth_to_space": "DEPTH_TO_SPACE",
    "dequantize": "DEQUANTIZE",
    "div": "DIV",
    "elu": "ELU",
    "embedding": "EMBEDDING_LOOKUP",
    "equal": "EQUAL",
    "exp": "EXP",
    "expand": "BROADCAST_TO",
    "flip": "REVERSE_V2",
    "gather": "GATHER",
    "gather_nd": "GATHER_ND",
    "gelu": "GELU",
    "greater": "GREATER",
    "greater_equal": "GREATER_EQUAL",
    "hard_swish": "HARD_SWISH",
    "leaky_relu": "LEAKY_RELU",
    "less": "LESS",
    "less_equal": "LESS_EQUAL",
    "linear": "FULLY_CONNECTED",
    "log": "LOG",
    "log_softmax": "LOG_SOFTMAX",
    "lp_normalize": "L2_NORMALIZATION",
    "lstm": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "matmul": "BATCH_MATMUL",
    "max": "MAXIMUM",
    "max_pool2d": "MAX_POOL_2D",
    "min": "MINIMUM",
    "mul": "MUL",
    "not_equal": "NOT_EQUAL",
    "pad": "PAD",
    "prelu": "PRELU",
    "quantize": "QUANTIZE",
    "reduce_max": "REDUCE_MAX",
    "reduce_mean": "MEAN",
    "reduce_min": "REDUCE_MIN",
    "reduce_prod": "REDUCE_PROD",
    "reduce_sum": "SUM",
    "relu": "RELU",
    "requantize": "QUANTIZE",
    "reshape": "RESHAPE",
    "resize": "RESIZE_BILINEAR",
    "resize_nearest": "RESIZE_NEAREST_NEIGHBOR",
    "rsqrt": "RSQRT",
    "sigmoid": "LOGISTIC",
    "slice": "SLICE",
    "softmax": "SOFTMAX",
    "sqrt": "SQRT",
    "squared_difference": "SQUARED_DIFFERENCE",
    "squeeze": "SQUEEZE",
    "space_to_depth": "SPACE_TO_DEPTH",
    "sub": "SUB",
    "tanh": "TANH",
    "tile": "TILE",
    "transpose": "TRANSPOSE",
    "unsqueeze": "EXPAND_DIMS",
    "where": "SELECT_V2",
}
_CLIP_OPERATORS = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}
_ACTIVATIONS = {"": 0, "relu": 1, "relu1": 2, "relu6": 3}
_REDUCTIONS = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
VERSIONS: Mapping[str, int] = {
    "DEPTH_TO_SPACE": 1,
    "EXPAND_DIMS": 1,
    "ELU": 1,
    "RELU_0_TO_1": 1,
    "RESHAPE": 1,
    "RELU_N1_TO_1": 1,
    "SELECT_V2": 1,
    "SPACE_TO_DEPTH": 1,
    "SQUEEZE": 1,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "HARD_SWISH": 1,
    "PRELU": 1,
    "TRANSPOSE_CONV": 3,
}
"""Operator versions other than 2."""


class CaseOptions(Protocol):
    """The part of a case that is read here."""

    @property
    def op(self) -> str: ...
    @property
    def attrs(self) -> Mapping[str, Value]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def same(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    def pair(self, name: str) -> tuple[int, int]: ...


def clip_operator(case: CaseOptions) -> str:
    """Returns the operator that clamps to the case's bounds."""
    low, high = case.attrs["min"], case.attrs["max"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    return _CLIP_OPERATORS[low, high]


def operator_name(case: CaseOptions) -> str:
    """Returns the operator of a case; attributes decide where there are several."""
    if case.op == "clip":
        return clip_operator(case)
    if case.op == "pad" and case.attrs.get("mode") == "reflect":
        return "MIRROR_PAD"
    return "STRIDED_SLICE" if case.op == "slice" and has_steps(case) else OPERATORS[case.op]


def has_steps(case: CaseOptions) -> bool:
    """Returns whether a slice skips elements."""
    steps = case.attrs["steps"]
    assert isinstance(steps, tuple)
    return any(step != 1 for step in steps)


def attribute_operands(case: CaseOptions, rank: int) -> list[Array]:
    """Returns operands that QIR has as attributes."""
    attrs = case.attrs
    if case.op in _REDUCTIONS or case.op == "flip":
        return [np.array(attrs["axes"], np.int32)]
    if case.op in ("arg_max", "arg_min"):
        return [np.array(attrs["axis"], np.int32)]
    if case.op == "pad":
        pads = np.array(attrs["pads"], np.int32).reshape(2, rank)
        return [np.ascontiguousarray(pads.T)]
    if case.op in ("resize", "resize_nearest"):
        return [np.array(case.shape[1:3], np.int32)]
    if case.op in ("reshape", "expand"):
        return [np.array(case.shape, np.int32)]
    if case.op == "transpose":
        return [np.array(attrs["perm"], np.int32)]
    if case.op == "tile":
        return [np.array(attrs["repeats"], np.int32)]
    if case.op == "unsqueeze":
        return [np.array(attrs["axes"], np.int32)]
    if case.op == "slice" and has_steps(case):
        return [np.array(attrs[name], np.int32) for name in ("starts", "ends", "steps")]
    if case.op == "slice":
        return [np.array(attrs["starts"], np.int32), np.array(case.shape, np.int32)]
    return []


def options(s: ModuleType, case: CaseOptions, many: int) -> tuple[str, Any]:
    """Returns the name of an op's options and they themselves; `many`: a depthwise layer's results
    each."""
    # Each function knows some of the ops, and returns None for others.
    for options_of in (_window_options, _operand_options, _attribute_options, _empty_options):
        named_options = options_of(s, case, many)
        if named_options is not None:
            title, o = named_options
            return f"{title}Options", o
    return "", None


def _window_options(s: ModuleType, case: CaseOptions, many: int) -> tuple[str, Any] | None:
    """Returns the options of ops that slide windows over an image, or resize it."""
    act, padding = _ACTIVATIONS[case.activation], 0 if case.same else 1
    match case.op:
        case "conv2d":
            o = s.DepthwiseConv2DOptionsT() if many else s.Conv2DOptionsT()
            o.padding, o.fusedActivationFunction = padding, act
            o.strideH, o.strideW = case.pair("stride")
            o.dilationHFactor, o.dilationWFactor = case.pair("dilation")
            if many:
                o.depthMultiplier = many
            return "DepthwiseConv2D" if many else "Conv2D", o
        case "avg_pool2d" | "max_pool2d":
            o = s.Pool2DOptionsT()
            o.padding, o.fusedActivationFunction = padding, act
            o.strideH, o.strideW = case.pair("stride")
            o.filterHeight, o.filterWidth = case.pair("kernel")
            return "Pool2D", o
        case "conv_transpose2d":
            o = s.TransposeConvOptionsT()
            o.padding = padding
            o.strideH, o.strideW = case.pair("stride")
            return "TransposeConv", o
        case "resize" | "resize_nearest":
            title = "ResizeBilinear" if case.op == "resize" else "ResizeNearestNeighbor"
            o = getattr(s, f"{title}OptionsT")()
            coordinates = case.attrs["coordinates"]
            o.alignCorners = coordinates == "align_corners"
            o.halfPixelCenters = coordinates == "half_pixel"
            return title, o
        case "depth_to_space" | "space_to_depth":
            title = "DepthToSpace" if case.op == "depth_to_space" else "SpaceToDepth"
            o = getattr(s, f"{title}OptionsT")()
            o.blockSize = case.attrs["block"]
            return title, o
    return None


def _operand_options(s: ModuleType, case: CaseOptions, many: int) -> tuple[str, Any] | None:
    """Returns the options of ops of several operands, and of moves that attributes select."""
    act, attrs = _ACTIVATIONS[case.activation], case.attrs
    match case.op:
        case "linear":
            o = s.FullyConnectedOptionsT()
            o.fusedActivationFunction = act
            o.asymmetricQuantizeInputs = bool(case.attrs.get("asymmetric"))
            return "FullyConnected", o
        case "add" | "sub" | "mul" | "div":
            title = case.op.capitalize()
            o = getattr(s, f"{title}OptionsT")()
            o.fusedActivationFunction = act
            if case.op in ("add", "sub"):
                o.potScaleInt16 = False
            return title, o
        case "concat":
            o = s.ConcatenationOptionsT()
            o.axis = case.attrs["axis"]
            return "Concatenation", o
        case "gather":
            o = s.GatherOptionsT()
            o.axis = case.attrs["axis"]
            return "Gather", o
        case "max" | "min":
            return "MaximumMinimum", s.MaximumMinimumOptionsT()
        case "matmul":
            o = s.BatchMatMulOptionsT()
            o.asymmetricQuantizeInputs = bool(case.attrs.get("asymmetric"))
            return "BatchMatMul", o
        case "squared_difference":
            return "SquaredDifference", s.SquaredDifferenceOptionsT()
        case "pad" if attrs.get("mode") == "reflect":
            return "MirrorPad", s.MirrorPadOptionsT()
        case "slice" if has_steps(case):
            return "StridedSlice", s.StridedSliceOptionsT()
        case "squeeze":
            o = s.SqueezeOptionsT()
            o.squeezeDims = list(attrs["axes"])  # type: ignore[arg-type]
            return "Squeeze", o
        case "equal" | "not_equal" | "greater" | "greater_equal" | "less" | "less_equal":
            title = "".join(word.capitalize() for word in case.op.split("_"))
            return title, getattr(s, f"{title}OptionsT")()
    return None


def _attribute_options(s: ModuleType, case: CaseOptions, many: int) -> tuple[str, Any] | None:
    """Returns the options of ops of one operand that have attributes."""
    attrs = case.attrs
    match case.op:
        case "softmax":
            o = s.SoftmaxOptionsT()
            o.beta = 1.0
            return "Softmax", o
        case "leaky_relu":
            o = s.LeakyReluOptionsT()
            o.alpha = attrs["alpha"]
            return "LeakyRelu", o
        case "gelu":
            o = s.GeluOptionsT()
            o.approximate = attrs["approximate"] == "tanh"
            return "Gelu", o
        case "lp_normalize":
            o = s.L2NormOptionsT()
            o.fusedActivationFunction = 0
            return "L2Norm", o
        case "arg_max" | "arg_min":
            title = "ArgMax" if case.op == "arg_max" else "ArgMin"
            o = getattr(s, f"{title}OptionsT")()
            o.outputType = 4
            return title, o
        case op if op in _REDUCTIONS:
            o = s.ReducerOptionsT()
            o.keepDims = attrs["keep"]
            return "Reducer", o
    return None


_EMPTY_OPTIONS = {
    "abs": "Abs",
    "dequantize": "Dequantize",
    "exp": "Exp",
    "expand": "BroadcastTo",
    "flip": "ReverseV2",
    "gather_nd": "GatherNd",
    "hard_swish": "HardSwish",
    "log_softmax": "LogSoftmax",
    "pad": "Pad",
    "quantize": "Quantize",
    "requantize": "Quantize",
    "reshape": "Reshape",
    "slice": "Slice",
    "tile": "Tile",
    "transpose": "Transpose",
    "unsqueeze": "ExpandDims",
    "where": "SelectV2",
}


def _empty_options(s: ModuleType, case: CaseOptions, many: int) -> tuple[str, Any] | None:
    """Returns the options of ops whose options are empty."""
    title = _EMPTY_OPTIONS.get(case.op)
    return None if title is None else (title, getattr(s, f"{title}OptionsT")())
