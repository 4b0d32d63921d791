"""What probes find: installed runtimes obey their files, and one that does not is found out."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, ProfileError, UsageError
from qir.inspect import probing
from qir.inspect.measurements import assumed, draft, keep, runtimes
from qir.inspect.probe_cases import OPS, Forms, cases
from qir.inspect.probing import Measured, Probe, chosen, head_of, measure, probes
from qir.ir.graph import Graph
from qir.ir.verify import verify
from qir.numerics import MethodField
from qir.profiles import Profile, Query, parse, profile, profile_names
from qir.profiles.profile import Field, Fields, ProfileHead, RuleEntry, When
from qir.profiles.versions import covers
from qir.reference.interpreter import run
from qir.target import target
from tests.installed import OPTIMIZED
from tests.overriding import override_profile

MXNET = Path(__file__).parents[2] / "build" / "oracles" / "mxnet" / "bin" / "python"
"""Where `make oracle-mxnet` puts a Python with MXNet."""
IPEX = MXNET.parents[2] / "ipex" / "bin" / "python"
"""Where `make oracle-ipex` puts one with Intel's extension for PyTorch."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    if MXNET.exists():
        monkeypatch.setenv("QIR_MXNET", os.environ.get("QIR_MXNET", str(MXNET)))
    if IPEX.exists():
        monkeypatch.setenv("QIR_IPEX", os.environ.get("QIR_IPEX", str(IPEX)))


