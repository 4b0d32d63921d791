"""Weights of few bits alone, as PyTorch's packed products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir import pipeline
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.target import target

KERNELS = {"i8": "_weight_int8pack_mm", "u4": "_weight_int4pack_mm_for_cpu"}


def network(rows: int = 32) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, rows, bias=False))
    return layers.eval(), torch.randn(2, 5, 64)


def stored(weights: str, name: str, rules: tuple[str, ...] = (), rows: int = 32) -> Graph:
    net, x = network(rows)
    graph = qir.load(net, inputs=(x,))
    return pipeline.quantize_weights(graph, weights, target=name, rules=rules)


def by_hand(graph: Graph) -> list[np.ndarray[Any, Any]]:
    """The weights as floats, block by block."""
    made = []
    for value in graph.values.values():
        quant, held = value.type.quant, value.constant
        if quant is None or held is None:
            continue
        quantized = np.asarray(held.data).astype(np.float64)
        scales, zeros = quant.scales().astype(np.float64), quant.zeros().astype(np.float64)
        size = -(-quantized.shape[1] // scales.shape[1])
        wide = [
            np.repeat(a, size, 1)[:, : quantized.shape[1]] for a in (scales, zeros + 0 * scales)
        ]
        made.append((quantized - wide[1]) * wide[0])
    return made


@pytest.mark.parametrize("name", ["pt2e", "pytorch-x86"])
@pytest.mark.parametrize("weights", ["i8:64", "u4:64", "i4:64"])
def test_packed_products_compute_what_the_weights_mean(
    name: str, weights: str, tmp_path: Path
) -> None:
    rules = () if weights == "i8:64" else ("name=linear_1: float",)  # 48 terms are no whole block
    graph = stored(weights, name, rules)
    path = tmp_path / ("a.pt2" if name == "pt2e" else "a.pt")
    pipeline.save(graph, path, target=name)
    net, x = network()
    (made,) = target(name).compile_file(path)(**{graph.inputs[0].name: x.numpy()}).values()
    first: Any = net[0]
    last: Any = net[2]
    held = [*by_hand(graph), last.weight.detach().numpy()][:2]
    y = torch.from_numpy(x.numpy().astype(np.float64) @ held[0].T) + first.bias.detach().double()
    wanted = nn.functional.gelu(y).numpy() @ held[1].astype(np.float64).T
    assert np.abs(np.asarray(made) - wanted).max() < 1e-5
    (ours,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert np.abs(ours - wanted).max() < 1e-5


@pytest.mark.parametrize("storage", KERNELS)
def test_the_file_calls_the_kernel_on_packed_weights(storage: str, tmp_path: Path) -> None:
    graph = stored(f"{storage}:64", "pytorch-x86", ("name=linear_1: float",))
    pipeline.save(graph, tmp_path / "a.pt", target="pytorch-x86")
    code = str(torch.jit.load(str(tmp_path / "a.pt")).code)  # type: ignore[no-untyped-call]
    assert code.count(f"torch.{KERNELS[storage]}(") == 1
    assert code.count("torch.linear") == 1


@pytest.mark.parametrize(
    ("weights", "rows", "said"),
    [
        ("i8:32", 32, "_weight_int8pack_mm takes one scale a row: take --weights i8:65536"),
        ("u4:16", 32, "takes 4 bits and rows by 16, not 48 rows of u4:16"),
        ("u2:64", 32, "takes 4 bits and rows by 16, not 48 rows of u2:64"),
        ("u4:32", 10, "not 10 rows of u4:"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_its_name(weights: str, rows: int, said: str) -> None:
    rules = ("name=linear: float",) if rows == 10 else ()
    graph = stored(weights, "pt2e", rules, rows)
    with pytest.raises(Refused, match=said):
        qir.build(graph, target="pt2e")
