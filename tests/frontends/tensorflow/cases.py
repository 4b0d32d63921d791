"""Calls of TensorFlow's ops, each as a function of tensors, for the tests to build graphs of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Array = NDArray[Any]
raw = tf.raw_ops


@dataclass(frozen=True, eq=False)
class Case:
    """A function of tensors, and the operands it is built and run with."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    near: float = 1e-5
    """How far results may be off, relative to the largest one."""


def _random_floats(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> Array:
    values = np.random.default_rng([seed, *shape]).uniform(low, high, shape)
    return values.astype(np.float32)


def _random_integers(*shape: int, low: int = -5, high: int = 6, kind: type = np.int32) -> Array:
    return np.random.default_rng([*shape]).integers(low, high, shape).astype(kind)


X = _random_floats(2, 8, 10, 6)
ROW = _random_floats(3, 10)
POSITIVE = _random_floats(3, 10, low=0.1, high=4.0)
UNIT = _random_floats(3, 10, low=-0.9, high=0.9)
TIES = np.array([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.0], np.float32)
SPECIAL = np.array([0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
WHOLE = _random_integers(3, 10)
_DRAWN = _random_integers(3, 10, low=-3, high=3)
OTHER = np.where(_DRAWN == 0, 2, _DRAWN).astype(np.int32)


def _functions() -> Iterator[Case]:
    sets = (
        ("Log Sqrt Rsqrt Reciprocal Inv Log1p", POSITIVE),
        ("Acosh", POSITIVE + 1),
        ("Asin Acos Atanh Erf", UNIT),
        ("Exp Sin Cos Tan Atan Sinh Cosh Asinh Expm1 Erfc Sigmoid Tanh Square Neg Sign Abs", ROW),
        ("Relu Relu6 Elu Selu Softplus Softsign LeakyRelu Identity StopGradient Snapshot", ROW),
        ("Floor Ceil Round Rint", TIES),
        ("IsNan IsInf IsFinite", SPECIAL),
    )
    for names, x in sets:
        for name in names.split():
            key = "features" if name in _FEATURES else "input" if name in _INPUTS else "x"
            yield Case(name, lambda x, n=name, k=key: getattr(raw, n)(**{k: x}), (x,))
    yield Case("leaky relu 0.3", lambda x: tf.nn.leaky_relu(x, 0.3), (ROW,))
    yield Case("PreventGradient", lambda x: raw.PreventGradient(input=x), (ROW,))
    yield Case("CheckNumerics", lambda x: raw.CheckNumerics(tensor=x, message=""), (ROW,))
    yield Case("EnsureShape", lambda x: tf.ensure_shape(x, (3, 10)), (ROW,))
    yield Case("IdentityN", lambda x, y: raw.IdentityN(input=[x, y]), (ROW, WHOLE))
    yield Case("LogicalNot", lambda x: tf.logical_not(x > 0), (ROW,))
    yield Case("Invert", lambda x: raw.Invert(x=x), (WHOLE,))
    for to in (tf.int32, tf.float64, tf.float16, tf.bool, tf.int64):
        yield Case(f"Cast {to.name}", lambda x, t=to: tf.cast(x, t), (ROW,))
    yield Case("Cast to itself", lambda x: raw.Cast(x=x, DstT=tf.float32), (ROW,))
    yield Case("default", lambda x: x + tf.compat.v1.placeholder_with_default(2.0, ()), (ROW,))


_FEATURES = "Relu Relu6 Elu Selu Softplus Softsign LeakyRelu".split()
_INPUTS = "Identity StopGradient Snapshot".split()


def _arithmetic() -> Iterator[Case]:
    a, b = ROW, POSITIVE
    floats = "Add AddV2 Sub Mul RealDiv Div FloorDiv FloorMod SquaredDifference Maximum Minimum"
    for name in (*floats.split(), "DivNoNan", "MulNoNan", "TruncateDiv", "TruncateMod", "Mod"):
        yield Case(name, lambda x, y, n=name: getattr(raw, n)(x=x, y=y), (a, b))
    yield Case("Atan2", lambda x, y: raw.Atan2(y=x, x=y), (a, b))
    for name in "AddV2 Sub Mul Div TruncateDiv FloorDiv FloorMod Mod TruncateMod Maximum".split():
        op = getattr(raw, name)
        yield Case(f"{name} of integers", lambda x, y, op=op: op(x=x, y=y), (WHOLE, OTHER))
    zeros = np.where(_random_integers(3, 10) > 1, 0, POSITIVE).astype(np.float32)
    for name in ("Xdivy", "Xlogy", "Xlog1py"):
        yield Case(name, lambda x, y, n=name: getattr(raw, n)(x=x, y=y), (zeros, b))
    yield Case("DivNoNan by zero", lambda x, y: raw.DivNoNan(x=x, y=y), (a, zeros))
    for name in ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"):
        op = getattr(raw, name)
        yield Case(name, lambda x, y, op=op: op(x=x, y=y), (WHOLE, OTHER))
        yield Case(f"{name} number", lambda x, op=op: op(x=x, y=1.5), (TIES,))
    for name in ("LogicalAnd", "LogicalOr"):
        op = getattr(raw, name)
        yield Case(name, lambda x, y, op=op: op(x=x > 0, y=y > 1), (a, b))
    for power in (2.0, 0.5, 3.0, -1.5):
        yield Case(f"Pow {power}", lambda x, p=power: tf.pow(x, p), (b,))
    yield Case("Pow", lambda x, y: tf.pow(x, y), (b, a))
    yield Case("AddN", lambda x, y: tf.add_n([x, y, x]), (a, b))
    yield Case("AddN of one", lambda x: raw.AddN(inputs=[x]), (a,))
    yield Case(
        "AccumulateNV2", lambda x, y: raw.AccumulateNV2(inputs=[x, y], shape=(3, 10)), (a, b)
    )
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield Case(name, lambda x, y, n=name: getattr(raw, n)(x=x, y=y), (WHOLE, OTHER))
    bits, by = (
        _random_integers(3, 4, low=0, high=200, kind=np.uint32),
        _random_integers(3, 4, low=0, high=5),
    )
    for name in ("LeftShift", "RightShift"):
        op = getattr(raw, name)
        yield Case(name, lambda x, y, op=op: op(x=x, y=y), (bits, by.astype(np.uint32)))
    yield Case("ClipByValue", lambda x: tf.clip_by_value(x, -1.0, 2.0), (a,))
    yield Case("ClipByValue rows", lambda x, y: raw.ClipByValue(t=x, clip_value_min=y - 3,
               clip_value_max=y), (a, b))  # fmt: skip
    yield Case("SelectV2", lambda x, y: tf.where(x > 0, x, y), (a, b))
    yield Case("Select", lambda x, y: raw.Select(condition=x > 0, x=x, y=y), (a, b))
    yield Case("Select rows", lambda x, y: raw.Select(condition=x[:, 0] > 0, x=x, y=y), (a, b))


def _windows() -> Iterator[Case]:
    w, depthwise = _random_floats(3, 3, 6, 4, seed=1), _random_floats(3, 3, 6, 2, seed=2)
    turned = _random_floats(3, 3, 4, 6, seed=3)
    volume, kernel = _random_floats(1, 4, 6, 5, 3), _random_floats(2, 3, 2, 3, 4)
    for padding in ("SAME", "VALID"):
        for stride, dilation in ((1, 1), (2, 1), (1, 2), (3, 1)):
            name = f"{padding} stride {stride} dilation {dilation}"
            yield Case(
                f"Conv2D {name}",
                lambda x, p=padding, s=stride, d=dilation: tf.nn.conv2d(x, w, s, p, dilations=d),
                (X,),
            )
        yield Case(
            f"Conv2D of 2 groups {padding}",
            lambda x, p=padding: tf.nn.conv2d(x, w[:, :, :3], 1, p),
            (X,),
        )
        for stride in (1, 2):
            yield Case(
                f"DepthwiseConv2dNative {padding} {stride}",
                lambda x, p=padding, s=stride: tf.nn.depthwise_conv2d(
                    x, depthwise, (1, s, s, 1), p
                ),
                (X,),
            )
            sizes = {"SAME": (8 * stride, 10 * stride), "VALID": (7 * stride + 3, 9 * stride + 3)}
            yield Case(
                f"Conv2DBackpropInput {padding} {stride}",
                lambda x, p=padding, s=stride, z=sizes[padding]: tf.nn.conv2d_transpose(
                    x, turned, (2, *z, 4), s, p
                ),
                (X,),
            )
        for size, stride in ((2, 2), (3, 2), (3, 1)):
            name = f"{padding} {size} {stride}"
            yield Case(
                f"MaxPool {name}",
                lambda x, p=padding, k=size, s=stride: tf.nn.max_pool2d(x, k, s, p),
                (X,),
            )
            yield Case(
                f"AvgPool {name}",
                lambda x, p=padding, k=size, s=stride: tf.nn.avg_pool2d(x, k, s, p),
                (X,),
            )
        yield Case(
            f"Conv3D {padding}",
            lambda x, p=padding: tf.nn.conv3d(x, kernel, (1, 1, 2, 1, 1), p),
            (volume,),
        )
        for stride in (1, 2):
            sides = [n * stride + (padding == "VALID") * max(k - stride, 0)
                     for n, k in zip((4, 6, 5), (2, 3, 2), strict=True)]  # fmt: skip
            yield Case(
                f"Conv3DBackpropInputV2 {padding} {stride}",
                lambda x, p=padding, s=stride, z=tuple(sides): tf.nn.conv3d_transpose(
                    x, kernel.transpose(0, 1, 2, 4, 3), (1, *z, 4), s, p
                ),
                (volume,),
            )
        yield Case(
            f"MaxPool3D {padding}", lambda x, p=padding: tf.nn.max_pool3d(x, 2, 2, p), (volume,)
        )
        yield Case(
            f"AvgPool3D {padding}", lambda x, p=padding: tf.nn.avg_pool3d(x, 2, 2, p), (volume,)
        )
    explicit = [[0, 0], [1, 2], [0, 3], [0, 0]]
    yield Case("Conv2D explicit", lambda x: tf.nn.conv2d(x, w, 2, explicit), (X,))
    yield Case("Conv2D computed weights", lambda x, y: tf.nn.conv2d(x, y, 1, "SAME"), (X, w))
    yield Case("depthwise computed weights", lambda x, y: tf.nn.depthwise_conv2d(
        x, y, (1, 1, 1, 1), "SAME"), (X, _random_floats(3, 3, 6, 1)))  # fmt: skip
    yield Case(
        "atrous", lambda x: tf.batch_to_space(
            tf.nn.conv2d(tf.space_to_batch(x, (2, 2), [[2, 2], [1, 1]]), w, 1, "VALID"),
            (2, 2), [[0, 1], [1, 0]]), (X,)
    )  # fmt: skip
    yield Case("conv, bias, relu", lambda x: tf.nn.relu(tf.nn.bias_add(
        tf.nn.conv2d(x, w, 1, "SAME"), _random_floats(4))), (X,))  # fmt: skip


def _normalization() -> Iterator[Case]:
    rows = [_random_floats(6, seed=i) for i in range(3)] + [
        _random_floats(6, seed=9, low=0.2, high=2.0)
    ]
    for version in ("", "V2", "V3"):
        yield Case(
            f"FusedBatchNorm{version}",
            lambda x, v=version: getattr(raw, f"FusedBatchNorm{v}")(
                x=x,
                scale=rows[0],
                offset=rows[1],
                mean=rows[2],
                variance=rows[3],
                epsilon=0.002,
                is_training=False,
            )[0],
            (X,),
        )
    yield Case("Softmax", tf.nn.softmax, (ROW,))
    yield Case("LogSoftmax", tf.nn.log_softmax, (ROW,))
    yield Case("LRN", lambda x: tf.nn.lrn(x, 2, 1.5, 0.3, 0.6), (X,))
    yield Case("BiasAdd", lambda x: tf.nn.bias_add(x, _random_floats(6)), (X,))
    yield Case("BiasAdd NCHW", lambda x: tf.nn.bias_add(x, _random_floats(8), "NCHW"), (X,))
    yield Case("BiasAddV1", lambda x: raw.BiasAddV1(value=x, bias=_random_floats(6)), (X,))
    yield Case("L2Loss", tf.nn.l2_loss, (X,))


def _products() -> Iterator[Case]:
    a, b = _random_floats(4, 5), _random_floats(5, 3)
    yield Case("MatMul", tf.matmul, (a, b))
    yield Case("MatMul constant", lambda x: tf.matmul(x, b) + _random_floats(3), (a,))
    yield Case("MatMul a", lambda x, y: tf.matmul(x, y, transpose_a=True), (a.T.copy(), b))
    yield Case("MatMul b", lambda x, y: tf.matmul(x, y, transpose_b=True), (a, b.T.copy()))
    stack, other = _random_floats(2, 3, 4, 5), _random_floats(2, 3, 5, 2)
    for name in ("BatchMatMul", "BatchMatMulV2"):
        yield Case(name, lambda x, y, n=name: getattr(raw, n)(x=x, y=y), (stack, other))
    yield Case(
        "BatchMatMulV3", lambda x, y: raw.BatchMatMulV3(x=x, y=y, Tout=tf.float32), (stack, other)
    )
    yield Case("BatchMatMul y", lambda x, y: raw.BatchMatMulV2(x=x, y=y, adj_y=True), (stack,
               _random_floats(2, 3, 2, 5)))  # fmt: skip
    q, k = _random_floats(2, 5, 3, 4), _random_floats(2, 6, 3, 4, seed=1)
    for name, by, other in (
        ("scores", "BTNH,BSNH->BNTS", k),
        ("rows", "abcd,de->abce", k[0, 0].T),
        ("turned", "abcd,ed->eabc", k[0, 0]),
    ):
        yield Case(f"Einsum {name}", lambda x, y, e=by: tf.einsum(e, x, y), (q, other))
    yield Case("Einsum values", lambda x, y: tf.einsum("BNTS,BSNH->BTNH", x, y),
               (_random_floats(2, 3, 5, 6), k))  # fmt: skip
    for name, by in (
        ("trace", "ab,ab->"),
        ("outer", "ab,cd->abcd"),
        ("summed", "ab,bc->a"),
        ("each", "ab,ab->ab"),
        ("diagonal", "aa,ab->ab"),
    ):
        yield Case(f"Einsum {name}", lambda x, y, e=by: tf.einsum(e, x, y),
                   (_random_floats(3, 3), _random_floats(3, 3, seed=1)))  # fmt: skip
    yield Case("Einsum", lambda x, y: tf.einsum("abc,cde->abde", x, y), (_random_floats(2, 3, 4),
               _random_floats(4, 2, 5)))  # fmt: skip


def _reductions() -> Iterator[Case]:
    for name in ("Mean", "Sum", "Prod", "Max", "Min", "EuclideanNorm"):
        op = getattr(raw, name)
        for axes, keep in (((1, 2), True), ((-1,), False), ((0, 1, 2, 3), False)):
            yield Case(
                f"{name} {axes}",
                lambda x, op=op, a=axes, k=keep: op(input=x, axis=a, keep_dims=k),
                (_random_floats(2, 3, 4, 2),),
            )
    for name in ("All", "Any"):
        op = getattr(raw, name)
        yield Case(name, lambda x, op=op: op(input=x > -1, axis=[1]), (ROW,))
    for name in ("ArgMax", "ArgMin"):
        op = getattr(raw, name)
        yield Case(name, lambda x, op=op: op(input=x, dimension=-1), (ROW,))
        yield Case(f"{name} i32", lambda x, op=op: op(input=x, dimension=0, output_type=tf.int32),
                   (ROW,))  # fmt: skip
    yield Case("Cumsum", lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), (ROW,))
    yield Case("Cumprod", lambda x: tf.math.cumprod(x, 0), (ROW,))
    yield Case("TopKV2", lambda x: tuple(tf.nn.top_k(x, 3)), (ROW,))


def _moves() -> Iterator[Case]:
    x = _random_floats(2, 3, 4, 5)
    yield Case("Reshape", lambda x: tf.reshape(x, (3, -1)), (x,))
    yield Case("Transpose", lambda x: tf.transpose(x, (0, 2, 3, 1)), (x,))
    yield Case("Transpose nothing", lambda x: tf.transpose(x, (0, 1, 2, 3)), (x,))
    yield Case("ExpandDims", lambda x: tf.expand_dims(x, -2), (x,))
    yield Case("Squeeze", lambda x: tf.squeeze(x), (_random_floats(1, 3, 1, 2),))
    yield Case("Squeeze axis", lambda x: tf.squeeze(x, -2), (_random_floats(1, 3, 1, 2),))
    yield Case("ConcatV2", lambda x, y: tf.concat([x, y, x], -1), (x, x * 2))
    yield Case("ConcatV2 of one", lambda x: raw.ConcatV2(values=[x, x], axis=0), (x,))
    yield Case("Concat", lambda x, y: raw.Concat(concat_dim=1, values=[x, y]), (x, x * 2))
    yield Case("Pack", lambda x, y: tf.stack([x, y], -1), (x, x * 2))
    yield Case("Pack of one", lambda x: tf.stack([x], 1), (x,))
    yield Case("Unpack", lambda x: tf.unstack(x, axis=-2), (x,))
    yield Case("Split", lambda x: tf.split(x, 2, 2), (x,))
    yield Case("Split of one", lambda x: raw.Split(axis=1, value=x, num_split=1), (x,))
    yield Case("SplitV", lambda x: tf.split(x, [1, -1, 2], -1), (x,))
    yield Case("Pad", lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]), (x,))
    yield Case("PadV2", lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]],
               constant_values=1.5), (x,))  # fmt: skip
    for mode in ("REFLECT", "SYMMETRIC"):
        yield Case(f"MirrorPad {mode}", lambda x, m=mode: tf.pad(
            x, [[0, 0], [1, 2], [2, 1], [0, 0]], m), (x,))  # fmt: skip
    yield Case("Tile", lambda x: tf.tile(x, (1, 2, 1, 3)), (x,))
    yield Case("Tile at", lambda x, counts: tf.tile(x, counts), (x,
               np.array([2, 1, 3, 1], np.int32)))  # fmt: skip
    yield Case("BroadcastTo", lambda x: tf.broadcast_to(x, (2, 3, 10)), (ROW,))
    yield Case("ReverseV2", lambda x: tf.reverse(x, [1, -1]), (x,))
    yield Case("Roll", lambda x: tf.roll(x, [1, -2], [1, 3]), (x,))
    image = _random_floats(2, 4, 6, 8)
    yield Case("DepthToSpace", lambda x: tf.nn.depth_to_space(x, 2), (image,))
    yield Case("SpaceToDepth", lambda x: tf.nn.space_to_depth(x, 2), (image,))
    yield Case("SpaceToBatchND", lambda x: tf.space_to_batch(x, (2, 3), [[1, 1], [0, 0]]), (image,))
    yield Case("BatchToSpaceND", lambda x: tf.batch_to_space(x, (2, 2), [[0, 1], [1, 2]]),
               (_random_floats(8, 4, 3, 2),))  # fmt: skip
    yield Case("StridedSlice", lambda x: x[:, 1:, ::2, -3:-1], (x,))
    yield Case("StridedSlice back", lambda x: x[::-1, :, 3:0:-1], (x,))
    yield Case("StridedSlice new", lambda x: x[tf.newaxis, ..., 1, tf.newaxis], (x,))
    yield Case("StridedSlice gone", lambda x: x[-1, ..., 2:], (x,))
    yield Case("StridedSlice all", lambda x: x[:, :, :], (x,))
    yield Case("StridedSlice middle", lambda x: x[0, tf.newaxis, 1:2, ..., -2], (x,))
    yield Case("Slice", lambda x: tf.slice(x, (0, 1, 0, 2), (-1, 2, 4, 2)), (x,))
    yield Case("Slice at", lambda x, at: tf.slice(x, at, (1, 2, 2, 2)), (x,
               np.array([1, 0, 1, 2], np.int32)))  # fmt: skip


