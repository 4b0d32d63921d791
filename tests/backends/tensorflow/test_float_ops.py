"""Every float op that is written computes in TensorFlow what the reference does."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir.backends.tensorflow import session
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import FLOAT, to_graphdef
from qir.frontends.tensorflow.graphdef import outputs_of, source_from
from qir.frontends.tensorflow.messages import GraphDefMessage
from qir.ir import types
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I64, dtype
from qir.ir.node import Value
from qir.ir.types import TensorType

from .written import close

pytest.importorskip("tensorflow")
Array = NDArray[np.generic]
SEED = 23


def whole(numbers: object) -> Array:
    return np.asarray(numbers, np.int64)


@dataclass
class Case:
    """An op with the shapes of its operands, and what the inputs are drawn from."""

    op: str
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 4),)
    attrs: dict[str, Attr] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    kind: str = "f32"


X, IMAGE = ((2, 3, 4),), ((2, 3, 8, 9),)
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal", "log2", "log10", "log1p", "pow")
UNIT = ("asin", "acos", "atanh")
KERNEL: dict[str, Attr] = {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 0, 1, 1)}
VOLUME = ((2, 4, 5, 6, 4),)
VOLUME_KERNEL: dict[str, Attr] = {"kernel": (3, 2, 2), "stride": (2, 2, 1),
                                  "pad": (1, 0, 0, 1, 1, 0)}  # fmt: skip
ROW = np.linspace(0.5, 1.5, 3).astype(np.float32)
ENDS = np.array([np.inf, -np.inf, 1.0, np.nan], np.float32)
FILL = types.Array.of(np.array([2.5], np.float32), "v")
CASES = {
    "add": Case("add", ((2, 3, 4), (3, 1))),
    "int div": Case("div", ((2, 3), (2, 3)), kind="i64", low=1, high=9),
    "mod": Case("mod", ((2, 3), (2, 3)), kind="i64", low=1, high=9),
    "fmod": Case("mod", ((2, 3), (2, 3)), {"fmod": True}, low=1),
    "floor_div": Case("floor_div", ((2, 3), (2, 3)), kind="i64", low=1, high=9),
    "bits": Case("bit_and", ((2, 3), (2, 3)), kind="i64", low=0, high=99),
    "bit_or": Case("bit_or", ((2, 3), (2, 3)), kind="i64", low=0, high=99),
    "bit_xor": Case("bit_xor", ((2, 3), (2, 3)), kind="i64", low=0, high=99),
    "bit_not": Case("bit_not", ((2, 3),), kind="i64", low=0, high=99),
    **{op: Case(op, ((2, 3), (2, 3)), kind="bool", low=0, high=2)
       for op in ("logical_and", "logical_or", "logical_xor")},
    "logical_not": Case("logical_not", ((2, 3),), kind="bool", low=0, high=2),
    "clip": Case("clip", X, {"min": -0.5, "max": 1.0}),
    "relu6": Case("clip", X, {"min": 0.0, "max": 6.0}, low=-9, high=9),
    "below": Case("clip", X, {"max": 1.0}),
    "gelu tanh": Case("gelu", X, {"approximate": "tanh"}),
    "silu of more": Case("silu", X, {"alpha": 1.7}),
    "prelu": Case("prelu", X, constants={"slope": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}),
    "where": Case("where", ((2, 3), (2, 3)), constants={"condition": np.eye(2, 3, dtype=bool)}),
    "cast": Case("cast", X, {"to": I64}, low=-9, high=9),
    "min": Case("min", ((2, 3), (2, 3), (2, 3))),
    "max": Case("max", ((2, 3), (2, 3))),
    "sum": Case("sum", ((2, 3), (2, 3))),
    "mean": Case("mean", ((2, 3), (2, 3), (2, 3))),
    "conv2d": Case("conv2d", IMAGE, {"stride": (2, 1), "pad": (1, 0, 0, 1)},
                   {"w": (5, 3, 3, 2), "bias": (5,)}),
    "grouped": Case("conv2d", ((2, 4, 8, 9),), {"groups": 2}, {"w": (6, 2, 3, 3)}),
    "dilated": Case("conv2d", IMAGE, {"dilation": (2, 2), "pad": (2, 2, 2, 2)},
                    {"w": (4, 3, 3, 3)}),
    "depthwise": Case("conv2d", ((2, 4, 8, 9),), {"groups": 4, "pad": (1, 1, 1, 1)},
                      {"w": (8, 1, 3, 3), "bias": (8,)}),
    "conv1d": Case("conv1d", ((2, 3, 9),), {"stride": (2,), "pad": (1, 1)},
                   {"w": (5, 3, 3), "bias": (5,)}),
    "max_pool2d": Case("max_pool2d", IMAGE, KERNEL),
    "max_pool2d up": Case("max_pool2d", IMAGE, {**KERNEL, "ceil": True}),
    "avg_pool2d": Case("avg_pool2d", IMAGE, KERNEL),
    "conv3d": Case("conv3d", VOLUME, {"stride": (2, 1, 1), "pad": (1, 0, 0, 1, 1, 0)},
                   {"w": (5, 4, 3, 3, 2), "bias": (5,)}),
    "conv3d of groups": Case("conv3d", VOLUME, {"groups": 2, "dilation": (1, 2, 1)},
                             {"w": (6, 2, 2, 2, 2)}),
    "conv_transpose2d": Case("conv_transpose2d", IMAGE, {"stride": (2, 3)},
                             {"w": (3, 5, 2, 3), "bias": (5,)}),
    "conv_transpose2d same": Case("conv_transpose2d", IMAGE,
                                  {"stride": (2, 2), "pad": (0, 0, 1, 1)}, {"w": (3, 4, 3, 3)}),
    "conv_transpose2d cut": Case("conv_transpose2d", IMAGE,
                                 {"stride": (2, 2), "pad": (1, 2, 1, 0), "output_pad": (1, 0)},
                                 {"w": (3, 4, 4, 3), "bias": (4,)}),
    "conv_transpose2d of groups": Case("conv_transpose2d", ((2, 4, 5, 6),),
                                       {"groups": 2, "dilation": (2, 1), "stride": (1, 2)},
                                       {"w": (4, 3, 2, 3)}),
    "conv_transpose3d": Case("conv_transpose3d", VOLUME, {"stride": (2, 1, 2)},
                             {"w": (4, 2, 2, 3, 2), "bias": (2,)}),
    "max_pool3d": Case("max_pool3d", VOLUME, VOLUME_KERNEL),
    "max_pool3d up": Case("max_pool3d", VOLUME, {**VOLUME_KERNEL, "ceil": True}, low=-3, high=-1),
    "avg_pool3d": Case("avg_pool3d", VOLUME, VOLUME_KERNEL),
    "avg_pool3d same": Case("avg_pool3d", VOLUME, {"kernel": (2, 3, 2), "pad": (0, 1, 0, 1, 1, 1)}),
    "avg_pool3d counted": Case("avg_pool3d", VOLUME, {**VOLUME_KERNEL, "count_pad": True}),
    "matmul": Case("matmul", ((2, 3, 4), (2, 4, 5))),
    "matmul turned": Case("matmul", ((4, 3), (5, 4)), {"trans_a": True, "trans_b": True}),
    "gemm": Case("gemm", ((3, 4),), {"alpha": 0.5, "beta": 2.0, "trans_b": True},
                 {"b": (5, 4), "c": (5,)}),
    "linear": Case("linear", ((2, 3, 4),), {}, {"w": (5, 4), "bias": (5,)}),
    "softmax": Case("softmax", X, {"axis": 1}),
    "log_softmax": Case("log_softmax", X),
    "reshape": Case("reshape", X, {}, {"shape": whole([3, -1])}),
    "flatten": Case("flatten", IMAGE, {"axis": 2}),
    "transpose": Case("transpose", X, {"perm": (2, 0, 1)}),
    "concat": Case("concat", ((2, 3), (2, 5)), {"axis": -1}),
    "pad": Case("pad", X, {"pads": (0, 1, 2, 1, 0, 0), "value": 3.0}),
    "reflect": Case("pad", X, {"pads": (0, 1, 2, 1, 0, 0), "mode": "reflect"}),
    "squeeze": Case("squeeze", ((2, 1, 3, 1),), {"axes": (1,)}),
    "unsqueeze": Case("unsqueeze", X, {"axes": (0, 3)}),
    "slice": Case("slice", X, {"starts": (1, -1), "ends": (9, -9), "axes": (1, 2),
                               "steps": (1, -2)}),
    "split": Case("split", X, {"sizes": (1, 3), "axis": 2}),
    "gather": Case("gather", X, {"axis": 1}, {"indices": whole([2, -1, 0])}),
    "gather_nd": Case("gather_nd", X, {}, {"indices": whole([[1, 2], [0, 0]])}),
    "gather_nd batch": Case("gather_nd", ((2, 3, 4, 2),), {"batch": 2},
                            {"indices": whole([[[1], [0], [3]], [[2], [2], [0]]])}),
    "gather_nd negative": Case("gather_nd", X, {}, {"indices": whole([[-1, -2], [0, -3]])}),
    "gather_nd batch negative": Case("gather_nd", X, {"batch": 1},
                                     {"indices": whole([[[-1, -4]], [[-3, 3]]])}),
    "lrn": Case("lrn", ((2, 7, 3, 4),), {"size": 5, "alpha": 0.7, "beta": 0.6, "bias": 1.5}),
    "embedding": Case("embedding", ((6, 4),), {}, {"indices": whole([[1, 5], [0, 2]])}),
    "expand": Case("expand", ((3, 1),), {}, {"shape": whole([2, 1, 4])}),
    "tile": Case("tile", X, {"repeats": (1, 2, 3)}),
    "flip": Case("flip", X, {"axes": (0, 2)}),
    "shape": Case("shape", X, {"start": 1}),
    "size": Case("size", X),
    "depth_to_space": Case("depth_to_space", ((2, 8, 3, 4),), {"block": 2}),
    "space_to_depth": Case("space_to_depth", ((2, 3, 4, 6),), {"block": 2}),
    **{f"resize_nearest {place} {rounding} {by}": Case("resize_nearest", IMAGE, {
        "scales": (1.0, 1.0, float(by), 3.0 if by == 2 else 0.5),
        "coordinates": place, "rounding": rounding})
       for place, rounding, by in (
           ("asymmetric", "floor", 1.5), ("tf_half_pixel_for_nn", "floor", 1.5),
           ("half_pixel", "round_prefer_ceil", 1.5), ("align_corners", "round_prefer_ceil", 1.5),
           ("half_pixel", "round_prefer_floor", 2), ("half_pixel", "round_prefer_ceil", 2),
       )},
    "resize_nearest twice": Case("resize_nearest", IMAGE, {
        "scales": (1.0, 1.0, 2.0, 2.0), "coordinates": "asymmetric",
        "rounding": "round_prefer_floor"}),
    "one_hot": Case("one_hot", (), {"depth": 4},
                    {"indices": whole([[1, 5], [-1, 0]]), "values": np.array([0.5, 2], "f4")}),
    "one_hot axis": Case("one_hot", (), {"depth": 4, "axis": 1},
                         {"indices": whole([[1, 5], [-1, 0]]), "values": whole([0, 1])}),
    "slice_at": Case("slice_at", X, {"axes": (2, 0), "steps": (2, 1)},
                     {"starts": whole([1, -1]), "ends": whole([2**40, 2**40])}),
    "slice_at back": Case("slice_at", X, {"axes": (1,), "steps": (-1,)},
                          {"starts": whole([-1]), "ends": whole([-(2**40)])}),
    "reverse_sequence": Case("reverse_sequence", X, {"batch": 0, "time": 1},
                             {"lengths": whole([1, 3])}),
    **{f"scatter_nd {how}": Case("scatter_nd", X, {"reduction": how},
                                 {"indices": whole([[1, 2], [0, 0]]), "updates": (2, 4)})
       for how in ("none", "add", "max", "min")},
    "scatter_nd negative": Case("scatter_nd", X, {},
                                {"indices": whole([[-1, -2], [0, -3]]), "updates": (2, 4)}),
    "nonzero": Case("nonzero", ((3, 4),), kind="bool"),
    "trilu": Case("trilu", X, {"k": -1}),
    "trilu low": Case("trilu", X, {"k": 1, "upper": False}),
    "is_inf": Case("is_inf", (), {}, {"x": ENDS}),
    "is_inf above": Case("is_inf", (), {"negative": False}, {"x": ENDS}),
    "is_inf below": Case("is_inf", (), {"positive": False}, {"x": ENDS}),
    "bit_shift": Case("bit_shift", (), {"direction": "left"},
                      {"a": whole([1, 5, 9]), "b": whole([0, 2, 3])}),
    "bit_shift right": Case("bit_shift", (), {"direction": "right"},
                            {"a": whole([1, 50, 900]), "b": whole([0, 2, 3])}),
    "resize_nearest": Case("resize_nearest", IMAGE, {"scales": (1.0, 1.0, 2.0, 3.0)}),
    "resize": Case("resize", IMAGE, {"scales": (1.0, 1.0, 2.0, 2.0)}),
    "constant_of_shape": Case("constant_of_shape", (), {"value": FILL},
                              {"shape": whole([2, 3])}),
    "einsum": Case("einsum", ((2, 3, 4), (2, 4, 5)), {"equation": "abc,acd->abd"}),
    "range": Case("range", (), {}, {"start": np.int64(1), "limit": np.int64(9),
                                    "step": np.int64(3)}),
    **{op: Case(op, X, {"axes": (0, 2), "keep": False})
       for op in ("reduce_mean", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min",
                  "reduce_l1", "reduce_l2", "reduce_sum_square", "reduce_log_sum_exp")},
    "reduce_log_sum": Case("reduce_log_sum", X, {"axes": (1,)}, low=0.5),
    "top_k": Case("top_k", X, {"k": 2}),
    "arg_max": Case("arg_max", X, {"axis": 1}),
    "arg_min": Case("arg_min", X, {"axis": 2, "keep": False}),
    "cumsum": Case("cumsum", X, {"axis": 1, "reverse": True}),
    "cumprod": Case("cumprod", X, {"axis": 1}),
    "batch_norm": Case("batch_norm", X, {}, {"gamma": ROW, "beta": ROW, "mean": ROW, "var": ROW}),
    "layer_norm": Case("layer_norm", ((2, 5, 3),), {}, {"gamma": ROW, "beta": ROW}),
    "rms_norm": Case("rms_norm", ((2, 5, 3),), {}, {"gamma": ROW}),
    "instance_norm": Case("instance_norm", IMAGE, {}, {"gamma": ROW, "beta": ROW}),
    "global_avg_pool": Case("global_avg_pool", IMAGE),
    "global_avg_pool of rows": Case("global_avg_pool", X, {"layout": "NHWC"}),
    "global_max_pool of volumes": Case("global_max_pool", ((2, 3, 4, 5, 6),), {"layout": "NHWC"}),
    "global_max_pool": Case("global_max_pool", IMAGE),
}  # fmt: skip
_BY_NAME = {case.op for case in CASES.values()}
for name in sorted(set(FLOAT) - _BY_NAME - {"attention"}):
    slots = len(qir.ir.ops.spec(name).operands)
    low, high = (0.3, 2.0) if name in POSITIVE else (-0.9, 0.9) if name in UNIT else (-2.0, 2.0)
    low = 1.1 if name == "acosh" else low
    CASES[name] = Case(name, X * slots, low=low, high=high)


def build(case: Case) -> tuple[qir.Graph, dict[str, Array]]:
    rng = np.random.default_rng(SEED)
    graph = qir.parse("graph main as native { %z = input() : 1xf32  output(y=%z) }")
    names = [slot.name for slot in qir.ir.ops.spec(case.op).operands]
    names = [f"xs.{i}" for i in range(len(case.shapes))] if names == ["xs"] else names
    free = iter(name for name in names if name not in case.constants)
    operands: dict[str, Value] = {}
    feeds: dict[str, Array] = {"z": np.zeros(1, np.float32)}
    for shape in case.shapes:
        slot = next(free)
        drawn = rng.uniform(case.low, case.high, shape)
        data = drawn.astype(np.float32 if case.kind == "f32" else np.int64)
        data = data.astype(bool) if case.kind == "bool" else data
        name = f"in_{slot.replace('.', '_')}"
        kind = TensorType(shape, F32 if case.kind == "f32" else dtype(case.kind))
        operands[slot] = graph.add("input", types=[kind], name=name).result
        feeds[name] = data
    for slot, held in case.constants.items():
        given = rng.normal(size=held).astype(np.float32) if isinstance(held, tuple) else held
        operands[slot] = graph.constant(np.asarray(given))
    operands = {name: operands[name] for name in sorted(operands, key=lambda s: _place(s, names))}
    made = graph.add(case.op, operands, case.attrs)
    for i, value in enumerate(made.results):
        graph.set_operand(graph.output, "y" if not i else f"y{i}", value)
    return graph, feeds


def _place(slot: str, names: list[str]) -> int:
    return names.index(slot)


@pytest.mark.parametrize("name", CASES)
def test_an_op_computes_in_tensorflow_what_the_reference_does(name: str) -> None:
    graph, feeds = build(CASES[name])
    written = to_graphdef(converted(graph, qir.Ledger(), kernels=True))
    found = session.TensorFlowSession(written, 1).values(feeds, written.outputs)
    wanted = qir.run(graph, feeds)
    assert (
        outputs_of(source_from(GraphDefMessage.FromString(written.data), name)).keys()
        == wanted.keys()
    )
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        theirs = np.asarray(found[key])
        assert theirs.shape == array.shape
        assert theirs.dtype == array.dtype
        if array.dtype.kind == "f":
            assert np.abs(theirs - array).max() <= 1e-4 * max(np.abs(array).max(), 1e-6), f"{SEED}"
        else:
            assert np.array_equal(theirs, array), f"{SEED}"


def test_what_no_output_hangs_on_is_not_written() -> None:
    graph = qir.parse("graph main as native { %x = input() : (N)x3xf32  output(x=%x) }")
    rows = graph.add("shape", {"x": graph.inputs[0]}).result
    graph.add("concat", {"xs.0": rows, "xs.1": rows}, {"axis": 0})
    written = to_graphdef(converted(graph, qir.Ledger(), kernels=True))
    nodes = GraphDefMessage.FromString(written.data).node
    assert [node.op for node in nodes] == ["Placeholder", "Identity"]
    assert list(written.values.values()) == [nodes[0].name]
    assert outputs_of(source_from(GraphDefMessage.FromString(written.data), "g")) == {
        written.outputs["x"]: (written.outputs["x"], 0)
    }


def test_sizes_of_a_transposed_convolution_may_be_open() -> None:
    rng = np.random.default_rng(SEED)
    text = "graph main as native { %x = input() : (N)x3x(H)x5xf32  output(x=%x) }"
    graph = qir.parse(text)
    w = graph.constant(rng.normal(size=(3, 2, 3, 3)).astype(np.float32))
    operands = {"x": graph.inputs[0], "w": w}
    made = graph.add("conv_transpose2d", operands, {"stride": (2, 2), "pad": (1, 0, 0, 1)})
    graph.set_operand(graph.output, "y", made.result)
    close(graph, {"x": rng.normal(size=(2, 3, 4, 5)).astype(np.float32)})


@pytest.mark.parametrize("kind", ["i64", "i32"])
@pytest.mark.parametrize("sizes", ["2x3x4", "(N)x(M)x4"])
@pytest.mark.parametrize(
    ("op", "attrs", "indices"),
    [
        ("gather", {"axis": 0}, -1),
        ("gather", {"axis": 1}, [[-1, 2], [0, -3]]),
        ("gather", {"axis": -2}, [-1]),
        ("gather_nd", {}, [[-1, -2], [0, -3], [1, 2]]),
        ("gather_nd", {}, [[-1]]),
        ("gather_nd", {"batch": 1}, [[[-1, -4]], [[-3, 3]]]),
        ("gather_nd", {"batch": 2}, [[[-1]] * 3, [[-4]] * 3]),
        ("scatter_nd", {}, [[-1, -2], [0, -3]]),
    ],
)
def test_computed_indices_may_count_from_the_end(
    op: str, attrs: dict[str, Attr], indices: object, sizes: str, kind: str
) -> None:
    rng = np.random.default_rng(SEED)
    at = np.asarray(indices, dtype(kind).carrier)
    inputs = f"%x = input() : {sizes}xf32  %i = input() : {'x'.join(map(str, (*at.shape, kind)))}"
    graph = qir.parse(f"graph main as native {{ {inputs}  output(x=%x) }}")
    operands = dict(zip(("x", "indices"), graph.inputs, strict=True))
    if op == "scatter_nd":
        operands["updates"] = graph.constant(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32))
    made = graph.add(op, operands, attrs)
    graph.set_operand(graph.output, "y", made.result)
    close(graph, {"x": rng.normal(size=(2, 3, 4)).astype(np.float32), "i": at})


@pytest.mark.parametrize("size", [7, 8, 9, 10])
def test_open_sizes_of_a_max_pool_may_be_rounded_up(size: int) -> None:
    rng = np.random.default_rng(SEED)
    graph = qir.parse("graph main as native { %x = input() : (N)x3x(H)x(W)xf32  output(x=%x) }")
    attrs: dict[str, Attr] = {"kernel": (3, 3), "stride": (3, 2), "pad": (1, 0, 0, 0), "ceil": True}
    made = graph.add("max_pool2d", {"x": graph.inputs[0]}, attrs)
    graph.set_operand(graph.output, "y", made.result)
    close(graph, {"x": rng.normal(size=(2, 3, size, 9)).astype(np.float32) - 5})


def test_every_op_that_is_written_is_compared() -> None:
    assert set(FLOAT) - {"attention"} == {case.op for case in CASES.values()}
