"""Every builtin operator of LiteRT's interpreter is claimed by a profile, or named with the reason.

`python -m tests.oracles.tflite_operators` recorded which of them run on integers of 8 and 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from backends.tflite.options import OPERATORS
from qir.ir.attrs import Attr
from qir.profiles import Query, profile
from tests.differential.tflite.test_tflite_vectors import NEWER, VECTORS

STORED = {"int8": "i8", "uint8": "u8", "int16": "i16"}
CLAIMED: Mapping[str, str] = {
    **{name: op for op, name in OPERATORS.items()},
    "CONV_2D": "conv2d",
    "DEPTHWISE_CONV_2D": "conv2d",
    "MIRROR_PAD": "pad",
    "QUANTIZE": "requantize",
    "RELU6": "clip",
    "RELU_0_TO_1": "clip",
    "RELU_N1_TO_1": "clip",
    "STRIDED_SLICE": "slice",
}
"""Operators, and the ops whose rules speak of them."""
APART: Mapping[tuple[str, str], str] = {
    ("PRELU", "int16"): "half of its results are far from the product: not fitted",
    ("TILE", "int16"): "LiteRT 2.3 alone takes it, TensorFlow 2.21 does not",
}
"""Kinds of integers that run and have no rule."""
MOVED = "hands codes on, or fills with one; nothing is computed, and QIR has it as several moves"
RAW = "computes with whole numbers, whatever they stand for"
BLOCKS = "hands codes on by blocks, which is no op of QIR"
CELL = "keeps a state, which is no op of QIR, or one whose cells were not measured"
PLAIN = "takes no codes of 8 or 16 bits"
FLOW = "is about flow, resources or tables of text"
WHY: Mapping[str, str] = {
    MOVED: "DYNAMIC_UPDATE_SLICE FILL ONE_HOT PACK PADV2 SCATTER_ND SELECT SPARSE_TO_DENSE SPLIT "
    "SPLIT_V TOPK_V2 UNIQUE UNPACK MATRIX_DIAG MATRIX_SET_DIAG REVERSE_SEQUENCE DILATE",
    RAW: "BITCAST BITWISE_XOR CAST FLOOR_DIV FLOOR_MOD NEG RANK RIGHT_SHIFT WHERE FAKE_QUANT "
    "CUMSUM SEGMENT_SUM ADD_N",
    BLOCKS: "BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND",
    CELL: "BIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN LSTM RNN SVDF "
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    PLAIN: "ATAN2 BROADCAST_ARGS BUCKETIZE CEIL COMPLEX_ABS CONV_3D CONV_3D_TRANSPOSE COS "
    "EMBEDDING_LOOKUP_SPARSE FLOOR IMAG L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGICAL_AND "
    "LOGICAL_NOT LOGICAL_OR MULTINOMIAL NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 POW "
    "RANDOM_STANDARD_NORMAL RANDOM_UNIFORM RANGE REAL REDUCE_ALL REDUCE_ANY REDUCE_WINDOW RFFT2D "
    "ROUND SHAPE SIGN SIN SQUARE UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD "
    "UNSORTED_SEGMENT_SUM ZEROS_LIKE",
    FLOW: "ASSIGN_VARIABLE CALL CALL_ONCE CONCAT_EMBEDDINGS CUSTOM DELEGATE DENSIFY HASHTABLE "
    "HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_LOOKUP HASHTABLE_SIZE IF LSH_PROJECTION "
    "PLACEHOLDER_FOR_GREATER_OP_CODES READ_VARIABLE SKIP_GRAM VAR_HANDLE WHILE",
}
"""Operators that no profile speaks of, by the reason."""
UNCLAIMED = {name: why for why, names in WHY.items() for name in names.split()}


def recorded() -> dict[str, list[str]]:
    """Each operator of the schema, and the kinds of integers on which it ran."""
    text = (VECTORS / "litert" / "operators.json").read_text(encoding="utf-8")
    found: dict[str, list[str]] = json.loads(text)
    assert str(found.pop("runtime")).startswith("ai_edge_litert 2.3")
    return found


def claim(op: str, kind: str) -> str:
    """What LiteRT's profile claims of an op on integers of a kind."""
    stored = STORED[kind]
    weights = {"i16": "i8"}.get(stored, stored)
    beside = "i16" if stored == "i16" and op == "matmul" else stored
    slots = {"x": stored, "a": stored, "xs.0": stored, "b": beside, "result": stored}
    if op in ("conv2d", "conv_transpose2d", "linear", "lstm", "embedding"):
        slots = {"x": stored, "w": weights, "result": stored}
    attrs: dict[str, Attr] = {"groups": 1, "output_pad": (0, 0)}
    forms = ("one_map",) if op == "concat" else ()  # as TensorFlow Lite has it of 8 bits
    return str(profile(NEWER).resolve(Query(op, slots, attrs=attrs, forms=forms)).claim)


def test_every_operator_is_claimed_or_named() -> None:
    for name, kinds in recorded().items():
        if name.startswith("STABLEHLO_"):
            continue  # of whole numbers and floats: no converter makes one of a quantized layer
        assert (name in CLAIMED) != (name in UNCLAIMED), name
        for kind in kinds if name in CLAIMED else ():
            known = claim(CLAIMED[name], kind) != "unknown"
            assert known != ((name, kind) in APART), f"{name} of {kind}"


def test_what_is_said_to_take_no_codes_took_none() -> None:
    found = recorded()
    names = [*WHY[PLAIN].split(), *WHY[CELL].split()]
    assert [name for name in names if found[name]] == []
    assert sorted(set(UNCLAIMED) - set(found)) == []


@pytest.mark.parametrize(("name", "kind"), APART)
def test_kinds_without_a_rule_run(name: str, kind: str) -> None:
    assert kind in recorded()[name]