def _indices() -> Iterator[Case]:
    at = _random_integers(2, 3, low=0, high=3)
    yield Case("GatherV2", lambda x, i: tf.gather(x, i, axis=1), (_random_floats(3, 4, 2), at))
    yield Case("GatherV2 batch", lambda x, i: tf.gather(x, i, axis=1, batch_dims=1),
               (_random_floats(2, 5, 3), at))  # fmt: skip
    yield Case("Gather", lambda x, i: raw.Gather(params=x, indices=i), (ROW, at))
    yield Case(
        "GatherNd", lambda x, i: tf.gather_nd(x, i), (ROW, _random_integers(4, 2, low=0, high=3))
    )
    yield Case("OneHot", lambda i: tf.one_hot(i, 4), (_random_integers(5, low=-1, high=6),))
    yield Case("OneHot axis", lambda i: tf.one_hot(i, 4, 2.0, -1.0, axis=0), (at,))
    places = np.array([[0], [2]], np.int32)
    new = _random_floats(2, 10, seed=5)
    for name in ("Update", "Add", "Max", "Min"):
        op = getattr(raw, f"TensorScatter{name}")
        yield Case(f"TensorScatter{name}", lambda x, i, y, op=op: op(
            tensor=x, indices=i, updates=y), (ROW, places, new))  # fmt: skip
    yield Case("ScatterNd", lambda i, y: tf.scatter_nd(i, y, (4, 10)), (places, new))
    yield Case("Where", lambda x: tf.where(x > 0), (ROW,))
    for below, above in ((1, 0), (-1, 1), (0, -1), (-1, 0)):
        yield Case(f"MatrixBandPart {below} {above}", lambda x, b=below, a=above:
                   tf.linalg.band_part(x, b, a), (ROW,))  # fmt: skip
    lengths = np.array([2, 4, 1], np.int32)
    yield Case("ReverseSequence", lambda x, n: tf.reverse_sequence(x, n, seq_axis=1, batch_axis=0),
               (_random_floats(3, 4, 2), lengths))  # fmt: skip
    yield Case("Unique", lambda x: tuple(tf.unique(x)), (_random_integers(12),))


