"""Quantized types: the grammar of the design, and what the numbers mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from qir.errors import GraphError, ParseError, TypeRuleError
from qir.ir import dims
from qir.ir.dtype import BF16, F16, F32, F64, I8, I32, U8, dtype, dtype_of
from qir.ir.text import parse_type
from qir.ir.types import (
    Array,
    DeclaredBounds,
    Granularity,
    QuantType,
    TensorType,
    make_param,
    uniform,
)
from qir.testing import DTYPES, tensor_types


def named(kind: TensorType) -> tuple[str, dict[str, Array]]:
    """The text of a type with its arrays by number."""
    names: dict[str, str] = {}
    table: dict[str, Array] = {}

    def name(array: Array) -> str:
        key = names.setdefault(array.digest, f"a{len(names)}")
        table[key] = array
        return f"@{key}"

    return kind.text(name), table


# Every line is the canonical print: it reads back to itself, letter for letter.
FORMS = [
    "f32",
    "2x3xf32",
    "(N)x3x224x224xbf16",
    "(N*49)x?x64xf32",
    "1x64x56x56x!quant.uniform<u8:f32, 0.0235:128>",
    "64x64x3x3x!quant.uniform<i8<-127:127>:f32:0, @a0>",
    "64x!quant.uniform<i32:f32:0, @a0>",
    "64x!quant.uniform<i32:f32:0, @a0:@a1>",
    "4x!quant.uniform<i8:f32:0, {0.1, 0.2, 0.3, 0.4}>",
    "4x!quant.uniform<u8:f32:0, {0.1:1, 0.2:2, 0.3:3, 0.4:255}>",
    "4x!quant.uniform<u8:f32:0, {0.1:1.5, 0.2:2.0, 0.3:-3.0, 0.4:0.0}>",
    "(B)x768x!quant.uniform<u8:f32, ?:?>",
    "(B)x768x!quant.uniform<u8:f32, ?:128>",
    "(B)x768x!quant.uniform<u8:f32, ?>",
    "8x!quant.uniform<u8:f32, 0.5:?>",
    "11008x4096x!quant.uniform<u4:f32:{0:1, 1:32}, @a0:@a1>",
    "11008x4096x!quant.uniform<u4:f32:{0:1, 1:32 by @a0}, @a1>",
    "(B)x(T)x4096x!quant.uniform<i8:bf16:{0:1, 1:1}, ?:?>",
    "3x!quant.uniform<u8<0:127>:f32, 0.05:3, scale f64>",
    "3x!quant.uniform<i8:f32, 0.047244094:0, from -6.0..5.5 / 127.0>".replace(":0,", ","),
    "3x!quant.uniform<u8:f32, 0.039215688, plus -2.7, from -2.7..7.3 / 255.0>",
    "1x10x!quant.uniform<i32:f32, 1.23e-05, from -26414.5..26414.5 / 2147483647.0>",
    "3x!quant.uniform<u8:f32, 0.010378, from 0.0..2.651679>",
    "3x!quant.uniform<i3<-3:3>:f32, 0.5>",
    "64x64x!quant.lut<u1:f32, 0.7, codes [-1, 1]>",
    "64x64x!quant.lut<u4:bf16:{0:1, 1:64}, @a0, codes @a1>",
    "64x64x!quant.uniform<f8e4m3fn:f32, 0.013>",
    "64x64x!quant.uniform<f4e2m1fn:f32:{0:1, 1:32}, @a0>",
    "3x!quant.uniform<u64:f64, 1e-300:18446744073709551615>",
    "3x!quant.uniform<i1<-1:0>:f16, 0.1>".replace("<-1:0>", ""),
]


def stand_in(name: str) -> Array:
    """An array for a name, unlike those of other names."""
    number = int(name.removeprefix("a"))
    return Array.of(np.arange(1, 3, dtype=np.float32) + number, name)


@pytest.mark.parametrize("text", FORMS)
def test_every_form_of_the_grammar_reads_back_letter_for_letter(text: str) -> None:
    kind = parse_type(text, stand_in)
    assert kind.text(lambda array: f"@{array.name}") == text


@settings(max_examples=300)
@given(tensor_types())
def test_any_type_reads_back_equal(kind: TensorType) -> None:
    text, table = named(kind)
    assert parse_type(text, table.__getitem__) == kind
    assert named(parse_type(text, table.__getitem__))[0] == text


@pytest.mark.parametrize("bits", range(1, 65))
def test_integers_of_every_width_exist(bits: int) -> None:
    for letter in "iu":
        kind = dtype(f"{letter}{bits}")
        low, high = kind.bounds
        assert high - low + 1 == 2**bits
        assert low == (-(2 ** (bits - 1)) if letter == "i" else 0)
        ends = np.array([low, high], object).astype(kind.carrier)
        assert ends.tolist() == [low, high]
        text = f"3x!quant.uniform<{letter}{bits}:f32, 0.5:{high or low}>"
        assert str(parse_type(text)) == text


@pytest.mark.parametrize("name", ["i0", "u65", "f33", "i", "F32", "i08", "u٣", "f8"])
def test_a_name_that_is_no_element_type_is_refused(name: str) -> None:
    with pytest.raises(ParseError, match="not an element type"):
        dtype(name)


@pytest.mark.parametrize("name", DTYPES)
def test_the_carrier_of_a_type_holds_it(name: str) -> None:
    kind = dtype(name)
    data = np.zeros(3, kind.carrier)
    full = kind.is_float or kind.bits in (8, 16, 32, 64) or name in ("bool", "string")
    assert not full or dtype_of(data) == kind
    assert Array(data, TensorType((3,), kind)).type.dtype == kind


def test_codes_mean_code_minus_zero_times_scale() -> None:
    scale = np.array([0.5, 0.25], np.float32)
    kind = uniform(U8, scale, np.array([3, 128]), axis=0)
    quantized = np.array([[0, 255], [0, 255]], np.uint8)
    zeros = kind.zeros().astype(np.int64)
    floats = (quantized.astype(np.int64) - zeros[:, None]) * kind.scales()[:, None]
    assert floats.tolist() == [[-1.5, 126.0], [-32.0, 31.75]]


@pytest.mark.parametrize("seed", range(4))
def test_a_uniform_type_holds_the_zero_points_it_was_given_or_is_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    given_zeros: list[object] = [999, -1, 1.5, 2**40, 2**70, float("nan"), float("inf"), "3", None]
    for _ in range(200):
        storage = dtype(("i", "u")[rng.integers(2)] + str(rng.integers(2, 17)))
        low, high = storage.bounds
        zero = int(rng.integers(2 * low - 3, 2 * high + 3))
        forms: list[Any] = [
            zero,
            float(zero),
            np.int64(zero),
            np.float32(zero),
            np.array(zero, object),
        ]
        for form in forms:
            if low <= zero <= high:
                assert int(uniform(storage, np.float32(0.5), form).zeros()) == zero
            else:
                with pytest.raises(TypeRuleError, match="zero point"):
                    uniform(storage, np.float32(0.5), form)
        several = rng.integers(low - 1, high + 2, 5)
        if low <= several.min() and several.max() <= high:
            assert (
                uniform(storage, np.ones(5), several, axis=0).zeros().tolist() == several.tolist()
            )
        else:
            with pytest.raises(TypeRuleError, match="zero point"):
                uniform(storage, np.ones(5), several, axis=0)
    for wrong in given_zeros:
        with pytest.raises(TypeRuleError, match="zero point"):
            uniform(U8, 0.5, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match="2 scales but 3 zero points"):
        uniform(U8, np.ones(2), np.zeros(3, np.int64), axis=0)
    with pytest.raises(TypeRuleError, match="scales are floats, and string is none"):
        uniform(U8, np.array("x"), 0)


def test_texts_in_a_shape_are_symbolic_sizes() -> None:
    n = dims.symbol("N")
    kind = TensorType(("N", 3, "2*N+1", None, np.int64(4)), F32)  # type: ignore[arg-type]
    assert kind.shape == (n, 3, dims.add(dims.multiply(2, n), 1), None, 4)
    assert parse_type(str(kind)) == kind
    assert hash(kind) == hash(parse_type(str(kind)))
    for wrong, error in (
        ("batch size", ParseError),
        ("", ParseError),
        ("N/2", ParseError),
        ("-1", TypeRuleError),
        (True, TypeRuleError),
        (2.0, TypeRuleError),
        (b"N", TypeRuleError),
    ):
        with pytest.raises(error):
            TensorType((wrong, 3), F32)  # type: ignore[arg-type]


def test_many_parameters_are_an_array_and_few_stand_in_line() -> None:
    few = uniform(I8, np.full(8, 0.5, np.float32), axis=0)
    many = uniform(I8, np.full(9, 0.5, np.float32), axis=0, name="w")
    assert few.scale == (0.5,) * 8
    assert isinstance(many.scale, Array)
    assert many.scale.name == "w.scale"
    assert many.scales().tolist() == [0.5] * 9
    assert few.scales().dtype == np.float32
    assert make_param(np.array(3, np.int32), None, "z") == (3,)


def test_a_map_is_what_codes_mean_and_not_the_range_that_was_declared() -> None:
    plain = QuantType(I8, scale=(0.5,))
    ranged = QuantType(I8, scale=(0.5,), declared=DeclaredBounds((-64.0,), (63.5,), 127.0))
    assert plain != ranged
    assert plain.has_same_mapping(ranged)
    assert not plain.has_same_mapping(QuantType(I8, scale=(0.5,), bounds=(-127, 127)))
    assert ranged.with_parameters((0.25,)).declared is None
    assert ranged.with_parameters((0.25,)).scale == (0.25,)


def test_parameters_are_compared_by_content_and_not_by_name() -> None:
    scales = np.arange(1, 20, dtype=np.float32)
    one, other = uniform(I8, scales, axis=0, name="a"), uniform(I8, scales, axis=0, name="b")
    assert one == other
    assert hash(one) == hash(other)
    assert one != uniform(I8, scales * 2, axis=0, name="a")


def test_the_scale_has_the_type_it_was_given_in() -> None:
    assert uniform(U8, np.array(0.1)).scale_dtype == F64
    assert uniform(U8, np.float32(0.1)).scale_dtype is None
    assert uniform(U8, np.float16(0.1)).scale_dtype == F16
    assert str(uniform(U8, np.array(0.1))) == "!quant.uniform<u8:f32, 0.1, scale f64>"
    assert uniform(U8, np.array(0.1)) != uniform(U8, np.float32(0.1))


def test_blocks_make_a_grid_of_parameters() -> None:
    grain = Granularity(((0, 1), (1, 32)))
    assert grain.grid((11008, 4096)) == (11008, 128)
    assert grain.grid((11008, 4097)) == (11008, 129)
    assert grain.grid((3, 64, 5)) == (3, 2, 1)
    n = dims.symbol("N")
    assert Granularity(((0, 1),)).grid((n, 5)) == (n, 1)
    assert grain.axis is None
    assert Granularity(((1, 1),)).axis == 1


def test_a_type_knows_what_is_stored_and_what_is_meant() -> None:
    kind = parse_type("2x!quant.uniform<u8:bf16, 0.5>")
    assert (kind.dtype, kind.express, kind.rank) == (U8, BF16, 1)
    plain = parse_type("2xi32")
    assert (plain.dtype, plain.express, plain.quant) == (I32, I32, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuantType(U8, scale=()),
        lambda: QuantType(U8, scale=(1.0, 2.0)),
        lambda: QuantType(U8, scale=Array.of(np.ones(4, np.float32))),
        lambda: QuantType(U8, scale=(1.0,) * 9, granularity=Granularity(((0, 1),))),
        lambda: QuantType(U8, bounds=(9, 9)),
        lambda: QuantType(U8, express=I8),
        lambda: QuantType(dtype("bool")),
        lambda: QuantType(U8, codes=(1.0, 2.0)),
        lambda: QuantType(U8, kind="lut"),
        lambda: QuantType(U8, kind="lut", codes=()),
        lambda: Granularity(((0, 1), (0, 2))),
        lambda: TensorType((3,), QuantType(U8, granularity=Granularity(((1, 1),)))),
    ],
)
def test_a_map_that_cannot_be_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(TypeRuleError):
        make()


def test_an_array_fits_its_type_and_nobody_writes_to_it() -> None:
    source = np.ones((2, 3), np.float32)
    array = Array.of(source)
    digest = array.digest
    source[0, 0] = 7  # the array is a copy
    assert array.data[0, 0] == 1
    assert Array.of(np.ones((2, 3), np.float32)).digest == digest
    with pytest.raises(ValueError, match="read-only"):
        array.data[0, 0] = 3
    wrong: list[tuple[NDArray[np.generic], str]] = [
        (source, "3x2xf32"),
        (source, "2x3xf16"),
        (source.astype(">f4"), "2x3xf32"),
    ]
    for data, kind in wrong:
        with pytest.raises(GraphError, match="its type is"):
            Array(data, parse_type(kind))


def test_arrays_differ_where_type_or_bytes_differ() -> None:
    data = np.array([0, 255], np.uint8)
    forms = [
        Array.of(data),
        Array(data, parse_type("2xu8")),
        Array(data, parse_type("2x!quant.uniform<u8:f32, 0.5>")),
        Array(data, parse_type("2x!quant.uniform<u8:f32, 0.25>")),
        Array.of(data.reshape(1, 2)),
        Array.of(data.view(np.int8)),
        Array.of(np.array([0.0, -0.0], np.float32)),
        Array.of(np.array([0.0, 0.0], np.float32)),
    ]
    assert forms[0] == forms[1]
    assert len(set(forms)) == len(forms) - 1


def test_equal_types_have_one_text_for_every_float() -> None:
    for kind in (F16, BF16, F32, F64):
        text = f"!quant.uniform<u8:{kind}, 0.1>"
        assert str(parse_type(text)) == text


def test_a_level_that_is_given_as_a_whole_number_prints_as_it_reads_back() -> None:
    kind = replace(uniform(U8, np.float32(0.5)), declared=DeclaredBounds((0.0,), (127.5,), 255))
    assert str(kind) == "!quant.uniform<u8:f32, 0.5, from 0.0..127.5 / 255.0>"
    assert str(parse_type(f"4x{kind}")) == f"4x{kind}"


@pytest.mark.parametrize("shape", [5, None, "ab", {2: 3}])
def test_a_shape_that_is_no_tuple_is_refused(shape: Any) -> None:
    with pytest.raises(TypeRuleError, match="it is a tuple of sizes"):
        TensorType(shape, F32)


def test_a_list_is_taken_for_a_shape() -> None:
    shape: Any = [2, 3]
    assert TensorType(shape, F32) == TensorType((2, 3), F32)
    assert hash(TensorType(shape, F32)) == hash(TensorType((2, 3), F32))


@pytest.mark.parametrize("scale", [np.float32("nan"), np.array([1.0, np.nan]), np.full(9, np.nan)])
def test_a_scale_that_is_nan_is_refused(scale: NDArray[np.floating]) -> None:
    with pytest.raises(TypeRuleError, match="a scale is NaN"):
        uniform(U8, scale, axis=0 if np.ndim(scale) else None)
