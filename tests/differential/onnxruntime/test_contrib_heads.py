"""MultiHeadAttention of onnxruntime's own domain, in every form that it runs on CPUs.

Scores, their exponentials and sums are float32 sums of a kernel's own order, so results are held
to a few parts in a million of the greatest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.backends.onnx.writer.graph import to_model
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.differential import runtime

from .contrib import F, kept, loaded, near, one

FLOAT = TensorProto.FLOAT
BOUND = 1e-5
N, HEADS, SIZE, OUT = 2, 3, 4, 5
MASKS = ("none", "ends", "starts", "each", "pairs")


def mask(kind: str, rng: np.random.Generator, own: int, total: int) -> Any:
    if kind in ("ends", "starts"):
        ends = rng.integers(1, total + 1, N)
        if kind == "starts":
            ends = np.concatenate([ends, np.arange(N + 1) * own, np.arange(N + 1) * total])
        return ends.astype(np.int32)
    shape = {"each": (N, total), "pairs": (N, own, total)}[kind]
    return rng.integers(0, 2, shape).astype(np.int32)


def operands(
    seed: int, own: int, new: int, old: int, *, kind: str = "none", more: str = ""
) -> list[Any]:
    """Queries of one length, keys and values of another and of a past; `more` names what else."""
    rng = np.random.default_rng(seed)

    def real(*shape: int) -> Any:
        return rng.normal(size=shape).astype(F)

    total = old + new
    out = OUT if "v" in more else SIZE
    keys: Any = [("k", real(N, new, HEADS * SIZE)), ("v", real(N, new, HEADS * out))]
    if "t" in more:
        keys = [("k", real(N, HEADS, new, SIZE)), ("v", real(N, HEADS, new, out))]
    return [
        ("q", real(N, own, HEADS * SIZE)),
        *keys,
        ("b", real(HEADS * (2 * SIZE + out))) if "b" in more else None,
        None if kind == "none" else ("m", mask(kind, rng, own, total)),
        ("a", real(1 if "1" in more else N, HEADS, own, total)) if "a" in more else None,
        ("pk", real(N, HEADS, old, SIZE)) if old else None,
        ("pv", real(N, HEADS, old, out)) if old else None,
    ]


def held(
    given: list[Any], results: int, *, constant: str = "", causal: int = 0, **attrs: Any
) -> None:
    attrs |= {"unidirectional": 1} if causal else {}
    fed = [o[0] for o in given if o and o[0] not in constant]
    names = {n: FLOAT for n in ("y", "yk", "yv", "qk")[:results]}
    near(one("MultiHeadAttention", given, fed, names, num_heads=HEADS, **attrs), BOUND)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("more", ["", "b", "ba"])
def test_what_is_padded(kind: str, causal: int, past: bool, more: str) -> None:
    given = operands(31, 5, 5, 2 if past else 0, kind=kind, more=more)
    held(given, 3 if past else 1, constant="b", causal=causal)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("own", "new"), [(3, 6), (6, 3), (1, 4)])
def test_keys_of_another_length(kind: str, causal: int, own: int, new: int) -> None:
    held(operands(32, own, new, 0, kind=kind, more="v"), 1, causal=causal)


@pytest.mark.parametrize("kind", ["none", "each"])
def test_keys_laid_out_by_heads(kind: str) -> None:
    held(operands(33, 3, 6, 0, kind=kind, more="t"), 1)


@pytest.mark.parametrize("more", ["b", "ba1", "bv"])
def test_a_bias_that_is_computed_and_numbers_of_its_own(more: str) -> None:
    given = operands(34, 4, 4, 0, kind="each", more=more)
    held(given, 1, scale=0.3, mask_filter_value=-3.0)
    # Each query sees a key: scores of hidden ones alone, at -10000, differ in its last bits.
    held(operands(34, 4, 4, 0, kind="ends", more=more), 3, causal=1)


@pytest.mark.parametrize("kind", ["ends", "each", "pairs"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("old", [0, 2])
@pytest.mark.parametrize("more", ["a", "ba1"])
@pytest.mark.parametrize("hidden", [-10000.0, -1000.0])
def test_a_bias_where_all_keys_are_hidden(
    kind: str, causal: int, old: int, more: str, hidden: float
) -> None:
    """Scores are the last bits of a great number: the order of their sums shows."""
    given = operands(38, 4, 4, old, kind=kind, more=more)
    given[4][1][...] = 0
    held(given, 3 if old else 1, causal=causal, mask_filter_value=hidden)


def test_scores_are_a_result() -> None:
    held(operands(35, 4, 4, 2, kind="each", more="b"), 4)


def test_a_batch_of_any_size_is_padded() -> None:
    """Nobody says how many sequences there are, nor how long they are."""
    given = operands(36, 4, 4, 2, kind="each", more="b")
    names = {n: FLOAT for n in ("y", "yk", "yv")}
    fed = [o[0] for o in given if o]
    case = one("MultiHeadAttention", given, fed, names, num_heads=HEADS, unidirectional=1)
    sizes = {"q": "NS", "k": "NS", "v": "NS", "m": "NT", "pk": "N P", "pv": "N P"}
    for info in case.proto.graph.input:
        for axis, size in enumerate(sizes.get(info.name, "")):
            if size != " ":
                info.type.tensor_type.shape.dim[axis].dim_param = size
    near(case, BOUND)


PACKED: dict[str, list[Any]] = {
    "what it reads is packed in one tensor": [("q", (2, 3, HEADS, 3, SIZE))],
    "its past_sequence_length speaks of a buffer": [
        *((n, (2, 3, HEADS * SIZE)) for n in "qkv"),
        *(None,) * 3,
        *((n, (2, HEADS, 8, SIZE)) for n in ("pk", "pv")),
        ("n", (1,)),
    ],
}


@pytest.mark.parametrize("why", PACKED)
def test_what_onnxruntime_runs_on_no_cpu_is_kept_with_the_reason(why: str) -> None:
    given = [o and (o[0], np.zeros(o[1], np.int32 if o[0] == "n" else F)) for o in PACKED[why]]
    fed = [o[0] for o in given if o]
    graph = loaded(one("MultiHeadAttention", given, fed, {"y": FLOAT}, num_heads=HEADS).proto)
    assert kept(graph) == ["MultiHeadAttention"]
    assert str(graph["y"].node.attrs["why"]).startswith(why)


@pytest.mark.parametrize("more", ["", "b"])
@pytest.mark.parametrize("kind", ["none", "each"])
def test_products_around_it_are_quantized_and_it_stays_whole(kind: str, more: str) -> None:
    """Each op is on integers, or says why not, and the operator is written as the model had it."""
    rng = np.random.default_rng(37)
    wide = HEADS * SIZE
    proto = one(
        "MultiHeadAttention",
        operands(37, 5, 5, 0, kind=kind, more=more),
        ["q", "k", "v", *("m" if kind != "none" else "")],
        {"y": FLOAT},
        num_heads=HEADS,
    ).proto
    graph = proto.graph
    for info in [i for i in graph.input if i.name in "qkv"]:
        graph.input.remove(info)
        graph.node.insert(0, helper.make_node("MatMul", ["x", f"w{info.name}"], [info.name]))
        weights = rng.normal(size=(wide, wide)).astype(F) * F(0.2)
        graph.initializer.append(numpy_helper.from_array(weights, f"w{info.name}"))
    graph.input.append(helper.make_tensor_value_info("x", FLOAT, [N, 5, wide]))
    given = loaded(proto)
    assert given["y"].node.op == ("attention" if kind == "none" and not more else "fused")
    feeds: dict[str, Any] = {"x": rng.normal(size=(N, 5, wide)).astype(F)}
    if kind != "none":
        feeds["m"] = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 1, 1]], np.int32)
    decided = {d.op: d for d in pipeline.plan(given).decisions}
    assert decided["matmul"].integer
    assert all(d.integer or d.reason for d in decided.values())
    found = pipeline.quantize(given, pipeline.calibrate(given, [feeds]))
    assert sum(n.op == "quantize" for n in found) >= 4
    written = to_model(found, Ledger())
    assert [n.op_type for n in written.graph.node if n.domain] == ["MultiHeadAttention"]
    real: Any = runtime.run(proto, feeds, optimize=False)["y"]
    for optimize in (False, True):
        coded: Any = runtime.run(written, feeds, optimize=optimize)["y"]
        mine: Any = run(found, feeds)["y"]
        assert np.abs(mine - coded).max() <= BOUND * np.abs(coded).max()
        assert 0 < np.abs(coded - real).max() <= 0.05 * np.abs(real).max()
