"""Formal names of the operands and results of operators of onnxruntime and QONNX, in order."""

_PAIR = "A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point"
_UNARY = "X X_scale X_zero_point Y_scale Y_zero_point"
OPERANDS = {
    "Attention": "input weights bias mask_index past attention_bias past_sequence_length",
    "BiasGelu": "A B",
    "BipolarQuant": "X scale",
    "DequantizeLinear": "x x_scale x_zero_point",
    "DynamicQuantizeLSTM": "X W R B sequence_lens initial_h initial_c P W_scale W_zero_point "
    "R_scale R_zero_point",
    "DynamicQuantizeMatMul": "A B b_scale b_zero_point bias",
    "EmbedLayerNormalization": "input_ids segment_ids word_embedding position_embedding "
    "segment_embedding gamma beta mask position_ids",
    "ExpandDims": "X axis",
    "FastGelu": "X bias",
    "FusedConv": "X W B Z",
    "FusedGemm": "A B C",
    "FusedMatMul": "A B",
    "GatherBlockQuantized": "data indices scales zero_points",
    "Gelu": "X",
    "GroupQueryAttention": "query key value past_key past_value seqlens_k total_sequence_length "
    "cos_cache sin_cache position_ids attention_bias head_sink k_scale v_scale q_norm_weight "
    "k_norm_weight",
    "IntQuant": "X scale zeropt bitwidth",
    "MatMulBnb4": "A B absmax",
    "MatMulFpQ4": "A B B_shape",
    "MatMulInteger16": "A B",
    "MatMulIntegerToFloat": "A B a_scale b_scale a_zero_point b_zero_point bias",
    "MatMulNBits": "A B scales zero_points g_idx bias",
    "MultiHeadAttention": "query key value bias key_padding_mask attention_bias past_key "
    "past_value past_sequence_length cache_indirection",
    "NhwcMaxPool": "x",
    "QAttention": "input weight bias input_scale weight_scale mask_index input_zero_point "
    "weight_zero_point past",
    "QEmbedLayerNormalization": "input_ids segment_ids word_embedding_quant "
    "position_embedding_quant segment_embedding gamma_quant beta_quant mask word_embedding_scale "
    "position_embedding_scale segment_embedding_scale gamma_scale beta_scale "
    "word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point "
    "gamma_zero_point beta_zero_point",
    "QGemm": "A a_scale a_zero_point B b_scale b_zero_point C y_scale y_zero_point",
    "QLinearAdd": _PAIR,
    "QLinearAveragePool": "X x_scale x_zero_point y_scale y_zero_point",
    "QLinearConv": "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B",
    "QLinearGlobalAveragePool": "X x_scale x_zero_point y_scale y_zero_point",
    "QLinearLeakyRelu": _UNARY,
    "QLinearMul": _PAIR,
    "QLinearReduceMean": "data data_scale data_zero_point reduced_scale reduced_zero_point",
    "QLinearSigmoid": _UNARY,
    "QLinearSoftmax": "X X_scale x_zero_point y_scale y_zero_point",
    "QLinearWhere": "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point",
    "QMoE": "input router_probs fc1_experts_weights fc1_scales fc1_experts_bias "
    "fc2_experts_weights fc2_scales fc2_experts_bias fc3_experts_weights fc3_scales "
    "fc3_experts_bias fc1_zero_points fc2_zero_points fc3_zero_points router_weights "
    "fc1_global_scale fc2_global_scale fc1_act_scale fc2_act_scale fc1_act_block_scale "
    "fc2_act_block_scale",
    "Quant": "X scale zeropt bitwidth",
    "QuantizeLinear": "x y_scale y_zero_point",
    "QuickGelu": "X",
    "RotaryEmbedding": "input position_ids cos_cache sin_cache",
    "SkipLayerNormalization": "input skip gamma beta bias",
    "SkipSimplifiedLayerNormalization": "input skip gamma bias",
    "TransposeMatMul": "A B",
    "Trunc": "X scale zeropt input_bitwidth output_scale output_bitwidth",
}
RESULTS = {
    "Attention": "output present",
    "DynamicQuantizeLSTM": "Y Y_h Y_c",
    "EmbedLayerNormalization": "output mask_index embedding_sum",
    "GroupQueryAttention": "output present_key present_value output_qk",
    "MultiHeadAttention": "output present_key present_value qk",
    "QAttention": "output present",
    "QEmbedLayerNormalization": "layernorm_out mask_index_out",
    "SkipLayerNormalization": "output mean inv_std_var input_skip_bias_sum",
    "SkipSimplifiedLayerNormalization": "output mean inv_std_var input_skip_bias_sum",
}
"""Only of operators with more than one result."""
