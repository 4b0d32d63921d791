"""Networks that QIR quantizes and writes, run in onnxruntime and held against its prediction."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from qir import pipeline
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from tests.installed import OPTIMIZED, UNOPTIMIZED

from .comparison import Difference, exposed, kernel_differences, reference_differences
from .fusion import sums_before
from .networks import Network
from .runtime import optimized, producer, run

# Ops that only move codes, whose result has the type of their operand.
MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose")


@dataclass(frozen=True)
class Quantized:
    """A quantized graph with the two models that QIR writes of it."""

    network: Network
    graph: Graph
    qdq: onnx.ModelProto
    qoperator: onnx.ModelProto


def quantized(net: Network, granularity: str) -> Quantized:
    """The whole way of a model: read, calibrated, quantized, written in both forms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        path.write_bytes(net.proto.SerializeToString())
        graph = pipeline.load(path)
        statistics = pipeline.calibrate(graph, list(net.calibration))
        made = pipeline.quantize(graph, statistics, granularity=granularity)
        written = []
        for form in ("qdq", "qoperator"):
            place = Path(folder) / f"{form}.onnx"
            pipeline.save(made, place, format=form, lossy=True)
            written.append(onnx.load(place))
    return Quantized(net, made, *written)


def integer_tensors(proto: onnx.ModelProto) -> dict[str, int]:
    """The tensors of codes that nodes make, with their ONNX type, in order."""
    known = {t.name: t for t in proto.graph.initializer}
    found: dict[str, int] = {}
    for node in proto.graph.node:
        op, name = node.op_type, node.output[0]
        if op == "QuantizeLinear" or op.startswith("QLinear") or op == "QGemm":
            zero = {"QLinearConv": 7, "QLinearMatMul": 7, "QLinearAdd": 7, "QLinearMul": 7}
            at = zero.get(op, 8 if op == "QGemm" else 1 if op == "QLinearConcat" else -1)
            at = 2 if op == "QuantizeLinear" else at
            if op == "QGemm" and len(node.input) < 9:
                continue
            found[name] = known[node.input[at]].data_type
        elif op in MOVES and node.input[0] in found:
            found[name] = found[node.input[0]]
    return found


def with_outputs(proto: onnx.ModelProto, kinds: dict[str, int]) -> onnx.ModelProto:
    """The model with further outputs."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    present = {o.name for o in out.graph.output}
    for name, kind in kinds.items():
        if name not in present:
            out.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return out


def qoperator_differences(q: Quantized) -> tuple[list[Difference], int]:
    """QOperator form, optimizer off: the reference and the kernels, every tensor of codes.

    Gives the differences, and how many tensors were compared.
    """
    kinds = integer_tensors(q.qoperator)
    feeds = q.network.feeds
    judge = run(with_outputs(q.qoperator, kinds), feeds, optimize=False)
    codes = {n: a for n, a in judge.items() if n in kinds}
    where = f"seed {q.network.seed}, qoperator"
    fused = q.graph.copy()
    FuseQdq().run(fused, Ledger())
    found = reference_differences(where, fused, feeds, codes, UNOPTIMIZED)
    return found + kernel_differences(f"{where}, kernels", fused, feeds, codes), len(codes)


def qdq_differences(q: Quantized) -> tuple[list[Difference], int]:
    """QDQ form, optimizer on, one tensor of codes made an output at a time.

    Tensors that a float sum of onnxruntime's decides are not compared. Gives the differences, and
    how many tensors were compared.
    """
    found: list[Difference] = []
    compared = 0
    for name, kind in integer_tensors(q.qdq).items():
        judge, shown = optimized(with_outputs(q.qdq, {name: kind}), q.network.feeds)
        maker = producer(shown, name)
        assert maker is not None
        graph = exposed(q.graph, [name])
        Group(profile=OPTIMIZED).run(graph, Ledger())
        where = f"seed {q.network.seed}, qdq, {name} exposed"
        if (maker.op_type == "QuantizeLinear") != (graph[name].node.op == "quantize"):
            what = f"{maker.op_type} there, {graph[name].node.op} here"
            found.append(Difference(where, name, 0, 0, what))
        if sums_before(shown, maker, through=True):
            continue
        compared += 1
        codes = {name: judge[name]}
        found += reference_differences(where, graph, q.network.feeds, codes, None)
    return found, compared
