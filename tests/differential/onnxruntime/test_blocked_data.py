"""Predicts what onnxruntime's optimizer makes of products of float data and few-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qir
from qir.errors import Refused
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from tests.installed import OPTIMIZED

Reals = NDArray[np.float32]
KINDS = {
    "u4": (TensorProto.UINT4, 0, 15),
    "i4": (TensorProto.INT4, -8, 7),
    "u8": (TensorProto.UINT8, 0, 255),
    "i8": (TensorProto.INT8, -128, 127),
}
_UNSIGNED = {8: TensorProto.UINT8, 16: TensorProto.UINT16}
SEED = 20261122


@dataclass(frozen=True)
class Case:
    """One product; `block` 0 is a scale a column, -1 one scale for all."""

    kind: str = "u4"
    block: int = 16
    depth: int = 64
    op: str = "MatMul"
    zero: bool = True
    rank: int = 2
    axis: int = 0
    bias: bool = False
    quantized: str = ""
    bits: int = 8
    """Of the quantized data and results."""
    alpha: float = 1.0

    def model(self) -> onnx.ModelProto:
        random = np.random.default_rng(SEED)
        kind, low, high = KINDS[self.kind]
        shape = (self.depth, 32)
        blocks = {0: (32,), -1: ()}.get(self.block)
        if blocks is None:
            grid = list(shape)
            grid[self.axis] = -(-grid[self.axis] // self.block)
            blocks = tuple(grid)
        count = int(np.prod(blocks))
        integers = random.integers(low, high + 1, shape).ravel().tolist()
        numbers = [
            helper.make_tensor("w", kind, shape, integers),
            helper.make_tensor("s", TensorProto.FLOAT, blocks, random.uniform(0.01, 0.1, count)),
        ]
        slots = ["w", "s"]
        if self.zero:
            zeros = random.integers(low, high + 1, count).tolist()
            numbers.append(helper.make_tensor("z", kind, blocks, zeros))
            slots.append("z")
        attrs = {"axis": self.axis, "block_size": self.block} if self.block > 0 else {}
        attrs = {"axis": 1} if self.block == 0 else attrs
        numbers += [
            helper.make_tensor("t", TensorProto.FLOAT, (), [0.05 if self.bits == 8 else 0.0005]),
            helper.make_tensor("u", _UNSIGNED[self.bits], (), [1 << (self.bits - 1)]),
            helper.make_tensor("c", TensorProto.FLOAT, (32,), [0.5] * 32),
        ]
        nodes = [_node("DequantizeLinear", slots, "d", attrs)]
        x = self._coded(nodes, "x") if "x" in self.quantized else "x"
        more = {"alpha": self.alpha} if self.alpha != 1.0 else {}
        given = [x, "d", "c"] if self.op == "Gemm" and self.bias else [x, "d"]
        nodes.append(_node(self.op, given, "m", more))
        y = self._coded(nodes, "m") if "y" in self.quantized else "m"
        if self.bias and self.op == "MatMul":
            nodes.append(helper.make_node("Add", [y, "c"], ["sum"]))
            y = "sum"
        if "d" in self.quantized:  # the weights' floats have another reader
            nodes.append(helper.make_node("ReduceSum", ["d"], ["all"], keepdims=0))
            nodes.append(helper.make_node("Add", [y, "all"], ["both"]))
            y = "both"
        lead = (2, 5) if self.rank == 3 else (5,)
        graph = helper.make_graph(
            nodes,
            "few",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (*lead, self.depth))],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
            numbers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def _coded(self, nodes: list[onnx.NodeProto], x: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [x, "t", "u"], [f"{x}q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{x}q", "t", "u"], [f"{x}d"]))
        return f"{x}d"


def _node(
    op: str, given: list[str], made: str, attrs: Mapping[str, int] | Mapping[str, float]
) -> onnx.NodeProto:
    node = helper.make_node(op, given, [made])
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
    return node


def judged(case: Case, feeds: dict[str, Reals], path: Path, level: str = "") -> tuple[Reals, bool]:
    """What onnxruntime gives, and whether it made a kernel for few bits."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    if level:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    model = case.model().SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    return session.run(None, feeds)[0], "MatMulNBits" in kinds


def predicted(case: Case, feeds: dict[str, Reals], path: Path) -> tuple[Reals, Reals, Ledger]:
    """The model's own floats, those of its grouped form, and what was said."""
    path.write_bytes(case.model().SerializeToString())
    graph = qir.load(path)
    (real,) = qir.run(graph, feeds).values()
    ledger = Ledger()
    Group(profile=OPTIMIZED).run(graph, ledger)
    (found,) = qir.run(graph, feeds).values()
    return np.asarray(real, np.float32), np.asarray(found, np.float32), ledger


