"""One field of the profiles of onnxruntime and of QIR's own kernels changed: onnxruntime finds it.

It is given the cases of its probe, which are rich in ties, and ops along one and three axes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

from qir.inspect.probe_cases import cases
from qir.inspect.probing import chosen
from qir.ir.dtype import dtype
from qir.ir.types import uniform
from qir.numerics import choose
from qir.profiles import Profile, Query, profile
from qir.reference.interpreter import run
from tests.differential.fusion import examine
from tests.differential.onnxruntime import contrib
from tests.differential.onnxruntime import test_contrib_computed as computed
from tests.differential.onnxruntime import test_ort_versions as versions
from tests.differential.onnxruntime import test_ort_weight_codes as weights
from tests.differential.onnxruntime import test_qdq_fused as fused
from tests.differential.onnxruntime.contrib import case as one_model
from tests.differential.predictions import Held, predicted
from tests.installed import OPTIMIZED, UNOPTIMIZED
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay
from tests.numerics.test_ranges import KINDS, F, ranges
from tests.overriding import override_profile

PLAIN = UNOPTIMIZED
pytestmark = pytest.mark.slow
BY_NETWORKS = {"requant.order = x*(w/y)", "requant.compute = f64"}
"""What whole networks tell apart: see test_profile_faults."""
Codes = NDArray[np.generic]


def probed() -> None:
    """The cases of onnxruntime's probe, without its optimizer."""
    (probe,) = chosen(["onnxruntime.none"])
    assert not probe.grouped
    for case in cases(replace(probe.forms, rounds=2)):
        (found,) = run(case.graph, case.feeds, profile=PLAIN).values()
        wanted = probe.run(case.graph, case.feeds)
        assert np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"), case.told


def along_axes() -> None:
    """Ops of one and three axes, and a choice between integers."""
    for kind in ("u8", "i8"):
        for axes in (1, 3):
            computed.test_convolutions_of_codes(kind, "constants", axes)
            computed.test_means_of_windows_of_codes(kind, "constants", axes)
        computed.test_a_choice_between_codes_of_two_maps(kind, "constants")


def bounded() -> None:
    """Relu of integers, which onnxruntime computes as floats, to other integers."""
    numbers = {"s": F(0.1), "z": np.uint8(101), "t": F(0.05), "u": np.uint8(33)}
    quantized = np.arange(256, dtype=np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["real"]),
        helper.make_node("Relu", ["real"], ["bound"]),
        helper.make_node("QuantizeLinear", ["bound", "t", "u"], ["y"]),
    ]
    constants = {name: np.asarray(value) for name, value in numbers.items()}
    made = one_model(nodes, {"x": quantized}, constants, {"y": TensorProto.UINT8}).judged()["y"]
    maps = uniform(dtype("u8"), F(0.1), 101), uniform(dtype("u8"), F(0.05), 33)
    found = predicted(PLAIN, "relu", {"x": Held(quantized, maps[0])}, maps[1], quantized.shape)
    assert np.array_equal(found, made)


def beside_ties() -> None:
    """Sums whose product with the factor float32 rounds to a tie, and sums beyond 2^24."""
    rng, acc = np.random.default_rng(1), np.arange(2, 65536)
    found = 0
    for factor in rng.uniform(1 / 400, 1 / 260, 60).astype(F):
        near = acc.astype(F) * factor
        exact = acc.astype(np.float64) * float(factor)
        parted = (near < 255) & (np.rint(near) != np.rint(exact))
        if parted.any():
            convolved(factor, acc[parted] - 1)
            found += 1
    assert found > 5
    factor, long = F(127.5 / (2**24 + 2)), np.array([2**24 + 1])
    for _ in range(40):
        convolved(factor, long)
        factor = np.nextafter(factor, F(1))


