"""Attention and rotary embedding against torch, onnxruntime and ONNX's own evaluator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

from qir.errors import OpError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import F16, F32, I8, U8, dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ir.types import TensorType, uniform
from qir.ir.verify import verify
from qir.query.cost import macs
from qir.reference.interpreter import run
from qir.reference.table import compute_all
from tests.reference.oracles import assert_close, assert_rounded_once
from tests.reference.rules import assert_rule_agrees

Array = NDArray[Any]
SLOTS = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
SHOWN = ("raw", "capped", "masked", "probs")


def _model(
    op: str, operands: list[Array | None], names: list[str], opset: int, attrs: dict[str, Any]
) -> tuple[ModelProto, dict[str, Array]]:
    given = {f"i{k}": x for k, x in enumerate(operands) if x is not None}
    inputs = [f"i{k}" if x is not None else "" for k, x in enumerate(operands)]
    node = helper.make_node(op, inputs, names, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    outputs = [ValueInfoProto(name=n) for n in names if n]
    graph = helper.make_graph([node], "one", infos, outputs)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def onnxruntime_runs(
    op: str, operands: list[Array | None], names: list[str], opset: int, attrs: dict[str, Any]
) -> list[Array]:
    """All named results of one ONNX node, optimizer off, one thread."""
    model, given = _model(op, operands, names, opset, attrs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(None, given)
    return found


def real(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.normal(size=shape), np.float32)


def _flat(x: Array) -> Array:
    return np.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def _drawn(rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Attr], dict[str, Any]]:
    """Operands, and attributes in our words and in ONNX's."""
    batch, kv_heads, group, rows, keys, size, out, old = (int(n) for n in rng.integers(1, 5, 8))
    heads = kv_heads * group
    operands = {
        "q": real(rng, batch, heads, rows, size),
        "k": real(rng, batch, kv_heads, keys, size),
    }
    operands["v"] = real(rng, batch, kv_heads, keys, out)
    ours: dict[str, Attr] = {}
    theirs: dict[str, Any] = {}
    if rng.integers(2):
        operands = {s: _flat(x) for s, x in operands.items()}
        ours |= {"heads": heads, "kv_heads": kv_heads}
        theirs |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    past = rng.integers(3) == 0
    total = keys + old if past else keys
    kind = rng.integers(4)
    if kind:
        shapes: tuple[tuple[int, ...], ...] = ((rows, total), (batch, 1, rows, total))
        shape = (*shapes, (batch, heads, rows, total))[rng.integers(3)]
        operands["mask"] = real(rng, *shape) if kind == 1 else rng.integers(0, 3, shape) > 0
    if past:
        operands["past_k"] = real(rng, batch, kv_heads, old, size)
        operands["past_v"] = real(rng, batch, kv_heads, old, out)
        ours["present"] = True
    elif rng.integers(2) and rows <= keys:
        operands["lengths"] = rng.integers(rows, keys + 1, batch)
    if rng.integers(2):
        ours["causal"], theirs["is_causal"] = True, 1
    if rng.integers(3) == 0:
        ours["scale"] = theirs["scale"] = 0.25
    if rng.integers(3) == 0:
        ours["softcap"] = theirs["softcap"] = 1.5
    mode = int(rng.integers(4))
    ours["qk"], theirs["qk_matmul_output_mode"] = SHOWN[mode], mode
    return operands, ours, theirs


def _names(ours: dict[str, Attr]) -> list[str]:
    return ["y", *(("pk", "pv") if ours.get("present") else ("", "")), "qk"]


def _finite(x: Array) -> Array:
    """onnxruntime masks with the least float and not with -inf."""
    return np.where(x < -1e30, np.float32(-1e30), x).astype(x.dtype)


@pytest.mark.parametrize("seed", range(60))
def test_attention_is_onnxruntimes_within_rounding(seed: int) -> None:
    """Within 1e-5. One query behind a past is left out: there onnxruntime forgets is_causal."""
    rng = np.random.default_rng(seed)
    operands, ours, theirs = _drawn(rng)
    opset = 24 if "lengths" in operands else 23
    rows = operands["q"].shape[2 if operands["q"].ndim == 4 else 1]
    if rows == 1 and "past_k" in operands:
        ours.pop("causal", None)
        theirs.pop("is_causal", None)
    made = assert_rule_agrees("attention", operands, ours, note=f"seed {seed}")
    given = [operands.get(s) for s in (SLOTS if opset == 24 else SLOTS[:6])]
    found = onnxruntime_runs("Attention", given, _names(ours), opset, theirs)
    for one, other in zip(made, found, strict=True):
        assert_close(_finite(one), _finite(other), 1e-5, f"seed {seed} {ours}")