def data(case: Case) -> dict[str, Reals]:
    shape = (2, 5, case.depth) if case.rank == 3 else (5, case.depth)
    return {"x": np.random.default_rng(SEED).normal(size=shape).astype(np.float32)}


MADE = [
    *(Case(kind, block) for kind in KINDS for block in (16, 32, 64, 0, -1)),
    *(Case(depth=depth) for depth in (8, 24, 40)),
    *(Case(block=0, depth=depth) for depth in (12, 100)),
    Case(block=256, depth=512),
    Case(zero=False),
    Case("i8", 0, zero=False),
    Case(rank=3),
    Case(bias=True),
    Case(op="Gemm"),
    Case(op="Gemm", bias=True),
]
LEFT = [
    Case(block=8),
    Case(axis=1),
    Case(quantized="x"),
    Case(quantized="y"),
    Case(quantized="xy"),
    Case(quantized="d"),
    Case(op="Gemm", alpha=0.5),
]


@pytest.mark.parametrize("case", MADE, ids=str)
def test_data_beside_few_bits_are_rounded_as_onnxruntime_does(case: Case, tmp_path: Path) -> None:
    feeds = data(case)
    wanted, kernel = judged(case, feeds, tmp_path / "o.onnx")
    real, found, ledger = predicted(case, feeds, tmp_path / "m.onnx")
    most = 1e-6 * float(np.abs(wanted).max())
    assert kernel
    assert np.abs(found - wanted).max() <= most, f"seed {SEED}"
    assert np.abs(real - wanted).max() > 100 * most
    assert any(e.change is Change.NUDGED and "rounded to 8 bits" in e.reason for e in ledger)


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_what_onnxruntime_leaves_is_left(case: Case, tmp_path: Path) -> None:
    feeds = data(case)
    wanted, kernel = judged(case, feeds, tmp_path / "o.onnx")
    _, found, ledger = predicted(case, feeds, tmp_path / "m.onnx")
    assert not kernel
    assert np.abs(found - wanted).max() <= 1e-6 * float(np.abs(wanted).max())
    assert not any("rounded to 8 bits" in e.reason for e in ledger)


WIDE = [
    *(Case(kind, 0, quantized=q, bits=16) for kind in ("u4", "i4", "u8", "i8") for q in ("x", "y")),
    *(Case("i8", -1, depth, quantized="xy", bits=16) for depth in (8, 64, 100)),
    Case(quantized="xy", bits=16, rank=3),
    Case("i8", 0, quantized="x", bits=16, bias=True),
    Case("u8", 0, quantized="xy", bits=16, op="Gemm", bias=True),
    *(Case(kind, 512, 1024) for kind in ("u4", "i4", "u8", "i8")),
    Case("u4", 512, 700),
    Case("i8", 2048, 2048),
    Case("i8", 1024, 784, quantized="x", bits=16),
]
"""Products whose data onnxruntime rounds since 1.32, and not before."""


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_products_between_16_bits_are_rounded_where_the_version_does(
    case: Case, tmp_path: Path
) -> None:
    feeds = data(case)
    wanted, kernel = judged(case, feeds, tmp_path / "o.onnx")
    real, found, ledger = predicted(case, feeds, tmp_path / "m.onnx")
    one = 0.0005 if "y" in case.quantized else 0.0  # a value of 16 bits may be beside a tie
    least = 1e-6 * float(np.abs(wanted).max()) + 1.001 * one
    assert np.abs(found - wanted).max() <= least, f"seed {SEED}"
    assert kernel == any("rounded to 8 bits" in e.reason for e in ledger)
    assert kernel == ("round_wide_data" in profile(OPTIMIZED).prepare)
    if kernel:
        assert np.abs(real - wanted).max() > 10 * least


@pytest.mark.parametrize("case", [*WIDE, *LEFT], ids=str)
def test_a_written_product_names_the_versions_that_round_its_data(
    case: Case, tmp_path: Path
) -> None:
    source, ledger = tmp_path / "m.onnx", Ledger()
    source.write_bytes(case.model().SerializeToString())
    qir.save(qir.load(source), tmp_path / "q.onnx", format="qdq", ledger=ledger)
    said = [e.reason for e in ledger if "at accuracy level 4" in e.reason]
    assert [s.startswith("since 1.32") for s in said] == [True] * (case in WIDE)


