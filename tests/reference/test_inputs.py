"""What a model is given: strings and bytes in any order as they mean, integers inside their
bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import DataError
from qir.ir.text import parse
from qir.reference.interpreter import bind_inputs, run

Tensor = NDArray[Any]


def given(kind: str, x: Tensor) -> Tensor:
    graph = parse(
        f"graph m as native {{\n%x = input() : {kind}\n%y = identity(%x) : {kind}\noutput(y=%y)\n}}"
    )
    bind_inputs(graph, {"x": x})
    return run(graph, {"x": x})["y"]


@pytest.mark.parametrize("kind", ["U", "S", "O", "T"])
def test_strings_may_come_in_any_array_of_texts(kind: str) -> None:
    words = np.array(["a", "", "long"], np.dtypes.StringDType() if kind == "T" else kind)
    got = given("3xstring", words)
    assert got.dtype == object
    assert got.tolist() == ["a", "", "long"]


@pytest.mark.parametrize("kind", ["f4", "f8", "i2", "u8", "f2"])
def test_bytes_may_come_in_either_order(kind: str) -> None:
    name = {"f": "f", "i": "i", "u": "u"}[kind[0]] + str(8 * int(kind[1]))
    plain = np.arange(5).astype(f"<{kind}")
    for order in "<>=":
        got = given(f"5x{name}", plain.astype(f"{order}{kind}"))
        assert got.dtype == np.dtype(kind)
        assert got.tobytes() == plain.tobytes()


@pytest.mark.parametrize(
    ("kind", "codes", "said"),
    [
        (
            "!quant.uniform<u3:f32, 1.0>",
            np.array([3, 200], np.uint8),
            "holds 200; its quantized values, u3, are in 0..7",
        ),
        (
            "!quant.uniform<i8<-127:127>:f32, 1.0>",
            np.array([-128, 1], np.int8),
            "-128; its quantized values, i8, are in",
        ),
        (
            "!quant.lut<u4:f32, 1.0, codes [0.5, 1.0]>",
            np.array([2, 0], np.uint8),
            "holds 2; its quantized values, u4",
        ),
        ("i4", np.array([8, -8], np.int8), "holds 8; its numbers, i4, are in -8..7"),
        (
            "u63",
            np.array([0, 2**63], np.uint64),
            "holds 9223372036854775808; its numbers, u63, are in",
        ),
    ],
)
def test_codes_outside_their_type_are_refused(kind: str, codes: Tensor, said: str) -> None:
    with pytest.raises(DataError, match=f"^input 'x' .*{said}") as caught:
        given(f"2x{kind}", codes)
    assert "\n" not in str(caught.value)
    inside = np.zeros_like(codes)
    assert given(f"2x{kind}", inside).tolist() == [0, 0]
