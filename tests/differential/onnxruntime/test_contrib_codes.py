"""Operators of onnxruntime's own domain on integers: sums of integers and gathered rows to the
byte.

What sums products of floats does so in float32 in an order of its own, so it is held to a share of
the greatest result: 2^-24 for each of about as many roundings as a sum has terms in a lane.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from .contrib import MS, F, case, equal, kept, loaded, near, one

FLOAT, I32, U8, I8 = (getattr(TensorProto, n) for n in ("FLOAT", "INT32", "UINT8", "INT8"))
KINDS = {"u8": np.uint8, "i8": np.int8}
BOUND = 4e-6


def random_integers(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    info = np.iinfo(KINDS[kind])
    return rng.integers(info.min, info.max + 1, shape).astype(KINDS[kind])


def scales(rng: np.random.Generator, *shape: int) -> Any:
    return np.asarray(rng.random(shape) * 0.1 + 0.01, F)


@pytest.mark.parametrize("kinds", ["u8 u8", "u8 i8", "i8 i8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_sums_of_codes_become_reals(
    kinds: str, columns: bool, zeros: bool, bias: bool, computed: bool
) -> None:
    seed = hash((kinds, columns, zeros, bias)) % 1000
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    left, right = kinds.split()
    k, n = int(rng.integers(1, 70)), int(rng.integers(1, 20))
    many = (n,) if columns else ()
    operands: list[Any] = [
        ("a", random_integers(rng, left, 3, 5, k)),
        ("b", random_integers(rng, right, k, n)),
        ("as", scales(rng)),
        ("bs", scales(rng, *many)),
        ("az", random_integers(rng, left)) if zeros else None,
        ("bz", random_integers(rng, right, *many)) if zeros else None,
        ("c", rng.normal(size=n).astype(F)) if bias else None,
    ]
    there = {o[0] for o in operands if o}
    fed = [s for s in ("a", "as", "bs", "az", "bz") if s in there] if computed else ["a"]
    equal(one("MatMulIntegerToFloat", operands, fed, {"y": FLOAT}))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_side_is_quantized_by_its_own_range(
    kind: str, columns: bool, zeros: bool, bias: bool
) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        k, n = int(rng.integers(1, 70)), int(rng.integers(1, 20))
        many = (n,) if columns else ()
        operands: list[Any] = [
            ("a", (rng.integers(-40, 60, (3, 5, k)) / 8).astype(F)),
            ("b", random_integers(rng, kind, k, n)),
            ("bs", scales(rng, *many)),
            ("bz", random_integers(rng, kind, *many)) if zeros else None,
            ("c", rng.normal(size=n).astype(F)) if bias else None,
        ]
        fed = ["a", "bs"] if seed == 2 else ["a"]
        equal(one("DynamicQuantizeMatMul", operands, fed, {"y": FLOAT}))


def test_products_of_sixteen_bits() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-32768, 32768, s).astype(np.int16) for s in ((3, 7), (7, 4)))
    equal(one("MatMulInteger16", [("a", a), ("b", b)], ["a"], {"y": I32}))


# -- weights in blocks ----------------------------------------------------------------------------


def packed(data: Any, bits: int) -> Any:
    """Low bits first, along the last axis."""
    each = 8 // bits
    data = np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, -data.shape[-1] % each)])
    parts = data.reshape(*data.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (np.arange(each) * bits).astype(np.uint8), -1)


def nbits(
    seed: int, bits: int, size: int, zero: str, *, level: int = 0, bias: bool = False, k: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 20)), k or int(rng.integers(1, 5 * size))
    count = -(-k // size)
    w = rng.integers(0, 1 << bits, (n, count, size))
    w.reshape(n, -1)[:, k:] = 0
    zeros = {
        "none": None,
        "codes": ("z", packed(rng.integers(0, 1 << bits, (n, count)), bits)),
        "reals": ("z", (rng.random((n, count)) * (1 << bits)).astype(F)),
    }[zero]
    operands = [
        ("a", rng.normal(size=(2, 3, k)).astype(F)),
        ("w", packed(w, bits)),
        ("s", scales(rng, n, count)),
        zeros,
        None,
        ("c", rng.normal(size=n).astype(F)) if bias else None,
    ]
    attrs: dict[str, Any] = {"K": k, "N": n, "bits": bits, "block_size": size}
    if level:
        attrs["accuracy_level"] = level
    return operands, attrs


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("zero", ["none", "codes", "reals"])
def test_weights_of_few_bits(bits: int, size: int, zero: str) -> None:
    if (bits, zero) == (8, "reals"):
        return  # onnxruntime refuses that
    for level, bias in ((0, False), (1, True), (2, False)):
        operands, attrs = nbits(size + bits, bits, size, zero, level=level, bias=bias)
        near(one("MatMulNBits", operands, ["a"], {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("zero", ["none", "codes", "reals"])
def test_weights_of_few_bits_beside_a_side_of_eight(bits: int, size: int, zero: str) -> None:
    """Real zero points, and two bits in small blocks, have no kernel for eight bits beside them."""
    if (bits, zero) == (8, "reals"):
        return  # onnxruntime refuses that
    operands, attrs = nbits(7, bits, size, zero, level=4, bias=True)
    near(one("MatMulNBits", operands, ["a"], {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["none", "codes", "reals"])
def test_weights_of_few_bits_whose_numbers_are_computed(bits: int, zero: str) -> None:
    if (bits, zero) == (8, "reals"):
        return  # onnxruntime refuses that
    for fed in (["a", "s"], ["a", "w", "s", "z"]):
        operands, attrs = nbits(bits, bits, 16, zero)
        there = {o[0] for o in operands if o}
        names = [f for f in fed if f in there]
        near(one("MatMulNBits", operands, names, {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("fed", ["a", "a s", "a w s"])
def test_weights_by_a_table(table: int, size: int, fed: str) -> None:
    rng = np.random.default_rng(size + table)
    n, k = 5, 24 + table
    held = rng.integers(0, 256, (n * k + 1) // 2).astype(np.uint8)
    if n * k % 2:
        held[-1] &= 0xF0
    operands = [
        ("a", rng.normal(size=(3, k)).astype(F)),
        ("w", held),
        ("s", scales(rng, -(-n * k // size))),
    ]
    attrs: dict[str, Any] = {"K": k, "N": n, "block_size": size, "quant_type": table}
    near(one("MatMulBnb4", operands, fed.split(), {"y": FLOAT}, **attrs), BOUND)


@pytest.mark.parametrize("zero", ["none", "codes"])
def test_weights_of_few_bits_whose_groups_are_named(zero: str) -> None:
    """Kept where there are zero points: onnxruntime leaves them out."""
    rng = np.random.default_rng(9)
    operands, attrs = nbits(9, 4, 16, zero, k=48)
    order = rng.permutation(np.repeat(np.arange(3), 16)).astype(np.int32)
    operands[4] = ("g", order)
    made = one("MatMulNBits", operands, ["a"], {"y": FLOAT}, **attrs)
    near(made, BOUND, known=zero == "none")
    assert kept(loaded(made.proto)) == ([] if zero == "none" else ["MatMulNBits"])


@pytest.mark.parametrize("storage", ["u4", "i4", "4 bits", "8 bits"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2), (2, 1)])
def test_gathered_rows_of_blocks(storage: str, zeros: bool, axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(11)
    along, axis = axes
    packs = storage.endswith("bits")
    if packs and axes != (0, 2):
        return  # onnxruntime takes no others of bytes
    shape = [3, 4, 32]
    shape[axis] = 32
    bits = 8 if storage == "8 bits" else 4
    grid = [2 if i == axis else n for i, n in enumerate(shape)]
    if packs:
        data = packed(rng.integers(0, 1 << bits, shape), bits)
        zero = packed(rng.integers(0, 1 << bits, grid), bits)
        tensors = [numpy_helper.from_array(data, "d"), numpy_helper.from_array(zero, "z")]
    else:
        kind = ml_dtypes.uint4 if storage == "u4" else ml_dtypes.int4
        low = 0 if storage == "u4" else -8
        tensors = [
            numpy_helper.from_array(rng.integers(low, low + 16, s).astype(kind), n)
            for n, s in (("d", shape), ("z", grid))
        ]
    tensors.append(numpy_helper.from_array(scales(rng, *grid), "s"))
    attrs: dict[str, Any] = {"gather_axis": along, "quantize_axis": axis, "block_size": 16}
    if packs:
        attrs["bits"] = bits
    names = ["d", "i", "s", *(["z"] if zeros else [])]
    node = helper.make_node("GatherBlockQuantized", names, ["y"], "it", domain=MS, **attrs)
    index = rng.integers(0, shape[along], (2, 3)).astype(np.int64)
    made = case([node], {"i": index}, {}, {"y": FLOAT})
    made.proto.graph.initializer.extend(t for t in tensors if t.name in names)
    equal(made)