def test_at_the_levels_below_four_data_stay_real(tmp_path: Path) -> None:
    case = Case()
    feeds = data(case)
    real, found, _ = predicted(case, feeds, tmp_path / "m.onnx")
    for level in ("0", "1", "2", "3"):
        wanted, kernel = judged(case, feeds, tmp_path / "o.onnx", level)
        assert kernel
        assert np.abs(real - wanted).max() <= 1e-6 * float(np.abs(wanted).max())
    wanted, _ = judged(case, feeds, tmp_path / "o.onnx", "4")
    assert np.abs(found - wanted).max() <= 1e-6 * float(np.abs(wanted).max())


def test_written_as_the_kernel_itself_the_data_stay_real_and_the_ledger_says_so(
    tmp_path: Path,
) -> None:
    case, ledger = Case(), Ledger()
    feeds = data(case)
    real, _, _ = predicted(case, feeds, tmp_path / "m.onnx")
    path = tmp_path / "nbits.onnx"
    qir.save(qir.load(tmp_path / "m.onnx"), path, format="nbits", ledger=ledger)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    assert np.abs(found - real).max() <= 1e-6 * float(np.abs(real).max())
    said = [e.reason for e in ledger if "MatMulNBits" in e.reason]
    assert len(said) == 1
    assert "at accuracy level 0" in said[0]
    assert "session.qdq_matmulnbits_accuracy_level" in said[0]


SHARED = [
    *(Case("i8", block, depth=depth) for block in (0, -1) for depth in (256, 257, 300, 784)),
    *(Case(kind, 0, depth=300) for kind in ("u4", "i4", "u8")),
    *(Case(kind, 512, depth=1200) for kind in KINDS),
    *(Case(block=block, depth=depth) for block, depth in ((1024, 784), (48, 96), (96, 200))),
    Case("i8", 0, depth=512, zero=False),
]
"""Products of which more integers share a scale than the kernel takes, or not so many as it
does."""


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_codes_that_share_a_scale_are_written_in_blocks_that_the_kernel_takes(
    case: Case, tmp_path: Path
) -> None:
    feeds = data(case)
    real, _, _ = predicted(case, feeds, tmp_path / "m.onnx")
    path = tmp_path / "nbits.onnx"
    qir.save(qir.load(tmp_path / "m.onnx"), path, format="nbits", ledger=Ledger())
    (node,) = (n for n in onnx.load(path).graph.node if n.op_type == "MatMulNBits")
    size = {a.name: a.i for a in node.attribute}["block_size"]
    assert size in (16, 32, 64, 128, 256)
    assert case.block <= 0 or case.block >= case.depth or case.block % size == 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    most = case.depth * 2.0**-24 / 16 * float(np.abs(real).max())  # that many terms of either sign
    assert np.abs(found - real).max() <= most
    (again,) = qir.run(qir.load(path), feeds).values()
    assert np.abs(np.asarray(again) - real).max() <= most


def test_a_refusal_of_few_bits_says_why_the_first_product_stays(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(Case(block=24, depth=96).model().SerializeToString())
    with pytest.raises(Refused, match=r"stays as it is: the kernel takes blocks of 16, 32"):
        qir.save(qir.load(tmp_path / "m.onnx"), tmp_path / "n.onnx", format="nbits")


ODD = [
    Case("u4", 17, 68),
    Case("i4", 24, 96),
    Case("u8", 5, 64),
    Case("u4", 8, 64, axis=1),
    Case("i4", 16, 64, op="Gemm", alpha=2.0),
    Case("i8", -1, 64),
]


@pytest.mark.parametrize("case", ODD, ids=str)
def test_few_bits_of_onnx_alone_are_in_any_blocks(case: Case, tmp_path: Path) -> None:
    source, path = tmp_path / "m.onnx", tmp_path / "n.onnx"
    source.write_bytes(case.model().SerializeToString())
    ledger = Ledger()
    qir.save(qir.load(source), path, target="onnx", format="nbits", ledger=ledger)
    assert not [e for e in ledger if "stays" in e.reason]
    assert [n.op_type for n in onnx.load(path).graph.node] == ["DequantizeLinear", case.op]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = [
        onnxruntime.InferenceSession(p, options, providers=["CPUExecutionProvider"])
        for p in (source, path)
    ]
    real, found = (session.run(None, data(case))[0] for session in made)
    assert (found == real).all()
