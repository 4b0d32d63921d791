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

# Ops that only move integers, whose result has the type of their operand.
MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose")


@dataclass(frozen=True)
class Quantized:
    """A quantized graph with the two models that QIR writes of it."""

    network: Network
    graph: Graph
    qdq: onnx.ModelProto
    qoperator: onnx.ModelProto


def quantized(source: Network, granularity: str) -> Quantized:
    """Reads, calibrates and quantizes a model, and writes it in both forms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        path.write_bytes(source.proto.SerializeToString())
        graph = pipeline.load(path)
        statistics = pipeline.calibrate(graph, list(source.calibration))
        quantized_graph = pipeline.quantize(graph, statistics, granularity=granularity)
        models = []
        for form in ("qdq", "qoperator"):
            model_path = Path(folder) / f"{form}.onnx"
            pipeline.save(quantized_graph, model_path, format=form, lossy=True)
            models.append(onnx.load(model_path))
    return Quantized(source, quantized_graph, *models)


def integer_tensors(proto: onnx.ModelProto) -> dict[str, int]:
    """Returns the quantized tensors that nodes make, with their ONNX type, in order."""
    constants = {t.name: t for t in proto.graph.initializer}
    kinds: dict[str, int] = {}
    for node in proto.graph.node:
        op, name = node.op_type, node.output[0]
        if op == "QuantizeLinear" or op.startswith("QLinear") or op == "QGemm":
            by_op = {"QLinearConv": 7, "QLinearMatMul": 7, "QLinearAdd": 7, "QLinearMul": 7}
            zero_input = by_op.get(op, 8 if op == "QGemm" else 1 if op == "QLinearConcat" else -1)
            zero_input = 2 if op == "QuantizeLinear" else zero_input
            if op == "QGemm" and len(node.input) < 9:
                continue
            kinds[name] = constants[node.input[zero_input]].data_type
        elif op in MOVES and node.input[0] in kinds:
            kinds[name] = kinds[node.input[0]]
    return kinds


def with_outputs(proto: onnx.ModelProto, kinds: dict[str, int]) -> onnx.ModelProto:
    """Returns the model with further outputs."""
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    present = {o.name for o in extended.graph.output}
    for name, kind in kinds.items():
        if name not in present:
            extended.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return extended


def qoperator_differences(q: Quantized) -> tuple[list[Difference], int]:
    """QOperator form, optimizer off: the reference and the kernels, every tensor of integers.

    Gives the differences, and how many tensors were compared.
    """
    kinds = integer_tensors(q.qoperator)
    feeds = q.network.feeds
    expected = run(with_outputs(q.qoperator, kinds), feeds, optimize=False)
    where = f"seed {q.network.seed}, qoperator"
    fused = q.graph.copy()
    FuseQdq().run(fused, Ledger())
    # A kernel before an activation of its own has a result that only the written file names.
    integers = {n: a for n, a in expected.items() if n in kinds and not _is_inside(n, fused)}
    differences = reference_differences(where, fused, feeds, integers, UNOPTIMIZED)
    return differences + kernel_differences(f"{where}, kernels", fused, feeds, integers), len(
        integers
    )


def _is_inside(name: str, graph: Graph) -> bool:
    """Returns whether a tensor stands between a kernel and the activation that the graph has in one
    chain with it."""
    return name not in graph.values and name.rpartition("_before_")[0] in graph.values


def qdq_differences(q: Quantized) -> tuple[list[Difference], int]:
    """QDQ form, optimizer on, one tensor of integers made an output at a time.

    Tensors that a float sum of onnxruntime's decides are not compared. Gives the differences, and
    how many tensors were compared.
    """
    differences: list[Difference] = []
    compared = 0
    for name, kind in integer_tensors(q.qdq).items():
        expected, optimized_model = optimized(with_outputs(q.qdq, {name: kind}), q.network.feeds)
        maker = producer(optimized_model, name)
        assert maker is not None
        graph = exposed(q.graph, [name])
        Group(profile=OPTIMIZED).run(graph, Ledger())
        where = f"seed {q.network.seed}, qdq, {name} exposed"
        if (maker.op_type == "QuantizeLinear") != (graph[name].node.op == "quantize"):
            description = f"{maker.op_type} there, {graph[name].node.op} here"
            differences.append(Difference(where, name, 0, 0, description))
        if sums_before(optimized_model, maker, through=True):
            continue
        compared += 1
        expected_integers = {name: expected[name]}
        differences += reference_differences(where, graph, q.network.feeds, expected_integers, None)
    return differences, compared
