"""Profiles stand on this processor, or on one that is named, while something runs under them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from qir import pipeline
from qir.errors import UsageError
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.types import Array, TensorType, uniform
from qir.profiles import parse, profile
from qir.profiles.processor import best_isa, on_processor
from tests.cli.command import qir

FBGEMM, ORT = "torch-2.13.fbgemm", "ort-1.31"
F = np.float32
X = np.array([[255, 255, 1, 0], [200, 100, 255, 255], [0, 3, 7, 200]], np.uint8)
W = np.array([[127, 127, -128, -128], [-128, -100, 127, 3], [5, -6, 7, 8]], np.int8)


def layer(profile_name: str = FBGEMM) -> Graph:
    """A linear layer that gives the third part of its sums, whose pairs leave 16 bits."""
    graph = Graph(profile=profile_name)
    x = graph.add("input", types=[TensorType((3, 4), uniform(dtype("u8"), F(1)))], name="x")
    kind = TensorType((3, 4), uniform(dtype("i8"), F(1)))
    w = graph.constant(Array(W, kind, "w"))
    made = TensorType((3, 3), uniform(dtype("u8"), F(512), 128))
    node = graph.add("linear", {"x": x.result, "w": w}, types=[made], name="y")
    graph.add("output", {"y": node.result})
    return graph


def sums(*, saturate: bool) -> np.ndarray:
    """Integers by hand: terms in pairs, each cut to 16 bits or not."""
    terms = X.astype(np.int64)[:, None, :] * W.astype(np.int64)[None]
    pairs = terms.reshape(3, 3, 2, 2).sum(-1)
    total = (np.clip(pairs, -32768, 32767) if saturate else pairs).sum(-1)
    return np.asarray(np.clip(np.rint(total / 512) + 128, 0, 255), np.uint8)


@pytest.fixture
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What this processor is taken for."""
    isa = str(request.param)
    monkeypatch.setattr("qir.profiles.processor.best_isa", lambda: isa)
    return isa


@pytest.mark.parametrize("here", ["any", "avx2", "avx512", "vnni", "amx"], indirect=True)
@pytest.mark.parametrize("asked", [None, "any", "avx2", "vnni"])
def test_a_run_is_by_the_rules_of_this_processor_or_of_one_that_is_named(
    here: str, asked: str | None
) -> None:
    wanted = sums(saturate=(asked or here) in ("avx2", "avx512"))
    assert not np.array_equal(sums(saturate=True), sums(saturate=False))
    graph, other = layer(), layer("native")
    for found in (
        pipeline.run(graph, {"x": X}, isa=asked),
        pipeline.run(other, {"x": X}, profile=FBGEMM, isa=asked),
    ):
        assert np.array_equal(found["y"], wanted)
    assert np.array_equal(pipeline.run(other, {"x": X}, isa=asked)["y"], sums(saturate=False))
    assert profile(FBGEMM).isa == "any"


@pytest.mark.parametrize("here", ["any", "avx2", "vnni"], indirect=True)
def test_qirs_kernels_leave_to_the_reference_what_it_computes_otherwise_here(here: str) -> None:
    made = pipeline.compile(layer(), target="cpu")(x=X)["y"]
    assert np.array_equal(np.asarray(made), sums(saturate=here == "avx2"))


@pytest.mark.parametrize("here", ["avx2"], indirect=True)
def test_a_profile_that_claims_nothing_of_this_processor_stays_as_it_is(here: str) -> None:
    assert on_processor(profile(FBGEMM)).isa == here
    for name in (ORT, "native"):
        assert on_processor(profile(name)) is profile(name)
    assert np.array_equal(pipeline.run(layer(ORT), {"x": X})["y"], sums(saturate=False))
    named = pipeline.run(layer(ORT), {"x": X}, isa=here)["y"]
    assert np.array_equal(named, sums(saturate=True))
    assert on_processor(profile(ORT), here).isa == here
    own = parse(f'name = "own"\nextends = "{FBGEMM}"\nisa = "vnni"\n', "own.toml", profile)
    assert on_processor(own) is own
    assert on_processor(own, "avx2").isa == "avx2"
    assert on_processor(own, "avx2") is on_processor(own, "avx2")


def test_runs_on_two_processors_at_once_do_not_meet() -> None:
    graph, wanted = layer(), {isa: sums(saturate=isa == "avx2") for isa in ("avx2", "vnni")}
    order = ["avx2", "vnni"] * 8
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda isa: pipeline.run(graph, {"x": X}, isa=isa)["y"], order))
    for isa, y in zip(order, made, strict=True):
        assert np.array_equal(y, wanted[isa])
    assert profile(FBGEMM).isa == "any"


def test_a_processor_that_profiles_do_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="no instruction set 'sse2'; profiles know any, avx2"):
        pipeline.run(layer(), {"x": X}, isa="sse2")
    assert best_isa() in ("any", "avx2", "avx512", "vnni", "amx")


def test_the_verb_takes_a_processor(tmp_path: Path) -> None:
    model, data, out = tmp_path / "m.qir", tmp_path / "x.npy", tmp_path / "y.npz"
    pipeline.save(layer(), model)
    np.save(data, X)
    for isa, saturate in (("avx2", True), ("vnni", False)):
        done = qir("run", model, "--data", data, "--isa", isa, "-o", out, "--force")
        assert not done.status, done
        assert np.array_equal(np.load(out)["y"], sums(saturate=saturate))
    refused = qir("run", model, "--data", data, "--isa", "avx2", "--with", "cpu")
    assert refused.status
    assert "--isa is for the reference" in refused.err


def certified(*words: str | Path) -> dict[str, list[str]]:
    """What is certain of a model's one layer."""
    (found,) = json.loads(qir("certify", *words, "--json").out)["layers"]
    made: dict[str, list[str]] = found
    return made


def test_certificates_are_of_the_processor_that_is_named(tmp_path: Path) -> None:
    model = tmp_path / "m.qir"
    pipeline.save(layer(), model)
    words = (model, "--profiles", f"{FBGEMM},torch-2.13.qnnpack")
    for isa, saturates in (("avx2", True), ("avx512", True), ("vnni", False), ("any", False)):
        assert (FBGEMM in certified(*words, "--isa", isa)["saturated_by"]) is saturates, isa
    assert "pairs saturate on avx2 under" in qir("certify", *words, "--isa", "avx2").out
    assert "no instruction set 'sse2'" in qir("certify", model, "--isa", "sse2").err


def test_what_differs_is_that_of_the_processor_that_is_named(tmp_path: Path) -> None:
    one, other, data = tmp_path / "a.qir", tmp_path / "b.qir", tmp_path / "x.npy"
    pipeline.save(layer(), one)
    pipeline.save(layer("native"), other)
    np.save(data, X)
    words = ("diff", one, other, "--data", data, "--metric", "mean-error", "--json")
    gap = np.abs(sums(saturate=True).astype(np.int64) - sums(saturate=False)).mean() * 512
    for isa, wanted in (("avx2", gap), ("vnni", 0.0)):
        (found,) = json.loads(qir(*words, "--isa", isa).out)["outputs"]
        assert found["metrics"]["mean-error"] == pytest.approx(wanted), isa
    refused = qir("diff", one, other, "--isa", "avx2")
    assert "--isa and --limit are for --data" in refused.err
    assert "no instruction set 'sse2'" in qir(*words, "--isa", "sse2").err
