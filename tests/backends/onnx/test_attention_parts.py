"""Attention and rotary embedding in every operator set, by operators that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qir.backends.onnx.writer.graph import Dialect, to_model
from qir.ir.attrs import Attr
from qir.ir.dims import Dim, symbol
from qir.ir.dtype import BOOL, F16, F32, I32, I64
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run

from .operators import onnxruntime_runs

Arrays = dict[str, NDArray[Any]]
KINDS = {"f4": F32, "f2": F16, "b1": BOOL, "i8": I64, "i4": I32}


def graph_of(op: str, feeds: Arrays, attrs: dict[str, Attr], open_axes: dict[str, Any]) -> Graph:
    """One op; sizes of those axes have names."""
    graph = Graph("g", "native")
    values = {}
    for name, data in feeds.items():
        shape: list[Dim] = list(data.shape)
        for axis, said in open_axes.get(name, {}).items():
            shape[axis] = said
        kind = KINDS[data.dtype.str[1:]]
        values[name] = graph.add("input", types=[TensorType(tuple(shape), kind)], name=name).result
    made = graph.add(op, values, attrs)
    graph.add("output", {f"y{i}": v for i, v in enumerate(made.results)})
    return graph


def compare(graph: Graph, feeds: Arrays, opset: int, near: float) -> None:
    ledger = Ledger()
    made = to_model(graph, ledger, Dialect(standard=True, opset=opset))
    assert [(i.domain, i.version) for i in made.opset_import] == [("", opset)]
    onnx.checker.check_model(made)
    told = [e.change for e in ledger if f"opset {opset} has not" in e.reason]
    assert told == [Change.REGROUPED]
    wanted = [np.asarray(a) for a in run(graph, feeds).values()]
    for one, other in zip(onnxruntime_runs(made, feeds), wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=near, atol=near
        )


def drawn(seed: int) -> tuple[Arrays, dict[str, Attr], dict[str, Any]]:
    """An attention of any kind that the language has."""
    rng = np.random.default_rng(seed)
    carrier = np.float16 if rng.random() < 0.2 else np.float32
    batch, rows, size, out = 2, int(rng.integers(1, 5)), 4, int(rng.choice([4, 6]))
    kv = int(rng.integers(1, 3))
    heads, own = kv * int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 6))
    flat, past = rng.random() < 0.5, rng.random() < 0.4
    before = int(rng.integers(0, 4)) if past else 0
    total = own + before

    def real(*shape: int) -> NDArray[Any]:
        return np.asarray(rng.normal(size=shape), carrier)

    def side(count: int, length: int, wide: int) -> NDArray[Any]:
        return real(batch, length, count * wide) if flat else real(batch, count, length, wide)

    feeds = {"q": side(heads, rows, size), "k": side(kv, own, size), "v": side(kv, own, out)}
    attrs: dict[str, Attr] = {"heads": heads, "kv_heads": kv} if flat else {}
    if past:
        feeds |= {"past_k": real(batch, kv, before, size), "past_v": real(batch, kv, before, out)}
    elif rng.random() < 0.3:
        feeds["lengths"] = rng.integers(0, total + 1, batch).astype(f"i{rng.choice([4, 8])}")
    which = rng.random()
    last = int(rng.integers(1, total + 1)) if rng.random() < 0.4 else total
    room = [(rows, last), (batch, 1, rows, last), (batch, heads, 1, last)][rng.integers(3)]
    if which < 0.3:
        feeds["mask"] = rng.random(room) < 0.6
    elif which < 0.6:
        feeds["mask"] = np.where(rng.random(room) < 0.2, -np.inf, rng.normal(size=room))
        feeds["mask"] = feeds["mask"].astype(carrier)
    if rng.random() < 0.5:
        attrs["causal"] = True
    for name in ("left", "right"):
        if rng.random() < 0.25:
            attrs[name] = int(rng.integers(0, 4))
    if rng.random() < 0.3:
        attrs["softcap"] = 1.5
    if rng.random() < 0.3:
        attrs["scale"] = 0.3
    if rng.random() < 0.15:
        attrs["precision"] = F32
    attrs["present"] = bool(rng.random() < 0.4)
    attrs["qk"] = str(rng.choice(["none", "none", "raw", "capped", "masked", "probs"]))
    named: dict[str, Any] = {}
    if rng.random() < 0.4:
        at = 1 if flat else 2
        named = {"q": {at: symbol("R")}, "k": {at: symbol("T")}, "v": {at: symbol("T")}}
        if past:
            named |= {"past_k": {2: symbol("P")}, "past_v": {2: symbol("P")}}
    return feeds, attrs, named


@pytest.mark.parametrize("seed", range(120))
def test_any_attention_is_said_by_products_and_a_softmax(seed: int) -> None:
    feeds, attrs, named = drawn(seed)
    graph = graph_of("attention", feeds, attrs, named)
    compare(graph, feeds, (13, 17, 18, 22)[seed % 4], 4e-3 if feeds["q"].dtype == "f2" else 1e-5)


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("dim", [0, 4])
@pytest.mark.parametrize("places", ["none", "each", "first"])
@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_rotary_embedding_is_said_by_slices_and_products(
    opset: int, flat: bool, paired: bool, dim: int, places: str, kind: str
) -> None:
    rng = np.random.default_rng(7)
    half, shape = (dim or 8) // 2, (2, 5, 24) if flat else (2, 3, 5, 8)
    feeds: Arrays = {"x": rng.normal(size=shape).astype(kind)}
    for name in ("cos", "sin"):
        size = (2, 5, half) if places == "none" else (9, half)
        feeds[name] = rng.uniform(-1, 1, size).astype(kind)
    if places == "each":
        feeds["positions"] = rng.integers(0, 9, (2, 5))
    elif places == "first":
        feeds["positions"] = np.array([3], np.int32 if paired else np.int64)
    attrs: dict[str, Attr] = {"interleaved": paired, "dim": dim, "heads": 3 if flat else None}
    graph = graph_of("rotary", feeds, attrs, {})
    compare(graph, feeds, opset, 2e-3 if kind == "f2" else 1e-6)
