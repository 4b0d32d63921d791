"""Every map that a quantized type can say: blocks, groups, tables, real zeros, float integers."""

from typing import TypeVar

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import F32, F64, DType, dtype
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.numerics import Map, affine, affine_of, convert, dequantize, map_of, quantize, same_map
from qir.numerics.fields import Dequantize, Quantize, Rule

F = np.float32
PLAIN = Rule("plain")
ORT = Rule("ort", quantize=Quantize(clip="reals_first"))
G = TypeVar("G", bound=np.generic)
U4, U8, I8 = dtype("u4"), dtype("u8"), dtype("i8")


def blocked(
    storage: DType,
    scale: NDArray[np.generic] | Array,
    *blocks: tuple[int, int],
    zero: NDArray[np.generic] | None = None,
    by: NDArray[np.generic] | None = None,
    express: DType = F32,
) -> QuantType:
    return QuantType(
        storage,
        express,
        scale if isinstance(scale, Array) else Array.of(scale, "s"),
        () if zero is None else Array.of(zero, "z"),
        Granularity(tuple(blocks), None if by is None else Array.of(by, "by")),
    )


def onnxruntime(
    op: str,
    inputs: dict[str, tuple[int, NDArray[np.generic]]],
    out: int,
    axis: int,
    block_size: int,
) -> NDArray[np.generic]:
    """One node of opset 21 by onnxruntime; each input with its element type."""
    h = onnx.helper
    held = [h.make_tensor(n, k, v.shape, v.tobytes(), raw=True) for n, (k, v) in inputs.items()]
    node = h.make_node(op, list(inputs), ["y"], axis=axis, block_size=block_size)
    graph = h.make_graph([node], "g", [], [h.make_tensor_value_info("y", out, None)], held)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return np.asarray(session.run(None, {})[0])


@pytest.mark.parametrize(("axis", "size"), [(1, 4), (0, 3), (1, 5), (2, 2)])
def test_blocks_are_those_of_onnxruntime(axis: int, size: int) -> None:
    rng = np.random.default_rng(5)
    shape = (6, 8, 3)
    grid = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
    scale = rng.uniform(0.01, 0.1, grid).astype(F)
    zero = rng.integers(100, 150, grid).astype(np.uint8)
    x = rng.normal(size=shape).astype(F)
    kind = blocked(U8, scale, *((i, size if i == axis else 1) for i in range(3)), zero=zero)
    p = onnx.TensorProto
    given: dict[str, tuple[int, NDArray[np.generic]]] = {
        "x": (p.FLOAT, x),
        "s": (p.FLOAT, scale),
        "z": (p.UINT8, zero),
    }
    quantized = quantize(x, map_of(kind), ORT)
    found = onnxruntime("QuantizeLinear", given, axis=axis, block_size=size, out=p.UINT8)
    assert np.array_equal(quantized, found)
    given["x"] = (p.UINT8, quantized)
    floats = onnxruntime("DequantizeLinear", given, axis=axis, block_size=size, out=p.FLOAT)
    assert np.array_equal(dequantize(quantized, map_of(kind), PLAIN), floats)


def naive(x: NDArray[np.float32], grain: Granularity, grid: NDArray[G]) -> NDArray[G]:
    """The number of each element, one element after the other."""
    out = np.empty(x.shape, grid.dtype)
    last = grain.blocks[-1][0]
    for index in np.ndindex(x.shape):
        place = [0] * x.ndim
        for axis, size in grain.blocks:
            place[axis] = index[axis] // size
        if grain.by is not None:
            place[last] = int(grain.by.data[index[last]])
        out[index] = grid[tuple(place)]
    return out


GRAINS = {
    "one axis": ((1, 1),),
    "two axes": ((0, 1), (2, 1)),
    "ragged": ((1, 3),),
    "tiles": ((0, 2), (2, 4)),
    "larger than the axis": ((1, 64), (2, 1)),
    "groups": ((0, 1), (1, 3)),
}


