"""The bytes of each step beside those of onnxruntime's integer operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracles.onnxruntime_vectors import VECTORS, cases, digest

from .one import BOUNDS, CODES, ISAS, one, random_integers

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

F32 = np.float32
CONTRIB = {"QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearGlobalAveragePool",
           "QLinearSoftmax", "QGemm"}  # fmt: skip
Array = NDArray[np.generic]


def operator(op: str, inputs: Sequence[Any], **attributes: object) -> Array:
    """What onnxruntime gives for one operator; the first input is fed, the others are constants."""
    helper = onnx.helper
    names = ["" if x is None else f"i{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(
        op, names, ["y"], domain="com.microsoft" if op in CONTRIB else "", **attributes
    )
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                "i0", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), inputs[0].shape
            )
        ],
        [helper.make_empty_tensor_value_info("y")],
        [
            onnx.numpy_helper.from_array(np.asarray(x), n)
            for x, n in zip(inputs, names, strict=True)
            if n
        ][1:],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result: Array = session.run(None, {"i0": inputs[0]})[0]
    return result


def nhwc(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def nchw(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2)


def same(got: Array, expected: Array, what: object) -> None:
    wrong = int((got != expected).sum())
    assert wrong == 0, f"{what}: {wrong} of {got.size} differ"
    assert got.shape == expected.shape


def scales(rng: np.random.Generator, count: int) -> list[np.float32]:
    """Random scales, and as often such that many results are ties."""
    if rng.random() < 0.5:
        return [F32(2.0 ** int(rng.integers(-6, 0))) for _ in range(count)]
    return [F32(rng.uniform(0.004, 0.3)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(36))
def test_convolutions_are_those_of_qlinearconv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    if seed >= 24:  # narrow groups, of as many output as input channels
        groups = int(rng.integers(2, 12))
        c = out = groups * int(rng.choice([2, 4, 8, 16, 24]))
    elif seed % 2:  # depthwise
        c = out = groups = int(rng.integers(2, 80))
    else:
        groups = int(rng.choice([1, 2, 4]))
        c, out = groups * 5, groups * int(rng.integers(1, 40))
    kind = str(rng.choice(["u8", "i8"]))
    x = random_integers(rng, kind, (2, c, 11, 10))
    weight = rng.integers(-127, 128, (out, c // groups, 3, 3)).astype(np.int8)
    bias = rng.integers(-3000, 3000, out).astype(np.int32)
    x_zero, y_zero = random_integers(rng, kind, (2,))
    x_scale, y_scale = scales(rng, 2)
    w_scale = rng.uniform(0.001, 0.05, out).astype(F32) if seed % 3 else np.full(out, 2.0**-6, F32)
    stride, pad = [(1, 1), (2, 1)][seed % 4 // 2], (1, 0, 2, 1)
    expected = operator(
        "QLinearConv",
        [x, x_scale, x_zero, weight, w_scale, np.zeros(out, np.int8), y_scale, y_zero, bias],
        strides=stride,
        pads=pad,
        group=groups,
        kernel_shape=(3, 3),
    )
    multiplier = (x_scale * w_scale) / y_scale
    for isa in ISAS:
        got = one(
            "conv2d",
            [nhwc(x)],
            nhwc(expected).shape,
            CODES[kind],
            weight,
            bias,
            multiplier,
            isa=isa,
            threads=2,
            shape=nhwc(x).shape,
            stride=stride,
            pad=pad,
            groups=groups,
            x_type=kind,
            x_zero=int(x_zero),
            y_type=kind,
            y_zero=int(y_zero),
        )
        same(nchw(got), expected, (seed, isa))


@pytest.mark.parametrize("seed", range(8))
def test_linear_is_qgemm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(v) for v in rng.integers(1, 71, 3))
    x = random_integers(rng, "u8", (m, k))
    weight = rng.integers(-127, 128, (n, k)).astype(np.int8)
    bias = rng.integers(-3000, 3000, n).astype(np.int32)
    x_zero, y_zero = random_integers(rng, "u8", (2,))
    x_scale, y_scale = scales(rng, 2)
    w_scale = rng.uniform(0.001, 0.05, n).astype(F32)
    for to_quantized in (True, False):
        expected = operator(
            "QGemm",
            [x, x_scale, x_zero, weight, w_scale, np.zeros(n, np.int8), bias]
            + ([y_scale, y_zero] if to_quantized else []),
            transB=1,
        )
        multiplier = x_scale * w_scale / y_scale if to_quantized else x_scale * w_scale
        options: dict[str, Any] = {"y_zero": int(y_zero)} if to_quantized else {"y_type": "f32"}
        for isa in ISAS:
            got = one(
                "linear",
                [x],
                (m, n),
                np.uint8 if to_quantized else F32,
                weight,
                bias,
                multiplier,
                isa=isa,
                rows=m,
                x_zero=int(x_zero),
                **options,
            )
            same(got, expected, (seed, isa, to_quantized))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("seed", range(8))
def test_sums_and_products_are_those_of_qlinear(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = random_integers(rng, kind, (3, 4567)), random_integers(rng, kind, (3, 4567))
    sa, sb, sy = scales(rng, 3)
    za, zb, zy = random_integers(rng, kind, (3,))
    ra, rb = sa / sy, sb / sy
    inner = np.float64(ra) * np.float64(za) + np.float64(F32(rb * F32(zb)))
    offset = F32(F32(zy) - F32(inner))
    types: dict[str, Any] = {"a_type": kind, "b_type": kind, "y_type": kind}
    for isa in ISAS:
        got = one(
            "add",
            [a, b],
            a.shape,
            CODES[kind],
            isa=isa,
            shape=(1, 3, 4567),
            a_gain=ra,
            b_gain=rb,
            offset=offset,
            **types,
        )
        same(got, operator("QLinearAdd", [a, sa, za, b, sb, zb, sy, zy]), (seed, isa))
        got = one(
            "mul",
            [a, b],
            a.shape,
            CODES[kind],
            isa=isa,
            shape=(1, 3, 4567),
            a_zero=int(za),
            b_zero=int(zb),
            multiplier=sa * sb / sy,
            y_zero=int(zy),
            **types,
        )
        same(got, operator("QLinearMul", [a, sa, za, b, sb, zb, sy, zy]), (seed, isa))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("seed", range(6))
def test_averages_are_those_of_qlinear(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = random_integers(rng, kind, (2, int(rng.integers(1, 90)), 9, 8))
    sx, sy = scales(rng, 2)
    zx, zy = random_integers(rng, kind, (2,))
    given: dict[str, Any] = {
        "x_scale": sx,
        "x_zero": int(zx),
        "y_scale": sy,
        "y_zero": int(zy),
        "x_type": kind,
        "y_type": kind,
        "shape": nhwc(x).shape,
    }
    counted = bool(seed % 2)
    expected = operator(
        "QLinearAveragePool",
        [x, sx, zx, sy, zy],
        kernel_shape=(3, 2),
        strides=(2, 1),
        pads=(1, 1, 0, 0),
        count_include_pad=int(counted),
    )
    overall = operator("QLinearGlobalAveragePool", [x, sx, zx, sy, zy], channels_last=0)
    for isa in ISAS:
        got = one(
            "avg_pool2d",
            [nhwc(x)],
            nhwc(expected).shape,
            CODES[kind],
            isa=isa,
            kernel=(3, 2),
            stride=(2, 1),
            pad=(1, 1, 0, 0),
            count_pad=counted,
            **given,
        )
        same(nchw(got), expected, (seed, isa))
        got = one("global_avg_pool", [nhwc(x)], nhwc(overall).shape, CODES[kind], isa=isa, **given)
        same(nchw(got), overall, (seed, isa))


WIDE = not onnxruntime.__version__.startswith(("1.29.", "1.30.", "1.31."))
"""Whether the installed onnxruntime divides in float64."""


def test_softmax_is_what_was_recorded_of_qlinearsoftmax() -> None:
    with np.load(VECTORS / "1.31.1.npz") as file:
        assert str(file["inputs"]) == digest(), "recorded for other inputs"
        wanted = np.split(file["y"], np.cumsum([case.x.size for case in cases()])[:-1])
    for case, y in zip(cases(), wanted, strict=True):
        kind = "u8" if case.x.dtype == np.uint8 else "i8"
        got = one(
            "softmax",
            [case.x],
            case.x.shape,
            CODES[kind],
            rows=len(case.x),
            width=case.x.shape[1],
            x_scale=case.scale,
            y_scale=case.made_scale,
            y_zero=case.made_zero,
            x_type=kind,
            y_type=kind,
        )
        same(got, y.view(case.x.dtype).reshape(case.x.shape), (kind, case.x.shape, case.scale))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("width", [1, 2, 3, 10, 70, 1000])
def test_softmax_is_qlinearsoftmax(kind: str, width: int) -> None:
    rng = np.random.default_rng(width)
    for scale in (0.02, 0.11, 0.5):
        x = random_integers(rng, kind, (7, width))
        for zero in (BOUNDS[kind][0], -7 if kind == "i8" else 9):
            expected = operator(
                "QLinearSoftmax",
                [x, F32(scale), CODES[kind](3), F32(1 / 256), CODES[kind](zero)],
                axis=-1,
                opset=13,
            )
            got = one(
                "softmax",
                [x],
                x.shape,
                CODES[kind],
                rows=7,
                width=width,
                x_scale=scale,
                y_scale=1 / 256,
                y_zero=zero,
                x_type=kind,
                y_type=kind,
                wide=WIDE,
            )
            same(got, expected, (kind, width, scale, zero))


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_quantize_and_dequantize_are_the_linear_ones(kind: str) -> None:
    rng = np.random.default_rng(1)
    for size in range(1, 71):
        x = rng.normal(0, 3, size).astype(F32)
        x[rng.random(size) < 0.2] = rng.choice([np.nan, np.inf, -np.inf, 1e30, -0.0, 1e-42])
        scale, zero = scales(rng, 1)[0], random_integers(rng, kind, ())[()]
        expected = operator("QuantizeLinear", [x, scale, zero])
        back = operator("DequantizeLinear", [expected, scale, zero])
        for isa in ISAS:
            got = one(
                "quantize",
                [x],
                x.shape,
                CODES[kind],
                isa=isa,
                shape=x.shape,
                scale=scale,
                zero=int(zero),
                y_type=kind,
            )
            same(got, expected, (kind, size, isa))
            floats = one(
                "dequantize",
                [expected],
                x.shape,
                F32,
                isa=isa,
                shape=x.shape,
                scale=scale,
                zero=int(zero),
                x_type=kind,
            )
            same(floats, back, (kind, size, isa))
