"""Each verb on an ONNX model of each kind: done, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.backends.onnx.kinds import KINDS

from .command import Outcome, assert_one_line, qir

FORMS = ("qdq", "qoperator", "integer", "nbits")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of the kind and its data."""
    folder: Path = tmp_path_factory.mktemp("kind")
    proto, feeds = KINDS[request.param]()
    onnx.save(proto, folder / "m.onnx")
    np.savez(folder / "m.npz", **dict[str, Any](feeds))
    return folder


def done(outcome: Outcome, *statuses: int) -> str:
    """What a verb that was done printed, in lines of a sensible width."""
    assert outcome.status in (statuses or (0,)), outcome
    assert outcome.err == "", outcome
    assert "Traceback" not in outcome.out
    return outcome.out


def sound(path: Path) -> None:
    """Verified without an error, and nothing in it is there for nobody."""
    out = done(qir("verify", path), 0, 1)
    assert "error" not in out, out
    assert "unused" not in out, out


def test_a_model_of_each_kind_is_shown_checked_planned_and_run(kind: Path) -> None:
    shown = done(qir("show", kind / "m.onnx"))
    assert "in integers" in shown
    sound(kind / "m.onnx")
    planned = done(qir("plan", kind / "m.onnx"))
    assert "fused " not in planned, planned
    assert "foreign " not in planned, planned
    assert "by reference" in done(qir("run", kind / "m.onnx", "--data", kind / "m.npz"))


def test_a_model_of_each_kind_is_written_in_every_form_and_compared(kind: Path) -> None:
    count = 0
    for form in FORMS:
        for target in ("onnxruntime", "onnx"):
            made = kind / f"{form}-{target}.onnx"
            words = ("--format", form, "--target", target, "--force")
            outcome = qir("convert", kind / "m.onnx", "-o", made, *words)
            if outcome.status:
                assert_one_line(outcome, 3)
                continue
            count += 1
            done(outcome)
            done(qir("diff", kind / "m.onnx", made), 0, 1)
            sound(made)
            done(qir("show", made))
            done(qir("run", made, "--data", kind / "m.npz"))
    assert count >= 4


def test_work_in_bodies_is_work_on_integers(tmp_path: Path) -> None:
    proto, _ = KINDS["bodies"]()
    onnx.save(proto, tmp_path / "m.onnx")
    assert "100 % of the work; longest run 1 op, y/then/tq" in qir("show", tmp_path / "m.onnx").out


def test_a_plan_names_what_stays_the_operator_that_it_is(tmp_path: Path) -> None:
    proto, _ = KINDS["qonnx"]()
    onnx.save(proto, tmp_path / "m.onnx")
    planned = qir("plan", tmp_path / "m.onnx").out
    assert "it stays onnx Quant, as the file has it" in planned
    assert "fused" not in planned