@pytest.mark.parametrize("seed", range(40))
def test_attention_is_what_onnx_says_it_is(seed: int) -> None:
    """Windows too, and masks for fewer keys than there are."""
    rng = np.random.default_rng(100 + seed)
    operands, ours, theirs = _drawn(rng)
    for side in ("left", "right"):
        bound = int(rng.integers(-1, 3))
        ours[side] = theirs[f"{side}_window_size"] = bound
    if "mask" in operands and operands["mask"].shape[-1] > 2 and rng.integers(2):
        operands["mask"] = operands["mask"][..., :-1]
    made = assert_rule_agrees("attention", operands, ours, note=f"seed {seed}")
    given = [operands.get(s) for s in SLOTS]
    if "softcap" in ours and ours["qk"] == "raw":  # the evaluator shows what softcap made of it
        made = compute_all("attention", operands, {**ours, "qk": "capped"})
    model, feeds = _model("Attention", given, _names(ours), 25, theirs)
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, feeds)
    for one, other in zip(made, found, strict=True):
        assert_close(_finite(one), _finite(np.asarray(other)), 1e-5, f"seed {seed} {ours}")


@pytest.mark.parametrize("seed", range(20))
def test_attention_is_torchs_rounded_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, kv_heads, group, rows, keys, size, out = (int(n) for n in rng.integers(1, 6, 7))
    q = rng.normal(size=(batch, kv_heads * group, rows, size)).astype(np.float32)
    k = rng.normal(size=(batch, kv_heads, keys, size)).astype(np.float32)
    v = rng.normal(size=(batch, kv_heads, keys, out)).astype(np.float32)
    operands: dict[str, Array] = {"q": q, "k": k, "v": v}
    attrs: dict[str, Attr] = {}
    more: dict[str, Any] = {}
    match seed % 4:
        case 0:
            attrs["causal"] = more["is_causal"] = True
        case 1:
            operands["mask"] = rng.integers(0, 3, (rows, keys)) > 0
        case 2:
            operands["mask"] = rng.normal(size=(batch, 1, rows, keys)).astype(np.float32)
    if seed % 3 == 0:
        attrs["scale"] = more["scale"] = 0.3
    if "mask" in operands:
        mask = torch.from_numpy(operands["mask"])
        more["attn_mask"] = mask if mask.dtype == torch.bool else mask.double()
    a, b, c = (torch.from_numpy(x.astype(np.float64)) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    exact = attend(a, b, c, enable_gqa=True, **more).numpy()
    (made,) = assert_rule_agrees("attention", operands, attrs, note=f"seed {seed}")
    seen = np.where(np.isnan(exact), 0, exact)  # no key at all: zeros here
    assert_rounded_once(made, seen, 8 + np.abs(seen), f"seed {seed}")


def test_a_query_that_looks_at_nothing_gives_zeros() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (real(rng, 1, 1, 3, 4) for _ in range(3))
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    y, probs = compute_all("attention", {"q": q, "k": k, "v": v, "mask": mask}, {"qk": "probs"})
    assert not y[0, 0, 1].any()
    assert not probs[0, 0, 1].any()
    assert probs[0, 0, 0, 1] == 0
    np.testing.assert_allclose(probs[0, 0].sum(-1), [1, 0, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "sizes", [(0, 2, 3, 4, 5), (2, 2, 0, 4, 5), (2, 2, 3, 0, 5), (2, 2, 3, 4, 0)]
)
def test_nothing_has_an_attention_too(sizes: tuple[int, ...]) -> None:
    batch, heads, rows, keys, size = sizes
    rng = np.random.default_rng(0)
    q, k = real(rng, batch, heads, rows, size), real(rng, batch, heads, keys, size)
    operands = {"q": q, "k": k, "v": real(rng, batch, heads, keys, 6)}
    (made,) = assert_rule_agrees("attention", operands)
    assert keys or not made.any()
    flat = {s: _rows(x) for s, x in operands.items()}
    (made,) = assert_rule_agrees("attention", flat, {"heads": heads})
    assert made.shape == (batch, rows, heads * 6)


def test_queries_without_heads_find_nothing() -> None:
    rng = np.random.default_rng(0)
    operands = {"q": real(rng, 2, 0, 3, 5), "k": real(rng, 2, 2, 4, 5), "v": real(rng, 2, 2, 4, 6)}
    y, keys, values = assert_rule_agrees("attention", operands, {"present": True})
    assert y.shape == (2, 0, 3, 6)
    assert np.array_equal(keys, operands["k"])
    assert np.array_equal(values, operands["v"])


def _rows(x: Array) -> Array:
    batch, heads, length, size = x.shape
    return np.swapaxes(x, 1, 2).reshape(batch, length, heads * size)


def test_softmax_in_a_narrower_type_rounds_there() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (real(rng, 1, 2, 3, 8) for _ in range(3))
    operands = {"q": q, "k": k, "v": v}
    attrs: dict[str, Attr] = {"qk": "probs", "precision": F16}
    _, probs = compute_all("attention", operands, attrs)
    scores = np.einsum("bhqd,bhkd->bhqk", q.astype("f8"), k.astype("f8")) / math.sqrt(8)
    half = scores.astype(np.float16).astype(np.float64)
    raised = np.exp(half - half.max(-1, keepdims=True))
    assert np.array_equal(probs, (raised / raised.sum(-1, keepdims=True)).astype(np.float16))
    plain = compute_all("attention", operands, {"qk": "probs"})[1]
    assert np.array_equal(
        compute_all("attention", operands, {"qk": "probs", "precision": F32})[1], plain
    )


def test_inner_slots_round_scores_and_probs() -> None:
    rng = np.random.default_rng(2)
    operands = {s: real(rng, 2, 2, 3, 8) for s in "qkv"}
    operands["mask"] = np.tri(3, dtype=bool)
    places = {"scores": uniform(I8, np.float32(0.05)), "probs": uniform(U8, np.float32(1 / 256))}
    graph = Graph("net", "ort-1.31")
    given = {
        s: graph.add("input", types=[TensorType(x.shape, dtype_of(x))], name=s).result
        for s, x in operands.items()
    }
    attrs: dict[str, Attr] = {"qk": "probs"}
    node = graph.add("attention", given, attrs, inner=places)
    graph.add("output", dict(zip(("y", "p"), node.results, strict=True)))
    assert parse(print_graph(graph)) == graph
    assert verify(graph) == []
    made = run(graph, operands)
    wide = {s: x.astype(np.float64) for s, x in operands.items() if s != "mask"}
    scores = np.einsum("bhqd,bhkd->bhqk", wide["q"], wide["k"]) / math.sqrt(8)
    step = np.float64(np.float32(0.05))
    rounded = np.clip(np.rint(scores.astype(np.float32) / np.float32(0.05)), -128, 127) * step
    kept = np.where(operands["mask"], rounded.astype(np.float32).astype(np.float64), -np.inf)
    raised = np.exp(kept - kept.max(-1, keepdims=True))
    probs = raised / raised.sum(-1, keepdims=True)
    quantized = np.clip(np.rint(probs.astype(np.float32) * np.float32(256)), 0, 255) / 256
    assert np.array_equal(made["p"], quantized.astype(np.float32))
    exact = np.einsum("bhqk,bhkd->bhqd", quantized, wide["v"])
    assert_rounded_once(made["y"], exact, 8 + np.abs(exact), "y")


def test_products_are_counted() -> None:
    text = """graph main {
      %q = input() : 2x8x5x16xf32
      %k = input() : 2x4x7x16xf32
      %v = input() : 2x4x7x32xf32
      %y = attention(%q, %k, %v) : 2x8x5x32xf32
      output(y=%y)
    }"""
    assert macs(parse(text)["y"].node, {}) == 2 * 8 * 5 * 7 * (16 + 32)


MISFITS: list[tuple[dict[str, tuple[int, ...]], dict[str, Attr], str]] = [
    ({"q": (1, 3, 8)}, {}, "different numbers of axes"),
    ({"q": (1, 3, 8), "k": (1, 3, 8), "v": (1, 3, 8)}, {}, "heads must say how many"),
    ({"q": (1, 3, 8), "k": (1, 3, 8), "v": (1, 3, 8)}, {"heads": 3}, "8 wide, which 3 heads"),
    ({"q": (1, 3, 2, 4)}, {}, "3 heads of q cannot share 2"),
    ({"q": (1, 2, 2, 5)}, {}, "sizes of a head of q and k differ: 4, 5"),
    ({"v": (1, 2, 9, 4)}, {}, "lengths of k and v differ"),
    ({"past_k": (1, 2, 1, 4)}, {}, "past_k and past_v come together"),
    ({"mask": (2, 4)}, {}, "mask is for 4 keys, there are 3"),
    ({"mask": (5, 3)}, {}, "do not broadcast"),
    ({}, {"qk": "all"}, "qk 'all' is none of"),
    ({}, {"left": -2}, "left and right are -1"),
    ({}, {"softcap": -1.0}, "softcap = -1.0"),
]


@pytest.mark.parametrize(("shapes", "attrs", "message"), MISFITS)
def test_misfits_are_refused(
    shapes: dict[str, tuple[int, ...]], attrs: dict[str, Attr], message: str
) -> None:
    every = {"q": (1, 2, 2, 4), "k": (1, 2, 3, 4), "v": (1, 2, 3, 4), **shapes}
    graph = Graph()
    given = {s: graph.add("input", types=[TensorType(n, F32)]).result for s, n in every.items()}
    with pytest.raises(TypeRuleError, match=message):
        graph.add("attention", given, attrs)


# -- rotary ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_rotary_is_the_rotation_of_pairs_and_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, heads, length, quarter = (int(n) for n in rng.integers(1, 5, 4))
    size, rest = 4 * quarter, bool(seed % 2)
    turned = size // 2 if rest else size
    x = real(rng, batch, heads, length, size)
    angles = rng.uniform(-3, 3, (9, turned // 2))
    places = rng.integers(0, 9, (batch, length))
    attrs: dict[str, Attr] = {"interleaved": bool(seed % 3), "dim": turned if rest else 0}
    operands = {"x": x, "cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    theirs: dict[str, Any] = {"interleaved": int(seed % 3 > 0)}
    theirs["rotary_embedding_dim"] = turned if rest else 0
    if seed % 4 < 2:
        operands["positions"] = places
    else:
        operands |= {s: operands[s][places] for s in ("cos", "sin")}
    if seed % 5 < 2:
        operands["x"] = _flat(x)
        attrs["heads"] = theirs["num_heads"] = heads
    (made,) = assert_rule_agrees("rotary", operands, attrs, note=f"seed {seed}")
    table = [operands[s].astype(np.float64) for s in ("cos", "sin")]
    c, s = (t[places] if "positions" in operands else t for t in table)
    wide = x[..., :turned].astype(np.float64)
    pairs = wide.reshape(*wide.shape[:3], -1, 2)
    if not attrs["interleaved"]:
        pairs = np.stack(np.split(wide, 2, -1), -1)
    whole = (pairs[..., 0] + 1j * pairs[..., 1]) * (c + 1j * s)[:, None]
    parts = [whole.real, whole.imag]
    exact = np.concatenate(parts, -1)
    if attrs["interleaved"]:
        exact = np.stack(parts, -1).reshape(wide.shape)
    exact = np.concatenate([exact, x[..., turned:].astype(np.float64)], -1)
    exact = _flat(exact) if made.ndim == 3 else exact
    assert_rounded_once(made, exact, 1 + np.abs(exact), f"seed {seed}")
    given = [operands.get(n) for n in ("x", "cos", "sin", "positions")]
    (found,) = onnxruntime_runs("RotaryEmbedding", given, ["y"], 23, theirs)
    assert_close(made, found, 1e-5, f"seed {seed}")


def test_one_position_stands_for_the_first_of_each_sequence() -> None:
    rng = np.random.default_rng(0)
    x, cos, sin = real(rng, 2, 3, 4, 8), real(rng, 9, 4), real(rng, 9, 4)
    one = {"x": x, "cos": cos, "sin": sin, "positions": np.array([3])}
    every = {**one, "positions": np.broadcast_to(np.arange(3, 7), (2, 4))}
    assert np.array_equal(compute_all("rotary", one, {})[0], compute_all("rotary", every, {})[0])
    with pytest.raises(OpError, match="positions are outside"):
        compute_all("rotary", {**one, "positions": np.array([6])}, {})
    graph = Graph()
    given = {
        s: graph.add("input", types=[TensorType(d.shape, dtype_of(d))]).result
        for s, d in one.items()
    }
    for attrs, message in (
        ({"dim": 3}, "it must be even"),
        ({"dim": 10}, "no more than 8"),
        ({"heads": 2}, "x has 3 heads, heads says 2"),
    ):
        with pytest.raises(TypeRuleError, match=message):
            graph.add("rotary", given, attrs)
