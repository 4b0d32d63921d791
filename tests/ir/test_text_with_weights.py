"""A text with weights holds a whole model: `parse` needs nothing else."""

from __future__ import annotations

import base64

import ml_dtypes
import numpy as np
import pytest

import qir
from qir.errors import ParseError
from qir.testing import EVERY, Form, random_graph


@pytest.mark.parametrize("form", EVERY)
def test_a_text_with_weights_reads_back_to_an_equal_graph(form: Form) -> None:
    for seed in range(3):
        graph = random_graph(seed, form)
        assert qir.parse(qir.print_graph(graph, weights=True)) == graph, seed


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([[1.5, -0.0], [np.inf, np.nan]], np.float32), "2x2xf32"),
        (np.array([True, False]), "2xbool"),
        (np.array([1, 2, 3], ml_dtypes.bfloat16), "3xbf16"),
        (np.array([-8, 7], np.int8), "2xi4"),
        (np.array(["a", "é\n"], object), "2xstring"),
        (np.zeros((0, 3), np.float16), "0x3xf16"),
    ],
)
def test_elements_of_every_type_come_back_bit_by_bit(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], kind: str
) -> None:
    text = f"graph main as native {{\n  %c = constant(@c) : {kind}\n  output(c=%c)\n}}\n"
    graph = qir.parse(text, {"c": array})
    again = qir.parse(qir.print_graph(graph, weights=True))
    held = again["c"].constant
    assert held is not None
    assert held.data.dtype == array.dtype
    assert held.data.tolist() == array.tolist() or held.data.tobytes() == array.tobytes()


def test_the_elements_are_little_endian_base64() -> None:
    """As NumPy and the standard library have it, so that other programs can write the text."""
    values = np.arange(300, dtype=np.float32)
    letters = base64.b64encode(values.astype("<f4").tobytes()).decode()
    text = "graph main as native {\n  %c = constant(@c) : 300xf32\n  output(c=%c)\n}\n"
    graph = qir.parse(f'data @c : 300xf32 = "{letters}"\n{text}')
    held = graph["c"].constant
    assert held is not None
    assert np.array_equal(held.data, values)
    assert qir.print_graph(graph, weights=True) == f'data @c : 300xf32 = "{letters}"\n{text}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('data @c : 2xf32 = "AAAA"', "2xf32 takes 8 bytes, the data hold 3"),
        ('data @c : 2xf32 = "!"', "data are no base64 text"),
        ('data @c : (N)xf32 = "AAAA"', "data are of a plain type and known sizes"),
        ('data @c : 2xi4 = "AAAA"', "data are of a plain type and known sizes"),
        ('data @c : 99999999999x99999999999xf32 = "AAAA"', "the data hold 3"),
        ('data @c : 0xf32 = ""\ndata @c : 0xf32 = ""', "@c are given twice"),
    ],
)
def test_elements_that_do_not_fit_are_refused_with_their_place(line: str, reason: str) -> None:
    text = "graph main as native {\n  %c = constant(@c) : 2xf32\n  output(c=%c)\n}\n"
    with pytest.raises(ParseError, match=r"line \d, column \d+: .*") as found:
        qir.parse(f"{line}\n{text}")
    assert reason in str(found.value)
