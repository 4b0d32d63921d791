"""QMoE beside onnxruntime's: float32 sums of its own order, held to a few parts in a million."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .contrib import F, near, one
from .test_contrib_codes import packed, scales

FLOAT = TensorProto.FLOAT
BOUND = 4e-6
ROWS, WIDE, INNER, COUNT = 5, 32, 48, 4


def experts(
    seed: int, bits: int, size: int, *, zeros: bool, bias: bool, paired: bool, rank: int = 2
) -> list[Any]:
    rng = np.random.default_rng(seed)

    def weights(name: str, rows: int, depth: int) -> list[Any]:
        quantized = rng.integers(0, 1 << bits, (COUNT, rows, depth))
        grid = (COUNT, rows, depth // size) if size else (COUNT, rows)
        zero = packed(rng.integers(0, 1 << bits, grid), bits)
        return [
            (f"w{name}", packed(quantized, bits)),
            (f"s{name}", scales(rng, *grid)),
            (f"b{name}", rng.normal(size=(COUNT, rows)).astype(F)) if bias else None,
            (f"z{name}", zero) if zeros else None,
        ]

    first = weights("1", 2 * INNER if paired else INNER, WIDE)
    second = weights("2", WIDE, INNER)
    shape = (ROWS, WIDE) if rank == 2 else (2, ROWS, WIDE)
    return [
        ("x", rng.normal(size=shape).astype(F)),
        ("r", rng.normal(size=(ROWS * (rank - 1), COUNT)).astype(F)),
        *first[:3],
        *second[:3],
        None,
        None,
        None,
        first[3],
        second[3],
    ]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_experts_whose_weights_are_codes(bits: int, size: int, zeros: bool, bias: bool) -> None:
    operands = experts(51, bits, size, zeros=zeros, bias=bias, paired=False)
    attrs: dict[str, Any] = {"k": 2, "expert_weight_bits": bits, "activation_type": "silu"}
    if size:
        attrs["block_size"] = size
    near(one("QMoE", operands, ["x", "r"], {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normal", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
def test_activations_of_experts(kind: str, normal: int, rank: int) -> None:
    paired = kind == "swiglu"
    operands = experts(52, 4, 0, zeros=True, bias=True, paired=paired, rank=rank)
    attrs: dict[str, Any] = {"k": 3, "activation_type": kind, "normalize_routing_weights": normal}
    if paired:
        attrs |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}
        attrs |= {"swiglu_limit": 0.7}
    near(one("QMoE", operands, ["x", "r"], {"y": FLOAT}, **attrs), BOUND)
