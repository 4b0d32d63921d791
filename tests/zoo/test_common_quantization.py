"""The networks of PyTorch's own quantization tests that bring inputs: read, run, quantized."""

from __future__ import annotations

import importlib
import sys
import types
import unittest
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import qir
from qir.backends.torch.session import engine
from qir.target import target

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() != "AVX512",
        reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
    ),
]
_HOME = "torch.testing._internal.common_quantization"
_LEAST = 34
"""How many networks there are in torch 2.13; later ones may have more."""


@cache
def _networks() -> dict[str, type[nn.Module]]:
    """The classes; their module asks for expecttest, of which none of them needs anything."""
    asked = types.ModuleType("expecttest")
    vars(asked).update(TestCase=unittest.TestCase, assert_expected_inline=None)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("expecttest") is None:
            patch.setitem(sys.modules, "expecttest", asked)
        home = importlib.import_module(_HOME)
    kinds = {n: k for n, k in vars(home).items() if isinstance(k, type)}
    mine = {n: k for n, k in kinds.items() if issubclass(k, nn.Module) and k.__module__ == _HOME}
    return {n: k for n, k in mine.items() if hasattr(k, "get_example_inputs")}


def _made(kind: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    try:
        module = kind()
    except TypeError:  # those with a QConfig of an engine
        module = kind("x86")
    return module.eval(), module.get_example_inputs()


def test_all_networks_are_read_and_equal_in_float() -> None:
    assert len(_networks()) >= _LEAST
    for name, kind in _networks().items():
        module, inputs = _made(kind)
        graph = qir.load(module, inputs=inputs)
        assert not [node for node in graph if node.op == "foreign"], name
        feeds = {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
        pairs = zip(qir.run(graph, feeds).values(), tree_leaves(module(*inputs)), strict=True)
        for ours, theirs in pairs:
            wanted = theirs.detach().numpy()
            assert np.abs(ours - wanted).max() <= 1e-4 * np.abs(wanted).max(), name


@pytest.mark.parametrize("name", ["x86", "onednn", "fbgemm"])
def test_all_networks_give_the_engines_integers(name: str) -> None:
    backend = target(f"pytorch-{name}")
    for label, kind in _networks().items():
        module, inputs = _made(kind)
        graph = qir.load(module, inputs=inputs)
        feeds = {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
        made = qir.quantize(graph, qir.calibrate(graph, feeds), target=f"pytorch-{name}")
        grouped = backend.computed(made, qir.Ledger())
        assert grouped is not None
        with engine(name):
            theirs = backend.compile(made)(**feeds)
        for value, ours in qir.run(grouped, feeds, profile=backend.profile).items():
            wanted = np.asarray(theirs[value])
            if grouped.outputs[value].node.op == "dequantize":
                assert np.array_equal(ours, wanted), (label, value)
            else:  # transposed convolutions stay float where oneDNN misreads their weights
                assert np.allclose(ours, wanted, rtol=1e-5, atol=1e-5), (label, value)


_MISREAD = ("ConvTransposeModel", "AnnotatedConvTransposeModel")
"""oneDNN misreads the weights of their transposed convolutions, which no other runtime does."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_all_networks_that_fx_converted_go_to_onnxruntime_and_back(tmp_path: Path) -> None:
    quantizing: Any = importlib.import_module("torch.ao.quantization.quantize_fx")
    mappings: Any = importlib.import_module("torch.ao.quantization")
    ort, back = tmp_path / "m.onnx", tmp_path / "m.pt"
    for name, kind in _networks().items():
        module, inputs = _made(kind)
        with engine("x86"), torch.no_grad():
            mapping = mappings.get_default_qconfig_mapping("x86")
            prepared = quantizing.prepare_fx(module, mapping, inputs)
            prepared(*inputs)
            int8 = quantizing.convert_fx(prepared)
            wanted = [leaf.numpy() for leaf in tree_leaves(int8(*inputs))]
            graph = qir.load(int8, inputs=inputs)
            feeds = {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}
            for ours, theirs in zip(qir.run(graph, feeds).values(), wanted, strict=True):
                assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6), name
            qir.save(graph, ort, lossy=True, force=True)
            read = qir.load(ort)
            qir.save(read, back, target="pytorch-x86", lossy=True, force=True)
            names = [value.name for value in read.inputs]
            found = target("onnxruntime").compile(read)(
                **dict(zip(names, feeds.values(), strict=True))
            )
            again: Any = torch.jit.load(back)  # type: ignore[no-untyped-call]
            for made in ([*found.values()], [x.numpy() for x in tree_leaves(again(*inputs))]):
                for ours, theirs in zip(made, wanted, strict=True):
                    near = 0.03 * np.abs(theirs).max()
                    assert name in _MISREAD or np.abs(np.asarray(ours) - theirs).max() <= near, name
