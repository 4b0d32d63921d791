"""Operators of onnxruntime's own domain on floats: their bodies are near what its kernels give.

They sum in float32, and take exp, tanh and erf from approximations; QIR rounds once. So results
differ by a few parts in a million of the greatest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .contrib import F, equal, near, one

FLOAT, I32, U8, I8 = (getattr(TensorProto, n) for n in ("FLOAT", "INT32", "UINT8", "INT8"))
BOUND = 4e-6


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(F)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("Gelu", ["x"], {}),
        ("BiasGelu", ["x", "b"], {}),
        ("FastGelu", ["x"], {}),
        ("FastGelu", ["x", "b"], {}),
        ("QuickGelu", ["x"], {}),
        ("QuickGelu", ["x"], {"alpha": 1.3}),
    ],
)
def test_gelus(op: str, operands: list[str], attrs: dict[str, Any], symbolic: bool) -> None:
    data = {"x": normal(1, 3, 5, 17) * 3, "b": normal(2, 17)}
    given = [(n, data[n]) for n in operands]
    near(one(op, given, ["x"], {"y": FLOAT}, symbolic=symbolic, **attrs), BOUND)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("simple", [False, True])
def test_norms_of_a_sum(bias: bool, beta: bool, total: bool, simple: bool) -> None:
    if simple and beta:
        return
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    parts = [("x", normal(1, 2, 3, 16)), ("s", normal(2, 2, 3, 16)), ("g", normal(3, 16))]
    more = [] if simple else [("be", normal(4, 16)) if beta else None]
    tail = [("bi", normal(5, 16)) if bias else None]
    case = one(op, [*parts, *more, *tail], ["x", "s"], {"y": FLOAT}, epsilon=1e-5)
    if total:
        node = case.proto.graph.node[0]
        node.output.extend(["", "", "sum"])
        case.proto.graph.output.extend([type(case.proto.graph.output[0])(name="sum")])
        case.proto.graph.output[1].type.tensor_type.elem_type = FLOAT
    near(case, BOUND)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embeddings(segments: bool, mask: bool, positions: bool) -> None:
    rng = np.random.default_rng(3)

    def ids(most: int) -> Any:
        return rng.integers(0, most, (2, 5)).astype(np.int32)

    operands = [
        ("ids", ids(9)),
        ("seg", ids(2)) if segments else None,
        ("word", normal(1, 9, 12)),
        ("pos", normal(2, 7, 12)),
        ("sege", normal(3, 2, 12)) if segments else None,
        ("g", normal(4, 12)),
        ("b", normal(5, 12)),
        ("mask", ids(2)) if mask else None,
        ("at", ids(7)) if positions else None,
    ]
    fed = [n for n in ("ids", "seg", "mask", "at") if n in {o[0] for o in operands if o}]
    results = {"y": FLOAT, "count": I32}
    near(one("EmbedLayerNormalization", operands, fed, results, epsilon=1e-5), BOUND)


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize("batch", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_of_turned_factors(a: bool, b: bool, batch: tuple[int, int]) -> None:
    left = normal(1, 2, 3, 5, 4) if a else normal(1, 2, 3, 4, 5)
    right = normal(2, 2, 3, 6, 5) if b else normal(2, 2, 3, 5, 6)
    if batch[0]:
        left = np.ascontiguousarray(np.moveaxis(left, 2, 0))
    if batch[1]:
        right = np.ascontiguousarray(np.moveaxis(right, 2, 0))
    attrs: dict[str, Any] = {"transA": int(a), "transB": int(b), "alpha": 0.3}
    attrs |= {"transBatchA": batch[0], "transBatchB": batch[1]}
    case = one("FusedMatMul", [("a", left), ("b", right)], ["a", "b"], {"y": FLOAT}, **attrs)
    near(case, BOUND)


ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"activation_alpha": 0.2}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
]


@pytest.mark.parametrize(("name", "attrs"), ACTIVATIONS)
def test_gemms_with_an_activation(name: str, attrs: dict[str, Any]) -> None:
    given = [("a", normal(1, 4, 7)), ("b", normal(2, 5, 7)), ("c", normal(3, 5))]
    gemm = one(
        "FusedGemm", given, ["a"], {"y": FLOAT}, activation=name, transB=1, alpha=0.5, **attrs
    )
    near(gemm, BOUND)


@pytest.mark.parametrize(("name", "attrs"), ACTIVATIONS)
def test_convolutions_with_an_activation(name: str, attrs: dict[str, Any]) -> None:
    parts = [("x", normal(1, 2, 4, 7, 7)), ("w", normal(2, 6, 4, 3, 3)), ("b", normal(3, 6))]
    more: dict[str, Any] = {"activation_params": list(attrs.values())} if attrs else {}
    conv = one("FusedConv", parts, ["x"], {"y": FLOAT}, activation=name, pads=[1] * 4, **more)
    near(conv, BOUND)
    if name == "Relu":
        summand = [*parts, ("z", normal(4, 2, 6, 7, 7))]
        near(
            one("FusedConv", summand, ["x", "z"], {"y": FLOAT}, activation=name, pads=[1] * 4),
            BOUND,
        )


@pytest.mark.parametrize("axis", [0, 1, -1, -3])
def test_an_axis_is_put_in(axis: int) -> None:
    place = np.array(axis, np.int32)
    equal(one("ExpandDims", [("x", normal(1, 3, 4)), ("axis", place)], ["x"], {"y": FLOAT}))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_pools_with_channels_last(kind: Any) -> None:
    x = np.random.default_rng(1).integers(-90, 90, (2, 7, 6, 5)).astype(kind)
    code = U8 if kind is np.uint8 else I8
    equal(
        one(
            "NhwcMaxPool",
            [("x", x)],
            ["x"],
            {"y": code},
            kernel_shape=[3, 2],
            strides=[2, 1],
            pads=[1, 0, 1, 1],
        )
    )
