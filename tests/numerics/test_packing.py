"""Integers as dense bytes, and the same bits as another type."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType, dtype
from qir.numerics import pack, recode, unpack
from qir.numerics.packing import Order, bits_of, define_pack, define_unpack, from_bits

KINDS = [f"{k}{n}" for k in "iu" for n in (*range(1, 18), 24, 31, 32, 33, 63, 64)]
KINDS += ["bool", "f4e2m1fn", "f6e2m3fn", "f6e3m2fn", "f8e4m3fn", "f8e8m0", "bf16", "f32", "f64"]


def some(rng: np.random.Generator, kind: DType, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Any integers of a type, by their bits."""
    size = kind.carrier.itemsize
    raw = np.frombuffer(rng.bytes(size * int(np.prod(shape))), f"u{size}").reshape(shape)
    return from_bits(raw & raw.dtype.type((1 << kind.bits) - 1), kind)


@pytest.mark.parametrize("name", KINDS)
def test_bytes_are_those_of_the_definition_and_give_the_codes_back(name: str) -> None:
    rng, kind = np.random.default_rng(len(name) + ord(name[-1])), dtype(name)
    for shape in ((), (0,), (1,), (13,), (3, 0), (4, 9), (2, 3, 17)):
        quantized = some(rng, kind, shape)
        for row in (0, 1, 16) if shape else (0,):
            for order in ("low", "high"):
                check(quantized, kind, order, row)


def check(quantized: NDArray[np.generic], kind: DType, order: Order, row: int) -> None:
    rows, length = (
        (1, quantized.size)
        if not row
        else (int(np.prod(quantized.shape[:-1])), quantized.shape[-1])
    )
    bits = bits_of(quantized, kind).reshape(rows, length)
    packed = pack(quantized, kind, order=order, row=row)
    assert np.array_equal(packed.reshape(rows, -1), define_pack(bits, kind, order, row))
    if row:
        assert packed.shape[:-1] == quantized.shape[:-1]
        assert packed.shape[-1] % row == 0
    again = define_unpack(packed.reshape(rows, -1), kind, length, order)
    assert np.array_equal(again, bits)
    back = unpack(packed, kind, quantized.shape, order=order, row=row)
    assert back.dtype == quantized.dtype
    assert np.array_equal(bits_of(back, kind), bits_of(quantized, kind))


@pytest.mark.parametrize(
    ("name", "kind"), [("u4", "UINT4"), ("i4", "INT4"), ("f4e2m1fn", "FLOAT4E2M1")]
)
def test_four_bits_lie_as_in_an_onnx_file(name: str, kind: str) -> None:
    quantized = some(np.random.default_rng(1), dtype(name), (5, 7))
    file = onnx.TensorProto(data_type=getattr(onnx.TensorProto, kind), dims=quantized.shape)
    file.raw_data = pack(quantized, name).tobytes()
    assert np.array_equal(
        onnx.numpy_helper.to_array(file).astype(np.float32), quantized.astype(float)
    )
    theirs = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(file))
    assert np.array_equal(unpack(np.frombuffer(theirs.raw_data, np.uint8), name, (5, 7)), quantized)


def test_rows_of_blocks_start_at_a_byte() -> None:
    """MatMulNBits: zero points of 4 bits, each row of them padded to a byte; 3 bits likewise."""
    zeros = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    assert pack(zeros, "u4", row=1).tolist() == [[0x21, 0x03], [0x54, 0x06]]
    assert pack(zeros, "u4").tolist() == [0x21, 0x43, 0x65]
    assert pack(zeros, "u4", order="high", row=1).tolist() == [[0x12, 0x30], [0x45, 0x60]]
    assert pack(zeros, "u3", row=4).tolist() == [[0xD1, 0, 0, 0], [0xAC, 1, 0, 0]]
    assert pack(np.array([0x1234], np.uint16), "u16", order="high").tolist() == [0x12, 0x34]


def test_integers_of_ml_dtypes_are_taken_and_the_carrier_given() -> None:
    """ml_dtypes keeps -1 of four bits as the byte 15; the carrier is the number itself."""
    theirs = np.array([-8, -1, 0, 7], ml_dtypes.int4)
    ours = np.array([-8, -1, 0, 7], np.int8)
    assert pack(theirs, "i4").tolist() == pack(ours, "i4").tolist() == [0xF8, 0x70]
    assert unpack(pack(theirs, "i4"), "i4", (4,)).dtype == np.int8
    assert recode(np.array([15, 1], ml_dtypes.uint4), "u4", "i4").tolist() == [-1, 1]


def test_the_same_bits_are_another_type() -> None:
    rng = np.random.default_rng(2)
    for pairs in (("u4", "i4", "f4e2m1fn"), ("u8", "i8", "f8e5m2"), ("i32", "u32", "f32")):
        for one in pairs:
            quantized = some(rng, dtype(one), (70, 3))
            for other in pairs:
                found = recode(quantized, one, other)
                assert found.dtype == dtype(other).carrier
                assert np.array_equal(bits_of(found, dtype(other)), bits_of(quantized, dtype(one)))
    assert recode(np.array([[8, 7]], np.uint8), "u4", "i4").tolist() == [[-8, 7]]
    assert recode(np.array([-1, 2], np.int16), "i12", "u12").tolist() == [4095, 2]
    assert recode(np.array([1.0], np.float32), "f32", "u32").tolist() == [0x3F800000]
    assert recode(np.array([True, False]), "bool", "i1").tolist() == [-1, 0]


def test_what_cannot_be_packed_is_refused_in_a_line() -> None:
    byte = np.zeros(3, np.uint8)
    for call, said in (
        (lambda: pack(byte + 16, "u4"), "value 16 does not fit u4, 0 to 15"),
        (lambda: pack(byte.astype(np.int8) - 9, "i4"), "value -9 does not fit i4, -8 to 7"),
        (lambda: pack(byte, "i8"), "quantized values of i8 are int8, not uint8"),
        (lambda: pack(byte, "string"), "string has no bits"),
        (lambda: pack(byte, "u8", row=-1), "padded to one byte or more, not -1"),
        (lambda: pack(byte, "u8", order="up"), "'low' or the 'high' end, not 'up'"),  # type: ignore[arg-type]
        (lambda: pack(np.asarray(3, np.uint8), "u8", row=1), "a scalar has no rows to pad"),
        (lambda: unpack(byte, "u4", (4,)), r"3 bytes, \[4\] of u4 take 2"),
        (lambda: unpack(byte.astype(np.int8), "u4", (6,)), "packed values are bytes, not int8"),
        (lambda: recode(byte, "u8", "i4"), "u8 has 8 bits, i4 has 4"),
        (lambda: recode(byte + 99, "u4", "i4"), "value 99 does not fit u4"),
        (lambda: recode(byte, "u4", "string"), "u4 has 4 bits, string has 0"),
    ):
        with pytest.raises(OpError, match=said):
            call()
