"""What TensorFlow Lite computed, recorded, and what its profiles say: equal to the byte.

The cases are made again from their seeds; `make oracle-tflite` records their results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import dtype_of
from qir.profiles import Query, profile
from qir.profiles.kernel_forms import forms_of
from tests.counting import note
from tests.differential.one_op import computed, kind_of
from tests.oracles.tflite_cases import SUITES, CaseOperand, OpCase, digest
from tests.oracles.tflite_dynamic import WITHOUT_DELEGATE
from tests.oracles.tflite_more import WITHOUT_REFERENCE
from tests.oracles.tflite_vectors import CHANGED

VECTORS = Path(__file__).parents[1] / "vectors"
REFERENCE, DELEGATE, NEWER = "tflite-2.21.ref", "tflite-2.21.xnnpack", "litert-2.3.xnnpack"
SYMMETRIC = "tflite-2.21.symmetric"
SAME, VALID = f"{DELEGATE}.same", f"{DELEGATE}.valid"
Array = NDArray[np.generic]


def recorded(folder: Path, name: str, who: str) -> list[tuple[OpCase, Array]]:
    """The cases of a suite and what a runtime gave for each."""
    cases = list(SUITES[name]())
    with np.load(folder / f"{name}.npz") as file:
        assert str(file["inputs"]) == digest(cases), f"{name}: recorded for other inputs"
        found, apart = file["ref"], file["xnnpack"]
        if who == "xnnpack" and found.dtype.kind == "f":
            found = (found.view(np.uint32) ^ apart).view(np.float32)
        elif who == "xnnpack":
            found = (found.astype(apart.dtype) + apart).astype(found.dtype)
    ends = np.cumsum([np.prod(case.shape) for case in cases])
    parts = np.split(found, ends[:-1])
    return [(c, p.reshape(c.shape)) for c, p in zip(cases, parts, strict=True)]


def left_over(case: OpCase) -> bool:
    """Whether XNNPACK leaves a convolution to others: by weights of four bits, or by channels of
    unsigned integers or of floats themselves."""
    of, w = case.operands["x"], case.operands["w"]
    apart = case.attrs["groups"] != 1 and (of.scale is None or of.data.dtype == np.uint8)
    return bool(w.bits == 4 or apart)


def unpadded(case: OpCase) -> bool:
    """Whether XNNPACK's defect hits: padded SAME, where along an axis nothing is to be padded."""
    if case.op != "conv2d" or not case.same or left_over(case):
        return False
    size, made = case.operands["x"].data.shape[1:3], case.shape[1:3]
    taps = case.operands["w"].data.shape[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(taps, case.pair("dilation"), strict=True)]
    sides = zip(size, made, reach, case.pair("stride"), strict=True)
    return bool(max(taps) > 1 and min((o - 1) * s + k - n for n, o, k, s in sides) < 0)


def agree(pairs: Iterable[tuple[OpCase, Array]], profile: str) -> None:
    """AssertionError where a profile gives other bytes than were recorded."""
    for number, (case, wanted) in enumerate(pairs):
        found = computed(case, profile)
        assert found.dtype == wanted.dtype
        note(found, wanted)
        differ = int(np.count_nonzero(found != wanted))
        assert not differ, f"case {number} of {case.op}: {differ} of {wanted.size} differ"


def reference(name: str) -> str:
    """The profile of the reference kernels that speaks of a suite."""
    return SYMMETRIC if name.startswith("reach_") else REFERENCE


@pytest.mark.parametrize("name", [name for name in SUITES if name not in WITHOUT_REFERENCE])
def test_the_reference_kernels_are_predicted(name: str) -> None:
    agree(recorded(VECTORS / "tflite", name, "ref"), reference(name))


@pytest.mark.parametrize("name", WITHOUT_REFERENCE)
def test_nothing_is_claimed_where_the_reference_has_no_kernel(name: str) -> None:
    case = next(iter(SUITES[name]()))
    kind = str(dtype_of(case.out.data))
    query = Query(case.op, {"x": kind, "result": kind}, attrs=case.attrs)
    assert profile(REFERENCE).resolve(query).claim == "unknown"


def delegate(name: str) -> str:
    """The profile of the delegate that speaks of a suite."""
    return VALID if name.startswith("unread_valid") else DELEGATE


@pytest.mark.parametrize("name", [name for name in SUITES if name not in WITHOUT_DELEGATE])
def test_what_the_delegate_takes_is_predicted(name: str) -> None:
    pairs = recorded(VECTORS / "tflite", name, "xnnpack")
    agree((pair for pair in pairs if not unpadded(pair[0])), delegate(name))


UNREAD = "conv depthwise conv_u8 dynamic_conv unread_same unread_same_u8 unread_same_real"


@pytest.mark.parametrize("name", UNREAD.split())
def test_the_delegate_reads_nothing_where_same_pads_nothing(name: str) -> None:
    """Its results are those of an image that is all padding: the defect that the profile notes."""
    pairs = [p for p in recorded(VECTORS / "tflite", name, "xnnpack") if unpadded(p[0])]
    assert pairs
    agree(pairs, SAME)
    for case, wanted in pairs:
        x = case.operands["x"]
        empty = replace(x, data=np.full_like(x.data, x.zero))
        blank = replace(case, operands={**case.operands, "x": empty})
        assert (computed(blank, DELEGATE) == wanted).all()
        assert (computed(case, DELEGATE) != wanted).any()


