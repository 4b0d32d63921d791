"""What stands between a model's file and its first result: imports, copies and look-ups, counted.

Each was once a large part of the time; counts say the same on every machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.ir.graph import Graph
from qir.passes.forms.group import Group
from qir.profiles import Profile, kernel_forms

FIRST = """
import sys
import numpy as np
import qir
program = qir.compile(qir.load(sys.argv[1]), threads=1)
program(x=np.zeros((1, 4, 6, 6), np.float32))
print(*sys.modules)
"""
SHOW = """
import runpy, sys
sys.argv = ["qir", "show", sys.argv[1]]
try:
    runpy.run_module("qir", run_name="__main__")
except SystemExit as done:
    assert not done.code, done
print(*sys.modules)
"""
UNNEEDED = (
    "networkx statistics qir.calibration qir.quantizing qir.pipeline qir.inspect qir.ir.file "
    "qir.ir.parser qir.ir.verify qir.passes.quantize qir.backends.torch qir.backends.tflite "
    "qir.backends.onnx.writer qir.frontends.mxnet.symbol qir.frontends.onnx.other_domains "
    "qir.frontends.onnx.contrib.operators"
).split()
MOST_MODULES = 295
"""Modules of QIR; 286 are imported now."""


def quantized_layers(count: int) -> onnx.ModelProto:
    """Returns convolutions with relu between QuantizeLinear and DequantizeLinear."""
    rng = np.random.default_rng(7)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    scale, scales = np.float32(0.05), np.full(4, 0.01, np.float32)
    arrays: dict[str, object] = {"s": scale, "ws": scales, "bs": scale * scales}
    arrays |= {"z": np.uint8(0), "wz": np.zeros(4, np.int8)}
    arrays["bz"] = np.zeros(4, np.int32)
    for k in range(count):
        arrays[f"w{k}"] = rng.integers(-99, 99, (4, 4, 3, 3), np.int8)
        arrays[f"b{k}"] = rng.integers(-99, 99, 4, np.int32)
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"d{k}"]),
            helper.make_node("DequantizeLinear", [f"w{k}", "ws", "wz"], [f"dw{k}"], axis=0),
            helper.make_node("DequantizeLinear", [f"b{k}", "bs", "bz"], [f"db{k}"], axis=0),
            helper.make_node("Conv", [f"d{k}", f"dw{k}", f"db{k}"], [f"c{k}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{k}"], [f"r{k}"]),
            helper.make_node("QuantizeLinear", [f"r{k}", "s", "z"], [f"q{k + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{count}", "s", "z"], ["y"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6]) for name in ("x", "y")
    ]
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[int], Path]:
    def written(count: int) -> Path:
        path = tmp_path / f"{count}.onnx"
        onnx.save(quantized_layers(count), path)
        return path

    return written


def calls(of: Callable[[], object], *methods: tuple[object, str]) -> Counter[str]:
    """Returns how often each method or function is called while a function runs."""
    found: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            found[name] += 1
            return method(*args, **options)

        return counted

    patches = [
        patch.object(owner, name, counting(name, getattr(owner, name))) for owner, name in methods
    ]
    for each in patches:
        each.start()
    try:
        of()
    finally:
        for each in patches:
            each.stop()
    return found


def test_a_first_result_imports_what_it_needs_alone(model: Callable[[int], Path]) -> None:
    words = [sys.executable, "-c", FIRST, str(model(2))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    unneeded = {
        name for name in loaded for part in UNNEEDED if name == part or name.startswith(f"{part}.")
    }
    assert unneeded == set()
    assert sum(name.partition(".")[0] == "qir" for name in loaded) <= MOST_MODULES


def test_showing_a_model_imports_neither_networkx_nor_what_quantizes(
    model: Callable[[int], Path],
) -> None:
    words = [sys.executable, "-c", SHOW, str(model(2))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "qir.inspect" in loaded
    unneeded = {"networkx", "onnxruntime", "qir.quantizing", "qir.pipeline", "qir.backends.cpu"}
    assert loaded & unneeded == set()


def test_a_graph_of_known_sizes_is_copied_once(model: Callable[[int], Path]) -> None:
    graph = qir.load(model(2))
    assert calls(lambda: qir.compile(graph), (Graph, "copy")) == {"copy": 1}


def test_compiling_without_a_filter_names_no_rewrite(model: Callable[[int], Path]) -> None:
    graph = qir.load(model(2))
    found = calls(lambda: qir.compile(graph), (Group, "rewrite_name"), (Group, "claim_entries"))
    assert found == {"claim_entries": 2}


def test_rules_are_chosen_once_for_all_layers_that_ask_the_same(
    model: Callable[[int], Path],
) -> None:
    few, many = qir.load(model(2)), qir.load(model(12))
    asked = (Profile, "_resolve"), (kernel_forms, "forms_of")
    qir.compile(few)
    # What is asked of rules that look at no attribute is known from the first network.
    assert calls(lambda: qir.compile(many), *asked) == calls(lambda: qir.compile(few), *asked)


def test_a_graph_that_nobody_asks_for_networkx_has_none(model: Callable[[int], Path]) -> None:
    graph = qir.load(model(2))
    assert graph._store is None
    assert set(graph.nx) == set(graph)
    assert graph._store is not None