@pytest.mark.parametrize("name", GRAINS)
@pytest.mark.parametrize("place", ["after", "before"])
def test_each_element_takes_the_numbers_of_its_block(name: str, place: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.normal(size=(5, 7, 6)) * 3).astype(F)
    by = rng.integers(0, 3, 7).astype(np.int32) if name == "groups" else None
    grain = Granularity(GRAINS[name], None if by is None else Array.of(by))
    grid = tuple(int(n) for n in grain.grid((5, 7, 6)) if isinstance(n, int))
    scale = rng.uniform(0.02, 0.5, grid).astype(F)
    zero = rng.integers(-5, 6, grid).astype(np.int8)
    kind = QuantType(I8, F32, Array.of(scale), Array.of(zero), grain)
    if grain.axis is not None:
        kind = QuantType(I8, F32, Array.of(scale.ravel()), Array.of(zero.ravel()), grain)
    s, z = naive(x, grain, scale), naive(x, grain, zero).astype(np.int64)
    rule = Rule("p", quantize=Quantize(zero=place))  # type: ignore[arg-type]
    quantized = quantize(x, map_of(kind), rule)
    whole = np.rint(x / s + z.astype(F)) if place == "before" else np.rint(x / s) + z
    assert np.array_equal(quantized, np.clip(whole, -128, 127))
    floats = dequantize(quantized, map_of(kind), PLAIN)
    assert np.array_equal(floats, (quantized.astype(np.int64) - z).astype(F) * s)


def test_scales_that_are_quantized_are_dequantized_first() -> None:
    """nvfp4: float4 integers, float8 scales of 16, one float32 scale for these."""
    rng = np.random.default_rng(8)
    weight = torch.from_numpy(rng.normal(size=(8, 64)).astype(F))
    coarse = weight.abs().max() / (6 * 448)
    fine = (weight.reshape(8, 4, 16).abs().amax(-1) / 6 / coarse).to(torch.float8_e4m3fn)
    held = fine.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    inner = QuantType(dtype("f8e4m3fn"), F32, scale=(float(coarse),))
    scales = Array(held, TensorType((8, 4), inner), "vs")
    of = map_of(blocked(dtype("f4e2m1fn"), scales, (0, 1), (1, 16)))
    each = (fine.to(torch.float32) * coarse).repeat_interleave(16, 1).numpy()
    assert np.array_equal(of.over((8, 64)).scale, each)
    quantized = quantize(weight.numpy(), of, PLAIN)
    assert quantized.dtype == ml_dtypes.float4_e2m1fn
    steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
    wanted = np.abs(weight.numpy() / each).astype(np.float64)
    chosen = np.abs(quantized.astype(np.float64))
    best = np.abs(wanted[..., None] - steps).min(-1)
    assert np.array_equal(np.abs(wanted - chosen), best)
    assert np.array_equal(dequantize(quantized, of, PLAIN), quantized.astype(F) * each)


def test_scales_of_scales_that_lie_in_blocks_too() -> None:
    """Double quantization as bitsandbytes has it: a table, its scales by a table and an offset."""
    rng = np.random.default_rng(9)
    table = np.sort(rng.uniform(-1, 1, 256)).astype(F)
    outer = QuantType(
        U8,
        F32,
        Array.of(rng.uniform(0.5, 2, (1, 2)).astype(F)),
        (),
        Granularity(((1, 8),)),
        plus=(0.75,),
        kind="lut",
        codes=Array.of(table),
    )
    held = rng.integers(0, 256, (1, 16)).astype(np.uint8)
    scales = Array(held, TensorType((1, 16), outer), "s")
    levels = np.linspace(-1, 1, 16).astype(F)
    kind = QuantType(
        U4, F32, scales, (), Granularity(((1, 4),)), kind="lut", codes=Array.of(levels)
    )
    quantized = rng.integers(0, 16, (3, 64)).astype(np.uint8)
    grid = outer.scales().repeat(8, 1)
    scale = (table[held] * grid + F(0.75)).repeat(4, 1)
    assert np.array_equal(dequantize(quantized, map_of(kind), PLAIN), levels[quantized] * scale)


NF4: tuple[float, ...] = (
    -1.0,
    -0.69619,
    -0.52507,
    -0.39492,
    -0.28444,
    -0.18477,
    -0.09105,
    0.0,
    0.07958,
    0.16093,
)
NF4 += (0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0)


