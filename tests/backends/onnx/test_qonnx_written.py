"""QONNX's operators are written by operators that run, or said to run nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run as interpreted
from tests.differential.runtime import run
from tests.frontends.onnx.models import model
from tests.frontends.onnx.test_qonnx import DOMAIN, MODES, F, Floats, quant

FLOAT = onnx.TensorProto.FLOAT
X = np.asarray(np.random.default_rng(41).integers(-60, 61, (4, 6)) / 8, F)


def saved(
    op: str, held: dict[str, Any], folder: Path, form: str | None, target: str, **attrs: Any
) -> tuple[onnx.ModelProto, Ledger]:
    node = helper.make_node(op, ["x", *held], ["y"], "it", domain=DOMAIN, **attrs)
    proto = model([node], {"x": (FLOAT, [4, 6])}, {"y": (FLOAT, [4, 6])}, held, domains=[DOMAIN])
    path, out, ledger = folder / "m.onnx", folder / "out.onnx", Ledger()
    onnx.save(proto, path)
    pipeline.save(pipeline.load(path), out, format=form, target=target, ledger=ledger, force=True)
    return onnx.load(out), ledger


def runs(made: onnx.ModelProto, folder: Path, wanted: Floats, x: Floats = X) -> None:
    assert not {n.domain for n in made.graph.node} & {DOMAIN}
    for optimize in (False, True):
        np.testing.assert_array_equal(run(made, {"x": x}, optimize=optimize)["y"], wanted)
    again = pipeline.load(folder / "out.onnx")
    np.testing.assert_array_equal(interpreted(again, {"x": x})["y"], wanted)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("bits", "zero"),
    [(4, 0), (4, 3), (5, 0), (8, 1), (1, 0), (17, 0), (24, 0), (24, 3), (4, 2.5), (8, 3.3)],
)
@pytest.mark.parametrize("signed", [0, 1])
def test_quant_is_written_by_operators_that_run(
    tmp_path: Path, mode: str, bits: int, zero: float, signed: int
) -> None:
    for narrow, size in ((0, ()), (bits > 1, (1, 6))):
        scale = np.asarray(np.full(size, 0.25), F)
        held = {"s": scale, "z": F(zero), "b": F(bits)}
        attrs = {"signed": signed, "narrow": int(narrow), "rounding_mode": mode}
        made, ledger = saved("Quant", held, tmp_path, "qdq", "onnxruntime", **attrs)
        assert Change.REGROUPED in ledger.counts()
        numbers = np.asarray(zero, F), np.asarray(bits, F)
        wanted = quant(X, scale, *numbers, signed != 0, bool(narrow), mode)
        runs(made, tmp_path, wanted)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_two_numbers_of_one_bit_are_written_in_every_form(
    tmp_path: Path, form: str, target: str
) -> None:
    x = np.where(X == X[0, 0], F(np.nan), X)  # a NaN is not above 0
    for scale in (F(0.5), np.linspace(0.5, 7, 6, dtype=F), np.full((1, 1), -0.5, F)):
        made, _ = saved("BipolarQuant", {"s": scale}, tmp_path, form, target)
        runs(made, tmp_path, np.where(x >= 0, scale, -scale), x)
        if scale.min() < 0:
            continue  # by its formula
        kinds = []
        for name in ("m.onnx", "out.onnx"):
            parts = [part for _, part in pipeline.load(tmp_path / name).walk()]
            kinds.append([n.result.type for part in parts for n in part if n.op == "quantize"])
        assert kinds[0] == kinds[1], "it is read back as the same scheme"
        assert "quant.lut<i1" in str(kinds[0])


def test_an_operator_that_is_kept_is_said_to_run_nowhere(tmp_path: Path) -> None:
    held = {"s": F(0.25), "z": F(0), "b": F(4)}
    made, ledger = saved("Quant", held, tmp_path, None, "onnxruntime")
    assert [n.op_type for n in made.graph.node] == ["Quant"]
    assert "no runtime of ONNX has a kernel for it; --format qdq" in str([*ledger])
    said = r"rounding_mode 'NO_SUCH' is none that QONNX has: .* no operator of ONNX itself$"
    with pytest.raises(Refused, match=said):
        saved("Quant", held, tmp_path, "qdq", "onnx", rounding_mode="NO_SUCH")


@pytest.mark.parametrize("form", ["qdq", None])
@pytest.mark.parametrize("mode", MODES)
def test_for_onnx_itself_an_untouched_quant_is_written_by_operators_that_run(
    tmp_path: Path, mode: str, form: str | None
) -> None:
    held = {"s": F(0.25), "z": F(0), "b": F(4)}
    made, _ = saved("Quant", held, tmp_path, form, "onnx", rounding_mode=mode)
    scale, zero, bits = (np.asarray(n, F) for n in (0.25, 0, 4))
    runs(made, tmp_path, quant(X, scale, zero, bits, True, True, mode))


def test_for_onnx_itself_what_it_lacks_is_never_copied(tmp_path: Path) -> None:
    made, _ = saved("BipolarQuant", {"s": F(0.5)}, tmp_path, None, "onnx")
    runs(made, tmp_path, np.where(X >= 0, F(0.5), F(-0.5)))
    held = {"s": F(0.25), "z": F(0), "b": F(4)}
    with pytest.raises(Refused, match=r"no operator of ONNX itself$"):
        saved("Quant", held, tmp_path, None, "onnx", rounding_mode="NO_SUCH")
    made, ledger = saved("Quant", held, tmp_path, None, "onnx", rounding_mode="HALF_DOWN")
    assert {e.step for e in ledger} <= {"onnx emitter", "open-groups"}