class Stranger(Probe):
    """A runtime that computes as onnxruntime does, but for some fields of some ops."""

    name = "stranger"
    backend = "onnxruntime"
    settings: ClassVar[Mapping[str, str]] = {"optimizer": "none"}
    forms = Forms(("quantize", "conv2d", "matmul", "add", "concat"))

    def __init__(self, changes: Mapping[str, Fields], version: str = "1.31.9") -> None:
        base = profile("ort-1.31.noopt")
        rules = tuple(RuleEntry((op,), When(), fields) for op, fields in changes.items())
        self.own = Profile(ProfileHead("stranger", base.name), {}, rules, (), base, "")
        self.number = version

    @property
    def version(self) -> str:
        return self.number

    def run(self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        with override_profile(self.own):
            return run(graph, feeds, profile="stranger")["y"]


@cache
def measured(name: str) -> Measured:
    (probe,) = chosen([name])
    return measure(probe)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("probe", probes(), ids=lambda p: p.name)
def test_installed_runtimes_obey_their_profiles(probe: Probe) -> None:
    if not probe.version:
        pytest.skip(f"{probe.name} is not installed")
    found = measured(probe.name)
    assert found.covered, f"no profile speaks of {probe.name} {probe.version}"
    assert not found.drifts, found.drifts
    assert not found.skipped
    assert {o.op for o in found.ops} == set(probe.forms.ops)
    assert all(f.agrees for o in found.ops if o.claim == "exact" for f in o.fields)


PLANTED = {"even": "half_up", "away": "even", "half_up": "even"}


@pytest.mark.parametrize("probe", probes(), ids=lambda p: p.name)
def test_a_wrong_value_in_a_runtimes_file_is_found_and_the_right_one_named(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not probe.version:
        pytest.skip(f"{probe.name} is not installed")
    monkeypatch.setattr(probe, "forms", replace(probe.forms, ops=("quantize",)))
    right = measure(probe)
    assert not right.drifts
    base = profile(right.profile)
    reading = next(f for f in right.ops[0].fields if f.field == "quantize.round")
    wrong: Fields = {("quantize", "round"): PLANTED[reading.filed], ("", "claim"): "exact"}
    made = Profile(
        ProfileHead(base.name, base.name),
        {},
        (RuleEntry(("quantize",), When(), wrong),),
        (),
        base,
        "",
    )
    monkeypatch.setattr(probing, "profiles_of_runtime", lambda _: ((profile(right.profile),), True))
    with override_profile(made):
        found = measure(probe)
    assert {o.op for o in found.drifts} == {"quantize"}
    for drift in found.drifts:
        assert drift.found["quantize.round"] in reading.obeyed, drift
        assert not drift.left


def test_what_decides_bytes_is_told_apart_by_the_cases() -> None:
    told = {(o.op, f.field) for o in measured("onnxruntime.none").ops for f in o.fields if f.told}
    products = {"requant.order", "requant.round", "requant.zero", "acc.pairs"}
    wanted = {(op, field) for op in ("conv2d", "matmul", "gemm") for field in products}
    wanted |= {("conv2d", "acc.pad"), ("matmul", "acc.overflow"), ("matmul", "acc.type")}
    wanted |= {("quantize", f"quantize.{f}") for f in ("by", "compute", "zero", "round", "nan")}
    wanted |= {("dequantize", "dequantize.by"), ("add", "method"), ("mul", "method")}
    assert not wanted - told


@pytest.mark.slow
def test_depthwise_layers_of_fbgemm_are_seen_to_saturate_pairs_of_taps() -> None:
    if not chosen(["torch.fbgemm"])[0].version:
        pytest.skip("torch is not installed")
    found = measured("torch.fbgemm").ops
    pairs = {
        op: [f for o in found if o.op == op for f in o.fields if f.field == "acc.pairs"]
        for op in ("conv2d", "conv3d")
    }
    # Of one channel a group, both pair the same taps. What sets them apart are windows whose
    # integers leave 16 bits, which takes 129 of them: 343 of a volume, when images have up to 49.
    alike = ("saturate_taps", "saturate_rows")
    assert [f for f in pairs["conv2d"] if f.obeyed == alike and f.filed == "saturate_taps"]
    assert [(f.obeyed, f.filed) for f in pairs["conv3d"]] == [(("saturate_taps",), "saturate_taps")]


CHANGES: dict[str, tuple[str, Fields]] = {
    "ties away": ("quantize", {("quantize", "round"): "away"}),
    "by the reciprocal": ("quantize", {("quantize", "by"): "reciprocal"}),
    "zero inside": ("conv2d", {("requant", "zero"): "before"}),
    "another order": ("matmul", {("requant", "order"): "(x*w)*(1/y)"}),
    "saturating sums": ("matmul", {("acc", "overflow"): "saturate"}),
    "pairs in 16 bits": ("conv2d", {("acc", "pairs"): "saturate_i16"}),
    "two fields": ("conv2d", {("requant", "round"): "half_up", ("requant", "zero"): "before"}),
    "another method": ("add", {("", "method"): MethodField("reals")}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_runtime_that_drifts_is_found_explained_and_filed(name: str) -> None:
    op, change = CHANGES[name]
    stranger = Stranger({op: change})
    found = measure(stranger)
    assert found.profile == "ort-1.31.noopt"
    assert [o.op for o in found.drifts] == [op]
    (reading,) = found.drifts
    assert reading.left == 0
    text = draft(found, "stranger-1.31")
    made = parse(text, "stranger-1.31.toml", profile)
    assert made.head.extends == "ort-1.31.noopt"
    assert len(made.rules) == 1
    assert found.elements > 100_000
    with override_profile(made):
        assert all(_predicted(stranger, case.graph, case.feeds) for case in cases(stranger.forms))


def _predicted(stranger: Stranger, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> bool:
    mine = run(graph, feeds, profile="stranger-1.31")["y"]
    return np.array_equal(mine, stranger.run(graph, feeds), equal_nan=mine.dtype.kind == "f")


def test_a_version_that_no_file_speaks_of_is_held_beside_the_nearest() -> None:
    change: dict[tuple[str, str], Field] = {("requant", "round"): "away"}
    found = measure(Stranger({"conv2d": change, "matmul": change}, "1.99.0"))
    assert not found.covered
    assert head_of(profile(found.profile)).backend == "onnxruntime"
    made = parse(draft(found, "new"), "new.toml", profile)
    assert made.head.versions == "==1.99.*"
    assert {(e.ops, e.fields["requant", "round"]) for e in made.rules} == {
        (("conv2d",), "away"),
        (("matmul",), "away"),
    }
    assert all("qir probe" in str(e.fields["", "evidence"]) for e in made.rules)


@pytest.mark.parametrize("version", ["as it is", "99.0"])
@pytest.mark.parametrize("probe", probes(), ids=lambda p: p.name)
def test_a_file_of_what_does_not_drift_says_what_the_one_it_extends_does(
    probe: Probe, version: str
) -> None:
    if not probe.version:
        pytest.skip(f"{probe.name} is not installed")
    found = measured(probe.name)
    if version != "as it is":
        found = replace(found, version=version, covered=False)
    text = draft(found, "written")
    said = tomllib.loads(text)
    assert not {"prepare", "groups", "isa", "rule", "group"} & said.keys()
    assert said["versions"] == f"=={'.'.join(found.version.split('.')[:2])}.*"
    assert (said["backend"], said.get("settings", {})) == (probe.backend, dict(probe.settings))
    _same(parse(text, "written.toml", profile), profile(found.profile))


def _same(made: Profile, base: Profile) -> None:
    """One profile says what another does of every op, on every instruction set."""
    assert (made.groups, made.isa) == (base.groups, base.isa)
    assert made.prepare == base.prepare
    for op in sorted({op for layer in base.layers for e in layer.rules for op in e.ops}):
        for entry in (e for layer in base.layers for e in layer.rules if op in e.ops):
            for isa in ("any", "avx2", "vnni"):
                storage = {slot: kinds[0] for slot, kinds in entry.when.storage.items()}
                grain = next(iter(entry.when.grain), "tensor")
                query = Query(op, storage, grain, entry.when.attrs, isa)
                assert replace(made.resolve(query), profile="") == replace(
                    base.resolve(query), profile=""
                )


@pytest.mark.slow
def test_a_version_that_no_file_speaks_of_groups_as_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (probe,) = chosen(["onnxruntime.all"])
    monkeypatch.setattr(type(probe), "version", "1.99.0")
    found = measure(probe)
    assert not found.covered
    assert not found.drifts
    made = parse(draft(found, "written"), "written.toml", profile)
    assert made.base is not None
    assert (made.base.name, made.head.versions) == (OPTIMIZED, "==1.99.*")
    _same(made, profile(OPTIMIZED))
    assert {"unsigned_values", "merge_pairs"} <= set(made.prepare)


def test_arithmetic_that_no_field_says_is_filed_without_a_claim() -> None:
    class Odd(Stranger):
        forms = Forms(("conv2d", "quantize"), rounds=1)

        def run(
            self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]
        ) -> NDArray[np.generic]:
            made = super().run(graph, feeds)
            return np.bitwise_xor(made, 1) if graph["y"].node.op == "conv2d" else made

    found = measure(Odd({}))
    (reading,) = found.drifts
    assert reading.left
    made = parse(draft(found, "odd"), "odd.toml", profile)
    assert [e.fields["", "claim"] for e in made.rules] == ["unknown"]
    with pytest.raises(ProfileError, match="there is a profile 'native' already"):
        draft(found, "native")


def test_what_a_runtime_has_no_kernel_for_is_said() -> None:
    class Lacking(Stranger):
        forms = Forms(("quantize", "add"), rounds=1)

        def run(
            self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]
        ) -> NDArray[np.generic]:
            if graph["y"].node.op == "add":
                raise OpError("no sums here")
            return super().run(graph, feeds)

    found = measure(Lacking({}))
    assert found.skipped == {"add u8": "no sums here", "add i8": "no sums here"}
    assert not found.drifts


def test_a_runtime_is_assumed_until_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    known, new = Stranger({}), Stranger({}, "1.99.0")
    new.__class__ = type("New", (Stranger,), {"name": "new"})
    for where in ("qir.inspect.probing.probes", "qir.inspect.measurements.probes"):
        monkeypatch.setattr(where, lambda: (known, new))
    assert [r.state for r in runtimes()[:2]] == ["assumed", "unknown"]
    drifting = replace(measure(known), name="stranger")
    keep(known, drifting)
    first, second = runtimes()[:2]
    assert (first.state, first.profile, first.drifts) == ("measured", "ort-1.31.noopt", 0)
    assert first.date
    assert second.state == "unknown"
    known.number = "1.31.10"
    assert runtimes()[0].state == "assumed", "another version was not measured"


def test_a_runtime_that_no_probe_measures_is_assumed_on_the_evidence_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {r.name: r for r in assumed()}
    mine = target("onnxruntime").profile, f"torch-{metadata.version('torch')[:4]}."
    versioned = ("ort-", "torch-")  # these files are many: a probe is of those of the version here
    found = {n: r for n, r in found.items() if not n.startswith(versioned) or n.startswith(mine)}
    forms = ("min_combined", "min_first", "onednn.min_first", "uniform")
    others = {
        *(f"tf-2.21.{n}" for n in forms),
        *(f"tflite-2.21.{n}" for n in ("single", "symmetric", "xnnpack.same", "xnnpack.valid")),
        "tflite-2.21.xnnpack.open",
    }
    assert set(found) == others, "mxnet-1.9 and ipex-2.8 are probed, where they are"
    assert {r.state for r in found.values()} == {"assumed"}
    for name, file, said in (
        ("mxnet", "mxnet-1.9", "mxnet 1.9.1"),
        ("ipex", "ipex-2.8", "torch 2.8.0"),
    ):
        monkeypatch.setenv(f"QIR_{name.upper()}", "/nowhere/python")
        elsewhere = next(r for r in runtimes() if r.name == name)
        assert (elsewhere.version, elsewhere.profile, elsewhere.state) == (None, file, "assumed")
        assert said in elsewhere.evidence
        with pytest.raises(UsageError, match=f"which --python or QIR_{name.upper()} may name"):
            chosen([name])
    known = {head_of(profile(r.profile)).backend for r in runtimes() if r.profile}
    assert known == {head_of(profile(n)).backend for n in profile_names()} - {"", "qir"}


def test_every_profile_is_told_with_the_version_that_is_here() -> None:
    found = {r.profile: r for r in runtimes()}
    own = {name for name in profile_names() if head_of(profile(name)).backend in ("", "qir")}
    assert found.keys() - {""} == set(profile_names()) - own
    here = next(p.version for p in probes() if p.name == "tensorflow.core")
    for name in ("min_first", "min_combined", "onednn.min_first", "uniform"):
        of = found[f"tf-2.21.{name}"]
        why = "no probe is of this file" if here else "not installed"
        assert (of.version, of.state, of.why) == (here, "assumed", why)
        assert of.evidence.startswith("tests/differential/tensorflow/test_tensorflow")


def test_names_that_nothing_has_are_refused() -> None:
    with pytest.raises(UsageError, match="no probe 'nobody'; known: "):
        chosen(["nobody"])
    with pytest.raises(UsageError, match=r"known: mxnet$"):
        chosen(["mxnet.onednn"])
    assert {p.name for p in chosen(["onnxruntime"])} == {"onnxruntime.all", "onnxruntime.none"}
    assert probing.chosen(["onnxruntime.all", "onnxruntime"])[0].name == "onnxruntime.all"


def test_every_case_is_a_well_formed_program() -> None:
    forms = Forms(tuple(OPS), products=("u8", "i8"), rounds=1)
    for case in cases(forms):
        wrong = [f for f in verify(case.graph) if f.severity == "error"]
        assert all("wrap" in f.message for f in wrong), (case.op, case.told, wrong)


@pytest.mark.parametrize(
    ("said", "version", "meets"),
    [
        ("==1.31.*", "1.31.1", True),
        ("==1.31.*", "1.32.0", False),
        (">=1.20, <2", "1.31.1+cpu", True),
        (">=1.20, <2", "2.0", False),
        ("~=2.13", "2.14.1", True),
        ("~=2.13", "3.0", False),
        ("!=1.31.*", "1.31.1", False),
        (">1.31", "1.31.0", False),
        ("<=1.31", "1.31", True),
        ("==1.31", "1.31.0", True),
        ("", "1.0", True),
        ("", "", False),
    ],
)
def test_versions_are_met(said: str, version: str, meets: bool) -> None:
    assert covers(said, version) is meets
