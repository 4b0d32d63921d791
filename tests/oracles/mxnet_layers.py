"""Symbols of layers: convolutions, pooling, normalization, softmax, recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

S = mx.sym
Case = tuple[str, Any, dict[str, Any]]


def real(rng: Any, *shape: int) -> Any:
    return rng.uniform(-3, 3, shape).astype(np.float32)


def layers(rng: Any) -> Iterator[Case]:
    """Returns names, symbols and inputs."""
    yield from convolutions(rng)
    yield from pools(rng)
    yield from norms(rng)
    yield from ends(rng)
    yield from recurrent(rng)
    yield from resizing(rng)


def convolutions(rng: Any) -> Iterator[Case]:
    x, image, volume = S.var("data"), real(rng, 2, 4, 7, 6), real(rng, 1, 2, 5, 4, 5)
    conv, line = S.Convolution, real(rng, 2, 4, 9)
    yield "conv", conv(x, kernel=(3, 3), num_filter=4), {"data": image}
    more = {"stride": (2, 1), "pad": (1, 2), "dilate": (1, 2)}
    yield "conv with sides", conv(x, kernel=(3, 2), num_filter=4, **more), {"data": image}
    named = {"num_group": 2, "no_bias": True, "layout": "NCHW"}
    yield "conv in groups", conv(x, kernel=(1, 3), num_filter=4, **named), {"data": image}
    yield "conv 1d", conv(x, kernel=(3,), num_filter=3, pad=(1,)), {"data": line}
    yield "conv 3d", conv(x, kernel=(3, 2, 3), num_filter=3), {"data": volume}
    back = S.Deconvolution
    yield "deconv", back(x, kernel=(3, 3), num_filter=3, stride=(2, 2)), {"data": image}
    sides = {"stride": (2, 3), "pad": (1, 1), "adj": (1, 2), "no_bias": False}
    yield "deconv with sides", back(x, kernel=(4, 3), num_filter=3, **sides), {"data": image}
    groups = {"num_group": 2, "dilate": (2, 1)}
    yield "deconv in groups", back(x, kernel=(2, 3), num_filter=4, **groups), {"data": image}
    yield "deconv 1d", back(x, kernel=(3,), num_filter=2, stride=(2,)), {"data": line}
    full = S.FullyConnected
    yield "linear of an image", full(x, num_hidden=5), {"data": image}
    yield "linear", full(x, num_hidden=5, no_bias=True), {"data": real(rng, 3, 6)}
    yield "linear of the last axis", full(x, num_hidden=5, flatten=False), {"data": line}


def pools(rng: Any) -> Iterator[Case]:
    x, image, line = S.var("data"), real(rng, 2, 3, 8, 7), real(rng, 2, 3, 9)
    for kind in ("max", "avg", "sum", "lp"):
        more = {"pool_type": kind, **({"p_value": 2} if kind == "lp" else {})}
        yield f"{kind} pool", S.Pooling(x, kernel=(3, 2), stride=(2, 2), **more), {"data": image}
        yield f"{kind} pool of all", S.Pooling(x, global_pool=True, **more), {"data": image}
    for kind in ("max", "avg"):
        full = {"pool_type": kind, "pooling_convention": "full", "stride": (2, 2)}
        yield f"{kind} pool full", S.Pooling(x, kernel=(3, 3), **full), {"data": image}
        padded = S.Pooling(x, kernel=(3, 3), pad=(1, 1), **full)
        yield f"{kind} pool full with sides", padded, {"data": image}
        padded = S.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type=kind)
        yield f"{kind} pool with sides", padded, {"data": image}
        lines = S.Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type=kind)
        yield f"{kind} pool 1d", lines, {"data": line}
    apart = {"kernel": (3, 3), "pad": (1, 1), "pool_type": "avg", "count_include_pad": False}
    yield "avg pool without sides", S.Pooling(x, **apart), {"data": image}
    half = S.Pooling(x, pooling_convention="full", stride=(2, 2), **apart)
    yield "avg pool full without sides", half, {"data": image}
    volume = real(rng, 1, 2, 5, 4, 6)
    for kind in ("max", "avg"):
        made = S.Pooling(x, kernel=(2, 2, 3), stride=(2, 1, 2), pool_type=kind)
        yield f"{kind} pool 3d", made, {"data": volume}
    for size in (1, (2, 3), 4):
        made = S.contrib.AdaptiveAvgPooling2D(x, output_size=size)
        yield f"adaptive {size}", made, {"data": image}


def norms(rng: Any) -> Iterator[Case]:
    x, image = S.var("data"), real(rng, 2, 4, 5, 3)
    row = real(rng, 3, 6)
    yield "batch norm", S.BatchNorm(x), {"data": image}
    free = {"fix_gamma": False, "eps": 2e-5, "use_global_stats": True}
    yield "batch norm with gamma", S.BatchNorm(x, **free), {"data": image}
    yield "batch norm of rows", S.BatchNorm(x, fix_gamma=False), {"data": row}
    yield "batch norm of the last", S.BatchNorm(x, axis=-1, fix_gamma=False), {"data": image}
    yield "layer norm", S.LayerNorm(x), {"data": row}
    yield "layer norm of an axis", S.LayerNorm(x, axis=1, eps=1e-3), {"data": image}
    yield "instance norm", S.InstanceNorm(x), {"data": image}
    yield "group norm", S.GroupNorm(x, num_groups=2), {"data": image}
    for mode in ("instance", "channel", "spatial"):
        yield f"unit length {mode}", S.L2Normalization(x, mode=mode), {"data": image}
    yield "lrn", S.LRN(x, nsize=3, alpha=0.1, knorm=1.5), {"data": image}


def ends(rng: Any) -> Iterator[Case]:
    x, image, row = S.var("data"), real(rng, 2, 4, 3, 2), real(rng, 3, 6)
    yield "softmax", S.softmax(x), {"data": row}
    yield "softmax by temperature", S.softmax(x, axis=1, temperature=2.5), {"data": image}
    yield "log softmax", S.log_softmax(x, axis=1), {"data": image}
    yield "softmin", S.softmin(x), {"data": row}
    for mode in ("instance", "channel"):
        yield f"activation {mode}", S.SoftmaxActivation(x, mode=mode), {"data": image}
    yield "output", S.SoftmaxOutput(x, name="softmax"), {"data": row}
    for named in ("multi_output", "preserve_shape"):
        yield f"output {named}", S.SoftmaxOutput(x, **{named: True}), {"data": image}
    yield "output of all axes", S.SoftmaxOutput(x), {"data": image}
    yield "logistic", S.LogisticRegressionOutput(x), {"data": row}
    yield "regression", S.LinearRegressionOutput(x), {"data": row}
    yield "absolute regression", S.MAERegressionOutput(x), {"data": row}
    lengths = np.array([3, 1], np.float32)
    given = {"data": real(rng, 4, 2, 3), "n": lengths}
    mask = S.SequenceMask(x, S.var("n"), use_sequence_length=True, value=-1)
    yield "mask", mask, given
    turned = S.SequenceReverse(x, S.var("n"), use_sequence_length=True)
    yield "reverse by lengths", turned, given
    turned = S.SequenceMask(x, S.var("n"), use_sequence_length=True, axis=1)
    yield "mask of rows", turned, {"data": real(rng, 2, 4, 3), "n": lengths}
    yield "no mask", S.SequenceMask(x) * 1, {"data": given["data"]}
    yield "reverse", S.SequenceReverse(x), {"data": given["data"]}
    yield "last", S.SequenceLast(x), {"data": given["data"]}


def recurrent(rng: Any) -> Iterator[Case]:
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        for count, both in ((1, False), (2, False), (2, True)):
            size, ways = 3, 2 if both else 1
            states = [S.var("h")] + ([S.var("c")] if mode == "lstm" else [])
            more = {"state_size": size, "num_layers": count, "bidirectional": both}
            made = S.RNN(
                S.var("data"), S.var("flat"), *states, mode=mode, state_outputs=True, **more
            )
            given = {"data": real(rng, 4, 2, 5)}
            for state in states:
                given[state.name] = real(rng, count * ways, 2, size)
            yield f"{mode} {count} {ways}", made, given
    joined = [
        S.reshape(S.var(n), shape=(-1,)) for n in ("i_weight", "h_weight", "i_bias", "h_bias")
    ]
    joined[0] = S.reshape(S.var("i_weight", shape=(12, 5)), shape=(-1,))
    joined[1] = S.reshape(S.var("h_weight", shape=(12, 3)), shape=(-1,))
    joined[2] = S.reshape(S.var("i_bias", shape=(12,)), shape=(-1,))
    joined[3] = S.reshape(S.var("h_bias", shape=(12,)), shape=(-1,))
    flat = S._internal._rnn_param_concat(*joined, dim=0)
    states = [S._internal._zeros(shape=(1, 2, 3)) for _ in range(2)]
    made = S.RNN(S.var("data"), flat, *states, mode="lstm", state_size=3, num_layers=1)
    yield "lstm of Gluon", made, {"data": real(rng, 4, 2, 5)}


def resizing(rng: Any) -> Iterator[Case]:
    x, y, image = S.var("data"), S.var("other"), real(rng, 1, 2, 3, 4)
    yield "nearest", S.UpSampling(x, scale=2, sample_type="nearest"), {"data": image}
    for mode in ("concat", "sum"):
        made = S.UpSampling(x, y, scale=2, sample_type="nearest", num_args=2, multi_input_mode=mode)
        yield f"nearest {mode}", made, {"data": image, "other": real(rng, 1, 2, 6, 8)}
    smooth = {"scale": 2, "sample_type": "bilinear", "num_filter": 2, "num_args": 2}
    yield "up", S.UpSampling(x, S.var("w"), **smooth), {"data": image}
    resize = S.contrib.BilinearResize2D
    yield "resize", resize(x, height=5, width=7), {"data": image}
    yield (
        "resize by scales",
        resize(x, scale_height=2, scale_width=1.5, mode="size"),
        {"data": image},
    )
    made = resize(x, height=6, width=8, align_corners=False)
    yield "resize half pixels", made, {"data": image}
    for kind in (mx.rnn.LSTMCell, mx.rnn.GRUCell, mx.rnn.RNNCell):
        cells, _ = kind(3, prefix="cell_").unroll(3, x, layout="NTC", merge_outputs=True)
        yield f"{kind.__name__} unrolled", cells, {"data": real(rng, 2, 3, 4)}
    yield "resize like", resize(x, y, mode="like"), {"data": image, "other": real(rng, 1, 1, 5, 6)}
