"""What torch 2.15 computed, recorded where it differs from 2.13: its profiles predict it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.backends.torch import versions
from qir.ir.dtype import F32, dtype
from qir.ir.file import graph_of
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform
from qir.profiles import profile_names
from qir.reference.interpreter import run
from tests.counting import note
from tests.oracles.torch_vectors import VECTORS, conversions

VERSION = "2.15.0"
LAYERS = ("conv2d", "conv3d", "linear")
"""Ops of which engines have kernels of their own; others have those of fbgemm, but for qnnpack."""
Array = NDArray[np.generic]


@cache
def recorded() -> Mapping[str, Array]:
    with np.load(VECTORS / f"{VERSION}.npz") as file:
        return {name: file[name] for name in file.files}


@cache
def rows() -> list[tuple[str, str, list[str]]]:
    """Engine, op and inputs of each program."""
    return [(str(e), str(op), list(fed)) for e, op, fed in json.loads(str(recorded()["rows"]))]


def programs(name: str, *, counted: bool = True) -> int:
    """How many recorded results of programs a profile of an engine does not give.

    `counted`: as comparisons that its claims rest on.
    """
    differ = 0
    own = "" if "2.14" in name else name.rpartition(".")[2]
    for number, (engine, _, fed) in enumerate(rows()):
        if engine != own and (engine != "fbgemm" or own == "qnnpack"):
            continue
        key = f"p{number}"
        wanted = recorded()[f"{key}.y"]
        graph = graph_of(recorded()[key].tobytes())
        node = graph.outputs["y"].node
        if engine != own and (node.stages[0].op if node.stages else node.op) in LAYERS:
            continue
        mine = run(graph, {slot: recorded()[f"{key}.{slot}"] for slot in fed}, profile=name)["y"]
        if counted:
            note(mine, wanted)
        differ += int(np.count_nonzero(mine != wanted))
    return differ


def conversion(name: str, *, counted: bool = True) -> int:
    """How many recorded integers of floats a profile does not give."""
    differ = 0
    for number, (kind, many, scale, zero, x) in enumerate(conversions()):
        graph = Graph(profile=name)
        if many:
            of = uniform(dtype(kind), np.full(x.shape, scale), np.full(x.shape, zero), axis=0)
        else:
            of = uniform(dtype(kind), scale, zero)
        given = graph.add("input", types=[TensorType(x.shape, F32)], name="x").result
        made = graph.add("quantize", {"x": given}, types=[TensorType(x.shape, of)]).result
        graph.add("output", {"y": made})
        mine = run(graph, {"x": x})["y"]
        wanted = recorded()[f"c{number}"].view(mine.dtype)
        if counted:
            note(mine, wanted)
        differ += int(np.count_nonzero(mine != wanted))
    return differ


@pytest.mark.parametrize("engine", ["fbgemm", "x86", "onednn", "qnnpack"])
def test_programs_of_2_15_are_predicted_by_its_profile_alone(engine: str) -> None:
    assert not programs(f"torch-2.15.{engine}")
    assert programs(f"torch-2.13.{engine}", counted=False)


@pytest.mark.parametrize("engine", ["fbgemm", "x86", "onednn", "qnnpack"])
def test_codes_of_reals_of_2_15_are_predicted_by_its_profile_alone(engine: str) -> None:
    assert not conversion(versions.profile_of(engine, VERSION))
    assert conversion(f"torch-2.13.{engine}", counted=False)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2.13.0+cpu", ["torch-2.13.x86", "torch-2.13.onednn", "torch-2.13.fbgemm"]),
        ("2.14.1", ["torch-2.15.x86", "torch-2.14.onednn", "torch-2.15.fbgemm"]),
        ("2.15.0", ["torch-2.15.x86", "torch-2.15.onednn", "torch-2.15.fbgemm"]),
        ("2.99", ["torch-2.15.x86", "torch-2.15.onednn", "torch-2.15.fbgemm"]),
        (None, ["torch-2.15.x86", "torch-2.15.onednn", "torch-2.15.fbgemm"]),
    ],
)
def test_a_version_has_the_profile_that_covers_it_else_the_newest(
    version: str | None, names: list[str]
) -> None:
    found = [versions.profile_of(engine, version) for engine in ("x86", "onednn", "fbgemm")]
    assert found == names
    listed = {name for engine in versions.ENGINES for name in versions.profiles(engine)}
    assert listed == {name for name in profile_names() if name.startswith("torch-")}
