"""`qir quantize --scales`: the numbers of a model are those of the formula that is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType
from qir.numerics import SCALE_FORMULAS
from qir.numerics.scale_rules import families, printed_rules
from tests.cli.command import assert_one_line, process, qir

F = np.float32
SEED = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """A layer, samples for it, and the arrays whose ranges count."""
    folder = tmp_path_factory.mktemp("scales")
    rng = np.random.default_rng(SEED)
    x = rng.uniform(-0.7, 3.1, (8, 6)).astype(F)
    x[0, 0] = F(-0.71)
    w = rng.normal(size=(6, 5)).astype(F)
    graph = Graph("main")
    given = graph.add("input", types=[TensorType((8, 6), F32)], name="x").result
    held = graph.constant(Array.of(w, "w"))
    graph.add("output", {"y": graph.add("matmul", {"a": given, "b": held}, name="y").result})
    pipeline.save(graph, folder / "model.qir")
    np.save(folder / "x.npy", x)
    return folder, {"x": x, "w": w}


def symmetric(data: NDArray[np.float32]) -> tuple[np.float32, int]:
    return F(np.abs(data).max() / F(127.5)), 0


def twice(data: NDArray[np.float32]) -> tuple[np.float32, int]:
    return F(F(2) * np.abs(data).max() / F(127 + 128 - 1)), 0


def affine(data: NDArray[np.float32]) -> tuple[np.float32, int]:
    low, high = np.minimum(data.min(), 0), np.maximum(data.max(), 0)
    scale = F((high - low) / F(255))
    return scale, 0 - int(np.rint(low / scale))


def shifted(data: NDArray[np.float32]) -> tuple[np.float32, int]:
    return symmetric(data)[0], 128


Formula = Callable[[NDArray[np.float32]], tuple[np.float32, int]]
RULES: dict[str, tuple[Formula, Formula]] = {
    "fbgemm": (affine, symmetric),
    "onnxruntime": (affine, twice),
    "fbgemm.symmetric": (shifted, symmetric),
}
"""The formulas of u8 data and of i8 weights."""


@pytest.mark.parametrize("name", RULES)
def test_data_and_weights_have_the_numbers_of_the_formula(
    name: str, made: tuple[Path, dict[str, NDArray[np.float32]]]
) -> None:
    folder, held = made
    out = folder / f"{name}.qir"
    words = ("--data", folder / "x.npy", "-o", out, "--scales", name, "--granularity", "tensor")
    outcome = qir("quantize", folder / "model.qir", *words, "--batch", "8")
    assert outcome.status == 0, outcome
    graph = pipeline.load(out)
    found = {}
    for value in graph.values.values():
        if value.node.op == "dequantize" and (quant := value.node.operands["x"].type.quant):
            found["w" if str(quant.storage) == "i8" else value.name] = quant
    data = next(q for n, q in found.items() if n != "w" and not n.startswith("y"))
    for quant, formula, slot in ((data, RULES[name][0], "x"), (found["w"], RULES[name][1], "w")):
        scale, zero = formula(held[slot])
        assert (F(quant.scales()), int(np.asarray(quant.zeros()))) == (scale, zero), slot


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scales", "nobody"), "qir: no scale rule 'nobody'; known: profile, onednn, "),
        (("--scales", "onednn"), "qir: x: a range -0.71.."),
        (("--scales", "onednn.i8"), "qir: x: u8 affine types have no scale by onednn.i8 ("),
    ],
)
def test_what_has_no_scale_by_a_formula_is_one_line(
    words: tuple[str, ...], said: str, made: tuple[Path, object]
) -> None:
    folder, _ = made
    outcome = process(
        "quantize", "model.qir", "--data", "x.npy", "-o", "no.qir", *words, cwd=folder
    )
    assert_one_line(outcome, 2)
    assert outcome.err.startswith(said), outcome
    assert not (folder / "no.qir").exists()


@pytest.mark.slow
def test_zeros_alone_have_no_scale_by_a_formula_that_gives_none(
    made: tuple[Path, object],
) -> None:
    folder, _ = made
    np.save(folder / "zeros.npy", np.zeros((8, 6), F))
    words = ("--data", "zeros.npy", "-o", "z.qir", "--force", "--scales")
    outcome = process("quantize", "model.qir", *words, "fbgemm", cwd=folder)
    assert_one_line(outcome, 2)
    assert outcome.err.startswith("qir: x: a range of zeros alone"), outcome
    for scales in ("profile", "torch.observer", "onnxruntime.tool"):
        outcome = process("quantize", "model.qir", *words, scales, cwd=folder)
        assert outcome.status == 0, outcome


def test_doctor_lists_every_rule_with_its_formula() -> None:
    listed = {r["name"]: r["formula"] for r in json.loads(qir("doctor", "--json").out)["scales"]}
    assert listed.keys() == SCALE_FORMULAS.keys() == printed_rules().keys()
    assert all(name in SCALE_FORMULAS for names in families().values() for name in names)
    assert "scale = 2*max(|rmin|,|rmax|)/(127+128-1)" in qir("doctor", "--all").out
