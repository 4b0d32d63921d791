"""onnxruntime, as the judge: running models, and reading what its optimizer made of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from .models import Feeds, Model, info
from .spelling import Codes

INTEGER = (TensorProto.UINT8, TensorProto.INT8)


def session(
    proto: onnx.ModelProto, *, optimize: bool, optimized: Path | None = None
) -> ort.InferenceSession:
    """Returns a session on one thread, its graph optimizations all on or all off."""
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(
    proto: onnx.ModelProto, feeds: Mapping[str, NDArray[np.generic]], *, optimize: bool
) -> Feeds:
    """Returns the outputs of a model by name."""
    inference = session(proto, optimize=optimize)
    names = [o.name for o in inference.get_outputs()]
    return dict(zip(names, inference.run(names, dict(feeds)), strict=True))


def optimized(
    proto: onnx.ModelProto, feeds: Mapping[str, NDArray[np.generic]]
) -> tuple[Feeds, onnx.ModelProto]:
    """Returns the outputs with all optimizations on, and the graph that computed them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        inference = session(proto, optimize=True, optimized=path)
        names = [o.name for o in inference.get_outputs()]
        return dict(zip(names, inference.run(names, dict(feeds)), strict=True)), onnx.load(path)


def producer(proto: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """The node that makes a tensor, seen through changes of layout; None for an input."""
    producers = {output: node for node in proto.graph.node for output in node.output}
    node = producers.get(name)
    # onnxruntime names the transpositions that it adds "Transposed..." or "transposed...".
    while node is not None and node.op_type == "Transpose" and "ransposed" in node.name:
        node = producers.get(node.input[0])
    return node


def exposing(model: Model, names: Iterable[str]) -> onnx.ModelProto:
    """The model with these tensors of integers as further outputs."""
    extended = onnx.ModelProto()
    extended.CopyFrom(model.proto)
    by_name = {c.name: c for c in model.codes}
    present = {o.name for o in extended.graph.output} | {i.name for i in extended.graph.input}
    extended.graph.output.extend(info(by_name[n]) for n in names if n not in present)
    return extended


def cut(model: Model, fixed: Mapping[str, NDArray[np.generic]], keep: Iterable[str]) -> Model:
    """The part of a model between tensors that are now given and the ones kept as outputs."""
    by_name: dict[str, Codes] = {c.name: c for c in model.codes}
    output_names = [n for n in keep if n not in fixed]
    producers = {output: node for node in model.proto.graph.node for output in node.output}
    needed: set[str] = set()
    stack = list(output_names)
    while stack:
        name = stack.pop()
        if name in needed or name in fixed:
            continue
        needed.add(name)
        if name in producers:
            stack.extend(i for i in producers[name].input if i)
    graph = model.proto.graph
    nodes = [n for n in graph.node if n.output[0] in needed]
    read = {i for n in nodes for i in n.input}
    inputs = [i for i in graph.input if i.name in read and i.name not in fixed]
    inputs += [info(by_name[n]) for n in fixed if n in read]
    results = {o.name: o for o in graph.output}
    outputs = [results[n] if n in results else info(by_name[n]) for n in output_names]
    constants = [t for t in graph.initializer if t.name in read]
    part = helper.make_graph(nodes, "part", inputs, outputs, constants)
    proto = helper.make_model(
        part, opset_imports=list(model.proto.opset_import), ir_version=model.proto.ir_version
    )
    names = {i.name for i in inputs}
    feeds = {n: a for n, a in {**model.feeds, **fixed}.items() if n in names}
    integers = tuple(c for c in model.codes if c.name in needed or c.name in fixed)
    return Model(model.seed, proto, feeds, integers)