def _creation() -> Iterator[Case]:
    yield Case("Shape", lambda x: raw.Shape(input=x), (ROW,))
    yield Case("Shape i64", lambda x: tf.shape(x, tf.int64), (ROW,))
    yield Case("ShapeN", lambda x, y: raw.ShapeN(input=[x, y]), (ROW, X))
    yield Case("Size", lambda x: raw.Size(input=x), (ROW,))
    yield Case("Rank", lambda x: raw.Rank(input=x), (ROW,))
    yield Case("Range", lambda n: tf.range(0, n, 2), (np.array(9, np.int32),))
    yield Case("Fill", lambda x: tf.fill((2, 3), x), (np.array(1.5, np.float32),))
    yield Case("Fill constant", lambda x: x + tf.fill((3, 10), 2.0), (ROW,))
    yield Case("Fill large", lambda x: x + tf.fill((3, 10000), 2.0), (ROW[:, :1],))
    yield Case("ZerosLike", lambda x: raw.ZerosLike(x=x), (ROW,))
    yield Case("OnesLike", lambda x: raw.OnesLike(x=x), (WHOLE,))
    yield Case("LinSpace", lambda x: x * raw.LinSpace(start=0.0, stop=3.0, num=10), (ROW,))
    yield Case("InvertPermutation", lambda x: tf.transpose(x, tf.math.invert_permutation(
        [2, 0, 1])), (_random_floats(2, 3, 4),))  # fmt: skip


