"""Records quantized symbols as MXNet 1.9.1 makes them, and every tensor that they compute.

`python -m tests.oracles.mxnet_quantized FOLDER`, in the environment of `make oracle-mxnet`, writes
`quantized.npz`, `uncalibrated.npz`, `fused.npz` and `modes.npz` as
`tests.oracles.mxnet_operators` writes its files; `2.inner.NAME` holds the integers of a result.
Everything is drawn from SEED.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib.quantization import quantize_model, quantize_model_mkldnn

from tests.oracles.mxnet_kernels import SHAPE, _conv, _linear, _pool, _relu, networks

SEED = 20261124
_SILENT = logging.getLogger("mxnet_quantized")
_SILENT.setLevel(logging.CRITICAL)
Made = tuple[str, Any, Any, Any]


class Batches(mx.io.DataIter):  # type: ignore[misc]
    """Data without labels, to calibrate with."""

    def __init__(self, data: Any) -> None:
        super().__init__(len(data))
        self.data, self.done = data, False
        self.provide_data = [mx.io.DataDesc("data", data.shape)]
        self.provide_label: list[Any] = []

    def reset(self) -> None:
        self.done = False

    def next(self) -> Any:
        if self.done:
            raise StopIteration
        self.done = True
        return mx.io.DataBatch(data=[mx.nd.array(self.data)], label=[])


def residual() -> Any:
    """Returns a network with batch norms, a sum, both kinds of pooling and a last layer."""
    x = mx.sym.Variable("data")
    conv = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=8, name="c0", no_bias=True)
    first = _relu(mx.sym.BatchNorm(conv, fix_gamma=False, name="bn0"))
    conv = mx.sym.Convolution(first, kernel=(3, 3), pad=(1, 1), num_filter=8, name="c1")
    both = _relu(mx.sym.BatchNorm(conv, name="bn1") + first)
    pooled = mx.sym.Pooling(_pool(both), global_pool=True, kernel=(1, 1), pool_type="avg")
    return mx.sym.FullyConnected(mx.sym.Flatten(pooled), num_hidden=5, name="fc0")


def clipped() -> Any:
    """Returns convolutions that end in a clip to 0 and 6, in groups."""
    x = mx.sym.Variable("data")
    conv = mx.sym.clip(_conv(x, "a"), 0, 6)
    deep = mx.sym.Convolution(conv, kernel=(3, 3), num_filter=8, num_group=8, name="d")
    return _linear(mx.sym.clip(deep, 0, 6), "last")


def grouped() -> Any:
    """Returns convolutions in groups of several channels, with a batch norm and a sum."""
    x = mx.sym.Variable("data")
    deep = mx.sym.Convolution(x, kernel=(3, 3), num_filter=8, num_group=2, name="g0", no_bias=True)
    deep = _relu(mx.sym.BatchNorm(deep, fix_gamma=False, name="bn0"))
    wide = mx.sym.Convolution(deep, kernel=(1, 1), num_filter=16, num_group=8, name="g1")
    other = mx.sym.Convolution(deep, kernel=(1, 1), num_filter=16, num_group=4, name="g2")
    return _linear(_relu(wide + other), "last")


def _leaky(x: Any, kind: str = "leaky", slope: float = 0.1) -> Any:
    return mx.sym.LeakyReLU(x, act_type=kind, slope=slope)


def leaky() -> Any:
    """Returns layers that end in a LeakyReLU, one with a batch norm, one with a sum."""
    x = mx.sym.Variable("data")
    first = _leaky(mx.sym.BatchNorm(_conv(x, "a"), fix_gamma=False, name="bn0"))
    both = _leaky(_conv(first, "b") + first, slope=0.25)
    return _linear(_leaky(_linear(both, "c")), "last")


def curved() -> Any:
    """Returns linear layers that end in other functions."""
    x = _leaky(_linear(mx.sym.Variable("data"), "a"), "elu", 0.7)
    return _linear(mx.sym.abs(_linear(_leaky(_linear(x, "b"), "gelu"), "c")), "last")


def gelu() -> Any:
    """Returns a convolution that ends in a gelu, which MXNet computes otherwise."""
    return _linear(_leaky(_conv(mx.sym.Variable("data"), "a"), "gelu"), "last")


def drawn(symbol: Any, shape: Any, rng: Any) -> tuple[Any, Any]:
    """Returns arguments and states of a float network."""
    shapes, _, more = symbol.infer_shape(data=shape)

    def one(name: str, size: Any) -> Any:
        made = rng.uniform(0.5, 1.5, size) if name.endswith(("var", "gamma")) else rng.randn(*size)
        return mx.nd.array(made if name.endswith(("var", "gamma")) else made * 0.3)

    pairs = list(zip(symbol.list_arguments(), shapes))  # noqa: B905 of Python 3.8
    states = list(zip(symbol.list_auxiliary_states(), more))  # noqa: B905
    held = {name: one(name, size) for name, size in pairs if name != "data"}
    return held, {name: one(name, size) for name, size in states}


def quantized(rng: Any) -> Iterator[tuple[Made, Any]]:
    """Returns name, symbol, arguments and states of each network, and its data."""
    for name, symbol in networks().items():
        plain = symbol.get_backend_symbol("MKLDNN_QUANTIZE")
        args, states = drawn(plain, SHAPE, rng)
        data = rng.randn(*SHAPE).astype(np.float32)
        named: dict[str, Any] = {"calib_mode": "naive", "calib_data": Batches(data)}
        made, args, states = quantize_model(
            plain, args, states, ctx=mx.cpu(), label_names=None, logger=_SILENT, **named
        )
        made = made.get_backend_symbol("MKLDNN_QUANTIZE")
        yield (name, made, args, states), data
    for symbol, name in ((residual(), "residual"), (clipped(), "clipped")):
        for mode, kind, each in (
            ("naive", "auto", "tensor-wise"),
            ("naive", "int8", "channel-wise"),
            ("entropy", "auto", "channel-wise"),
        ):
            args, states = drawn(symbol, SHAPE, rng)
            data = rng.randn(*SHAPE).astype(np.float32)
            made, args, states = quantize_model_mkldnn(
                symbol,
                args,
                states,
                label_names=None,
                calib_mode=mode,
                calib_data=Batches(data),
                quantized_dtype=kind,
                quantize_granularity=each,
                logger=_SILENT,
            )
            yield (f"{name} {mode} {kind} {each}", made, args, states), data
    args, states = drawn(residual(), SHAPE, rng)
    plain = residual().get_backend_symbol("MKLDNN_QUANTIZE")
    yield ("residual in float", plain, args, states), rng.randn(*SHAPE).astype(np.float32)
    yield embedded(rng)


def embedded(rng: Any) -> tuple[Made, Any]:
    """Returns rows of a quantized table, which quantize_model leaves alone without this op."""
    names = ("data", "table", "low", "high")
    x, *more = (mx.sym.Variable(name) for name in names)
    rows = mx.sym.contrib.quantized_embedding(x, *more, input_dim=6, output_dim=5, name="rows")
    table = rng.randint(-128, 128, (6, 5)).astype(np.int8)
    ends = {"low": mx.nd.array([-2.5]), "high": mx.nd.array([2.25])}
    held = {"table": mx.nd.array(table, dtype=np.int8), **ends}
    return ("embedding", mx.sym.contrib.dequantize(*rows), held, {}), np.array(
        [[0, 5], [2, 2]], np.float32
    )


def uncalibrated(rng: Any) -> Iterator[tuple[Made, Any]]:
    """Returns networks that choose their ranges while they run; unsigned data are positive."""
    for index, kind in enumerate(("auto", "uint8", "int8", "uint8", "uint8")):
        x = mx.sym.Variable("data")
        symbol = (residual(), residual(), _linear(_relu(_conv(x, "a")), "last"), _conv(x, "a"))[
            min(index, 3)
        ]
        args, states = drawn(symbol, SHAPE, rng)
        data = rng.randn(*SHAPE).astype(np.float32)
        data = np.abs(data) if kind == "uint8" else data
        made, args, states = quantize_model_mkldnn(
            symbol, args, states, calib_mode="none", quantized_dtype=kind, logger=_SILENT
        )
        yield (f"{kind} {index}", made, args, states), data


def fused(rng: Any) -> Iterator[tuple[Made, Any]]:
    """Returns networks with more kinds of fused layers."""
    for name, symbol in FUSED.items():
        args, states = drawn(symbol(), SHAPE, rng)
        data = rng.randn(*SHAPE).astype(np.float32)
        made, args, states = quantize_model_mkldnn(
            symbol(),
            args,
            states,
            label_names=None,
            calib_mode="naive",
            calib_data=Batches(data),
            quantized_dtype="auto",
            logger=_SILENT,
        )
        yield (name, made, args, states), data


def modes(rng: Any) -> Iterator[tuple[Made, Any]]:
    """Returns one network in every mode of quantize_model; the data have both signs."""
    symbol, shape = residual(), (1, *SHAPE[1:])
    args, states = drawn(symbol, shape, rng)
    data = rng.randn(*shape).astype(np.float32)
    for kind, mode, each in product(
        ("auto", "int8", "uint8"), ("naive", "entropy", "none"), ("tensor-wise", "channel-wise")
    ):
        named: dict[str, Any] = {"calib_mode": mode, "quantized_dtype": kind, "logger": _SILENT}
        if mode != "none":
            named.update(label_names=None, calib_data=Batches(data))
        made, held, more = quantize_model_mkldnn(
            symbol, dict(args), dict(states), quantize_granularity=each, **named
        )
        yield (f"{kind} {mode} {each}", made, held, more), data


FUSED = {made.__name__: made for made in (grouped, leaky, curved, gelu)}


def computed(made: Made, data: Any) -> dict[str, Any]:
    """Returns the entries of one case."""
    name, symbol, args, states = made
    held = {**args, **states}
    used = set(symbol.list_arguments()) | set(symbol.list_auxiliary_states())
    entries = {"name": np.array(name), "symbol": np.array(symbol.tojson()), "in.data": data}
    entries.update({f"param.{n}": held[n].asnumpy() for n in held if n in used})
    within = symbol.get_internals()
    names = [n for n in within.list_outputs() if n not in held and n != "data"]
    every = mx.sym.Group([within[n] for n in names])
    given = {n: mx.nd.array(data) if n == "data" else held[n] for n in every.list_arguments()}
    more = {n: held[n] for n in every.list_auxiliary_states()}
    bound: dict[str, Any] = {"aux_states": more, "grad_req": "null"}
    try:
        found = every.bind(mx.cpu(), given, **bound).forward(is_train=False)
        results = dict(zip(names, (f.asnumpy() for f in found)))  # noqa: B905
    except (mx.MXNetError, RuntimeError):
        return {**entries, "refused": np.array("yes")}
    entries.update({f"inner.{n}": v for n, v in results.items() if v.dtype.kind in "iu"})
    entries.update({f"out.{i}": results[n] for i, n in enumerate(symbol.list_outputs())})
    return entries


def main(folder: str) -> None:
    for family in (quantized, uncalibrated, fused, modes):
        rng, held = np.random.RandomState(SEED), {}
        for index, (made, data) in enumerate(family(rng)):
            held.update({f"{index}.{key}": value for key, value in computed(made, data).items()})
            print(index, made[0])
        np.savez_compressed(Path(folder) / f"{family.__name__}.npz", **held)


if __name__ == "__main__":
    main(sys.argv[1])
