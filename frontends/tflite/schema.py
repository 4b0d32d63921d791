"""The tables of TensorFlow Lite's files, their operators and element types, by the file's numbers.

They are those of version 3 of TensorFlow Lite's schema, as of TensorFlow 2.21: a test compares them
with that release's own. Operators that are not read have a name here, for messages.
"""

from __future__ import annotations

from .flatbuffer import parse_schema

IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of a file."""

TABLES = parse_schema(
    """
    Model = version:u4 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:text buffers:[Buffer] - - signature_defs:[SignatureDef]
    OperatorCode = deprecated_builtin_code:i1 custom_code:text version:i4|1 builtin_code:i4
    SubGraph = tensors:[Tensor] inputs:[i4] outputs:[i4] operators:[Operator] name:text
    Tensor = shape:[i4] type:i1 buffer:u4 name:text quantization:QuantizationParameters is_variable:flag sparsity:SparsityParameters shape_signature:[i4]
    QuantizationParameters = min:[f4] max:[f4] scale:[f4] zero_point:[i8] details_type:u1 details:BlockwiseQuantization quantized_dimension:i4
    BlockwiseQuantization = scales:i4 zero_points:i4 block_size:i4
    SparsityParameters = traversal_order:[i4]
    Buffer = data:[u1] offset:u8 size:u8
    Operator = opcode_index:u4 inputs:[i4] outputs:[i4] builtin_options_type:u1 builtin_options:Options custom_options:[u1] - - intermediates:[i4]
    SignatureDef = inputs:[TensorMap] outputs:[TensorMap] signature_key:text - subgraph_index:u4
    TensorMap = name:text tensor_index:u4
    AddOptions = fused_activation_function:i1
    ArgMaxOptions = output_type:i1
    ArgMinOptions = output_type:i1
    BatchMatMulOptions = adj_x:flag adj_y:flag asymmetric_quantize_inputs:flag
    CastOptions = in_data_type:i1 out_data_type:i1
    ConcatenationOptions = axis:i4 fused_activation_function:i1
    Conv2DOptions = padding:i1 stride_w:i4 stride_h:i4 fused_activation_function:i1 dilation_w_factor:i4|1 dilation_h_factor:i4|1
    Conv3DOptions = padding:i1 stride_d:i4 stride_w:i4 stride_h:i4 fused_activation_function:i1 dilation_d_factor:i4|1 dilation_w_factor:i4|1 dilation_h_factor:i4|1
    CumsumOptions = exclusive:flag reverse:flag
    DepthToSpaceOptions = block_size:i4
    DepthwiseConv2DOptions = padding:i1 stride_w:i4 stride_h:i4 depth_multiplier:i4 fused_activation_function:i1 dilation_w_factor:i4|1 dilation_h_factor:i4|1
    DivOptions = fused_activation_function:i1
    FullyConnectedOptions = fused_activation_function:i1 weights_format:i1 keep_num_dims:flag asymmetric_quantize_inputs:flag
    GatherOptions = axis:i4 batch_dims:i4
    GeluOptions = approximate:flag
    IfOptions = then_subgraph_index:i4 else_subgraph_index:i4
    L2NormOptions = fused_activation_function:i1
    LeakyReluOptions = alpha:f4
    LocalResponseNormalizationOptions = radius:i4 bias:f4 alpha:f4 beta:f4
    MirrorPadOptions = mode:i1
    MulOptions = fused_activation_function:i1
    OneHotOptions = axis:i4
    PackOptions = values_count:i4 axis:i4
    Pool2DOptions = padding:i1 stride_w:i4 stride_h:i4 filter_width:i4 filter_height:i4 fused_activation_function:i1
    ReducerOptions = keep_dims:flag
    ReshapeOptions = new_shape:[i4]
    ResizeBilinearOptions = - - align_corners:flag half_pixel_centers:flag
    ResizeNearestNeighborOptions = align_corners:flag half_pixel_centers:flag
    ReverseSequenceOptions = seq_dim:i4 batch_dim:i4
    ShapeOptions = out_type:i1
    SoftmaxOptions = beta:f4
    SpaceToDepthOptions = block_size:i4
    SplitOptions = num_splits:i4
    SplitVOptions = num_splits:i4
    SqueezeOptions = squeeze_dims:[i4]
    StridedSliceOptions = begin_mask:i4 end_mask:i4 ellipsis_mask:i4 new_axis_mask:i4 shrink_axis_mask:i4 offset:flag
    SubOptions = fused_activation_function:i1
    TransposeConvOptions = padding:i1 stride_w:i4 stride_h:i4 fused_activation_function:i1
    UnidirectionalSequenceLSTMOptions = fused_activation_function:i1 cell_clip:f4 proj_clip:f4 time_major:flag
    UnpackOptions = num:i4 axis:i4
    WhileOptions = cond_subgraph_index:i4 body_subgraph_index:i4
    """  # noqa: E501 - a table a line
)
"""The tables that are read, and their fields."""

OPTIONS = {
    1: "Conv2DOptions",
    2: "DepthwiseConv2DOptions",
    5: "Pool2DOptions",
    8: "FullyConnectedOptions",
    9: "SoftmaxOptions",
    10: "ConcatenationOptions",
    11: "AddOptions",
    12: "L2NormOptions",
    13: "LocalResponseNormalizationOptions",
    15: "ResizeBilinearOptions",
    17: "ReshapeOptions",
    19: "SpaceToDepthOptions",
    21: "MulOptions",
    23: "GatherOptions",
    27: "ReducerOptions",
    28: "SubOptions",
    29: "DivOptions",
    30: "SqueezeOptions",
    32: "StridedSliceOptions",
    35: "SplitOptions",
    37: "CastOptions",
    40: "ArgMaxOptions",
    49: "TransposeConvOptions",
    55: "ShapeOptions",
    57: "ArgMinOptions",
    59: "PackOptions",
    61: "OneHotOptions",
    64: "UnpackOptions",
    71: "UnidirectionalSequenceLSTMOptions",
    74: "ResizeNearestNeighborOptions",
    75: "LeakyReluOptions",
    77: "MirrorPadOptions",
    79: "SplitVOptions",
    87: "ReverseSequenceOptions",
    92: "IfOptions",
    93: "WhileOptions",
    94: "DepthToSpaceOptions",
    101: "BatchMatMulOptions",
    102: "CumsumOptions",
    106: "Conv3DOptions",
    116: "GeluOptions",
}
"""The table that holds an operator's options, by the number of its type."""

OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST
PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN
TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN
FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN
FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
""".split()
"""Operators by number; those after the last are StableHLO's."""

ELEMENT_TYPES = {
    0: "f32",
    1: "f16",
    2: "i32",
    3: "u8",
    4: "i64",
    6: "bool",
    7: "i16",
    9: "i8",
    10: "f64",
    12: "u64",
    15: "u32",
    16: "u16",
    17: "i4",
    18: "bf16",
    20: "u4",
}
"""Element types of the language by number."""

SAME, VALID = 0, 1
"""The two modes of padding."""
ACTIVATIONS = ("", "relu", "relu_n1_to_1", "relu6", "tanh", "sign_bit")
"""What an operator may compute at its end, by number."""
