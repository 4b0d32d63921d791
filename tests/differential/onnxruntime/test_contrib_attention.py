"""Attention of onnxruntime's own domain: its integer product exact, the rest near.

Scores, their exponentials and sums are float32 sums of a kernel's own order, so results are held
to a few parts in a million of the greatest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .contrib import F, near, one

FLOAT, I32 = TensorProto.FLOAT, TensorProto.INT32
BOUND = 1e-5
MASKS = ("none", "ends", "both", "each", "pairs")


def mask(kind: str, rng: np.random.Generator, n: int, own: int, total: int) -> Any:
    if kind == "ends":
        return rng.integers(1, total + 1, n).astype(np.int32)
    if kind == "both":
        starts = rng.integers(0, 2, n)
        return np.concatenate([rng.integers(2, total + 1, n), starts]).astype(np.int32)
    shape = {"each": (n, total), "pairs": (n, own, total)}[kind]
    return rng.integers(0, 2, shape).astype(np.int32)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
def test_attention_of_floats(kind: str, causal: int, past: bool) -> None:
    rng = np.random.default_rng(21)
    n, own, before, width, heads = 2, 5, 3 if past else 0, 12, 3
    operands: list[Any] = [
        ("x", rng.normal(size=(n, own, 8)).astype(F)),
        ("w", rng.normal(size=(8, 3 * width)).astype(F)),
        ("b", rng.normal(size=3 * width).astype(F)),
        None if kind == "none" else ("m", mask(kind, rng, n, own, own + before)),
        ("p", rng.normal(size=(2, n, heads, before, 4)).astype(F)) if past else None,
    ]
    fed = [o[0] for o in operands if o and o[0] not in "wb"]
    results = {"y": FLOAT, "pr": FLOAT} if past else {"y": FLOAT}
    near(one("Attention", operands, fed, results, num_heads=heads, unidirectional=causal), BOUND)


def test_attention_with_a_bias_of_scores_and_widths_apart() -> None:
    rng = np.random.default_rng(22)
    operands: list[Any] = [
        ("x", rng.normal(size=(2, 5, 8)).astype(F)),
        ("w", rng.normal(size=(8, 8 + 8 + 12)).astype(F)),
        ("b", rng.normal(size=28).astype(F)),
        None,
        None,
        ("r", rng.normal(size=(2, 4, 5, 5)).astype(F)),
    ]
    attrs: dict[str, Any] = {"num_heads": 4, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.3}
    near(one("Attention", operands, ["x", "r"], {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("form", ["u8 u8", "u8 i8", "u8 i8 columns"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
def test_attention_of_integers(kind: str, form: str, causal: int, past: bool) -> None:
    rng = np.random.default_rng(23)
    n, own, before, width, heads = 2, 4, 2 if past else 0, 8, 2
    signed, many = "i8" in form, "columns" in form
    code = np.int8 if signed else np.uint8
    low, high = (-128, 128) if signed else (0, 256)
    size = (3 * width,) if many else ()
    operands: list[Any] = [
        ("x", rng.integers(0, 256, (n, own, 8)).astype(np.uint8)),
        ("w", rng.integers(low, high, (8, 3 * width)).astype(code)),
        ("b", rng.normal(size=3 * width).astype(F)),
        ("xs", np.array(0.01, F)),
        ("ws", np.asarray(rng.random(size) * 0.01 + 0.002, F)),
        None if kind == "none" else ("m", mask(kind, rng, n, own, own + before)),
        ("xz", np.array(121, np.uint8)),
        ("wz", np.asarray(np.full(size, 3), code)),
        ("p", rng.normal(size=(2, n, heads, before, 4)).astype(F)) if past else None,
    ]
    fed = ["x", *(o[0] for o in operands if o and o[0] in "mp")]
    results = {"y": FLOAT, "pr": FLOAT} if past else {"y": FLOAT}
    attrs: dict[str, Any] = {"num_heads": heads, "unidirectional": causal}
    near(one("QAttention", operands, fed, results, **attrs), BOUND)
    if not past:
        fed = [*fed, "xs", "ws", "xz", "wz"]
        near(one("QAttention", operands, fed, results, **attrs), BOUND)


@pytest.mark.parametrize("code", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_embeddings_of_integers(code: Any, segments: bool, masked: bool, computed: bool) -> None:
    rng = np.random.default_rng(24)
    low, high = (0, 256) if code is np.uint8 else (-128, 128)

    def table(*shape: int) -> Any:
        return rng.integers(low, high, shape).astype(code)

    def ids(most: int) -> Any:
        return rng.integers(0, most, (2, 5)).astype(np.int32)

    data = [table(9, 12), table(7, 12), table(2, 12), table(12), table(12)]
    stems = ("word", "pos", "seg", "g", "b")
    there = [True, True, segments, True, True]
    scale = [np.array(rng.random() * 0.05 + 0.01, F) for _ in stems]
    zero = [table() for _ in stems]
    operands: list[Any] = [
        ("ids", ids(9)),
        ("sid", ids(2)) if segments else None,
        *((s, d) if t else None for s, d, t in zip(stems, data, there, strict=True)),
        ("m", ids(2)) if masked else None,
        *((f"{s}s", d) if t else None for s, d, t in zip(stems, scale, there, strict=True)),
        *((f"{s}z", d) if t else None for s, d, t in zip(stems, zero, there, strict=True)),
    ]
    fed = [n for n in ("ids", "sid", "m") if n in {o[0] for o in operands if o}]
    if computed:
        fed += ["words", "wordz", "gs", "gz"]
    results = {"y": FLOAT, "count": I32}
    near(one("QEmbedLayerNormalization", operands, fed, results, epsilon=1e-5), BOUND)
