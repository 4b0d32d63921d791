"""Einsum, embeddings, columns, samples and matrices, against torch in float64 and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import make_call
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ir.types import TensorType
from qir.reference.table import compute
from tests.reference.oracles import Array, assert_close, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

EQUATIONS = (
    "ij,jk->ik",
    "ij,jk",
    "bij,bjk->bik",
    "...ij,...jk->...ik",
    "...ij , jk -> ...ik",
    "ij->ji",
    "ij->",
    "ii->i",
    "ii",
    "bii->b",
    "i,j->ij",
    "ij,ij->i",
    "ij,j,k->ki",
    "ijk,jl,kl->il",
    "bhqd,bhkd->bhqk",
    "...a,...a->...",
    "ab...,b...->a...",
    "ijj,j->i",
    "i->i",
    "i...->...",
)


def _operands(equation: str, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    sizes = {c: int(rng.integers(1, 5)) for c in "abcdefghijklmnopq"}
    more = tuple(int(v) for v in rng.integers(1, 4, int(rng.integers(0, 3))))
    out: list[Array] = []
    for term in equation.replace(" ", "").partition("->")[0].split(","):
        shape: list[int] = []
        for piece in term.replace("...", ".").strip():
            wide = more if rng.random() < 0.7 else (1,) * len(more)
            shape += wide if piece == "." else [sizes[piece]]
        out.append(rng.standard_normal(shape).astype(np.float32))
    return out


@pytest.mark.parametrize("equation", EQUATIONS)
def test_sums_of_products_round_the_float64_value_once(equation: str) -> None:
    for seed in range(6):
        xs = _operands(equation, seed)
        operands = {f"xs.{i}": x for i, x in enumerate(xs)}
        note = f"{equation} seed {seed}"
        (got,) = assert_rule_agrees("einsum", operands, {"equation": equation}, note=note)
        exact, sizes = (
            torch.einsum(equation, *(torch.from_numpy(f(x.astype(np.float64))) for x in xs)).numpy()
            for f in (np.asarray, np.abs)
        )
        assert_rounded_once(got, exact, sizes, note)
        whole = {s: (x * 5).astype(np.int32) for s, x in operands.items()}
        plain = torch.einsum(equation, *(torch.from_numpy(x) for x in whole.values()))
        assert np.array_equal(compute("einsum", whole, {"equation": equation}), plain.numpy())


@pytest.mark.parametrize(
    ("equation", "why"),
    [
        ("ij,jk->ik", "has 2 terms for 1 operands"),
        ("ijk->k", "stands for 2 axes"),
        ("ij->iz", "one that is nowhere"),
        ("ij->ii", "an axis twice"),
        ("i1->i", "more than letters"),
        ("i......->i", "more than letters"),
        ("ii->i", "axis i has 2 and 3"),
    ],
)
def test_equations_that_are_none_are_told(equation: str, why: str) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(OpError, match=why):
        compute("einsum", {"xs.0": x}, {"equation": equation})
    graph = Graph("misfits")
    value = graph.add("input", types=[TensorType((2, 3), F32)]).result
    with pytest.raises(TypeRuleError, match=why):
        graph.add("einsum", {"xs.0": value}, {"equation": equation})


def test_the_cost_of_einsum_is_the_product_of_all_sizes() -> None:
    graph = Graph("cost")
    a, b = (graph.add("input", types=[TensorType(s, F32)]).result for s in ((2, 3, 4), (2, 4, 5)))
    node = graph.add("einsum", {"xs.0": a, "xs.1": b}, {"equation": "bij,bjk->bik"})
    cost = spec("einsum").cost
    assert cost is not None
    call = make_call(node.op, node.operands, node.attrs)
    assert cost(call, node.result.type.shape) == 2 * 3 * 4 * 5
    n = dims.symbol("n")
    graph.set_type(a, TensorType((n, 3, 4), F32))
    graph.set_type(b, TensorType((n, 4, 5), F32))
    assert cost(make_call(node.op, node.operands, node.attrs), (n, 3, 5)) == 0


# -- embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_rows_and_bags_of_rows_are_torchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((6, 3)).astype(np.float32)
    table = torch.from_numpy(w)
    indices = rng.integers(0, 6, (3, 4))
    (got,) = assert_rule_agrees("embedding", {"w": w, "indices": indices}, {"padding": 1})
    theirs = functional.embedding(torch.from_numpy(indices), table, 1)
    assert np.array_equal(got, theirs.numpy())
    flat = rng.integers(0, 6, 9)
    offsets = np.sort(rng.integers(0, 10, 4))
    offsets[0] = 0
    ended = np.append(offsets, 9)
    weights = rng.standard_normal(9).astype(np.float32)
    for mode in ("sum", "mean", "max"):
        for padding in (None, 2, -1):
            note = f"seed {seed} {mode} {padding}"
            attrs: dict[str, Attr] = {"mode": mode, "padding": padding}
            marks: dict[str, Any] = {"mode": mode, "padding_idx": padding}
            (got,) = assert_rule_agrees("embedding_bag", {"w": w, "indices": indices}, attrs)
            _same(got, torch.from_numpy(indices), table, note, **marks)
            operands: dict[str, Array] = {"w": w, "indices": flat, "offsets": offsets}
            (got,) = assert_rule_agrees("embedding_bag", operands, attrs, note=note)
            marks["offsets"] = torch.from_numpy(offsets)
            _same(got, torch.from_numpy(flat), table, note, **marks)
            (last,) = assert_rule_agrees(
                "embedding_bag", {**operands, "offsets": ended}, {**attrs, "last": True}
            )
            assert np.array_equal(last, got), note
            if mode == "sum":
                (got,) = assert_rule_agrees(
                    "embedding_bag", {**operands, "weights": weights}, attrs
                )
                share = torch.from_numpy(weights.astype(np.float64))
                _same(got, torch.from_numpy(flat), table, note, per_sample_weights=share, **marks)


def _same(got: Array, indices: torch.Tensor, w: torch.Tensor, note: str, **marks: Any) -> None:
    exact = functional.embedding_bag(indices, w.double(), **marks)
    assert_rounded_once(got, exact.numpy(), np.full(got.shape, 30.0), note)


def test_bags_say_what_does_not_fit() -> None:
    w, indices = np.ones((4, 2), np.float32), np.array([0, 1, 4])
    offsets = np.array([0, 2])
    for operands, attrs, why in (
        ({"indices": indices, "offsets": offsets}, {}, r"row 0\.\.4, but w has 4"),
        ({"indices": indices[:2], "offsets": offsets + 1}, {}, "do not divide"),
        ({"indices": indices[:2]}, {}, "indices has 1 axes"),
        ({"indices": indices[:2, None]}, {"mode": "min"}, "mode 'min'"),
        ({"indices": indices[:2, None]}, {"padding": 4}, "padding 4"),
    ):
        with pytest.raises(OpError, match=why):
            compute("embedding_bag", {"w": w, **operands}, attrs)


# -- columns and samples --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_columns_and_back_are_torchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, dilation, stride = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(3))
    side = tuple(int(v) for v in rng.integers(0, 3, 2))
    size = tuple(
        int((k - 1) * d + 1 + rng.integers(0, 5)) for k, d in zip(kernel, dilation, strict=True)
    )
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": side * 2}
    attrs["dilation"] = dilation
    note = f"seed {seed} {attrs}"
    (got,) = assert_rule_agrees("unfold", {"x": x}, attrs, note=note)
    theirs = functional.unfold(torch.from_numpy(x), kernel, dilation, side, stride)
    assert np.array_equal(got, theirs.numpy()), note
    columns = rng.standard_normal(got.shape).astype(np.float32)
    (back,) = assert_rule_agrees("fold", {"x": columns}, {"size": size, **attrs}, note=note)
    exact, magnitude = (
        functional.fold(torch.from_numpy(c), size, kernel, dilation, side, stride).numpy()
        for c in (columns.astype(np.float64), np.abs(columns.astype(np.float64)))
    )
    assert_rounded_once(back, exact, magnitude, note)
    with pytest.raises(OpError, match="windows of"):
        compute("fold", {"x": columns[..., :-1]}, {"size": size, **attrs})


@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "n"),
    [("nearest", 2), ("nearest", 3), ("linear", 2), ("linear", 3), ("cubic", 2)],
)
def test_samples_are_torchs_in_float64(mode: str, outside: str, n: int) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((2, 3, *rng.integers(1, 6, n)))
        grid = rng.uniform(-1.6, 1.6, (2, *rng.integers(1, 5, n), n))
        for corners in (False, True):
            attrs: dict[str, Attr] = {"mode": mode, "outside": outside, "align_corners": corners}
            note = f"seed {seed} {attrs} {list(x.shape)}"
            (got,) = assert_rule_agrees("grid_sample", {"x": x, "grid": grid}, attrs, note=note)
            exact = functional.grid_sample(
                torch.from_numpy(x),
                torch.from_numpy(grid),
                {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
                outside,
                corners,
            )
            assert_close(got, exact.numpy(), 1e-10, note)


@pytest.mark.parametrize("corners", [False, True])
def test_grids_are_torchs(corners: bool) -> None:
    rng = np.random.default_rng(0)
    for size in ((2, 1, 3, 4), (2, 1, 2 if corners else 1, 5), (2, 1, 2, 3, 4)):
        n = len(size) - 2
        theta = rng.standard_normal((2, n, n + 1))
        operands = {"theta": theta, "size": np.array(size)}
        attrs: dict[str, Attr] = {"align_corners": corners}
        (got,) = assert_rule_agrees("affine_grid", operands, attrs, constant=["size"])
        exact = functional.affine_grid(torch.from_numpy(theta), list(size), corners)
        assert_close(got, exact.numpy(), 1e-12, f"{size}")


@pytest.mark.parametrize("seed", range(8))
def test_matrices_have_torchs_determinants_and_inverses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    x = rng.standard_normal((2, 3, n, n)).astype(np.float32)
    (got,) = assert_rule_agrees("det", {"x": x}, note=f"seed {seed}")
    exact = torch.det(torch.from_numpy(x.astype(np.float64))).numpy()
    assert_rounded_once(got, exact, np.full(got.shape, 30.0), f"seed {seed}")
    assert_close(got, onnxruntime_runs("Det", [x]), 1e-4, f"seed {seed}")
    (back,) = assert_rule_agrees("inverse", {"x": x}, note=f"seed {seed}")
    exact = torch.inverse(torch.from_numpy(x.astype(np.float64))).numpy()
    assert_rounded_once(back, exact, np.abs(exact).max((2, 3), keepdims=True) * 50, f"seed {seed}")
    with pytest.raises(OpError, match="matrix 0 has none"):
        compute("inverse", {"x": x * 0}, {})
