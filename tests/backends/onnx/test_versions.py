"""The profile that QIR names for onnxruntime is that of the version that is installed."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qir
from qir import registry
from qir.backends.onnx import versions
from qir.inspect.probing import head_of
from qir.profiles import profile, profile_names
from qir.profiles.versions import covers
from qir.target import target


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.20.0", "ort-1.28"),
        ("1.28.1", "ort-1.28"),
        ("1.29.0", "ort-1.30"),
        ("1.30.0", "ort-1.30"),
        ("1.31.1", "ort-1.31"),
        ("1.32.0", "ort-1.32"),
        ("1.32.0+cpu", "ort-1.32"),
        ("9.0.0", "ort-1.32"),
        ("1.4.0", "ort-1.32"),
        (None, "ort-1.32"),
    ],
)
def test_a_version_has_the_profile_that_covers_it_else_the_newest(
    version: str | None, name: str
) -> None:
    assert versions.profile_of(version) == name


def test_each_version_is_covered_by_one_profile_of_each_setting() -> None:
    heads = {n: head_of(profile(n)) for n in profile_names() if n.startswith("ort-")}
    assert {"all", "none"} == {h.settings["optimizer"] for h in heads.values()}
    for minor in range(20, 33):
        for setting in ("all", "none"):
            found = [
                n
                for n, h in heads.items()
                if h.settings["optimizer"] == setting and covers(h.versions, f"1.{minor}.0")
            ]
            assert len(found) == 1, (minor, setting, found)
            assert found[0].removesuffix(".noopt") == versions.profile_of(f"1.{minor}.0")


@pytest.mark.parametrize("installed", ["1.28.0", "1.32.0", None])
def test_what_is_read_and_written_names_the_installed_version(
    installed: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = {"onnxruntime": installed}
    monkeypatch.setattr(registry, "installed_version", here.get)
    wanted = versions.profile_of(installed)
    path = tmp_path_factory.mktemp("read") / "m.onnx"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]), path)
    assert qir.load(path).profile == wanted
    assert {target(name).profile for name in ("onnx", "onnxruntime")} == {wanted}
    assert np.array_equal(
        qir.run(qir.load(path), {"x": np.array([-1, 2], np.float32)})["y"], [0, 2]
    )


def test_the_profile_of_this_version_is_the_one_that_is_probed() -> None:
    version = metadata.version("onnxruntime")
    name = target("onnxruntime").profile
    assert covers(head_of(profile(name)).versions, version), f"no profile covers {version}"
