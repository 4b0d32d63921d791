"""What onnxruntime does to a QDQ model when it loads it, as preparation steps of its profiles."""

from __future__ import annotations

from collections.abc import Mapping

from qir.profiles.preparation import PreparationStep

from .activations import join_activations
from .constants import fold_constants
from .convolution_inputs import join_pads, join_scales
from .doubled_pairs import merge_equal_quantizes, merge_pairs
from .float_parameters import quantize_parameters
from .gemms import join_gemms
from .low_bit_weights import round_data, round_wide_data
from .no_ops import remove_no_ops
from .softmax_rows import flattened_softmax
from .unsigned_values import STEP, unsigned_values

STEPS: Mapping[str, PreparationStep] = {
    "fold_constants": PreparationStep(
        "What follows from constants is computed, where the rule of `constant` has "
        "`weights.given = float`.",
        fold_constants,
    ),
    "remove_no_ops": PreparationStep(
        "Operators that do nothing are removed, such as a product by 1.", remove_no_ops
    ),
    "join_activations": PreparationStep(
        "Of two activations in a row one is left, where the runtime drops what clamps nothing.",
        join_activations,
    ),
    "join_pads": PreparationStep(
        "A pad of zeros becomes padding of the convolution that alone reads it.", join_pads
    ),
    "join_scales": PreparationStep(
        "Products, sums and normalizations by constants after a convolution become part of its "
        "float weights and bias.",
        join_scales,
    ),
    "merge_equal_quantizes": PreparationStep(
        "Of several quantizes of one value with equal parameters one is left.",
        merge_equal_quantizes,
    ),
    "join_gemms": PreparationStep(
        "A matmul and the add after it become one gemm, and so do a gemm and the transpose after "
        "it.",
        join_gemms,
    ),
    "merge_pairs": PreparationStep(
        "Two pairs of quantize and dequantize in a row become one, with the range that both hold; "
        "a dequantize and a quantize with equal parameters are removed.",
        merge_pairs,
    ),
    "quantize_parameters": PreparationStep(
        "Float weights and biases between quantized values are quantized, by the rule of "
        "`constant`.",
        quantize_parameters,
    ),
    STEP: PreparationStep(
        "Signed 8-bit values with one reader become unsigned, with 128 more.", unsigned_values
    ),
    "flattened_softmax": PreparationStep(
        "A softmax over several axes is computed on rows of quantized values.", flattened_softmax
    ),
    "round_data": PreparationStep(
        "Float data of a product with weights of 4 or 8 bits are rounded to 8 bits, a block of the "
        "weights at a time.",
        round_data,
    ),
    "round_wide_data": PreparationStep(
        "As `round_data`; also where data or results are quantized to 16 bits, and next to blocks "
        "of more than 256 weights.",
        round_wide_data,
    ),
}
"""The steps that profiles of onnxruntime name."""
