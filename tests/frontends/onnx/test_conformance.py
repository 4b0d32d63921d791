"""The node tests of the `onnx` package go as docs/reference/onnx.md says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from .conformance import PAGE, SAME, Case, _differs, listed, outcomes, page


def _is_same_age() -> bool:
    """Whether the page was made with the packages that are here."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"ships \((.+?)\).*?onnxruntime (\S+) ", text, re.DOTALL)
    return found is not None and found.groups() == (onnx.__version__, onnxruntime.__version__)


def kept_cases() -> dict[str, int]:
    """How many cases of each operator are kept as foreign ops, by the page."""
    text = PAGE.read_text(encoding="utf-8").partition("## Operator by operator")[2]
    return {name: int(n) for name, n in re.findall(r"^\| (.+?) \|.* (\d+) \|$", text, re.M)}


@pytest.mark.slow
def test_what_the_language_knows_needs_no_framework() -> None:
    """All cases of quantization are right, and the others are as the page says.

    An operator that QIR knows does not silently become a foreign op: with constants in place of
    inputs no case does that is read without them, and none does beyond those that the page counts.
    """
    made = subprocess.run(
        [sys.executable, "-m", "tests.frontends.onnx.alone"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    found = json.loads(made.stdout.splitlines()[-1])
    assert set(found["quantization"].values()) == {SAME}
    assert len(found["quantization"]) >= 45
    assert set(found["with constants"].values()) == {SAME}
    assert len(found["with constants"]) >= 39
    assert found["kept with constants"] == {}
    if f"ships ({onnx.__version__})" in PAGE.read_text(encoding="utf-8"):
        assert found["kept"] == {name: n for name, n in kept_cases().items() if n}
    if _is_same_age():
        said = listed(PAGE.read_text(encoding="utf-8"), "interpreter")
        assert set(found["differ"]) <= set(said)


@pytest.mark.slow
def test_the_page_is_current_and_cases_pass_both_ways() -> None:
    found = list(outcomes())
    direct = [one for one in found if one.runtime == SAME]
    assert sum(one.both for one in direct) >= 1440
    if _is_same_age():
        steady = [line for line in page(found).splitlines() if "image_decoder" not in line]
        held = PAGE.read_text(encoding="utf-8").splitlines()
        assert steady == [line for line in held if "image_decoder" not in line]


def test_a_difference_is_seen() -> None:
    case = Case("one", onnx.ModelProto(), (), (), 1e-3, 1e-7)
    wanted = np.array([1, 2], np.float32)
    assert not _differs(wanted, wanted + np.float32(1e-4), case)
    assert "numbers" in _differs(wanted, wanted + np.float32(0.1), case)
    assert "shape" in _differs(wanted, wanted[:1], case)
    assert "float64" in _differs(wanted, wanted.astype(np.float64), case)
    assert "list" in _differs([wanted], [], case)
    assert "text" in _differs(np.array(["a"], object), np.array([b"b"], object), case)
    small = np.array([1, 3]).astype(onnx.helper.tensor_dtype_to_np_dtype(TensorProto.INT4))
    assert not _differs(small, np.array([1, 3], np.int8), case)
    assert "numbers" in _differs(small, np.array([1, 2], np.int8), case)
