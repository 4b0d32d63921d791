"""Attention and rotary embedding, ONNX's own and onnxruntime's, read, written and computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir.backends.onnx.writer.graph import Dialect, to_model
from qir.errors import Refused
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.backends.onnx.operators import Case, Data, assert_comes_through, onnxruntime_runs
from tests.frontends.onnx.models import model, save
from tests.reference.oracles import assert_close

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(31)
B, H, KH, S, L, P, D = 2, 4, 2, 3, 5, 2, 16


def real(*shape: int) -> Data:
    return np.asarray(RNG.normal(size=shape), np.float32)


Q, K, V = real(B, H, S, D), real(B, KH, L, D), real(B, KH, L, D)
Q3, K3, V3 = real(B, S, H * D), real(B, L, KH * D), real(B, L, KH * D)
PAST = {"m": None, "pk": real(B, KH, P, D), "pv": real(B, KH, P, D)}
FLAT = {"q": Q3, "k": K3, "v": V3}
HEADS = {"q_num_heads": H, "kv_num_heads": KH}
MASK = RNG.integers(0, 2, (B, 1, S, L)).astype(bool)
ROWS = {"c": real(9, D // 2), "s": real(9, D // 2), "p": RNG.integers(0, 9, (B, S))}

CASES = [
    Case("Attention", {"q": Q, "k": K, "v": V}, opsets=(23, 24)),
    Case(
        "Attention",
        {"q": Q, "k": K, "v": V, "m": real(S, L)},
        {"softcap": 1.5, "scale": 0.3, "is_causal": 1},
        (23,),
    ),
    Case("Attention", {**FLAT, "m": MASK}, HEADS, (23,)),
    Case("Attention", {**FLAT, **PAST}, {**HEADS, "is_causal": 1}, (24,), results=3),
    Case("Attention", {**FLAT, **PAST}, {**HEADS, "qk_matmul_output_mode": 3}, (23,), results=4),
    Case(
        "Attention",
        {**FLAT, "m": None, "pk": None, "pv": None, "n": np.array([5, 3])},
        {**HEADS, "is_causal": 1, "softmax_precision": 1},
        (24,),
    ),
    Case("RotaryEmbedding", {"x": Q, **ROWS}, {"interleaved": 1}, (23,)),
    Case(
        "RotaryEmbedding",
        {"x": Q3, "c": real(B, S, 2), "s": real(B, S, 2)},
        {"num_heads": H, "rotary_embedding_dim": 4},
        (23,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{len(c.operands)}-{len(c.attrs)}")
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)


@dataclass(frozen=True)
class Own:
    """An operator of onnxruntime's domain; operands named `c_...` are constants."""

    op: str
    operands: Mapping[str, Data | None]
    attrs: dict[str, Any]
    results: int = 1
    written: tuple[str, ...] = field(default=())
    """What it is written as, where that is not the one operator."""


