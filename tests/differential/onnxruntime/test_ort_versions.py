"""What versions of onnxruntime computed, recorded where they differ: their profiles foresee it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.backends.onnx import versions
from qir.ir.dtype import dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform
from qir.numerics import choose
from qir.profiles import Query, profile
from qir.reference.interpreter import run
from tests.counting import note
from tests.oracles.onnxruntime_vectors import VECTORS, Case, cases, digest, ranges

RECORDED = sorted(path.stem for path in VECTORS.glob("*.npz"))
F = np.float32


@cache
def recorded(version: str) -> Mapping[str, NDArray[np.generic]]:
    with np.load(VECTORS / f"{version}.npz") as file:
        assert str(file["inputs"]) == digest(), "recorded for other inputs"
        return {name: file[name] for name in file.files}


def softmax(case: Case, named: str) -> NDArray[np.generic]:
    """A softmax of quantized values by the reference."""
    storage = dtype_of(case.x)
    graph = Graph(profile=named)
    of = TensorType(case.x.shape, uniform(storage, F(case.scale), case.zero))
    made = TensorType(case.x.shape, uniform(storage, F(case.made_scale), case.made_zero))
    x = graph.add("input", types=[of], name="x").result
    y = graph.add("softmax", {"x": x}, {"axis": -1}, types=[made]).result
    graph.add("output", {"y": y})
    return np.asarray(run(graph, {"x": case.x})["y"])


def wrong(version: str, named: str, *, counted: bool = False) -> int:
    """How many recorded results of softmax a profile does not give."""
    wanted, at, differ = recorded(version)["y"], 0, 0
    for case in cases():
        theirs = wanted[at : at + case.x.size].view(case.x.dtype).reshape(case.x.shape)
        at += case.x.size
        mine = softmax(case, named)
        if counted:
            note(mine, theirs)
        differ += int(np.count_nonzero(mine != theirs))
    assert at == wanted.size
    return differ


def chosen_wrong(version: str, named: str) -> int:
    """How many recorded scales and zero points of the quantization tool a profile does not give."""
    differ, low_high = 0, ranges()
    for kind in ("u8", "i8"):
        rule = profile(named).resolve(Query("quantize", {"x": kind, "result": kind})).choose
        scale, zero = choose(low_high[:, 0], low_high[:, 1], dtype(kind), rule)
        differ += int(np.count_nonzero(scale != recorded(version)[f"{kind}_scale"]))
        differ += int(np.count_nonzero(zero != recorded(version)[f"{kind}_zero"]))
    return differ


def test_each_profile_has_a_recorded_version() -> None:
    assert {versions.profile_of(v) for v in RECORDED} == set(versions.profiles())


@pytest.mark.parametrize("suffix", ["", ".noopt"])
@pytest.mark.parametrize("version", RECORDED)
def test_softmax_of_each_version_is_predicted(version: str, suffix: str) -> None:
    assert not wrong(version, versions.profile_of(version) + suffix, counted=True)


@pytest.mark.parametrize("version", RECORDED)
def test_scales_of_each_versions_tool_are_predicted(version: str) -> None:
    assert not chosen_wrong(version, versions.profile_of(version))


def test_no_other_profile_predicts_a_version() -> None:
    names = list(versions.profiles())
    for version in ("1.28.0", "1.30.0", "1.31.1", "1.32.0"):
        found = [n for n in names if not wrong(version, n) + chosen_wrong(version, n)]
        assert found == [versions.profile_of(version)]


def test_the_versions_differ_in_softmax_by_as_much_as_is_said() -> None:
    by = {v: recorded(v)["y"].astype(int) for v in ("1.28.0", "1.30.0", "1.31.1", "1.32.0")}
    assert np.array_equal(by["1.30.0"], by["1.31.1"])
    half = by["1.30.0"].size // 2  # u8 first
    assert np.array_equal(by["1.28.0"][:half], by["1.30.0"][:half])
    signed = {v: y[half:].astype(np.uint8).view(np.int8).astype(int) for v, y in by.items()}
    assert np.abs(signed["1.28.0"] - signed["1.30.0"]).max() == 255
    assert np.abs(by["1.31.1"] - by["1.32.0"])[:half].max() == 255


def test_this_version_computes_what_was_recorded_of_its_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.oracles import onnxruntime_vectors as oracle

    here = metadata.version("onnxruntime")
    named = versions.profile_of(here)
    release = next((v for v in RECORDED if versions.profile_of(v) == named), None)
    assert release is not None
    folder = tmp_path_factory.mktemp("recorded")
    monkeypatch.setattr(oracle, "VECTORS", folder)
    oracle.record()
    with np.load(folder / f"{here}.npz") as file:
        for name, array in recorded(release).items():
            assert np.array_equal(file[name], array), name