def test_a_table_gives_the_nearest_entry_and_of_two_the_lower_index() -> None:
    table = np.array([3, -1, 0.5, 3, 0, 2], F)
    kind = QuantType(U4, F32, (2.0,), kind="lut", codes=Array.of(table))
    x = np.concatenate([np.linspace(-9, 9, 500), [0.5, -1, 5, 2.5, np.inf, -np.inf]]).astype(F)
    quantized = quantize(x, map_of(kind), PLAIN)
    with np.errstate(invalid="ignore"):
        far = np.abs(np.clip(x.astype(np.float64) / 2, -99, 99)[:, None] - table)
    assert np.array_equal(quantized, far.argmin(1))
    assert quantized.dtype == np.uint8
    nf4 = QuantType(U4, F32, (0.3,), kind="lut", codes=Array.of(np.array(NF4, F)))
    every = np.arange(16).astype(np.uint8)
    floats = dequantize(every, map_of(nf4), PLAIN)
    assert np.array_equal(floats, np.array(NF4, F) * F(0.3))
    assert np.array_equal(quantize(floats, map_of(nf4), PLAIN), every)


def test_a_table_of_signed_integers_begins_at_the_least() -> None:
    kind = QuantType(dtype("i2"), F32, (1.0,), kind="lut", codes=(10.0, 20.0, 30.0))
    of = map_of(kind)
    assert quantize(np.array([9, 19, 99], F), of, PLAIN).tolist() == [-2, -1, 0]
    assert dequantize(np.array([-2, -1, 0], np.int8), of, PLAIN).tolist() == [10, 20, 30]
    with pytest.raises(OpError, match="value 1 has no entry in a table of 3"):
        dequantize(np.array([0, 1], np.int8), of, PLAIN)
    for what, nan in (([-2, 0], "low"), ([-2, 0], "zero")):
        rule = Rule("p", quantize=Quantize(nan=nan))  # type: ignore[arg-type]
        assert quantize(np.array([np.nan, 30], F), of, rule).tolist() == what
    with pytest.raises(OpError, match="NaN has no quantized value"):
        quantize(np.array([np.nan], F), of, PLAIN)


def test_a_real_zero_is_inside_the_rounding_and_an_offset_outside() -> None:
    rng = np.random.default_rng(10)
    x = (rng.normal(size=4000) * 5).astype(F)
    real = map_of(QuantType(U4, F32, (0.7,), (7.25,)))
    quantized = quantize(x, real, ORT)
    assert np.array_equal(quantized, np.clip(np.rint(x / F(0.7) + F(7.25)), 0, 15))
    assert np.array_equal(
        dequantize(quantized, real, PLAIN), (quantized.astype(F) - F(7.25)) * F(0.7)
    )
    offset = map_of(QuantType(U8, F32, (0.04,), plus=(-2.7,)))
    quantized = quantize(x, offset, ORT)
    assert np.array_equal(quantized, np.clip(np.rint((x - F(-2.7)) / F(0.04)), 0, 255))
    for by in ("(q-z)*s", "q*s-z*s", "q*s+plus"):
        rule = Rule(dequantize=Dequantize(by=by))
        assert np.array_equal(
            dequantize(quantized, offset, rule), quantized.astype(F) * F(0.04) + F(-2.7)
        )


def extremes(rng: np.random.Generator) -> NDArray[np.float32]:
    """Floats of every size, ties of every narrow float, zeros and infinities."""
    every = np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F)
    sizes = rng.normal(size=4000) * 2.0 ** rng.integers(-20, 18, 4000)
    steps = np.sort(every[np.isfinite(every)])
    ends = [0.0, -0.0, np.inf, -np.inf, 1e-40, 3e38, 464, 480, 61440, 2.0**-10]
    return np.concatenate([sizes, steps, (steps[1:] + steps[:-1]) / 2, ends]).astype(F)


@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"])
def test_float8_integers_saturate_as_torch_rounds(name: str) -> None:
    x = extremes(np.random.default_rng(11))
    kind = {
        "f8e4m3fn": torch.float8_e4m3fn,
        "f8e5m2": torch.float8_e5m2,
        "f8e4m3fnuz": torch.float8_e4m3fnuz,
        "f8e5m2fnuz": torch.float8_e5m2fnuz,
    }[name]
    to = map_of(QuantType(dtype(name), F32, (0.5,)))
    most = torch.finfo(kind).max
    wanted = (torch.from_numpy(x) / 0.5).clamp(-most, most).to(kind)
    quantized = quantize(x, to, PLAIN)
    assert np.array_equal(quantized.view(np.uint8), wanted.view(torch.uint8).numpy())
    assert np.array_equal(
        dequantize(quantized, to, PLAIN), wanted.to(torch.float32).numpy() * F(0.5)
    )
    assert np.isnan(quantize(np.array([np.nan], F), to, PLAIN).astype(F)).all()


