"""The child process that runs MXNet's kernels and models, in a Python that has MXNet.

`python child.py PIPE`, with the path of `qir/inspect/pipe.py`. QIR itself is not imported: MXNet
needs an older Python and NumPy. `probe` and `session` start it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

if __name__ == "__main__":  # what MXNet prints, while it loads too, stays out of the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import mxnet as mx
    import numpy as np


def to_ndarray(array: Any) -> Any:
    return mx.nd.array(array, dtype=np.asarray(array).dtype)


def range_operands(*ranges: tuple[float, float]) -> list[Any]:
    """Returns ranges as operands, one array for each end."""
    return [mx.nd.array(np.array([end], np.float32)) for pair in ranges for end in pair]


def quantize(arrays: Any, ranges: Any, result_range: Any, **attrs: Any) -> Any:
    low, high = result_range
    calibration = {"min_calib_range": low, "max_calib_range": high}
    return mx.nd.contrib.quantize_v2(to_ndarray(arrays[0]), **calibration, **attrs)[0]


def dequantize(arrays: Any, ranges: Any, result_range: Any) -> Any:
    return mx.nd.contrib.dequantize(to_ndarray(arrays[0]), *range_operands(*ranges))


def add(arrays: Any, ranges: Any, result_range: Any) -> Any:
    calibration = {"min_calib_range": result_range[0], "max_calib_range": result_range[1]}
    return mx.nd.contrib.quantized_elemwise_add(
        *[to_ndarray(a) for a in arrays], *range_operands(*ranges), **calibration
    )[0]


def concat(arrays: Any, ranges: Any, result_range: Any) -> Any:
    operands = [to_ndarray(a) for a in arrays]
    return mx.nd.contrib.quantized_concat(
        *operands, *range_operands(*ranges), num_args=len(operands), dim=1
    )[0]


def avg_pool2d(arrays: Any, ranges: Any, result_range: Any, **attrs: Any) -> Any:
    return mx.nd.contrib.quantized_pooling(
        to_ndarray(arrays[0]), *range_operands(*ranges), pool_type="avg", **attrs
    )[0]


LOSSES = frozenset(
    {"SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"}
)
KERNELS = {f.__name__: f for f in (quantize, dequantize, add, concat, avg_pool2d)}


def model(symbol: str, parameters: str, feeds: Any, every: bool) -> Any:
    """Returns the results of a model by name; with `every`, those of all its nodes."""
    graph, stored = mx.sym.load(symbol), mx.nd.load(parameters)
    # mx.nd.load gives a list for a file without arrays
    pairs = stored.items() if isinstance(stored, dict) else ()
    arrays_by_name = {name.split(":", 1)[-1]: array for name, array in pairs}
    arrays_by_name.update({name: to_ndarray(array) for name, array in feeds.items()})
    arrays_by_name.update(unused_labels(graph, arrays_by_name))
    # fusing what is asked for would take it away
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE" if every else "MKLDNN"
    # MKLDNN fuses operators to subgraphs, whose inner results have no names.
    if every:
        internals = graph.get_internals()
        names = [n for n in internals.list_outputs() if n not in arrays_by_name and n not in feeds]
        graph = mx.sym.Group([internals[n] for n in names])
    else:
        names = [str(number) for number in range(len(graph.list_outputs()))]
    arguments = {name: arrays_by_name[name] for name in graph.list_arguments()}
    states = {name: arrays_by_name[name] for name in graph.list_auxiliary_states()}
    outputs = graph.bind(mx.cpu(), arguments, aux_states=states, grad_req="null").forward(
        is_train=False
    )
    return {name: array.asnumpy() for name, array in zip(names, outputs)}  # noqa: B905 of Python 3.8


def unused_labels(graph: Any, held: Any) -> Any:
    """Returns zeros for the labels of loss operators, which their results do not depend on."""
    nodes = json.loads(graph.tojson())["nodes"]
    labels = {nodes[n["inputs"][1][0]]["name"] for n in nodes if n["op"] in LOSSES}
    missing = [name for name in graph.list_arguments() if name in labels and name not in held]
    if not missing:
        return {}
    names = graph.list_arguments()
    known = {name: held[name].shape for name in names if name in held}
    shapes, _, _ = graph.infer_shape_partial(**known)
    shape_of = dict(zip(names, shapes))  # noqa: B905 of Python 3.8
    return {name: mx.nd.zeros(shape_of[name]) for name in missing}


def single_operator(op: str, attrs: Any, inner: str, arrays: Any, count: int) -> Any:
    """Returns the first results of an operator by its name."""
    operand_count = len(arrays)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(operand_count)]
    operator_node = {
        "op": op,
        "name": "y",
        "attrs": attrs,
        "inputs": [[i, 0, 0] for i in range(operand_count)],
    }
    if inner:
        operator_node["subgraphs"] = json.loads(inner)
    heads = [[operand_count, i, 0] for i in range(count)]
    text = json.dumps(
        {"nodes": [*nodes, operator_node], "arg_nodes": list(range(operand_count)), "heads": heads}
    )
    graph, arrays_by_name = (
        mx.sym.load_json(text),
        {f"x{i}": to_ndarray(a) for i, a in enumerate(arrays)},
    )
    arguments = {name: arrays_by_name[name] for name in graph.list_arguments()}
    states = {name: arrays_by_name[name] for name in graph.list_auxiliary_states()}
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
    outputs = graph.bind(mx.cpu(), arguments, aux_states=states, grad_req="null").forward(
        is_train=False
    )
    return [array.asnumpy() for array in outputs]


def run(request: Any) -> Any:
    """Returns what is requested: results of a model, of an operator by name, or of one of KERNELS.

    The latter's request has name, arrays, ranges, the range of the result, and attributes.
    """
    if request[0] == "model":
        return model(*request[1:])
    if request[0] == "alone":
        return single_operator(*request[1:])
    op, arrays, ranges, result_range, attrs = request
    return KERNELS[op](arrays, ranges, result_range, **attrs).asnumpy()


def main(pipe: str) -> None:
    """Serves requests, each answered by an array or a text."""
    runpy.run_path(pipe)["serve"](run, STREAM)


if __name__ == "__main__":
    main(sys.argv[1])
