"""Numbers chosen by primitive operators: the bytes that the reference has, in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import parse
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.reference.dynamic_graphs import Dynamic

F = np.float32
SEED = 25
RULES = [
    ("onnx.dynamic", "u8", False),
    ("onnx.dynamic", "i8", False),
    ("torchao.per_token", "i8", False),
    ("torchao.per_token", "i8", True),
    ("torch.observer", "u8", False),
    ("torch.observer", "i8", True),
    ("onednn.u8", "u8", True),
    ("profile", "u8", False),
    ("profile", "i8", True),
]


@pytest.mark.parametrize(("rule", "storage", "symmetric"), RULES)
@pytest.mark.parametrize("keep", [(), (1,), (0, 1)])
def test_a_range_rule_written_by_operators_chooses_the_same_numbers(
    rule: str, storage: str, symmetric: bool, keep: tuple[int, ...]
) -> None:
    print(f"seed {SEED}")
    shape = "x".join(str(d) if i in keep else "1" for i, d in enumerate((3, 4, 5))) if keep else ""
    kind = f"{shape}x" if shape else ""
    listed = f"({', '.join(map(str, keep))}{',' if len(keep) == 1 else ''})"
    graph = parse(
        "graph g as native {\n%x = input() : 3x4x5xf32\n"
        f'%s, %z = choose_qparams(%x) {{rule = "{rule}", storage = {storage}, keep = {listed}, '
        f"symmetric = {str(symmetric).lower()}}} : {kind}f32, {kind}{storage}\n"
        "output(s=%s, z=%z)\n}"
    )
    check(graph)
    _same_numbers(graph, rule)


BOUNDS = [
    ("torch.observer", "u8", (0, 126)),
    ("torch.observer", "i8", (-100, 50)),
    ("torch.observer", "i8", (-127, 127)),
    ("onnxruntime.tool", "i8", (-64, 63)),
    ("onnxruntime.tool", "i8", (-100, 51)),
    ("onednn.i8", "i8", (-64, 63)),
    ("onednn.u8", "u8", (0, 127)),
    ("fbgemm.symmetric", "u8", (0, 14)),
    ("profile", "i8", (-64, 64)),
]


@pytest.mark.parametrize(("rule", "storage", "bounds"), BOUNDS)
def test_symmetric_integers_with_bounds_have_the_same_numbers(
    rule: str, storage: str, bounds: tuple[int, int]
) -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3x4x5xf32\n"
        f'%s, %z = choose_qparams(%x) {{rule = "{rule}", storage = {storage}, bounds = {bounds}, '
        f"symmetric = true}} : f32, {storage}\noutput(s=%s, z=%z)\n}}"
    )
    check(graph)
    _same_numbers(graph, rule)


def _same_numbers(graph: Graph, rule: str) -> None:
    """The reference and onnxruntime choose alike."""
    session = OnnxRuntimeTarget().session(graph, threads=1)
    rng = np.random.default_rng(SEED)
    for i in range(12):
        x = (rng.normal(size=(3, 4, 5)) * 10.0 ** rng.integers(-30, 30, (3, 4, 1))).astype(F)
        x = np.abs(x) if i % 4 == 1 else np.zeros_like(x) if i == 3 else x
        if rule == "onednn.u8":  # counts from zero up, and refuses what holds nothing above it
            x[..., 0] = np.abs(x[..., 0])
        mine, theirs = run(graph, {"x": x}), session(x=x)
        for name, data in mine.items():
            other = np.asarray(theirs[name])
            assert data.dtype == other.dtype
            assert data.tobytes() == other.tobytes(), f"{i} {name}: {data}, {other}"


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_random_programs_run_in_onnxruntime(tmp_path: Path, format: str) -> None:
    """Sums of floats may be another in the last bit, and then an integer that is a step away."""
    ran = same = 0
    for seed in range(60):
        made = Dynamic(seed)
        inputs = made.inputs()
        if any(b != 1 for n in made.graph for b in _blocks(n)):
            continue
        path = tmp_path / f"{seed}.onnx"
        OnnxRuntimeTarget().emit(made.graph, path, Ledger(), format=format, lossy=True)
        found = OnnxRuntimeTarget().session(path, threads=1)(**inputs)
        wanted = run(made.graph, inputs)
        for name, data in wanted.items():
            one, other = (np.asarray(a).astype(np.float64) for a in (found[name], data))
            near = 2.0 if data.dtype.kind in "iu" else 0.02 * np.abs(other).max() + 1e-30
            assert np.abs(one - other).max() <= near, f"seed {seed}, {name}"
        ran += 1
        same += all(np.array_equal(np.asarray(found[n]), wanted[n]) for n in wanted)
    assert ran > 35
    assert same > ran // 2


def _blocks(node: Node) -> tuple[Attr, ...]:
    blocks = node.attrs["blocks"] if node.op == "choose_qparams" else ()
    assert isinstance(blocks, tuple)
    return blocks


def test_blocks_of_a_range_are_refused_by_name() -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3x4xf32\n%s, %z = choose_qparams(%x) "
        '{rule = "profile", storage = u8, keep = (1,), blocks = (2,)} : 1x2xf32, 1x2xu8\n'
        "output(s=%s, z=%z)\n}"
    )
    with pytest.raises(
        Refused, match=r"^s: ONNX reduces whole axes; numbers of blocks have no form"
    ):
        to_model(graph, Ledger())


def test_a_rule_without_operators_is_refused_by_name() -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3xf32\n%s, %z = choose_qparams(%x) "
        '{rule = "torch.dynamic", storage = i8} : f32, i8\noutput(s=%s, z=%z)\n}'
    )
    with pytest.raises(Refused, match=r"^s: the scale rule 'torch\.dynamic' has no form in ONNX"):
        to_model(graph, Ledger())
