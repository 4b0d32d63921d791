"""One field of the profile changed: the comparison with onnxruntime finds it.

The comparisons are those of tests/differential, on its networks; only the profile that QIR looks
up is another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from qir.numerics import MethodField
from qir.profiles import Profile, profile
from qir.profiles.profile import Field
from tests.differential.onnxruntime import test_ort_versions as versions
from tests.differential.onnxruntime.test_qdq_fused import real_biases_agree
from tests.differential.onnxruntime.test_qoperator import CHUNKS, PROFILE, reference_agrees
from tests.installed import OPTIMIZED
from tests.mutation.test_native_faults import standing_on

Change = Callable[[Profile], Profile]


def field(block: str, name: str, value: Field) -> Change:
    """Another value of a default field."""

    def change(native: Profile) -> Profile:
        assert native.defaults.get((block, name)) != value
        return replace(native, defaults={**native.defaults, (block, name): value})

    return change


def method(op: str, name: str) -> Change:
    """Another method for an op."""

    def change(native: Profile) -> Profile:
        rules = tuple(
            replace(r, fields={**r.fields, ("", "method"): MethodField(name)}) if op in r.ops else r
            for r in native.rules
        )
        assert rules != native.rules
        return replace(native, rules=rules)

    return change


def wrong(change: Change) -> AbstractContextManager[None]:
    """The changed profile under the name of the right one."""
    return standing_on(change(profile("native")), PROFILE)


def found() -> bool:
    """Whether the differential test of some chunk of networks turns red by a difference."""
    red = next((red for chunk in range(CHUNKS) if (red := _red(chunk))), None)
    assert red is None or " differ, first " in str(red), red
    return red is not None


def _red(chunk: int) -> AssertionError | None:
    try:
        reference_agrees(chunk)
    except AssertionError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("block", "name", "value"),
    [
        ("requant", "round", "away"),
        ("requant", "round", "half_up"),
        ("requant", "zero", "before"),
        ("requant", "zero", "none"),
        ("requant", "order", "x*(w/y)"),
        ("requant", "order", "(x*w)*(1/y)"),
        ("requant", "compute", "f64"),
        ("requant", "multiplier", "divide"),
        ("acc", "pairs", "saturate_i16"),
        ("acc", "pad", "zero_code"),
        ("quantize", "by", "reciprocal"),
        ("quantize", "zero", "none"),
        ("quantize", "zero", "before"),
        ("quantize", "round", "away"),
        ("quantize", "round", "half_up"),
        ("quantize", "round", "half_down"),
        ("quantize", "round", "floor"),
        ("quantize", "nan", "zero"),
        ("dequantize", "by", "q*s-z*s"),
    ],
)
def test_a_changed_field_is_found(block: str, name: str, value: str) -> None:
    with wrong(field(block, name, value)):
        assert found(), f"{block}.{name} = {value} went unseen"


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((op, "reals") for op in ("add", "mul", "avg_pool2d", "global_avg_pool")),
        ("add", "scaled_product"),
        ("mul", "fma_sum"),
    ],
)
def test_another_method_is_found(op: str, name: str) -> None:
    with wrong(method(op, name)):
        assert found(), f"{op} by {name} went unseen"


def test_another_method_of_softmax_is_found() -> None:
    """By what was recorded of 1.31: others compute it by rules of their own."""
    with standing_on(method("softmax", "reals")(profile("native")), "ort-1.31"):
        assert versions.wrong("1.31.1", "ort-1.31")


@pytest.mark.parametrize(("name", "value"), [("round", "away"), ("compute", "f64")])
def test_a_bias_that_is_made_of_floats_otherwise_is_found(name: str, value: str) -> None:
    with standing_on(field("bias", name, value)(profile("native")), OPTIMIZED):
        with pytest.raises(AssertionError, match=" differ, first "):
            real_biases_agree()


def test_the_right_profile_is_not_found_wanting() -> None:
    """On one chunk: the tests of the networks run the others."""
    with wrong(lambda native: native):
        assert not _red(0)
