"""Speed of what makes and reads codes: the definition in NumPy next to the compiled loops.

python benchmarks/numerics/bench_codes.py [--elements N]

Bytes are those read and written. Both sides are checked to give the same ones.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import DType, dtype
from qir.ir.types import F32, Array, Granularity, QuantType
from qir.numerics import (
    AnyMap,
    affine,
    convert,
    definition,
    dequantize,
    map_of,
    pack,
    packing,
    quantize,
    recode,
    requantize,
    unpack,
)
from qir.profiles import Query, profile

Data = NDArray[np.generic]
CONVOLUTION = profile("native").resolve(Query("conv2d"))
PLAIN = profile("native").resolve(Query("quantize"))
COLUMNS = 4000
SLICE = 1 << 20  # elements of the definition of packing, which makes an array of single bits


def best(call: Callable[[], object], seconds: float) -> float:
    """The shortest time of one call, after one that is not counted."""
    call()
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or shortest == float("inf"):
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def line(
    op: str,
    kind: str,
    inputs: Data,
    define: Callable[[Data], Data],
    fast: Callable[[Data], Data],
    part: Data | None = None,
) -> None:
    """Measures both; `part` is what the definition is given where that is not all."""
    definition_input = inputs if part is None else part
    expected = np.ascontiguousarray(define(definition_input))
    assert expected.tobytes() == np.ascontiguousarray(fast(definition_input)).tobytes(), (op, kind)
    definition_rate = (
        (definition_input.nbytes + expected.nbytes)
        / best(lambda: define(definition_input), 0.3)
        / 1e9
    )
    bytes_moved = inputs.nbytes + fast(inputs).nbytes
    compiled_rate = bytes_moved / best(lambda: fast(inputs), 0.3) / 1e9
    print(
        f"{op:12s} {kind:24s} {definition_rate:10.3f} {compiled_rate:12.2f}"
        f" {compiled_rate / definition_rate:8.1f}",
        flush=True,
    )


def maps(rows: int) -> dict[str, AnyMap]:
    """The maps that are measured, over `rows` rows of COLUMNS."""

    def many(*shape: int) -> NDArray[np.float32]:
        return np.full(shape, 0.02, np.float32)

    blocks = Array.of(many(rows, COLUMNS // 32))
    zeros = Array.of(np.full((rows, COLUMNS // 32), 8, np.uint8))
    level = Array.of(np.linspace(-1, 1, 16).astype(np.float32))
    granularity = Granularity(((0, 1), (1, 32)))
    return {
        "u8": affine("u8", 0.02, 128),
        "i8 a row": affine("i8", many(rows), axis=0),
        "i8 a column": affine("i8", many(COLUMNS), axis=1),
        "i4": affine("i4", 0.4),
        "u4 blocks of 32": map_of(QuantType(dtype("u4"), F32, blocks, zeros, granularity)),
        "i16": affine("i16", 0.0001),
        "u16": affine("u16", 0.0001, 30000),
        "i32": affine("i32", 0.0000001),
        "nf4 blocks of 32": map_of(
            QuantType(dtype("u4"), F32, blocks, (), granularity, kind="lut", codes=level)
        ),
        "f8e4m3fn": map_of(QuantType(dtype("f8e4m3fn"), F32, (0.02,))),
    }


def quantize_and_dequantize(rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, COLUMNS)).astype(np.float32)
    for name, mapping in maps(rows).items():
        quantized = quantize(x, mapping, PLAIN)
        if mapping.storage.is_integer:
            line(
                "quantize",
                name,
                x,
                lambda a, mapping=mapping: definition.quantize(a, mapping, PLAIN),  # type: ignore[misc]
                lambda a, mapping=mapping: quantize(a, mapping, PLAIN),  # type: ignore[misc]
            )
        line(
            "dequantize",
            name,
            quantized,
            lambda a, mapping=mapping: definition.dequantize(a, mapping, PLAIN),  # type: ignore[misc]
            lambda a, mapping=mapping: dequantize(a, mapping, PLAIN),  # type: ignore[misc]
        )


def sums(rows: int) -> None:
    acc = np.random.default_rng(1).integers(-60000, 60000, (rows, COLUMNS)).astype(np.int32)
    y = affine("u8", 0.05, 110)
    for name, factor in (
        ("u8", np.asarray(0.002, np.float32)),
        ("u8 a column", np.full(COLUMNS, 0.002, np.float32)),
    ):
        line(
            "requantize",
            name,
            acc,
            lambda a, f=factor: definition.requantize(a, f, y, CONVOLUTION),  # type: ignore[misc]
            lambda a, f=factor: requantize(a, f, y, CONVOLUTION),  # type: ignore[misc]
        )


def by_value(rows: int) -> None:
    quantized = np.random.default_rng(2).integers(0, 256, (rows, COLUMNS)).astype(np.uint8)
    mapping = affine("u8", 0.02, 128)
    for name, to in (
        ("u8 to i8", affine("i8", 0.03, -7)),
        ("u8 to i8 a column", affine("i8", np.full(COLUMNS, 0.03, np.float32), axis=1)),
    ):
        line(
            "convert",
            name,
            quantized,
            lambda a, to=to: definition.quantize(  # type: ignore[misc]
                definition.dequantize(a, mapping, PLAIN), to, PLAIN
            ),
            lambda a, to=to: convert(a, mapping, to, PLAIN),  # type: ignore[misc]
        )


def bits(elements: int) -> None:
    rng = np.random.default_rng(3)
    for name in ("u1", "u2", "i3", "u4", "i4", "i5", "u6", "u7", "u8", "i12", "u16", "i24", "u32"):
        kind = dtype(name)
        integers = rng.integers(*kind.bounds, elements, endpoint=True).astype(kind.carrier)
        first_part = integers[:SLICE]
        line(
            "pack",
            name,
            integers,
            lambda a, k=kind: _pack(a, k),
            lambda a, k=kind: pack(a, k),
            first_part,
        )  # type: ignore[misc]
        line(
            "unpack",
            name,
            pack(integers, kind),
            lambda a, k=kind: _unpack(a, k),  # type: ignore[misc]
            lambda a, k=kind: unpack(a, k, (a.size * 8 // k.bits,)),  # type: ignore[misc]
            pack(first_part, kind),
        )
    for old, new in (("i4", "u4"), ("u4", "i4"), ("i12", "u12")):
        kind = dtype(old)
        integers = rng.integers(*kind.bounds, elements, endpoint=True).astype(kind.carrier)
        line(
            "recode",
            f"{old} to {new}",
            integers,
            lambda a, o=kind, n=new: packing.from_bits(packing.bits_of(a, o), dtype(n)),  # type: ignore[misc]
            lambda a, o=old, n=new: recode(a, o, n),  # type: ignore[misc]
        )


def _pack(integers: Data, kind: DType) -> Data:
    return packing.define_pack(packing.bits_of(integers, kind)[None], kind, "low", 0)[0]


def _unpack(data: Data, kind: DType) -> Data:
    bits_found = packing.define_unpack(data[None], kind, data.size * 8 // kind.bits, "low")[0]  # type: ignore[arg-type]
    return packing.from_bits(bits_found, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=10_000_000)
    options = parser.parse_args()
    rows = max(1, options.elements // COLUMNS)
    print(f"{rows * COLUMNS:,} elements")
    print(f"{'op':12s} {'codes':24s} {'NumPy GB/s':>10s} {'compiled GB/s':>12s} {'ratio':>7s}")
    quantize_and_dequantize(rows)
    sums(rows)
    by_value(rows)
    bits(rows * COLUMNS)


if __name__ == "__main__":
    main()
