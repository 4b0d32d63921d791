"""Every field of every profile is held by a comparison, or listed as what nothing tells apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from qir.profiles import profile, profile_names
from tests.mutation.fields import mutants, others
from tests.mutation.indistinct import PAGE, SAME, same, text

_TORCH = "test_torch_faults.py::test_a_changed_field_is_found_or_listed"
_MODES = "test_tensorflow_faults.py::test_a_changed_field_of_a_mode_is_found_or_listed"
_TFLITE = "test_tflite_faults.py::test_a_changed_field_is_found_or_listed"
_TF = "test_tensorflow_faults.py::test_a_changed_field_is_found_or_listed"
HELD = {
    "ipex-2.8": "test_ipex_faults.py::test_a_changed_field_is_found_or_listed",
    "litert-2.3.xnnpack": _TFLITE,
    "mxnet-1.9": "test_mxnet_faults.py::test_a_changed_field_is_found_or_listed",
    "native": "test_native_faults.py::test_a_changed_field_of_native_is_found_or_listed",
    "ort-1.31": "test_native_faults.py"
    "::test_a_changed_field_of_onnxruntimes_own_is_found_or_listed",
    **dict.fromkeys(
        (f"ort-1.{n}{s}" for n in (28, 30, 32) for s in ("", ".noopt")),
        "test_ort_versions_faults.py::test_a_changed_field_is_found_or_listed",
    ),
    "qonnx-1.0": "../differential/onnxruntime/test_qonnx_vectors.py"
    "::test_a_changed_field_is_found_or_listed",
    "tf-2.21.core": _TF,
    "tf-2.21.onednn": _TF,
    "tf-2.21.min_combined": _MODES,
    "tf-2.21.min_first": _MODES,
    "tf-2.21.onednn.min_first": _MODES,
    "tf-2.21.uniform": "test_tensorflow_uniform_faults.py::test_a_changed_field_is_found_or_listed",
    "tflite-2.21.ref": _TFLITE,
    "tflite-2.21.symmetric": _TFLITE,
    "tflite-2.21.xnnpack": _TFLITE,
    "tflite-2.21.xnnpack.same": _TFLITE,
    **dict.fromkeys(
        ("torch-2.14.onednn", *(f"torch-2.15.{e}" for e in "fbgemm x86 onednn qnnpack".split())),
        "test_torch_versions_faults.py::test_a_changed_field_is_found_or_listed",
    ),
    **dict.fromkeys((f"torch-2.13.{e}" for e in "fbgemm x86 onednn qnnpack pt2e".split()), _TORCH),
}
"""The test that changes the fields of each profile."""
EMPTY = {
    "ort-1.31.noopt",
    "tflite-2.21.single",
    "tflite-2.21.xnnpack.open",
    "tflite-2.21.xnnpack.valid",
    "torch-2.15.pt2e",
}
"""Profiles that state no fields of this processor's of their own, or claim nothing by them: see
test_single_rounding."""


def test_each_profile_has_a_test_that_changes_its_fields() -> None:
    assert set(profile_names()) == HELD.keys() | EMPTY
    for place in HELD.values():
        file, name = place.split("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), place
    assert all(not list(mutants(profile(name))) for name in EMPTY)


@pytest.mark.parametrize("name", profile_names())
def test_each_stated_field_is_changed(name: str) -> None:
    """All but evidence and claims, tolerances, and rules of other processors."""
    of = profile(name)
    stated = [(of.defaults, "defaults")]
    stated += [(entry.fields, entry.ops[0]) for entry in of.rules if not entry.when.isa]
    for fields, where in stated:
        for (block, field), value in fields.items():
            if field not in ("claim", "evidence", "float"):
                assert list(others(block, field, value)), (where, block, field)


@pytest.mark.parametrize("name", profile_names())
def test_what_is_listed_is_a_change_that_is_made(name: str) -> None:
    made = [mutant.said for mutant in mutants(profile(name))]
    assert len(set(made)) == len(made)
    assert not same(name) - set(made)


def test_each_has_its_reason() -> None:
    assert SAME.keys() <= set(profile_names())
    assert all(why and why != "?" for table in SAME.values() for why in table.values())


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "python -m tests.mutation.indistinct"
