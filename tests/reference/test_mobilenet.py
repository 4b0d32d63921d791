"""A network of the size of MobileNetV2 under every profile: seconds, not minutes."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.profiles import profile_names
from qir.rewrite import run_passes
from tests.reference.mobilenet import mobilenet_v2

pytestmark = pytest.mark.slow
SLOWER = 40
"""How many times the seconds of the real network a profile may take; 3 to 12 are measured."""


Feeds = dict[str, NDArray[np.float32]]
FED: Feeds = {"x": np.random.default_rng(1).normal(size=(1, 3, 224, 224)).astype(np.float32)}


real = cache(mobilenet_v2)


@cache
def quantized() -> qir.Graph:
    return qir.quantize(real(), qir.calibrate(real(), FED["x"]))


@cache
def whole() -> qir.Graph:
    """All on integers."""
    return run_passes(quantized(), [FuseQdq()], qir.Ledger())


def seconds(graph: qir.Graph, profile: str | None = None) -> float:
    started = time.perf_counter()
    (made,) = qir.run(graph, FED, profile=profile).values()
    assert made.shape == (1, 1000)
    assert np.isfinite(made).all()
    return time.perf_counter() - started


OWN = {"mxnet-1.9"}
"""Profiles whose pools keep their operand's scale: they refuse a graph of other kernels."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", profile_names())
def test_every_profile_runs_it_in_seconds(name: str) -> None:
    coded = [n for n in whole() if (n.stages[0] if n.stages else n).op == "conv2d"]
    assert len(coded) == 52
    assert all(n.result.type.quant for n in coded), "every convolution is of codes"
    grouped = run_passes(quantized(), [Group(name)], qir.Ledger())
    found = []
    for _ in range(3):  # what else runs on this machine may disturb one of them
        unit = seconds(real())
        graphs = [grouped] if name in OWN else [whole(), grouped]
        found.append(max(seconds(graph, name) for graph in graphs) / unit)
        if found[-1] < SLOWER:
            return
    raise AssertionError(f"{min(found):.0f} times the seconds of the real network")
