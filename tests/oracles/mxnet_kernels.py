"""What kernels MXNet makes of networks that quantize_model rewrites, and what it makes of ops whose
integers go to a range that no kernel gives: between dequantize and quantize, in floats."""

from __future__ import annotations

import json
import logging
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib.quantization import quantize_model

from tests.oracles.mxnet_draws import F

SHAPE = (2, 4, 6, 6)
_SILENT = logging.getLogger("quantize_model")
_SILENT.setLevel(logging.CRITICAL)


def _conv(x: Any, name: str) -> Any:
    return mx.sym.Convolution(x, kernel=(3, 3), num_filter=8, pad=(1, 1), name=name)


def _linear(x: Any, name: str) -> Any:
    return mx.sym.FullyConnected(x, num_hidden=8, name=name)


def _relu(x: Any) -> Any:
    return mx.sym.Activation(x, act_type="relu")


def _pool(x: Any, kind: str = "max") -> Any:
    return mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type=kind)


def networks() -> dict[str, Any]:
    """Each between two layers, the first of which makes its operand integers."""
    x = mx.sym.Variable("data")
    a, c = _conv(x, "a"), _conv(x, "c")
    r = _relu(a)
    made = {
        "conv2d": a,
        "conv2d_relu": _relu(a),
        "conv2d_add": a + c,
        "conv2d_add_relu": _relu(a + c),
        "conv2d_add_unsigned": _conv(r, "c") + r,
        "add": _pool(a) + _pool(c),
        "mul": _pool(a) * _pool(c),
        "concat": mx.sym.concat(a, c, dim=1),
        "batch_norm": mx.sym.BatchNorm(_pool(a), name="norm"),
        "avg_pool2d": _pool(a, "avg"),
        "max_pool2d": _pool(a),
        "relu": _relu(_pool(a)),
    }
    made = {name: _conv(value, "last") for name, value in made.items()}
    made["flatten"] = _linear(mx.sym.flatten(a), "last")
    made["linear"] = _linear(_linear(x, "a"), "last")
    made["linear_relu"] = _linear(_relu(_linear(x, "a")), "last")
    return made


def kernels() -> list[str]:
    """Of each network the operators that are left, those in one kernel in brackets."""
    lines, rng = [], np.random.RandomState(0)
    for name, symbol in networks().items():
        made = _quantized(symbol, rng)[0]
        lines.append(f"{name} {' '.join(_told(node) for node in _nodes(made))}")
    return sorted(lines)


def _quantized(symbol: Any, rng: np.random.RandomState) -> tuple[Any, Any, Any]:
    """A network of integers, its arguments and its states."""
    plain = symbol.get_backend_symbol("MKLDNN_QUANTIZE")
    shapes, _, more = plain.infer_shape(data=SHAPE)
    pairs = zip(plain.list_arguments(), shapes)  # noqa: B905 of Python 3.8
    args = {n: mx.nd.array(rng.normal(size=s)) for n, s in pairs if n != "data"}
    pairs = zip(plain.list_auxiliary_states(), more)  # noqa: B905
    states = {n: mx.nd.array(abs(rng.normal(size=s))) for n, s in pairs}
    data = mx.io.NDArrayIter(data=mx.nd.array(rng.normal(size=SHAPE)), batch_size=2)
    named: dict[str, Any] = {"calib_mode": "naive", "calib_data": data, "logger": _SILENT}
    made, args, states = quantize_model(plain, args, states, ctx=mx.cpu(), **named)
    return made.get_backend_symbol("MKLDNN_QUANTIZE"), args, states


def _nodes(symbol: Any) -> list[Any]:
    return [node for node in json.loads(symbol.tojson())["nodes"] if node["op"] != "null"]


def computed(rng: np.random.RandomState) -> list[dict[str, Any]]:
    """What each network gives, and its kernels in turn: their operands, and range and type of what
    each makes."""
    out = []
    for name, symbol in networks().items():
        made, args, states = _quantized(symbol, rng)
        x = (rng.normal(size=SHAPE) * 1.1).astype(F)
        given = {**args, "data": mx.nd.array(x)}

        def run(of: Any, given: Any = given, states: Any = states) -> list[Any]:
            held = {n: given[n] for n in of.list_arguments()}
            more = {n: states[n] for n in of.list_auxiliary_states()}
            bound = of.bind(mx.cpu(), held, aux_states=more, grad_req="null")
            return [found.asnumpy() for found in bound.forward(is_train=False)]

        (y,), within = run(made), made.get_internals()
        found = dict(zip(within.list_outputs(), run(within)))  # noqa: B905
        names = [node["name"] for node in json.loads(made.tojson())["nodes"]]
        steps = [_step(node, names, found) for node in _nodes(made)]
        case = {"said": {"name": name, "steps": steps}, "x": x, "y": y}
        held = {**args, **states}
        out.append(case | {f"held.{n}": v.asnumpy() for n, v in held.items()})
    return out


def _step(node: Any, names: list[str], found: dict[str, Any]) -> dict[str, Any]:
    within = [n["op"] for g in node.get("subgraphs", []) for n in g["nodes"] if n["op"] != "null"]
    results = [v for n, v in found.items() if n.startswith(node["name"] + "_")]
    step = {"name": node["name"], "op": node["op"], "within": within}
    step["operands"] = list(dict.fromkeys(names[i[0]] for i in node["inputs"]))
    step["kind"] = node.get("attrs", {}).get("pool_type", "")
    step["made"] = str(results[0].dtype)
    step["range"] = [float(v.ravel()[0]) for v in results[1:]]
    return step


def _told(node: Any) -> str:
    if not node.get("subgraphs"):
        return str(node["op"])
    within = [n["op"] for n in node["subgraphs"][0]["nodes"] if n["op"] != "null"]
    real = node.get("attrs", {}).get("enable_float_output") == "True"
    return f"[{' '.join([node['op'], *within])}{' real' * real}]"


def apart(rng: np.random.RandomState) -> list[dict[str, Any]]:
    """Integers of a range made floats, computed with, and made integers of another range."""
    out = []
    for what in ("avg_pool2d", "max_pool2d", "flatten", "relu", "concat", "mul"):
        x = rng.randint(-128, 128, SHAPE).astype(np.int8)
        other = rng.randint(-128, 128, SHAPE).astype(np.int8)
        if what == "mul":
            other = (rng.randint(-8, 9, SHAPE) / 4).astype(F)
        high, reach, top = 3.0, 2.5, 1.75
        real, beside = _real(x, high), mx.nd.array(other)
        if what != "mul":
            beside = _real(other, reach)
        made = _made(what, real, beside)
        ends = {"min_calib_range": -top, "max_calib_range": top, "out_type": "int8"}
        y = mx.nd.contrib.quantize_v2(made, **ends)[0].asnumpy()
        said = {"what": what, "high": high, "reach": reach, "top": top}
        out.append({"said": said, "x": x, "other": other, "y": y})
    return out


def _made(what: str, x: Any, beside: Any) -> Any:
    if what in ("avg_pool2d", "max_pool2d"):
        return mx.nd.Pooling(x, pool_type=what[:3], kernel=(2, 2), stride=(2, 2))
    if what in ("flatten", "relu"):
        return getattr(mx.nd, what)(x)
    return mx.nd.concat(x, beside, dim=1) if what == "concat" else x * beside


def _real(quantized: Any, high: float) -> Any:
    ends = [mx.nd.array(np.array([end], F)) for end in (-high, high)]
    return mx.nd.contrib.dequantize(mx.nd.array(quantized, dtype=np.int8), *ends)
