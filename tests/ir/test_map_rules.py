"""Which maps are equal, which cannot be, and how many numbers their blocks take."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qir.errors import OpError, TypeRuleError
from qir.ir.dtype import F16, F32, dtype
from qir.ir.graph import Graph
from qir.ir.text import parse, parse_type
from qir.ir.types import Array, DeclaredBounds, Granularity, QuantType
from qir.ir.verify import verify
from qir.query.diff import diff
from qir.reference.interpreter import run

U2, U8 = dtype("u2"), dtype("u8")


def reading(kind: str, express: str = "f32") -> Graph:
    dims = kind.partition("!")[0]
    return parse(
        f"graph m as native {{\n%x = input() : {kind}\n%y = dequantize(%x) : {dims}{express}\n"
        "output(y=%y)\n}"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (QuantType(U8, scale=(0.5,), zero=(3,)), QuantType(U8, scale=(0.5,), zero=(3.0,))),
        (QuantType(U8, scale=(0.5,)), QuantType(U8, scale=(0.5,), zero=(0.0,))),
        (QuantType(U8, plus=(0.0,)), QuantType(U8, plus=(-0.0,))),
        (QuantType(U8, zero=(0.0,)), QuantType(U8, zero=(-0.0,))),
        (
            QuantType(U2, kind="lut", codes=(0.0, 1.0)),
            QuantType(U2, kind="lut", codes=(-0.0, 1.0)),
        ),
        (
            QuantType(U8, declared=DeclaredBounds((0.0,), (1.0,))),
            QuantType(U8, declared=DeclaredBounds((-0.0,), (1.0,))),
        ),
    ],
)
def test_maps_that_compute_otherwise_are_not_equal(one: QuantType, other: QuantType) -> None:
    assert one != other
    assert hash(one) != hash(other)
    assert one.has_same_mapping(other) == (one.declared is not None)  # a declared range is no map
    a, b = (reading(f"4x{quant}") for quant in (one, other))
    assert diff(a, b).changed
    assert not diff(a, reading(f"4x{one}")).changed
    for quant in (one, other):
        again = parse_type(f"4x{quant}").quant
        assert again == quant
        assert str(again) == str(quant)


def test_zeros_of_which_one_is_real_are_all_real() -> None:
    mixed = QuantType(U8, F32, (1.0, 1.0), (3, 2.5), Granularity(((0, 1),)))
    assert mixed == QuantType(U8, F32, (1.0, 1.0), (3.0, 2.5), Granularity(((0, 1),)))
    assert parse_type(f"2x{mixed}").quant == mixed


NAN = math.nan
TABLE = Array.of(np.array([1.0, np.inf], np.float32), "t")
NANS = Array.of(np.array(NAN, np.float32), "n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"storage": U2, "codes": (1.0, 2.0, 3.0, 4.0, 5.0)},
            "5 entries, but u2 has 4 values",
        ),
        ({"storage": U8, "codes": (1.0, 2.0), "zero": (1,)}, "a table have no zero"),
        ({"storage": U8, "codes": (1.0, 2.0), "zero": None}, "a table have no zero"),
        ({"storage": dtype("f8e4m3fn"), "codes": (1.0,)}, "f8e4m3fn has none"),
        ({"storage": U8, "codes": (1.0, NAN)}, "an entry of a table is not finite"),
        ({"storage": U8, "codes": TABLE}, "an entry of a table is not finite"),
        ({"storage": U8, "plus": (NAN,)}, "an offset is no number"),
        ({"storage": U8, "plus": NANS}, "an offset is no number"),
        ({"storage": U8, "declared": DeclaredBounds((NAN,), (1.0,))}, "range is no number"),
        ({"storage": U8, "declared": DeclaredBounds((0.0,), (NAN,))}, "range is no number"),
    ],
)
def test_maps_that_cannot_be_are_not_made(given: dict[str, object], said: str) -> None:
    kind = "lut" if "codes" in given else "uniform"
    with pytest.raises(TypeRuleError, match=said):
        QuantType(**given, kind=kind)  # type: ignore[arg-type]


def test_one_scale_for_an_axis_of_more_is_a_finding_where_it_does_not_run() -> None:
    graph = reading("4x!quant.uniform<u8:f32:0, {0.1}>")
    (finding,) = verify(graph)
    assert finding.rule == "axes"
    assert "1 scales for 4 indices of axis 0" in str(finding)
    with pytest.raises(OpError):
        run(graph, {"x": np.ones(4, np.uint8)})
    assert not verify(reading("1x!quant.uniform<u8:f32:0, {0.1}>"))


def test_blocks_of_several_axes_may_have_their_numbers_in_line() -> None:
    graph = reading("2x4x!quant.uniform<i4:f16:{0:1, 1:2}, {1.0:1, 2.0:0, 3.0:0, 4.0:0}>", "f16")
    assert not verify(graph)
    quantized = np.arange(8, dtype=np.int8).reshape(2, 4) - 4
    scale, zero = np.array([[1, 2], [3, 4]]).repeat(2, 1), np.array([[1, 0], [0, 0]]).repeat(2, 1)
    got = run(graph, {"x": quantized})["y"]
    assert got.dtype == F16.carrier
    assert got.tolist() == ((quantized - zero) * scale).tolist()
    wrong = reading("2x4x!quant.uniform<i4:f16:{0:1, 1:2}, {1.0, 2.0, 3.0}>", "f16")
    assert "scales are [3], the blocks make [2, 2]" in str(verify(wrong)[0])
