"""GroupQueryAttention of onnxruntime's own domain, with a past and lengths of each sequence.

Results are held to a few parts in a million of the greatest, as those of MultiHeadAttention are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir import pipeline
from qir.ledger import Ledger
from tests.differential import runtime

from .contrib import Case, F, kept, loaded, near, one

FLOAT = TensorProto.FLOAT
BOUND = 1e-5
HEADS, KV, SIZE = 4, 2, 16
NAMES = {n: FLOAT for n in ("y", "yk", "yv")}


def case(
    seed: int, own: int, past: int | None, lengths: list[int], *, more: str = "", **attrs: Any
) -> Case:
    """New tokens behind pasts of other lengths; `more` names what else there is."""
    rng = np.random.default_rng(seed)

    def real(*shape: int) -> Any:
        return rng.normal(size=shape).astype(F)

    batch, total = len(lengths), max(lengths)
    wide = (HEADS + 2 * KV if "p" in more else HEADS) * SIZE
    old: list[Any] = [None, None]
    if past is not None:
        old = [(n, real(batch, KV, past, SIZE)) for n in ("pk", "pv")]
    keys: Any = [("k", real(batch, own, KV * SIZE)), ("v", real(batch, own, KV * SIZE))]
    tables: Any = [("cos", real(40, SIZE // 2)), ("sin", real(40, SIZE // 2))]
    given: list[Any] = [
        ("q", real(batch, own, wide)),
        *([None, None] if "p" in more else keys),
        *old,
        ("ends", np.array(lengths, np.int32) - 1),
        ("total", np.array([total], np.int32)),
        *(tables if "r" in more else [None, None]),
        ("at", rng.integers(0, 30, (batch, own))) if "i" in more else None,
        ("bias", real(1, HEADS if "h" in more else 1, own, total)) if "b" in more else None,
    ]
    attrs |= {"num_heads": HEADS, "kv_num_heads": KV}
    attrs |= {"do_rotary": 1} if "r" in more else {}
    fed = [o[0] for o in given if o and o[0] not in ("cos", "sin")]
    return one("GroupQueryAttention", given, fed, NAMES, **attrs)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"more": "p"},
    "turned": {"more": "r"},
    "turned in pairs": {"more": "pr", "rotary_interleaved": 1},
    "turned by places": {"more": "ri"},
    "a bias": {"more": "b"},
    "a bias a head": {"more": "bh"},
    "a window": {"local_window_size": 2},
    "capped": {"softcap": 1.5, "scale": 0.3},
    "all keys": {"causal": 0},
    "all of it": {"more": "prb", "local_window_size": 3, "softcap": 2.0},
}
PASTS: dict[str, tuple[int, int | None, list[int]]] = {
    "one token": (1, 5, [6, 6, 6]),
    "one token behind others": (1, 5, [6, 3, 1]),
    "some tokens": (3, 5, [8]),
    "some tokens and room to spare": (3, 9, [5]),
    "room to spare": (1, 9, [6, 3, 2]),
    "a prompt and an empty past": (4, 0, [4, 4, 4]),
    "a prompt of computed length": (4, None, [4, 4, 4]),
}


@pytest.mark.parametrize("past", PASTS)
@pytest.mark.parametrize("kind", KINDS)
def test_new_tokens_see_the_past_of_their_sequence(kind: str, past: str) -> None:
    near(case(51, *PASTS[past], **KINDS[kind]), BOUND)


def test_sizes_that_nobody_knows_have_names() -> None:
    found = case(53, *PASTS["one token behind others"], more="prb")
    sizes = {"q": "NS", "pk": "N P", "pv": "N P", "ends": "N", "bias": "  ST"}
    for info in found.proto.graph.input:
        for axis, size in enumerate(sizes.get(info.name, "")):
            if size != " ":
                info.type.tensor_type.shape.dim[axis].dim_param = size
    near(found, BOUND)


def test_what_the_language_has_not_is_kept() -> None:
    found = case(54, *PASTS["one token"])
    for name, value in (("smooth_softmax", 1), ("qk_output", 1)):
        proto = onnx.ModelProto()
        proto.CopyFrom(found.proto)
        proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
        assert kept(loaded(proto)) == ["GroupQueryAttention"]


@pytest.mark.parametrize("form", ["qdq", "integer"])
@pytest.mark.parametrize("kind", ["plain", "all of it"])
def test_it_is_opened_where_onnx_alone_is_wanted(tmp_path: Path, kind: str, form: str) -> None:
    found = case(52, *PASTS["some tokens and room to spare"], **KINDS[kind])
    onnx.save(found.proto, tmp_path / "m.onnx")
    made, graph = tmp_path / "w.onnx", pipeline.load(tmp_path / "m.onnx")
    pipeline.save(graph, made, target="onnx", format=form, ledger=Ledger())
    proto = onnx.load(made)
    assert {n.domain for n in proto.graph.node} == {""}
    assert [i.version for i in proto.opset_import] == [
        i.version for i in found.proto.opset_import if not i.domain
    ]
    theirs: dict[str, Any] = found.judged()
    for optimize in (False, True):
        mine: dict[str, Any] = runtime.run(proto, found.feeds, optimize=optimize)
        for name, data in theirs.items():
            np.testing.assert_allclose(mine[name], data, rtol=1e-4, atol=1e-5)
