"""Reductions, places, sums so far and normalizations against torch in float64 and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.reference.table import compute, compute_all
from tests.reference.oracles import Array, assert_close, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

Reduction = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


def _prod(x: torch.Tensor, over: tuple[int, ...]) -> torch.Tensor:
    for axis in over:
        x = x.prod(axis, keepdim=True)
    return x


REDUCED: dict[str, tuple[str, Reduction]] = {
    "reduce_mean": ("ReduceMean", lambda x, a: x.mean(a, keepdim=True)),
    "reduce_sum": ("ReduceSum", lambda x, a: x.sum(a, keepdim=True)),
    "reduce_prod": ("ReduceProd", _prod),
    "reduce_max": ("ReduceMax", lambda x, a: x.amax(a, keepdim=True)),
    "reduce_min": ("ReduceMin", lambda x, a: x.amin(a, keepdim=True)),
    "reduce_l1": ("ReduceL1", lambda x, a: x.abs().sum(a, keepdim=True)),
    "reduce_l2": ("ReduceL2", lambda x, a: (x * x).sum(a, keepdim=True).sqrt()),
    "reduce_log_sum": ("ReduceLogSum", lambda x, a: x.sum(a, keepdim=True).log()),
    "reduce_log_sum_exp": ("ReduceLogSumExp", lambda x, a: x.logsumexp(a, keepdim=True)),
    "reduce_sum_square": ("ReduceSumSquare", lambda x, a: (x * x).sum(a, keepdim=True)),
}


def _axes(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    some = rng.permutation(rank)[: rng.integers(0, rank + 1)]
    return tuple(int(a) - rank * int(rng.integers(2)) for a in some)


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("seed", range(12))
def test_reductions_round_the_float64_value_once(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 2, rng.integers(1, 6, rng.integers(1, 5))).astype(np.float32)
    if op not in ("reduce_log_sum", "reduce_prod"):
        x = x * rng.choice([-1, 1], x.shape).astype(np.float32)
    axes, keep = _axes(rng, x.ndim), bool(rng.integers(2))
    attrs: dict[str, Attr] = {"axes": axes, "keep": keep}
    (got,) = assert_rule_agrees(op, {"x": x}, attrs, note=f"seed {seed}")
    over = axes or tuple(range(x.ndim))
    name, exact_of = REDUCED[op]
    exact = exact_of(torch.from_numpy(x.astype(np.float64)), over).numpy()
    flat = exact if keep else np.squeeze(exact, over)
    bound = np.abs(flat) + float(np.abs(x).sum())
    assert_rounded_once(got, flat, bound, f"{op}, seed {seed}")
    theirs = onnxruntime_runs(name, [x, np.array(axes, np.int64)], keepdims=int(keep))
    assert_close(got, theirs, 1e-4, f"{op}, seed {seed}")


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
def test_reductions_of_integers_keep_their_type(op: str) -> None:
    for kind in (np.int32, np.int64):
        x = np.random.default_rng(1).integers(-9, 9, (3, 4, 2)).astype(kind)
        axes = np.array([0, 2])
        (got,) = assert_rule_agrees(op, {"x": x}, {"axes": (0, 2)})
        assert got.dtype == kind
        assert np.array_equal(got, onnxruntime_runs(REDUCED[op][0], [x, axes]))


def test_what_nothing_is_reduced_to() -> None:
    x = np.zeros((2, 0), np.float32)
    attrs: dict[str, Attr] = {"axes": (1,), "keep": False}
    assert compute("reduce_sum", {"x": x}, attrs).tolist() == [0, 0]
    assert compute("reduce_prod", {"x": x}, attrs).tolist() == [1, 1]
    assert compute("reduce_log_sum_exp", {"x": x}, attrs).tolist() == [-np.inf, -np.inf]
    for kind, least, greatest in (
        (np.float32, -np.inf, np.inf),
        (np.float16, -np.inf, np.inf),
        (np.int32, -(2**31), 2**31 - 1),
        (np.uint8, 0, 255),
    ):
        for op, wanted in (("reduce_max", least), ("reduce_min", greatest)):
            got = compute(op, {"x": x.astype(kind)}, attrs)
            assert got.dtype == kind
            assert got.tolist() == [wanted, wanted]
            axes = np.array([1])
            if kind != np.float16:
                name = REDUCED[op][0]
                assert np.array_equal(got[:, None], onnxruntime_runs(name, [x.astype(kind), axes]))
    with pytest.raises(OpError, match="name one axis twice"):
        compute("reduce_sum", {"x": x}, {"axes": (1, -1)})


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([1000.0, 1000.0, -1000.0])
    got = compute("reduce_log_sum_exp", {"x": x}, {"axes": (0,), "keep": False})
    assert float(np.float64(got)) == pytest.approx(1000 + np.log(2), rel=1e-15)


@pytest.mark.parametrize("op", ["arg_max", "arg_min"])
@pytest.mark.parametrize("seed", range(20))
def test_places_are_the_first_or_the_last_of_equals(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, rng.integers(1, 6, rng.integers(1, 4)))
    x = x.astype([np.float32, np.int32, np.uint8][seed % 3])
    axis, keep, last = int(rng.integers(-x.ndim, x.ndim)), bool(seed % 2), bool(rng.integers(2))
    attrs: dict[str, Attr] = {"axis": axis, "keep": keep, "last": last}
    (got,) = assert_rule_agrees(op, {"x": x}, attrs, note=f"seed {seed}")
    name = "ArgMax" if op == "arg_max" else "ArgMin"
    theirs = onnxruntime_runs(name, [x], axis=axis, keepdims=int(keep), select_last_index=int(last))
    assert got.dtype == theirs.dtype
    assert np.array_equal(got, theirs), f"seed {seed} {attrs}"


@pytest.mark.parametrize("seed", range(20))
def test_sums_so_far_equal_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = [np.float32, np.int32, np.int64][seed % 3]
    x = rng.integers(-99, 99, rng.integers(1, 6, rng.integers(1, 4))).astype(kind)
    axis = int(rng.integers(-x.ndim, x.ndim))
    flags = {"exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}
    (got,) = assert_rule_agrees("cumsum", {"x": x}, {"axis": axis, **flags}, note=f"seed {seed}")
    marks = {n: int(f) for n, f in flags.items()}
    theirs = onnxruntime_runs("CumSum", [x, np.array(axis)], **marks)
    assert got.dtype == theirs.dtype
    assert np.array_equal(got, theirs), f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_the_greatest_k_and_their_places_equal_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, rng.integers(1, 7, rng.integers(1, 4)))
    x = x.astype([np.float32, np.int64, np.int32][seed % 3])
    axis, largest = int(rng.integers(-x.ndim, x.ndim)), bool(rng.integers(2))
    k = int(rng.integers(1, x.shape[axis] + 1))
    attrs: dict[str, Attr] = {"k": k, "axis": axis, "largest": largest}
    values, places = assert_rule_agrees("top_k", {"x": x}, attrs, note=f"seed {seed}")
    wanted = np.array([k], np.int64)
    best = onnxruntime_runs("TopK", [x, wanted], axis=axis, largest=int(largest))
    assert np.array_equal(values, best), f"seed {seed}"
    assert np.array_equal(np.take_along_axis(x, places.astype(np.int64), axis), best), (
        f"seed {seed}"
    )
    behind = np.diff(places, axis=axis)[np.diff(values.astype(np.int64), axis=axis) == 0]
    assert (behind > 0).all(), f"seed {seed}: of equal ones the first comes first"
    with pytest.raises(OpError, match="top_k: k"):
        compute_all("top_k", {"x": x}, {**attrs, "k": x.shape[axis] + 1, "sorted": True})


def _floats(seed: int, *shape: int) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 3 + 1).astype(np.float32)


def _wide(x: Array) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64))


@pytest.mark.parametrize("axis", [-1, -2, 1, 0])
def test_layer_and_rms_norm_round_the_float64_value_once(axis: int) -> None:
    x = _floats(0, 2, 3, 5)
    over = x.shape[axis % 3 :]
    gamma, beta = _floats(1, *over), _floats(2, *over)
    attrs: dict[str, Attr] = {"axis": axis, "eps": 1e-3}
    for operands in ({"x": x, "gamma": gamma, "beta": beta}, {"x": x, "gamma": gamma}):
        (got,) = assert_rule_agrees("layer_norm", operands, attrs)
        slope, shift = _wide(gamma), _wide(beta) if "beta" in operands else None
        exact = torch.nn.functional.layer_norm(_wide(x), over, slope, shift, 1e-3).numpy()
        assert_rounded_once(got, exact, np.abs(exact) + 20, f"axis {axis}")
        theirs = onnxruntime_runs(
            "LayerNormalization", list(operands.values()), axis=axis, epsilon=1e-3
        )
        assert_close(got, theirs, 1e-5, f"axis {axis}")
    (got,) = assert_rule_agrees("rms_norm", {"x": x, "gamma": gamma}, attrs)
    exact = torch.nn.functional.rms_norm(_wide(x), over, _wide(gamma), 1e-3).numpy()
    assert_rounded_once(got, exact, np.abs(exact) + 20, f"axis {axis}")


@pytest.mark.parametrize("shape", [(2, 6, 5), (1, 4, 3, 5), (2, 2, 2, 2, 3)])
def test_group_and_instance_norm_round_the_float64_value_once(shape: tuple[int, ...]) -> None:
    x, gamma, beta = _floats(3, *shape), _floats(4, shape[1]), _floats(5, shape[1])
    operands = {"x": x, "gamma": gamma, "beta": beta}
    (got,) = assert_rule_agrees("group_norm", operands, {"groups": 2, "eps": 1e-3})
    exact = torch.nn.functional.group_norm(_wide(x), 2, _wide(gamma), _wide(beta), 1e-3).numpy()
    assert_rounded_once(got, exact, np.abs(exact) + 20, "group")
    marks = {"num_groups": 2, "epsilon": 1e-3}
    theirs = onnxruntime_runs("GroupNormalization", [x, gamma, beta], **marks)
    assert_close(got, theirs, 1e-5)
    (got,) = assert_rule_agrees("instance_norm", operands, {"eps": 1e-3})
    alone = torch.nn.functional.group_norm(_wide(x), shape[1], _wide(gamma), _wide(beta), 1e-3)
    assert_rounded_once(got, alone.numpy(), np.abs(alone.numpy()) + 20, "instance")
    theirs = onnxruntime_runs("InstanceNormalization", [x, gamma, beta], epsilon=1e-3)
    assert_close(got, theirs, 1e-5)


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_lrn_equals_onnxruntimes(size: int) -> None:
    x = _floats(6, 2, 6, 3, 4)
    attrs: dict[str, Attr] = {"size": size, "alpha": 0.25, "beta": 0.5, "bias": 1.5}
    (got,) = assert_rule_agrees("lrn", {"x": x}, attrs)
    if size % 2:  # onnxruntime takes odd sizes alone
        theirs = onnxruntime_runs("LRN", [x], size=size, alpha=0.25, beta=0.5, bias=1.5)
        assert_close(got, theirs, 1e-5)
    exact = np.empty(x.shape)
    for c in range(6):
        low, high = c - (size - 1) // 2, c + size // 2
        around = x[:, max(low, 0) : high + 1].astype(np.float64)
        exact[:, c] = x[:, c] / (1.5 + 0.25 / size * (around**2).sum(1)) ** 0.5
    assert_rounded_once(got, exact, np.abs(exact) + 20, f"size {size}")


def test_norms_say_what_does_not_fit() -> None:
    x, row = _floats(0, 2, 3, 4), _floats(0, 5)
    with pytest.raises(OpError, match=r"layer_norm: gamma \[5\] does not broadcast to \[2, 3, 4\]"):
        compute("layer_norm", {"x": x, "gamma": row}, {})
    with pytest.raises(OpError, match=r"instance_norm: gamma has \[5\], x has 3 channels"):
        compute("instance_norm", {"x": x, "gamma": row, "beta": row}, {})
    with pytest.raises(OpError, match="does not split into 2 groups"):
        compute("group_norm", {"x": x, "gamma": row, "beta": row}, {"groups": 2})
