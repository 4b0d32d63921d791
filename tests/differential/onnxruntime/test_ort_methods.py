"""The rules of `native` against onnxruntime's own integer operators: every byte, ties included."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.numerics import (
    Affine,
    affine,
    dequantize,
    multiplier,
    quantize,
    quantize_bias,
    requantize,
    scale_sum,
)
from qir.numerics.accumulate import conv2d, matmul
from qir.profiles import Query, profile
from qir.reference import methods
from tests.counting import note
from tests.differential.onnxruntime.kernels import MS, Array, numbers, run_operator
from tests.installed import UNOPTIMIZED

F = np.float32
NATIVE = profile("native")
KINDS = ("u8", "i8")


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def all_integers(storage: str) -> Array:
    low, high = affine(storage, 1.0).storage.bounds
    return np.arange(low, high + 1).astype(affine(storage, 1.0).carrier)


def any_integers(seed: np.random.Generator, storage: str, *shape: int) -> Array:
    return seed.choice(all_integers(storage), shape)


def odd_zero(seed: np.random.Generator, storage: str) -> int:
    """A zero point that is odd, where rounding before and after it differ at ties."""
    low, high = affine(storage, 1.0).storage.bounds
    return int(seed.integers(low, high)) | 1


def any_map(seed: np.random.Generator, storage: str, scale: float | None = None) -> Affine:
    found = float(F(seed.uniform(0.003, 0.3))) if scale is None else scale
    return affine(storage, found, odd_zero(seed, storage))


def share(ties: NDArray[np.bool_], floats: NDArray[np.float64], out: Affine) -> tuple[float, ...]:
    """How many are ties, and how many saturate at each side."""
    zero = float(out.zero)
    return (
        float(ties.mean()),
        float((floats + zero < out.low - 0.5).mean()),
        float((floats + zero > out.high + 0.5).mean()),
    )


def is_tie(floats: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.abs(floats - np.floor(floats) - 0.5) < 1e-9


def rich(floats: NDArray[np.float64], out: Affine, seed: object) -> None:
    """At least 5 % exact ties, and 5 % saturated at either side."""
    found = share(is_tie(floats), floats, out)
    assert min(found) >= 0.05, f"seed {seed}: ties, low and high saturated: {found}"


def same(found: Array, wanted: Array, seed: object) -> None:
    assert found.dtype == wanted.dtype, f"seed {seed}: {found.dtype} for {wanted.dtype}"
    assert found.shape == wanted.shape, f"seed {seed}: {found.shape} for {wanted.shape}"
    note(found, wanted)
    wrong = found.view(np.uint8) != wanted.view(np.uint8)
    assert not wrong.any(), f"seed {seed}: {int(wrong.sum())} of {wrong.size} bytes differ"


# -- quantize and dequantize ----------------------------------------------------------------------

SPECIAL = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -1e-40, 0.0, -0.0, 2.0**31, 2.0**40], F
)


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_is_onnxruntimes_for_every_length_and_special_value(kind: str) -> None:
    rule = NATIVE.resolve(Query("quantize"))
    for length in range(1, 71):
        seed = rng(length)
        for scale in (0.5, float(F(seed.uniform(0.001, 2))), 1e-38, 1e-42):
            to = any_map(seed, kind, scale)
            x = (seed.integers(-700, 700, length) * F(0.5) * F(scale)).astype(F)
            few = int(seed.integers(0, min(length, len(SPECIAL)) + 1))
            x[:few] = SPECIAL[:few]
            wanted = run_operator("QuantizeLinear", [x, *numbers(to)], to.carrier)
            same(quantize(x, to, rule), wanted, (length, scale))


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_of_ties_and_saturating_values_is_onnxruntimes(kind: str) -> None:
    seed = rng(1)
    to = affine(kind, 0.25, 101 if kind == "u8" else -3)
    x = (seed.integers(-700, 700, 5000) * F(0.125)).astype(F)
    rich(x.astype(np.float64) / 0.25, to, 1)
    wanted = run_operator("QuantizeLinear", [x, *numbers(to)], to.carrier)
    same(quantize(x, to, NATIVE.resolve(Query("quantize"))), wanted, 1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_and_dequantize_along_an_axis_are_onnxruntimes(axis: int) -> None:
    seed = rng(axis)
    x = (seed.normal(size=(5, 7, 3)) * 3).astype(F)
    count = x.shape[axis]
    scales = np.asarray(seed.uniform(0.01, 0.1, count), F)
    zeros = np.asarray(seed.integers(0, 256, count))
    of = affine("u8", scales, zeros, axis=axis)
    quantized = run_operator("QuantizeLinear", [x, *numbers(of)], np.uint8, axis=axis)
    same(quantize(x, of, NATIVE.resolve(Query("quantize"))), quantized, axis)
    floats = run_operator("DequantizeLinear", [quantized, *numbers(of)], F, axis=axis)
    same(dequantize(quantized, of, NATIVE.resolve(Query("dequantize"))), floats, axis)


@pytest.mark.parametrize("kind", [*KINDS, "i32"])
def test_dequantize_is_onnxruntimes(kind: str) -> None:
    for length in range(1, 71):
        seed = rng(length)
        bits = affine(kind, 1.0)
        quantized = seed.integers(bits.low, bits.high, length, endpoint=True).astype(bits.carrier)
        of = any_map(seed, kind) if kind != "i32" else affine(kind, float(F(seed.uniform(0.01, 1))))
        operands = [quantized, *numbers(of)][: 2 if kind == "i32" else 3]
        wanted = run_operator("DequantizeLinear", operands, F)
        same(dequantize(quantized, of, NATIVE.resolve(Query("dequantize"))), wanted, length)


# -- add and mul ----------------------------------------------------------------------------------


def pairs(kind: str) -> tuple[Array, Array]:
    """Every pair of integers."""
    quantized = all_integers(kind)
    return np.repeat(quantized, len(quantized)), np.tile(quantized, len(quantized))


BINARY: dict[str, tuple[str, Callable[..., Array]]] = {
    "add": ("QLinearAdd", methods.fma_sum),
    "mul": ("QLinearMul", methods.scaled_product),
}


def onnxruntime_pairs(op: str, a: Array, b: Array, maps: tuple[Affine, Affine, Affine]) -> Array:
    of_a, of_b, out = maps
    operands = [a, *numbers(of_a), b, *numbers(of_b), *numbers(out)]
    return run_operator(BINARY[op][0], operands, out.carrier, inputs_at=(0, 3), domain=MS)


def near_ties(seed: np.random.Generator, kind: str, op: str) -> tuple[Affine, Affine, Affine]:
    """Scales that are no powers of two, whose ratios nearly are: where the order of steps shows."""
    a = F(seed.uniform(0.003, 0.3))
    b = a if seed.random() < 0.5 else F(seed.uniform(0.003, 0.3))
    out = F(a * F(2)) if op == "add" else F(a * b * F(2 ** seed.integers(3, 9)))
    low, high = affine(kind, 1.0).storage.bounds
    zeros = (int(z) for z in seed.integers(low, high, 3, endpoint=True))
    return tuple(affine(kind, float(s), next(zeros)) for s in (a, b, out))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_every_pair_of_integers_is_added_and_multiplied_as_onnxruntime_does(
    op: str, kind: str
) -> None:
    a, b = pairs(kind)
    for number in range(12):
        maps = near_ties(rng(number), kind, op)
        same(BINARY[op][1](a, b, *maps), onnxruntime_pairs(op, a, b, maps), number)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_ties_and_saturation_of_add_and_mul_are_onnxruntimes(op: str, kind: str) -> None:
    a, b = pairs(kind)
    zero = 121 if kind == "u8" else -7
    scales = (0.25, 0.5, 0.5) if op == "add" else (0.25, 0.25, 2.0)
    maps = tuple(
        affine(kind, s, z) for s, z in zip(scales, (zero, zero + 4, zero + 2), strict=True)
    )
    of_a, of_b, out = maps
    left = (a.astype(np.float64) - float(of_a.zero)) * scales[0]
    right = (b.astype(np.float64) - float(of_b.zero)) * scales[1]
    rich((left + right if op == "add" else left * right) / scales[2], out, op)
    same(BINARY[op][1](a, b, *maps), onnxruntime_pairs(op, a, b, (of_a, of_b, out)), op)


SHAPES: dict[str, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "alike": lambda n: ((n,), (n,)),
    "b one": lambda n: ((n,), (1,)),
    "a one": lambda n: ((1,), (n,)),
    "b scalar": lambda n: ((n,), ()),
    "a scalar": lambda n: ((), (n,)),
    "both ways": lambda n: ((n, 1), (1, n)),
    "b a channel": lambda n: ((2, n, 3), (1, n, 1)),
    "a a channel": lambda n: ((1, n, 1), (2, n, 3)),
    "a a row": lambda n: ((1, n), (3, n)),
    "a one beside ones": lambda n: ((1,), (n, 1)),
    "b one beside ones": lambda n: ((n, 1), (1,)),
    "ones inside": lambda n: ((n, 1, 1), (n, 1, 1)),
}


@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("name", SHAPES)
def test_broadcasting_picks_the_operand_that_onnxruntime_folds_away(name: str, op: str) -> None:
    for length in range(1, 71):
        seed = rng(length)
        kind = KINDS[length % 2]
        maps = near_ties(seed, kind, op)
        a, b = (any_integers(seed, kind, *shape) for shape in SHAPES[name](length))
        same(BINARY[op][1](a, b, *maps), onnxruntime_pairs(op, a, b, maps), (name, length))


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((1,), (256,)), ((1,), (256, 1)), ((256, 1), (1,)), ((), (256,)), ((1, 1), (256, 1))],
)
def test_operands_change_places_where_onnxruntime_folds_a_away(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> None:
    """Inputs for which it may matter: found by trying both orders, judged by onnxruntime."""
    told = 0
    for number in range(1500):
        seed = rng(number)
        a, b, out = near_ties(seed, "u8", "add")
        if len(a_shape) > len(b_shape):
            a, b = b, a  # the scale that the result's is twice of belongs to the one
        left, right = (any_integers(seed, "u8", *shape) for shape in (a_shape, b_shape))
        full = [np.ascontiguousarray(c) for c in np.broadcast_arrays(left, right)]
        kept = methods.fma_sum(full[0], full[1], a, b, out)
        turned = methods.fma_sum(full[1], full[0], b, a, out)
        if not np.array_equal(kept, turned):
            told += 1
            found = methods.fma_sum(left, right, a, b, out)
            same(found, onnxruntime_pairs("add", left, right, (a, b, out)), number)
    assert told >= 5, "too few inputs tell the orders apart"


@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("size", [1e-30, 1e12, 1e30])
def test_results_beyond_32_bits_are_onnxruntimes(op: str, size: float) -> None:
    a, b = pairs("u8")
    maps = (affine("u8", size, 3), affine("u8", 0.5, 7), affine("u8", 0.25, 9))
    same(BINARY[op][1](a, b, *maps), onnxruntime_pairs(op, a, b, maps), size)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_sigmoid_of_every_code_is_onnxruntimes(kind: str) -> None:
    rule = NATIVE.resolve(Query("sigmoid"))
    quantized = all_integers(kind)
    for number in range(60):
        seed = rng(number)
        of = any_map(seed, kind, 2.0 ** -float(seed.integers(3, 8)) if number % 2 else None)
        out = any_map(seed, kind, [1 / 256, float(F(seed.uniform(0.001, 0.01)))][number % 2])
        operands = [quantized, *numbers(of), *numbers(out)]
        wanted = run_operator("QLinearSigmoid", operands, out.carrier, domain=MS)
        same(methods.logistic_table(quantized, of, out, rule=rule), wanted, number)


def test_the_logistic_function_has_every_bit_of_onnxruntimes() -> None:
    for length in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 20000):
        x = (rng(length).normal(size=length) * 8).astype(F)
        same(methods.logistic(x), run_operator("Sigmoid", [x], F), length)


@pytest.mark.parametrize("kind", KINDS)
def test_concat_recodes_every_code_as_onnxruntime_does(kind: str) -> None:
    rule = NATIVE.resolve(Query("concat"))
    quantized = all_integers(kind).reshape(1, -1)
    for number in range(30):
        seed = rng(number)
        scales = [2.0 ** -float(seed.integers(1, 6)) if number % 2 else None for _ in range(3)]
        one, two, out = (any_map(seed, kind, s) for s in scales)
        one = out if number % 3 == 0 else one
        operands = [*numbers(out), quantized, *numbers(one), quantized[:, ::-1], *numbers(two)]
        wanted = run_operator(
            "QLinearConcat", operands, out.carrier, inputs_at=(2, 5), domain=MS, axis=1
        )
        found = methods.recode_all(
            [quantized, quantized[:, ::-1]], [one, two], out, axis=1, rule=rule
        )
        same(found, wanted, number)


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_is_onnxruntimes_along_any_axis_of_any_length(kind: str) -> None:
    named = profile(UNOPTIMIZED).resolve(Query("softmax", {"x": kind, "result": kind})).method
    assert named is not None
    for length in [*range(1, 71), 100, 255, 1000]:
        seed = rng(length)
        shape, axis = [((3, length), 1), ((2, length, 3), 1), ((length, 4), -2)][length % 3]
        of = any_map(seed, kind, [None, 2.0**-5, 2.0**-3][length % 3])
        plain = affine(kind, 1 / 256, affine(kind, 1.0).low)
        for out in (plain, any_map(seed, kind, float(F(seed.uniform(0.003, 0.02))))):
            for x in (any_integers(seed, kind, *shape), np.full(shape, all_integers(kind)[-1])):
                operands = [x, *numbers(of), *numbers(out)]
                wanted = run_operator(
                    "QLinearSoftmax", operands, out.carrier, domain=MS, axis=axis, opset=13
                )
                made = methods.exponent_table(x, of, out, axis=axis, **named.params)  # type: ignore[arg-type]
                same(made, wanted, (length, str(out.scale)))


# -- pooling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", KINDS)
def test_average_pooling_is_onnxruntimes(kind: str, layout: str) -> None:
    for number in range(150):
        seed = rng(number)
        kernel = tuple(int(v) for v in seed.integers(1, 5, 2))
        stride = tuple(int(v) for v in seed.integers(1, 4, 2))
        pad = tuple(int(seed.integers(0, k)) for k in kernel * 2)
        ceil, count_pad = bool(number & 1), bool(number & 2)
        of = any_map(seed, kind)
        ratio = (0.5, 1.0, 2.0, 0.25, 1 / 3, 1 / 6)[number % 6]
        out = any_map(seed, kind, float(F(of.scale) * F(ratio)))
        sizes = seed.integers(4, 12, 2)
        x = any_integers(seed, kind, 2, int(seed.integers(1, 20)), int(sizes[0]), int(sizes[1]))
        if number % 2:
            near = np.clip(int(of.zero) + seed.integers(-20, 21, x.shape), of.low, of.high)
            x = near.astype(x.dtype)
        if layout == "NHWC":
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        wanted = run_operator(
            "QLinearAveragePool",
            [x, *numbers(of), *numbers(out)],
            out.carrier,
            domain=MS,
            kernel_shape=kernel,
            strides=stride,
            pads=pad,
            ceil_mode=int(ceil),
            count_include_pad=int(count_pad),
            channels_last=int(layout == "NHWC"),
        )
        found = methods.mean_of_reals(
            x,
            of,
            out,
            kernel=kernel,
            stride=stride,
            pad=pad,
            ceil=ceil,
            count_pad=count_pad,
            layout=layout,
        )
        same(found, wanted, number)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", KINDS)
def test_global_average_pooling_is_onnxruntimes(kind: str, layout: str) -> None:
    for channels in range(1, 71):
        seed = rng(channels)
        sizes = tuple(int(v) for v in seed.integers(1, 12, 2))
        of = any_map(seed, kind)
        out = any_map(seed, kind, float(F(of.scale) * F((0.5, 1.0, 1 / 3, 0.125)[channels % 4])))
        x = any_integers(seed, kind, 2, channels, *sizes)
        if layout == "NHWC":
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        operands = [x, *numbers(of), *numbers(out)]
        last = int(layout == "NHWC")
        wanted = run_operator(
            "QLinearGlobalAveragePool", operands, out.carrier, domain=MS, channels_last=last
        )
        same(methods.mean_of_codes(x, of, out, layout=layout), wanted, channels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["avg", "global"])
def test_ties_and_saturation_of_pooling_are_onnxruntimes(op: str, kind: str) -> None:
    seed = rng(3)
    zero = 127 if kind == "u8" else -1
    of, out = affine(kind, 0.5, zero), affine(kind, 0.25 if op == "avg" else 0.125, zero + 2)
    steps = seed.integers(-128, 128, (4, 16, 1, 1)) + seed.integers(-7, 8, (4, 16, 8, 8))
    x = np.clip(zero + steps, of.low, of.high).astype(of.carrier)
    floats = x.astype(np.float64) - zero
    operands = [x, *numbers(of), *numbers(out)]
    if op == "global":
        x = x[:, :, :2, :2]
        floats = floats[:, :, :2, :2].mean((2, 3), keepdims=True) * 4
        wanted = run_operator(
            "QLinearGlobalAveragePool", [x, *operands[1:]], out.carrier, domain=MS
        )
        found = methods.mean_of_codes(x, of, out)
    else:
        floats = floats.reshape(4, 16, 4, 2, 4, 2).mean((3, 5)) * 2
        wanted = run_operator(
            "QLinearAveragePool",
            operands,
            out.carrier,
            domain=MS,
            kernel_shape=(2, 2),
            strides=(2, 2),
        )
        found = methods.mean_of_reals(x, of, out, kernel=(2, 2), stride=(2, 2))
    low, high = share(is_tie(floats), floats, out)[1:]
    assert min(low, high) >= 0.05, f"saturated {low:.3f} and {high:.3f}"
    if op == "avg":
        assert is_tie(floats).mean() >= 0.05, "too few ties"
    same(found, wanted, op)


# -- sums that are rounded once -------------------------------------------------------------------

FORMS = [("u8", "i8"), ("u8", "u8"), ("i8", "i8")]


def weights(seed: np.random.Generator, kind: str, *shape: int) -> Array:
    middle = 128 if kind == "u8" else 0
    reach = (1, 3, 127)[int(seed.integers(0, 3))]
    return (seed.integers(-reach, reach + 1, shape) + middle).astype(affine(kind, 1.0).carrier)


def weight_map(seed: np.random.Generator, kind: str, count: int, many: bool, axis: int) -> Affine:
    zero = (128 if kind == "u8" else 0) + int(seed.integers(-3, 4)) * int(seed.integers(0, 2))
    scales = seed.uniform(0.001, 0.01, count).astype(F)
    return affine(kind, scales, zero, axis=axis) if many else affine(kind, float(scales[0]), zero)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_convolution_is_onnxruntimes(form: tuple[str, str]) -> None:
    rule = NATIVE.resolve(Query("conv2d"))
    for number in range(100):
        seed = rng(number)
        groups, per, into = (
            (1, int(seed.integers(1, 40)), int(seed.integers(1, 40))),
            (int(seed.integers(2, 5)), int(seed.integers(1, 9)), int(seed.integers(1, 9))),
            (int(seed.integers(1, 70)), 1, int(seed.integers(1, 3))),
        )[number % 3]
        kernel = tuple(int(v) for v in seed.integers(1, 4, 2))
        stride, dilation = (tuple(int(v) for v in seed.integers(1, 3, 2)) for _ in range(2))
        pad = tuple(int(v) for v in seed.integers(0, 3, 4))
        sizes = tuple(int(v) for v in seed.integers(6, 12, 2))
        x = any_integers(seed, form[0], 2, groups * per, *sizes)
        w = weights(seed, form[1], groups * into, per, *kernel)
        of_x = any_map(seed, form[0])
        of_w = weight_map(seed, form[1], groups * into, number % 2 == 0, 0)
        bias = seed.integers(-2000, 2000, groups * into).astype(np.int32)
        acc = conv2d(
            x,
            w,
            of_x.zero,
            of_w.zero,
            stride=stride,
            pad=pad,
            dilation=dilation,
            groups=groups,
        )
        acc = acc + bias[:, None, None]
        unit = float(F(of_x.scale) * F(of_w.scale.flat[0]))
        out = any_map(seed, form[0], float(F(unit * np.abs(acc).max() / 90 + 1e-9)))
        wanted = run_operator(
            "QLinearConv",
            [x, *numbers(of_x), w, *numbers(of_w), *numbers(out), bias],
            out.carrier,
            kernel_shape=kernel,
            strides=stride,
            pads=pad,
            dilations=dilation,
            group=groups,
        )
        same(requantize(acc, multiplier(of_x, of_w, out, rule), out, rule), wanted, number)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@pytest.mark.parametrize("op", ["matmul", "gemm", "gemm to reals"])
def test_products_of_matrices_are_onnxruntimes(op: str, form: tuple[str, str]) -> None:
    rule = NATIVE.resolve(Query(op.split()[0]))
    for columns in range(1, 71):
        seed = rng(columns)
        rows, inner = (int(v) for v in seed.integers(1, (9, 71)))
        a, b = any_integers(seed, form[0], rows, inner), weights(seed, form[1], inner, columns)
        of_a = any_map(seed, form[0])
        of_b = weight_map(seed, form[1], columns, columns % 3 != 0, 1)
        alpha = 1.0 if op == "matmul" else (1.0, 0.75, 1.3)[columns % 3]
        bias = seed.integers(-500, 500, columns).astype(np.int32)
        acc = matmul(a, b, of_a.zero, of_b.zero)
        unit = float(F(of_a.scale) * F(of_b.scale.flat[0]))
        out = any_map(seed, form[0], float(F(unit * np.abs(acc).max() / 90 + 1e-9)))
        front: list[Array | None] = [a, *numbers(of_a), b, *numbers(of_b)]
        if op == "matmul":
            wanted = run_operator("QLinearMatMul", [*front, *numbers(out)], out.carrier)
        else:
            acc = acc + bias
            back = [bias] if op == "gemm to reals" else [bias, *numbers(out)]
            result = np.float32 if op == "gemm to reals" else out.carrier
            wanted = run_operator("QGemm", [*front, *back], result, domain=MS, alpha=alpha)
        if op == "gemm to reals":
            factor = multiplier(of_a, of_b, None, rule, gain=alpha)
            same(scale_sum(acc, factor, axis=1), wanted, columns)
        else:
            factor = multiplier(of_a, of_b, out, rule, gain=alpha)
            same(requantize(acc, factor, out, rule, axis=1), wanted, columns)


def products(kind: str) -> tuple[Array, Array]:
    """Every activation code in one column, times every weight."""
    return all_integers(kind).reshape(-1, 1), np.arange(-127, 128).astype(np.int8).reshape(1, -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["conv2d", "matmul", "gemm"])
def test_the_order_of_a_multipliers_factors_is_onnxruntimes(op: str, kind: str) -> None:
    """Products just beside ties, where another order of (alpha * x * w) / y gives another code."""
    rule = NATIVE.resolve(Query(op))
    a, w = products(kind)
    for number in range(40):
        seed = rng(number)
        of_a = any_map(seed, kind)
        base = F(seed.uniform(0.001, 0.01))
        beside = np.nextafter(base, np.where(np.arange(255) % 3, np.inf, -np.inf).astype(F))
        of_w = affine("i8", beside, axis=1)
        alpha = (1.0, 0.75, 1.3)[number % 3] if op == "gemm" else 1.0
        even = (2, 4, 6, 10, 50, 100)[number % 6]
        out = any_map(seed, kind, float(F(F(alpha) * F(of_a.scale) * base * F(even))))
        acc = matmul(a, w, of_a.zero)
        front: list[Array | None] = [a, *numbers(of_a), w, *numbers(of_w)]
        if op == "matmul":
            wanted = run_operator("QLinearMatMul", [*front, *numbers(out)], out.carrier)
        elif op == "gemm":
            back = [None, *numbers(out)]
            wanted = run_operator("QGemm", [*front, *back], out.carrier, domain=MS, alpha=alpha)
        else:
            front[0], front[3] = a.reshape(-1, 1, 1, 1), w.reshape(-1, 1, 1, 1)
            wanted = run_operator("QLinearConv", [*front, *numbers(out)], out.carrier)
        factor = multiplier(of_a, of_w, out, rule, gain=alpha)
        found = requantize(acc, factor, out, rule, axis=1)
        same(found, wanted.reshape(found.shape), number)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_and_saturation_of_products_are_onnxruntimes(kind: str) -> None:
    a, w = products(kind)
    w = w[:, 1::2]  # even weights: twice as many ties
    of_a, of_w = affine(kind, 0.5, 131 if kind == "u8" else 3), affine("i8", 0.25)
    out = affine(kind, 8.0, 121 if kind == "u8" else -7)
    acc = matmul(a, w, of_a.zero)
    rich(acc.astype(np.float64) * 0.125 / 8.0, out, kind)
    rule = NATIVE.resolve(Query("matmul"))
    operands = [a, *numbers(of_a), w, *numbers(of_w), *numbers(out)]
    wanted = run_operator("QLinearMatMul", operands, out.carrier)
    same(requantize(acc, multiplier(of_a, of_w, out, rule), out, rule), wanted, kind)


def test_sums_beyond_32_bits_wrap_as_onnxruntimes_do() -> None:
    for length in (66311, 66312, 66400, 140000):
        a, b = np.full((1, length), 255, np.uint8), np.full((length, 3), 127, np.int8)
        same(
            matmul(a, b), run_operator("MatMulInteger", [a, b], np.int32, inputs_at=(0, 1)), length
        )


def test_the_optimizers_product_to_reals_is_ours() -> None:
    """MatMulIntegerToFloat, which a product without a quantize after it becomes."""
    rule = NATIVE.resolve(Query("matmul"))
    for columns in range(1, 71):
        seed = rng(columns)
        a, b = any_integers(seed, "u8", 5, 33), weights(seed, "i8", 33, columns)
        of_a, of_b = any_map(seed, "u8"), weight_map(seed, "i8", columns, columns % 2 == 0, 1)
        (sa, za), (sb, zb) = numbers(of_a), numbers(of_b)
        operands: list[Array | None] = [a, b, sa, sb, za, zb]
        wanted = run_operator("MatMulIntegerToFloat", operands, F, domain=MS)
        factor = multiplier(of_a, of_b, None, rule)
        same(scale_sum(matmul(a, b, of_a.zero, of_b.zero), factor, axis=1), wanted, columns)


def test_bias_codes_are_bias_by_unit_in_float64_as_in_onnxruntimes_tool() -> None:
    rule = NATIVE.resolve(Query("conv2d"))
    for number in range(200):
        seed = rng(number)
        x, w = any_map(seed, "u8"), affine("i8", seed.uniform(0.001, 0.1, 64).astype(F), axis=0)
        bias = seed.normal(size=64).astype(F)
        unit = x.scale * w.scale
        wanted = (bias.astype(np.float64) / unit.astype(np.float64)).round().astype(np.int32)
        same(quantize_bias(bias, x, w, rule), wanted, number)