LQ, LK, LV = real(B, S, H * D), real(B, S, H * D), real(B, S, H * D)
WIDE = {"q": LQ, "k": real(B, L, H * D), "v": real(B, L, H * D)}
SAME = {"q": LQ, "k": LK, "v": LV}
OLD = {"b": None, "p": None, "a": None, "pk": real(B, H, P, D), "pv": real(B, H, P, D)}
GROUP = {"q": LQ, "k": real(B, S, KH * D), "v": real(B, S, KH * D), "o": None, "n": None}
ENDS = {"c_ends": np.full(B, S - 1, np.int32), "c_total": np.array([S], np.int32)}
TURN = {"c_cos": real(9, D // 2), "c_sin": real(9, D // 2)}
TWO = {"num_heads": H, "kv_num_heads": KH}
PACKED = real(B, S, (H + 2 * KH) * D)
NO_CACHE = {"k": None, "v": None, "o": None, "n": None}

OWN = [
    Own("MultiHeadAttention", WIDE, {"num_heads": H}),
    Own("MultiHeadAttention", WIDE, {"num_heads": H, "scale": 0.3}),
    Own("MultiHeadAttention", {**SAME}, {"num_heads": H, "unidirectional": 1}),
    Own("MultiHeadAttention", {**SAME, **OLD}, {"num_heads": H, "unidirectional": 1}, results=3),
    Own(
        "MultiHeadAttention",
        {**WIDE, "b": None, "p": None, "a": real(1, H, S, L)},
        {"num_heads": H},
    ),
    Own(
        "MultiHeadAttention",
        {**WIDE, "c_bias": real(3 * H * D)},
        {"num_heads": H},
    ),
    Own("MultiHeadAttention", WIDE, {"num_heads": H, "unidirectional": 1}),
    Own(
        "MultiHeadAttention",
        {**WIDE, "b": None, "p": np.ones((B, L), np.int32)},
        {"num_heads": H},
    ),
    Own("GroupQueryAttention", {**GROUP, **ENDS}, TWO, results=3),
    Own(
        "GroupQueryAttention",
        {**GROUP, **ENDS},
        {**TWO, "local_window_size": 2, "softcap": 1.5, "scale": 0.2},
        results=3,
    ),
    Own(
        "GroupQueryAttention",
        {**GROUP, **ENDS, **TURN},
        {**TWO, "do_rotary": 1},
        results=3,
        written=("RotaryEmbedding", "RotaryEmbedding", "GroupQueryAttention"),
    ),
    Own(
        "GroupQueryAttention",
        {"q": PACKED, **NO_CACHE, **ENDS},
        TWO,
        results=3,
        written=("Split", "GroupQueryAttention"),
    ),
    Own(
        "GroupQueryAttention",
        {**GROUP, "n1": ENDS["c_ends"], "n2": ENDS["c_total"]},
        TWO,
        results=3,
    ),
    Own("RotaryEmbedding", {"x": Q, "p": ROWS["p"], "c": ROWS["c"], "s": ROWS["s"]}, {}),
    Own("RotaryEmbedding", {"x": LQ, "p": np.array([3]), "c": ROWS["c"], "s": ROWS["s"]}, {}),
    Own(
        "RotaryEmbedding",
        {"x": LQ, "p": np.array([3]), "c": real(9, 2), "s": real(9, 2)},
        {"num_heads": H, "rotary_embedding_dim": 4, "interleaved": 1},
    ),
]


def _proto(own: Own) -> onnx.ModelProto:
    names = [n if data is not None else "" for n, data in own.operands.items()]
    given = {n: d for n, d in own.operands.items() if d is not None}
    outputs = [f"y{i}" for i in range(own.results)]
    node = helper.make_node(own.op, names, outputs, "node", domain=MICROSOFT, **own.attrs)
    ranks = [Q3.ndim if own.op != "RotaryEmbedding" else given["x"].ndim, 4, 4]
    proto = model(
        [node],
        {
            n: (helper.np_dtype_to_tensor_dtype(d.dtype), d.shape)
            for n, d in given.items()
            if not n.startswith("c_")
        },
        {n: (TensorProto.FLOAT, [None] * r) for n, r in zip(outputs, ranks, strict=False)},
        {n: d for n, d in given.items() if n.startswith("c_")},
        17,
        (MICROSOFT,),
    )
    proto.ir_version = 10
    return proto


def _read(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Graph:
    graph: Graph = OnnxFrontend().load(save(proto, folder, name), Ledger())
    return graph


@pytest.mark.parametrize("own", OWN, ids=lambda o: f"{o.op}-{'-'.join(o.operands)}-{len(o.attrs)}")
def test_onnxruntimes_own_operators_come_through(own: Own, tmp_path: Path) -> None:
    proto = _proto(own)
    wanted = [i.name for i in proto.graph.input]
    feeds = {n: d for n, d in own.operands.items() if n in wanted and d is not None}
    theirs = onnxruntime_runs(proto, feeds)
    graph = _read(proto, tmp_path)
    assert not [n for n in graph if n.op == "foreign"]
    written = to_model(graph, Ledger())
    assert tuple(n.op_type for n in written.graph.node) == (own.written or (own.op,))
    assert next(i.version for i in written.opset_import if not i.domain) == 17
    again = onnxruntime_runs(written, feeds)
    for one, other in zip(theirs, again, strict=True):
        if own.written:
            assert_close(other, one, 1e-5, own.op)
        else:
            assert one.tobytes() == other.tobytes()
    assert _read(written, tmp_path, "again.onnx") == graph
    for ours, one in zip(run(graph, feeds).values(), theirs, strict=True):
        assert_close(ours, one, 1e-5, own.op)


TEXT = """graph main as native {{
  %q = input() : 2x4x3x16xf32
  %k = input() : 2x2x5x16xf32
  %y = attention(%q, %k, %k){more} : 2x4x3x16xf32
  output(y=%y)
}}
"""


def test_what_comes_from_nowhere_is_written_in_the_set_of_all_else() -> None:
    for more in ("", " {left = 2}"):
        for opset in (None, 25):
            made = to_model(parse(TEXT.format(more=more)), Ledger(), Dialect(opset=opset))
            assert next(i.version for i in made.opset_import if not i.domain) == (opset or 21)
            assert (len(made.graph.node) == 1) is (opset == 25)
            onnx.checker.check_model(made, full_check=True)


def test_an_inner_rounding_is_refused_by_name() -> None:
    inner = " inner {probs : !quant.uniform<u8:f32, 0.00390625>}"
    with pytest.raises(Refused, match="does not round probs inside"):
        to_model(parse(TEXT.format(more=inner)), Ledger())


def test_a_mask_of_whole_numbers_is_kept(tmp_path: Path) -> None:
    case = Case("Attention", {"q": Q, "k": K, "v": V, "m": np.zeros((S, L), np.int32)})
    graph = _read(case.proto(23), tmp_path)
    assert [n.op for n in graph if n.op in ("attention", "foreign")] == ["foreign"]