def convolved(factor: np.float32, biases: Codes) -> None:
    """A convolution of one code 1 by weights of 1, so that biases and 1 are the sums."""
    constants: dict[str, Codes] = {
        "xs": np.asarray(factor),
        "xz": np.asarray(np.uint8(0)),
        "w": np.ones((len(biases), 1, 1, 1), np.int8),
        "ws": np.asarray(F(1)),
        "wz": np.asarray(np.int8(0)),
        "ys": np.asarray(F(1)),
        "yz": np.asarray(np.uint8(0)),
        "b": biases.astype(np.int32),
    }
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"], "it")
    fed: dict[str, Codes] = {"x": np.ones((1, 1, 1, 1), np.uint8)}
    contrib.equal(one_model([node], fed, constants, {"y": TensorProto.UINT8}))


def biases_agree() -> None:
    """Whether onnxruntime's optimizer makes the integers of real biases that are predicted."""
    for seed in range(12):
        found = examine(fused.real_bias(seed))
        assert not found.differences
        assert not found.regrouped


def rebased(of: Profile, other: Profile) -> Profile:
    """A profile that stands on another one of the name of one below it."""
    if of.name == other.name:
        return other
    return of if of.base is None else replace(of, base=rebased(of.base, other))


@contextmanager
def standing_on(other: Profile, *names: str) -> Iterator[None]:
    """Profiles as they are with a changed one below them."""
    first, *rest = names
    with override_profile(rebased(profile(first), other)):
        with standing_on(other, *rest) if rest else nullcontext():
            yield


@cache
def numbers(kind: str, symmetric: bool) -> tuple[tuple[int, int], Codes, Codes]:
    """Bounds, and scales and zero points by onnxruntime's own function."""
    low, high = ranges(5, 400)
    least, most = get_qmin_qmax_for_qType(KINDS[kind], symmetric=symmetric)
    found = [compute_scale_zp(a, b, least, most, symmetric) for a, b in zip(low, high, strict=True)]
    scales, zeros = np.array([s for _, s in found], F), np.array([z for z, _ in found])
    return (int(least), int(most)), scales.reshape(-1), zeros.reshape(-1)


def numbers_agree() -> None:
    low, high = ranges(5, 400)
    rule = profile(OPTIMIZED).resolve(Query("quantize")).choose
    for kind in KINDS:
        for symmetric in (False, True):
            bounds, wanted, zeros = numbers(kind, symmetric)
            scale, zero = choose(low, high, dtype(kind), rule, bounds=bounds, symmetric=symmetric)
            assert np.array_equal(scale, wanted), kind
            assert np.array_equal(zero, zeros), kind


def agreeing() -> Callable[[Mutant], None]:
    """Whether onnxruntime still gives what a changed profile of native foresees."""
    replay = Replay()
    replay.add(probed, sys.modules[__name__])
    replay.add(along_axes, contrib)
    replay.add(beside_ties, contrib)
    replay.add(bounded)

    def agrees(mutant: Mutant) -> None:
        with standing_on(mutant.profile, PLAIN, OPTIMIZED, "ort-1.31"):
            if mutant.ops == ("softmax",):  # the rule of 1.31; others have their own
                assert not versions.wrong("1.31.1", "ort-1.31")
            elif mutant.block == "choose":
                numbers_agree()
            elif mutant.block == "bias":
                biases_agree()
            elif mutant.said in BY_NETWORKS:
                raise AssertionError("networks find it: see test_profile_faults")
            else:
                replay.agrees()

    return agrees


def test_a_changed_field_of_native_is_found_or_listed() -> None:
    all_found("native", agreeing())


@pytest.mark.long
def test_what_is_listed_of_native_is_not_found() -> None:
    none_found("native", agreeing())


def weights_agree(mutant: Mutant) -> None:
    """Whether onnxruntime makes the integers of real weights that a changed profile makes."""
    with standing_on(mutant.profile, OPTIMIZED):
        if mutant.block == "choose":
            for op in weights.SHAPES:
                weights.test_real_weights_become_these_codes(op)
            return
        fused.report.cache_clear()
        try:
            fused.test_real_weights_become_the_codes_that_onnxruntime_makes_of_them()
        finally:
            fused.report.cache_clear()


def test_a_changed_field_of_onnxruntimes_own_is_found_or_listed() -> None:
    all_found("ort-1.31", weights_agree)


@pytest.mark.long
def test_what_is_listed_of_onnxruntimes_own_is_not_found() -> None:
    none_found("ort-1.31", weights_agree)
