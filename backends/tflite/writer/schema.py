"""The tables that are written, with their fields by number, and the numbers of operators and types.

They are those of version 3 of TensorFlow Lite's schema; a test compares them with TensorFlow's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from .flatbuffer import parse_tables

IDENTIFIER = b"TFL3"
VERSION = 3

TABLES = parse_tables(
    """
    Model = version:u4 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:text buffers:[Buffer] - - signature_defs:[SignatureDef]
    OperatorCode = deprecated_builtin_code:i1 custom_code:text version:i4 builtin_code:i4
    SubGraph = tensors:[Tensor] inputs:[i4] outputs:[i4] operators:[Operator] name:text
    Tensor = shape:[i4] type:i1 buffer:u4 name:text quantization:QuantizationParameters is_variable:flag - shape_signature:[i4]
    QuantizationParameters = min:[f4] max:[f4] scale:[f4] zero_point:[i8] - - quantized_dimension:i4
    Buffer = data:[u1]
    Operator = opcode_index:u4 inputs:[i4] outputs:[i4] builtin_options_type:u1 builtin_options:union
    SignatureDef = inputs:[TensorMap] outputs:[TensorMap] signature_key:text - subgraph_index:u4
    TensorMap = name:text tensor_index:u4
    AddOptions = fused_activation_function:i1 pot_scale_int16:flag
    ArgMaxOptions = output_type:i1
    ArgMinOptions = output_type:i1
    BatchMatMulOptions = adj_x:flag adj_y:flag asymmetric_quantize_inputs:flag
    CastOptions = in_data_type:i1 out_data_type:i1
    ConcatenationOptions = axis:i4 fused_activation_function:i1
    Conv2DOptions = padding:i1 stride_w:i4 stride_h:i4 fused_activation_function:i1 dilation_w_factor:i4 dilation_h_factor:i4
    CumsumOptions = exclusive:flag reverse:flag
    DepthToSpaceOptions = block_size:i4
    DepthwiseConv2DOptions = padding:i1 stride_w:i4 stride_h:i4 depth_multiplier:i4 fused_activation_function:i1 dilation_w_factor:i4 dilation_h_factor:i4
    DivOptions = fused_activation_function:i1
    FullyConnectedOptions = fused_activation_function:i1 weights_format:i1 keep_num_dims:flag asymmetric_quantize_inputs:flag
    GatherOptions = axis:i4 batch_dims:i4
    GeluOptions = approximate:flag
    L2NormOptions = fused_activation_function:i1
    LeakyReluOptions = alpha:f4
    LocalResponseNormalizationOptions = radius:i4 bias:f4 alpha:f4 beta:f4
    MirrorPadOptions = mode:i1
    MulOptions = fused_activation_function:i1
    PackOptions = values_count:i4 axis:i4
    Pool2DOptions = padding:i1 stride_w:i4 stride_h:i4 filter_width:i4 filter_height:i4 fused_activation_function:i1
    ReducerOptions = keep_dims:flag
    ReshapeOptions = new_shape:[i4]
    ResizeBilinearOptions = - - align_corners:flag half_pixel_centers:flag
    ResizeNearestNeighborOptions = align_corners:flag half_pixel_centers:flag
    ShapeOptions = out_type:i1
    SoftmaxOptions = beta:f4
    SpaceToDepthOptions = block_size:i4
    SplitVOptions = num_splits:i4
    OneHotOptions = axis:i4
    SqueezeOptions = squeeze_dims:[i4]
    StridedSliceOptions = begin_mask:i4 end_mask:i4 ellipsis_mask:i4 new_axis_mask:i4 shrink_axis_mask:i4 offset:flag
    SubOptions = fused_activation_function:i1 pot_scale_int16:flag
    TransposeConvOptions = padding:i1 stride_w:i4 stride_h:i4 fused_activation_function:i1
    """  # noqa: E501 - a table a line
)
"""The tables that are written, and their fields."""

OPTIONS: Mapping[str, int] = {
    "Conv2DOptions": 1,
    "DepthwiseConv2DOptions": 2,
    "Pool2DOptions": 5,
    "FullyConnectedOptions": 8,
    "SoftmaxOptions": 9,
    "ConcatenationOptions": 10,
    "AddOptions": 11,
    "L2NormOptions": 12,
    "LocalResponseNormalizationOptions": 13,
    "ResizeBilinearOptions": 15,
    "ReshapeOptions": 17,
    "SpaceToDepthOptions": 19,
    "MulOptions": 21,
    "GatherOptions": 23,
    "ReducerOptions": 27,
    "SubOptions": 28,
    "DivOptions": 29,
    "SqueezeOptions": 30,
    "StridedSliceOptions": 32,
    "CastOptions": 37,
    "ArgMaxOptions": 40,
    "TransposeConvOptions": 49,
    "ShapeOptions": 55,
    "ArgMinOptions": 57,
    "PackOptions": 59,
    "OneHotOptions": 61,
    "ResizeNearestNeighborOptions": 74,
    "LeakyReluOptions": 75,
    "MirrorPadOptions": 77,
    "SplitVOptions": 79,
    "DepthToSpaceOptions": 94,
    "BatchMatMulOptions": 101,
    "CumsumOptions": 102,
    "GeluOptions": 116,
}
"""The number of a type of options."""

OPERATORS: Mapping[str, int] = {
    "ADD": 0,
    "AVERAGE_POOL_2D": 1,
    "CONCATENATION": 2,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 4,
    "DEPTH_TO_SPACE": 5,
    "DEQUANTIZE": 6,
    "FLOOR": 8,
    "FULLY_CONNECTED": 9,
    "L2_NORMALIZATION": 11,
    "LOCAL_RESPONSE_NORMALIZATION": 13,
    "LOGISTIC": 14,
    "MAX_POOL_2D": 17,
    "MUL": 18,
    "RELU": 19,
    "RELU_N1_TO_1": 20,
    "RELU6": 21,
    "RESHAPE": 22,
    "RESIZE_BILINEAR": 23,
    "SOFTMAX": 25,
    "SPACE_TO_DEPTH": 26,
    "TANH": 28,
    "PAD": 34,
    "GATHER": 36,
    "TRANSPOSE": 39,
    "MEAN": 40,
    "SUB": 41,
    "DIV": 42,
    "SQUEEZE": 43,
    "STRIDED_SLICE": 45,
    "EXP": 47,
    "TOPK_V2": 48,
    "LOG_SOFTMAX": 50,
    "CAST": 53,
    "PRELU": 54,
    "MAXIMUM": 55,
    "ARG_MAX": 56,
    "MINIMUM": 57,
    "LESS": 58,
    "NEG": 59,
    "PADV2": 60,
    "GREATER": 61,
    "GREATER_EQUAL": 62,
    "LESS_EQUAL": 63,
    "SLICE": 65,
    "SIN": 66,
    "TRANSPOSE_CONV": 67,
    "TILE": 69,
    "EXPAND_DIMS": 70,
    "EQUAL": 71,
    "NOT_EQUAL": 72,
    "LOG": 73,
    "SUM": 74,
    "SQRT": 75,
    "RSQRT": 76,
    "SHAPE": 77,
    "POW": 78,
    "ARG_MIN": 79,
    "REDUCE_PROD": 81,
    "REDUCE_MAX": 82,
    "PACK": 83,
    "LOGICAL_OR": 84,
    "ONE_HOT": 85,
    "LOGICAL_AND": 86,
    "LOGICAL_NOT": 87,
    "REDUCE_MIN": 89,
    "FLOOR_DIV": 90,
    "SQUARE": 92,
    "FILL": 94,
    "FLOOR_MOD": 95,
    "RESIZE_NEAREST_NEIGHBOR": 97,
    "LEAKY_RELU": 98,
    "SQUARED_DIFFERENCE": 99,
    "MIRROR_PAD": 100,
    "ABS": 101,
    "SPLIT_V": 102,
    "CEIL": 104,
    "REVERSE_V2": 105,
    "GATHER_ND": 107,
    "COS": 108,
    "ELU": 111,
    "QUANTIZE": 114,
    "ROUND": 116,
    "HARD_SWISH": 117,
    "SELECT_V2": 123,
    "BATCH_MATMUL": 126,
    "CUMSUM": 128,
    "BROADCAST_TO": 130,
    "GELU": 150,
    "RELU_0_TO_1": 152,
    "SIGN": 158,
}
"""The number of an operator."""
LARGEST_OLD_CODE = 127
"""The number that the older, shorter field of an operator's code holds for all from there on."""

ELEMENT_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "i32": 2,
    "u8": 3,
    "i64": 4,
    "bool": 6,
    "i16": 7,
    "i8": 9,
    "f64": 10,
    "i4": 17,
}
"""The number of an element type."""

SAME, VALID = 0, 1
"""The two modes of padding."""
