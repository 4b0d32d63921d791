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


def quantize(arrays: Any, ranges: Any, made: Any, **attrs: Any) -> Any:
    low, high = made
    named = {"min_calib_range": low, "max_calib_range": high}
    return mx.nd.contrib.quantize_v2(to_ndarray(arrays[0]), **named, **attrs)[0]


def dequantize(arrays: Any, ranges: Any, made: Any) -> Any:
    return mx.nd.contrib.dequantize(to_ndarray(arrays[0]), *range_operands(*ranges))


def add(arrays: Any, ranges: Any, made: Any) -> Any:
    named = {"min_calib_range": made[0], "max_calib_range": made[1]}
    return mx.nd.contrib.quantized_elemwise_add(
        *[to_ndarray(a) for a in arrays], *range_operands(*ranges), **named
    )[0]


def concat(arrays: Any, ranges: Any, made: Any) -> Any:
    given = [to_ndarray(a) for a in arrays]
    return mx.nd.contrib.quantized_concat(
        *given, *range_operands(*ranges), num_args=len(given), dim=1
    )[0]


def avg_pool2d(arrays: Any, ranges: Any, made: Any, **attrs: Any) -> Any:
    return mx.nd.contrib.quantized_pooling(
        to_ndarray(arrays[0]), *range_operands(*ranges), pool_type="avg", **attrs
    )[0]


KERNELS = {f.__name__: f for f in (quantize, dequantize, add, concat, avg_pool2d)}


def model(symbol: str, parameters: str, feeds: Any, every: bool) -> Any:
    """Returns the results of a model by name; with `every`, those of all its nodes."""
    graph, stored = mx.sym.load(symbol), mx.nd.load(parameters)
    # mx.nd.load gives a list for a file without arrays
    pairs = stored.items() if isinstance(stored, dict) else ()
    held = {name.split(":", 1)[-1]: array for name, array in pairs}
    # fusing what is asked for would take it away
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE" if every else "MKLDNN"
    if every:
        within = graph.get_internals()
        names = [n for n in within.list_outputs() if n not in held and n not in feeds]
        graph = mx.sym.Group([within[n] for n in names])
    else:
        names = [str(number) for number in range(len(graph.list_outputs()))]
    held.update({name: to_ndarray(array) for name, array in feeds.items()})
    given = {name: held[name] for name in graph.list_arguments()}
    states = {name: held[name] for name in graph.list_auxiliary_states()}
    made = graph.bind(mx.cpu(), given, aux_states=states, grad_req="null").forward(is_train=False)
    return {name: array.asnumpy() for name, array in zip(names, made)}  # noqa: B905 of Python 3.8


def single_operator(op: str, attrs: Any, inner: str, arrays: Any, count: int) -> Any:
    """Returns the first results of an operator by its name."""
    number = len(arrays)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(number)]
    made = {"op": op, "name": "y", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(number)]}
    if inner:
        made["subgraphs"] = json.loads(inner)
    heads = [[number, i, 0] for i in range(count)]
    text = json.dumps({"nodes": [*nodes, made], "arg_nodes": list(range(number)), "heads": heads})
    graph, held = mx.sym.load_json(text), {f"x{i}": to_ndarray(a) for i, a in enumerate(arrays)}
    given = {name: held[name] for name in graph.list_arguments()}
    states = {name: held[name] for name in graph.list_auxiliary_states()}
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
    found = graph.bind(mx.cpu(), given, aux_states=states, grad_req="null").forward(is_train=False)
    return [array.asnumpy() for array in found]


def run(asked: Any) -> Any:
    """Returns what is requested: results of a model, of an operator by name, or of one of KERNELS.

    The latter's request has name, arrays, ranges, the range of the result, and attributes.
    """
    if asked[0] == "model":
        return model(*asked[1:])
    if asked[0] == "alone":
        return single_operator(*asked[1:])
    op, arrays, ranges, made, attrs = asked
    return KERNELS[op](arrays, ranges, made, **attrs).asnumpy()


def main(pipe: str) -> None:
    """Serves requests, each answered by an array or a text."""
    runpy.run_path(pipe)["serve"](run, STREAM)


if __name__ == "__main__":
    main(sys.argv[1])