def _resizes() -> Iterator[Case]:
    for size in ((16, 20), (5, 7), (4, 5)):
        for flag in ("", "align_corners", "half_pixel_centers"):
            more = {flag: True} if flag else {}
            for name in ("ResizeBilinear", "ResizeNearestNeighbor"):
                op = getattr(raw, name)
                yield Case(f"{name} {size} {flag}", lambda x, op=op, m=more, s=size: op(
                    images=x, size=s, **m), (X,))  # fmt: skip


def _simulated() -> Iterator[Case]:
    """Simulated quantization.

    TensorFlow computes it in several float32 steps, which with 16 bits put a few values on the
    other side of a tie: these are off by one step of 65,535.
    """
    fake = tf.quantization
    for bits, narrow in ((8, False), (8, True), (4, False), (16, False)):
        near = 4e-5 if bits == 16 else 1e-6
        name = f"{bits} bits{' narrow' if narrow else ''}"
        yield Case(f"FakeQuantWithMinMaxArgs {name}", lambda x, b=bits, n=narrow:
                   fake.fake_quant_with_min_max_args(x, -1.3, 2.1, b, n), (X,), near)  # fmt: skip
        yield Case(f"FakeQuantWithMinMaxVars {name}", lambda x, b=bits, n=narrow:
                   fake.fake_quant_with_min_max_vars(x, 0.3, 2.1, b, n), (X,), near)  # fmt: skip
        low, high = _random_floats(6, low=-3, high=-0.1), _random_floats(6, low=0.1, high=3)
        yield Case(f"FakeQuantWithMinMaxVarsPerChannel {name}", lambda x, b=bits, n=narrow, r=(
                   low, high): fake.fake_quant_with_min_max_vars_per_channel(x, *r, b, n),
                   (X,), near)  # fmt: skip
        for signed in (True, False):
            more = {"signed_input": signed, "narrow_range": narrow, "range_given": True}
            v2, v3, v4 = (getattr(raw, f"QuantizeAndDequantizeV{i}") for i in (2, 3, 4))
            ends = {"input_min": -2.2 * signed, "input_max": 1.9, **more}
            yield Case(f"QuantizeAndDequantizeV2 {signed} {name}", lambda x, op=v2, b=bits, e=ends:
                       op(input=x, num_bits=b, round_mode="HALF_UP", **e), (X,), near)  # fmt: skip
            yield Case(f"QuantizeAndDequantizeV3 {signed} {name}", lambda x, op=v3, b=bits, e=ends:
                       op(input=x, num_bits=b, **e), (X,), near)  # fmt: skip
            yield Case(f"QuantizeAndDequantizeV4 {signed} {name}", lambda x, op=v4, b=bits, e=ends:
                       op(input=x, num_bits=b, **e), (X,), near)  # fmt: skip
    w = _random_floats(3, 3, 6, 4, seed=1)
    yield Case("quantization-aware convolution", lambda x: tf.nn.conv2d(
        fake.fake_quant_with_min_max_args(x, -3.0, 3.0),
        fake.fake_quant_with_min_max_vars_per_channel(w, [-3.0] * 4, [3.0, 2.0, 1.0, 2.5]),
        1, "SAME"), (X,))  # fmt: skip


