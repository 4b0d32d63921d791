"""Layer norm and softmax of float32: computed in float64, in one order, and rounded once."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.reference.sum_order import lane_sum

from .one import ISAS, one

F32 = np.float32
Floats = NDArray[np.float32]
WIDTHS = [*range(1, 36), 47, 64, 65, 384, 769]


def in_lanes(row: NDArray[np.float64]) -> float:
    """The sum of a row, number by number."""
    lanes = [0.0] * 16
    for i, number in enumerate(row.tolist()):
        lanes[i % 16] += number
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


def normed(x: Floats, gamma: Floats, beta: Floats | None, eps: float) -> Floats:
    out = np.zeros(x.shape, F32)
    for i, row in enumerate(x.astype(np.float64)):
        away = row - in_lanes(row) / len(row)
        made = away / np.sqrt(in_lanes(away * away) / len(row) + eps) * gamma.astype(np.float64)
        out[i] = (made if beta is None else made + beta.astype(np.float64)).astype(F32)
    return out


def test_the_reference_adds_in_the_same_lanes() -> None:
    rng = np.random.default_rng(41)
    for width in WIDTHS:
        x = rng.normal(0, 10.0 ** rng.uniform(-8, 8, (3, width)))
        assert lane_sum(x).tolist() == [[in_lanes(row)] for row in x]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("with_beta", [False, True])
def test_layer_norm_adds_in_lanes(isa: str, with_beta: bool) -> None:
    rng = np.random.default_rng(42)
    for width in WIDTHS:
        x = (rng.normal(3, 2, (5, width)) * 10.0 ** rng.uniform(-3, 3, (5, 1))).astype(F32)
        gamma, beta = rng.normal(0, 1, (2, width)).astype(F32)
        more: dict[str, Any] = {"beta": beta} if with_beta else {}
        got = one("layer_norm", [x], x.shape, F32, isa=isa, threads=2, rows=5, gamma=gamma,
                  eps=1e-5, **more)  # fmt: skip
        with np.errstate(all="ignore"):
            wanted = normed(x, gamma, more.get("beta"), 1e-5)
        assert got.tobytes() == wanted.tobytes(), width


def powers(x: Floats) -> Floats:
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        terms = np.exp(wide - wide.max(1, keepdims=True))
        return np.asarray((terms / terms.sum(1, keepdims=True)).astype(F32))


@pytest.mark.parametrize("in_f32", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_softmax_of_floats_is_within_a_unit_of_the_last_place(isa: str, in_f32: bool) -> None:
    rng = np.random.default_rng(43)
    for width in WIDTHS:
        x = (rng.normal(0, 1, (9, width)) * 10.0 ** rng.uniform(-3, 3, (9, 1))).astype(F32)
        x[1, : width // 2] = -np.inf
        x[2, : width // 2] = -10_000
        how = {"rows": 9, "width": width, "in_f32": in_f32}
        got = one("real_softmax", [x], x.shape, F32, isa=isa, threads=2, **how)
        apart = np.abs(got.view(np.int32).astype(np.int64) - powers(x).view(np.int32))
        assert apart.max() <= 1, width
        scalar = one("real_softmax", [x], x.shape, F32, isa="scalar", **how)
        assert got.tobytes() == scalar.tobytes(), width


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "odd", [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3, [np.inf, -np.inf, 0]]
)
@pytest.mark.parametrize("in_f32", [False, True])
def test_rows_without_a_softmax_are_no_numbers(isa: str, odd: list[float], in_f32: bool) -> None:
    x = np.array([odd, [1, 2, 3]], F32)
    got = one("real_softmax", [x], x.shape, F32, isa=isa, rows=2, width=3, in_f32=in_f32)
    assert np.isnan(got[0]).all()
    assert np.allclose(got[1], powers(x[1:])[0], rtol=1e-6)


def test_operands_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 3), F32)
    with pytest.raises(ValueError, match=r"^step: 2 numbers of beta, 3 of gamma$"):
        one("layer_norm", [x], (2, 3), F32, rows=2, gamma=np.ones(3), beta=np.ones(2), eps=0.1)
    with pytest.raises(ValueError, match=r"^step: x is buffer 0 of 24 bytes, 36 are needed$"):
        one("real_softmax", [x], (2, 3), F32, rows=3, width=3)
    with pytest.raises(ValueError, match=r"^step: no op 'pow' on floats; known are add, sub"):
        one("real", [x, x], (2, 3), F32, op="pow", shape=(1, 2, 3))