def test_what_same_may_leave_unread_is_claimed_where_it_is_known_how_it_was_padded() -> None:
    """By its form: a layer does not say whether its file says SAME or VALID."""
    for kinds in ({"x": "i8", "w": "i8", "result": "i8"}, {"w": "i8"}):
        plain, unread = (Query("conv2d", kinds, forms=f) for f in ((), ("same_unpadded",)))
        for name, claim in ((DELEGATE, "unknown"), *((n, "exact") for n in (SAME, VALID, NEWER))):
            assert profile(name).resolve(plain).claim == "exact"
            assert profile(name).resolve(unread).claim == claim


def test_what_is_claimed_of_channels_alone_by_weights_of_four_bits() -> None:
    """Those of 8-bit integers; of 16-bit ones the kernels read the wrong bytes."""
    every = (REFERENCE, DELEGATE, NEWER)
    for kind, forms, names, claim in (
        ("i8", ("grouped", "single_channels"), every, "exact"),
        ("i8", ("grouped",), (DELEGATE, NEWER), "unknown"),
        ("i16", (), every, "exact"),
        ("i16", ("grouped", "single_channels"), every, "unknown"),
    ):
        query = Query("conv2d", {"x": kind, "w": "i4", "result": kind}, forms=forms)
        assert {profile(name).resolve(query).claim for name in names} == {claim}


def test_layers_of_16_bits_without_a_bias_are_claimed_of_the_reference_alone() -> None:
    """Beside XNNPACK another kernel computes them."""
    case = next(iter(SUITES["linear16"]()))
    types = {slot: kind_of(of, of.data.shape) for slot, of in case.operands.items()}
    assert "unbiased" not in forms_of("linear", types, {})
    forms = forms_of("linear", {slot: types[slot] for slot in ("x", "w")}, {})
    assert "unbiased" in forms
    for name, claim in ((REFERENCE, "exact"), (DELEGATE, "unknown"), (NEWER, "unknown")):
        for kind, said in (("i16", claim), ("i8", "exact")):
            query = Query("linear", {"x": kind, "w": "i8", "result": kind}, forms=forms)
            assert profile(name).resolve(query).claim == said


@pytest.mark.parametrize("name", UNREAD.split())
def test_the_form_holds_of_each_defect(name: str) -> None:
    for case in SUITES[name]():
        types = {slot: kind_of(of, of.data.shape) for slot, of in case.operands.items()}
        assert "same_unpadded" in forms_of("conv2d", types, case.attrs) or not unpadded(case)


def test_rows_that_end_the_process_are_refused() -> None:
    data = np.random.default_rng(5).integers(-128, 128, (2, 600)).astype(np.int8)
    out = CaseOperand(np.zeros(0, np.int8), 1 / 256, -128)
    case = OpCase("softmax", {"x": CaseOperand(data, 2.0**-10, 3)}, out, data.shape, {"axis": -1})
    with pytest.raises(OpError, match="512 or more"):
        computed(case, REFERENCE)
    assert computed(case, DELEGATE).shape == data.shape


@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("name", [REFERENCE, DELEGATE])
def test_sums_that_end_the_process_are_refused(op: str, name: str) -> None:
    """By a scale 2^19 times the result's."""
    data = np.random.default_rng(6).integers(-128, 128, (1, 40)).astype(np.int8)
    out = CaseOperand(np.zeros(0, np.int8), 1.0, -7)
    held = {"a": CaseOperand(data, 2.0**-11, 3), "b": CaseOperand(data, 2.0**19, 5)}
    with pytest.raises(OpError, match=r"2\^19 times"):
        computed(OpCase(op, held, out, data.shape, fed=("a", "b")), name)
    held["b"] = replace(held["b"], scale=2.0**18)
    assert computed(OpCase(op, held, out, data.shape, fed=("a", "b")), name).shape == data.shape


def test_blocks_of_weights_that_the_delegate_does_not_take_are_refused() -> None:
    case = next(iter(SUITES["dynamic_linear_blocks"]()))
    for name in (REFERENCE, SYMMETRIC):
        with pytest.raises(OpError, match="XNNPACK's do"):
            computed(case, name)
    w = case.operands["w"]
    scales = np.asarray(w.scale, np.float32)
    for scale, why in ((np.repeat(scales, 2, 1), "blocks of 32"), (scales / np.float32(3), "16")):
        other = {**case.operands, "w": replace(w, scale=scale)}
        with pytest.raises(OpError, match=why):
            computed(replace(case, operands=other), NEWER)
    held = Query("linear", {"w": "i4"}, "channel", forms=("weight_blocks",))
    claims = [profile(name).resolve(held).claim for name in (REFERENCE, SYMMETRIC, NEWER)]
    assert claims == ["unknown", "unknown", "exact"]


@pytest.mark.parametrize("name", [REFERENCE, DELEGATE])
def test_layers_with_a_state_of_other_kinds_are_refused_and_run_under_native(name: str) -> None:
    case = next(iter(SUITES["lstm"]()))
    hidden = case.shape[-1]
    for slot, of in (
        ("peephole", CaseOperand(np.ones((1, 3 * hidden), np.int16), 2.0**-12)),
        ("proj", CaseOperand(np.ones((1, hidden, hidden), np.int8), 2.0**-6)),
    ):
        other = replace(case, operands={**case.operands, slot: of})
        with pytest.raises(OpError, match=f"y: lstm: .* takes no {slot}; .* profile native"):
            computed(other, name)
        assert computed(other, "native").shape == case.shape


@pytest.mark.parametrize("name", CHANGED)
def test_what_litert_changed_is_predicted(name: str) -> None:
    if name not in WITHOUT_REFERENCE:
        agree(recorded(VECTORS / "litert", name, "ref"), reference(name))
    agree(recorded(VECTORS / "litert", name, "xnnpack"), NEWER)