@pytest.mark.parametrize("name", ["f4e2m1fn", "f6e2m3fn", "f6e3m2fn", "f8e4m3fn"])
def test_narrow_floats_are_rounded_once_from_float64(name: str) -> None:
    carrier = dtype(name).carrier
    bits = dtype(name).bits
    every = np.arange(1 << bits).astype(np.uint8).view(carrier).astype(np.float64)
    finite = np.unique(every[np.isfinite(every)])
    middles = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    to = map_of(QuantType(dtype(name), F64, (1.0,)))
    quantized = quantize(x, to, Rule("p", quantize=Quantize(compute="f64"))).astype(np.float64)
    assert np.array_equal(quantized, np.concatenate([finite[1:], finite[:-1]]))
    if bits < 8:
        with pytest.raises(OpError, match="NaN has no quantized value"):
            quantize(np.array([np.nan]), to, PLAIN)
        low = Rule("p", quantize=Quantize(nan="low"))
        assert quantize(np.array([np.nan]), to, low).astype(F)[0] == finite[0]
    middles = (finite[1:] + finite[:-1]) / 2
    for how, ends in (
        ("away", np.where(middles > 0, finite[1:], finite[:-1])),
        ("floor", finite[:-1]),
    ):
        rounded = Rule("p", quantize=Quantize(round=how, compute="f64"))  # type: ignore[arg-type]
        assert np.array_equal(quantize(middles, to, rounded).astype(F), ends.astype(F)), how