def _counts() -> Iterator[Case]:
    bounds = [-1.0, 0.0, 0.5, 2.0]
    held = np.array([[-2.0, -1.0, 0.2, 0.5], [2.0, 3.0, np.inf, -np.inf]], np.float32)
    for kind in (np.float32, np.float64, np.int32):
        x = (held if kind != np.int32 else _random_integers(2, 4)).astype(kind)
        yield Case(f"Bucketize {x.dtype}",
                   lambda x: raw.Bucketize(input=x, boundaries=bounds), (x,))  # fmt: skip
    ids, weights = _random_integers(3, 6, low=0, high=7), _random_floats(3, 6)
    for name, data, by in (("row", ids[0], []), ("rows", ids, []), ("weighted", ids, weights)):
        for binary in (False, True):
            yield Case(f"DenseBincount {name} {binary}", lambda x, w=by, b=binary:
                       raw.DenseBincount(input=x, size=5, weights=np.asarray(w, np.float32),
                                         binary_output=b), (data,))  # fmt: skip
    yield Case("BroadcastArgs", lambda x: tf.broadcast_to(x, raw.BroadcastArgs(
        s0=[3, 1, 4], s1=tf.shape(x))), (_random_floats(5, 1),))  # fmt: skip
    yield Case("BroadcastArgs computed", lambda x, y: tf.broadcast_dynamic_shape(x, y),
               (np.array([3, 1, 4], np.int32), np.array([5, 1], np.int32)))  # fmt: skip