def test_powers_of_two_are_scales() -> None:
    """mx: float8 integers in blocks of 32 whose scales are only exponents."""
    rng = np.random.default_rng(12)
    exponents = rng.integers(110, 140, (4, 2)).astype(np.uint8)
    exponents[0, 0] = 0
    scales = exponents.view(ml_dtypes.float8_e8m0fnu)
    of = map_of(blocked(dtype("f8e4m3fn"), scales, (0, 1), (1, 32)))
    each = np.exp2(exponents.astype(np.float64) - 127).repeat(32, 1)
    quantized = rng.integers(0, 127, (4, 64)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(
        dequantize(quantized, of, PLAIN), (quantized.astype(np.float64) * each).astype(F)
    )
    assert np.array_equal(quantize(dequantize(quantized, of, PLAIN), of, PLAIN)[1:], quantized[1:])


@pytest.mark.parametrize("scale", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("express", ["f32", "f16", "bf16", "f64"])
def test_scales_have_a_type_of_their_own_and_floats_the_one_expressed(
    scale: str, express: str
) -> None:
    held = float(np.asarray(0.1).astype(dtype(scale).carrier))
    kind = QuantType(I8, dtype(express), (held,), (3,), scale_dtype=dtype(scale))
    quantized = np.arange(-128, 128).astype(np.int8)
    exact = (quantized.astype(np.float64) - 3) * held
    for compute, mid in (("f32", F), ("f64", np.float64)):
        rule = Rule(dequantize=Dequantize(compute=compute))  # type: ignore[arg-type]
        steps = exact if mid is np.float64 else (quantized.astype(F) - F(3)) * F(held)
        for of in (map_of(kind), affine_of(kind)):
            found = dequantize(quantized, of, rule)
            assert found.dtype == dtype(express).carrier
            if express == "bf16":
                wanted = torch.from_numpy(steps).to(torch.bfloat16).to(torch.float64).numpy()
            else:
                wanted = steps.astype(dtype(express).carrier)
            assert np.array_equal(found.astype(np.float64), wanted.astype(np.float64))


def test_integers_become_integers_of_another_map_by_value() -> None:
    rng = np.random.default_rng(13)
    one, other = affine("u8", 0.1, 7), affine("i8", 0.33, -4)
    few, many = (rng.integers(0, 256, n).astype(np.uint8) for n in (50, 5000))
    for quantized in (few, many):
        floats = (quantized.astype(np.int64) - 7).astype(F) * F(0.1)
        wanted = np.clip(np.rint(floats / F(0.33)) - 4, -128, 127)
        assert np.array_equal(convert(quantized, one, other, PLAIN), wanted)
        assert np.array_equal(convert(quantized, one, one, PLAIN), quantized)
    table = map_of(QuantType(U8, F32, (1.0,), kind="lut", codes=(5.0, -5.0)))
    quantized = rng.integers(0, 2, 5000).astype(np.uint8)
    assert np.array_equal(
        convert(quantized, table, affine("i8", 5.0), PLAIN), 1 - 2 * quantized.astype(int)
    )
    with pytest.raises(OpError, match="axis 0 has 5 indices, but 2 scales"):
        convert(np.zeros(5, np.uint8), affine("u8", np.ones(2, F), axis=0), one, PLAIN)


def test_the_widest_integers_saturate_at_their_ends() -> None:
    x = np.array([1e30, -1e30, 2.0**62, np.inf, -np.inf], F)
    for name in ("i64", "u64", "i32", "u32", "i33"):
        low, high = dtype(name).bounds
        for place in ("after", "before"):
            rule = Rule("p", quantize=Quantize(zero=place))
            found = quantize(x, affine(name, 1.0), rule)
            wanted = [high, low, min(high, 2**62), high, low]
            assert found.tolist() == wanted, (name, place)
    most = np.array([2**64 - 1, 0], np.uint64)
    assert dequantize(most, affine("u64", 1.0), PLAIN).tolist() == [2.0**64, 0]


def test_numbers_that_do_not_fit_are_refused_with_what_there_is() -> None:
    x = np.zeros((4, 6), F)

    def refused(kind: QuantType, said: str, array: NDArray[np.generic] = x) -> None:
        with pytest.raises(OpError, match=said):
            quantize(array, map_of(kind), PLAIN)

    refused(blocked(U8, np.ones((4, 2), F), (0, 1), (1, 2)), "8 scales, the blocks make 4x3")
    refused(blocked(U8, np.ones((4, 1), F), (0, 1), (2, 1)), "along axis 2, the array has rank 2")
    groups = np.array([0, 1, 2, 3, 0, 1])
    refused(
        blocked(U8, np.ones((4, 3), F), (0, 1), (1, 2), by=groups),
        r"groups 0\.\.3, but axis 1 has 3 blocks",
    )
    refused(
        blocked(U8, np.ones((4, 3), F), (0, 1), (1, 2), by=groups[:5]),
        "5 groups for 6 indices of axis 1",
    )
    refused(QuantType(dtype("f8e5m2"), F32, (1.0,), (3,)), "values of f8e5m2 have no zero point")
    refused(QuantType(U8, F32, None, ()), "the numbers come from companion slots")
    for kind in (QuantType(U8, F32, (1.0,), (1.5,)), QuantType(dtype("f8e5m2"), F32)):
        with pytest.raises(OpError, match="is not a plain scale and integer zero point"):
            affine_of(kind)
    with pytest.raises(OpError, match="has blocks of scales; integer kernels take one"):
        affine_of(blocked(U8, np.ones((4, 3), F), (0, 1), (1, 2)))


def test_companion_slots_give_the_numbers_a_type_asks_for() -> None:
    rng = np.random.default_rng(14)
    x = rng.normal(size=(2, 3, 8)).astype(F)
    scale = (np.abs(x).max(-1, keepdims=True) / 127).astype(F)
    kind = QuantType(I8, F32, None, None, Granularity(((0, 1), (1, 1))))
    of = map_of(kind, scale=scale, zero=np.zeros((2, 3, 1), np.int32))
    assert isinstance(of, Map)
    assert np.array_equal(quantize(x, of, PLAIN), np.rint(x / scale))
    assert same_map(of, map_of(kind, scale=scale, zero=np.zeros((2, 3, 1), np.int32)))
    assert not same_map(of, map_of(kind, scale=scale * 2, zero=np.zeros((2, 3, 1), np.int32)))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_one_scale_and_zero_point_are_what_the_type_holds_in_the_kernels_types(kind: str) -> None:
    quant = QuantType(U8, F32, (0.1,), (3,), None, (1, 200), dtype(kind))
    held = np.array(0.1).astype(dtype(kind).carrier)
    found = affine_of(quant)
    assert found.scale == held.astype(np.float64)
    assert found.scale.dtype == (np.float64 if kind == "f64" else np.float32)
    assert (found.scale.ndim, found.zero.ndim) == (0, 0)
    assert found.zero.dtype == np.int64
    assert (int(found.zero), found.low, found.high, found.axis) == (3, 1, 200, None)
    assert found.express == F32


def test_a_zero_point_that_the_storage_lacks_is_refused() -> None:
    with pytest.raises(OpError, match="zero point 300"):
        affine_of(QuantType(U8, F32, (0.1,), (300,)))