def _spectra() -> Iterator[Case]:
    a, b = _random_floats(3, 12), _random_floats(3, 12, seed=1)
    for length in (12, 11, 8, 1):
        yield Case(f"RFFT of {length}", lambda x, n=length: [part(tf.signal.rfft(x, [n]))
                   for part in (tf.math.real, tf.math.imag, tf.abs)], (a,))  # fmt: skip
    for length in (12, 11):
        bins = length // 2 + 1
        yield Case(f"IRFFT of {length}", lambda x, y, n=length, k=bins: tf.signal.irfft(
            tf.complex(x[:, :k], y[:, :k]), [n]), (a, b))  # fmt: skip
    yield Case("Angle", lambda x, y: tf.math.angle(tf.complex(x, y)), (a, b))
    yield Case("Conj", lambda x, y: tf.math.imag(tf.math.conj(tf.complex(x, y))), (a, b))
    yield Case("STFT", lambda x: tf.abs(tf.signal.stft(x, 16, 8)), (_random_floats(2, 100),))


def cases() -> list[Case]:
    """Returns all of them."""
    families = (_functions, _arithmetic, _windows, _normalization, _products, _reductions, _moves)
    more = (_indices, _creation, _resizes, _simulated, _counts, _spectra)
    return [case for family in (*families, *more) for case in family()]
