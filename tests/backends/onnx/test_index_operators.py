"""Operators that pick, place, resize and pool, in ONNX's forms since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.frontends.onnx import OnnxFrontend
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.text import parse_type
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from tests.backends.onnx.operators import Case, Data, assert_comes_through, onnxruntime_runs
from tests.frontends.onnx.models import save
from tests.reference.oracles import assert_close

RNG = np.random.default_rng(14)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
IMAGE = RNG.normal(size=(1, 2, 4, 6)).astype(np.float32)
ROWS = RNG.normal(size=(2, 3, 9)).astype(np.float32)
SPACE = RNG.normal(size=(1, 2, 5, 4, 6)).astype(np.float32)
GRID = RNG.uniform(-1.2, 1.2, (1, 3, 5, 2)).astype(np.float32)
WHOLE = RNG.integers(-5, 5, (3, 4))
SPARSE = np.where(RNG.random((2, 5)) < 0.5, 0, RNG.normal(size=(2, 5))).astype(np.float32)
SQUARE = RNG.normal(size=(2, 3, 3)).astype(np.float32)


def row(*values: float) -> Data:
    return np.array(values, np.int64 if all(isinstance(v, int) for v in values) else np.float32)


PLACES = np.array([[[0, 1, -1, 2]], [[2, 0, 1, 1]]])
TUPLES = np.array([[0, 1], [1, -1]])
NEW = RNG.normal(size=(2, 4)).astype(np.float32)
KERNEL1 = {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}
KERNEL2 = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 0]}
KERNEL3 = {"kernel_shape": [2, 2, 3], "strides": [2, 1, 2]}
DOUBLE = row(1.0, 1.0, 2.0, 1.5)
ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric"}
ALIGNED = {"coordinate_transformation_mode": "align_corners", "mode": "linear"}
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
ROI = row(0.0, 0.0, 0.125, 0.25, 1.0, 1.0, 1.25, 0.75)
NONE = np.zeros(0, np.float32)
SCALED = {"x": IMAGE, "none": None, "c": DOUBLE}
SIZED = {"x": IMAGE, "none": None, "nil": None, "c": row(1, 2, 7, 3)}
COMPUTED = {"x": IMAGE, "none": None, "nil": None, "shape": row(1, 2, 7, 3)}
ONE_HOTS = [
    *(
        ("i8", d, v)
        for d, v in (("i8", "i8"), ("f4", "i4"), ("i8", "f4"), ("f4", "f4"), ("i4", "f4"))
    ),
    *(("f4", d, v) for d, v in (("i8", "i8"), ("f4", "f4"))),
    *(("i4", d, "f4") for d in ("i4", "f4")),
]
"""Of indices, depth and values: the types that onnxruntime has a kernel for."""

POOLS = [
    Case("MaxPool", {"x": ROWS}, KERNEL1, (8, 12), exact=True),
    Case("MaxPool", {"x": SPACE}, {**KERNEL3, "dilations": [2, 1, 2]}, (12, 22), exact=True),
    Case("MaxPool", {"x": ROWS}, {**KERNEL1, "ceil_mode": 1}, (12,), exact=True),
    Case("MaxPool", {"x": ROWS}, {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}, (12,)),
    Case("MaxPool", {"x": ROWS}, KERNEL1, (8, 12), results=2, exact=True),
    Case("MaxPool", {"x": IMAGE}, KERNEL2, (11, 22), results=2, exact=True),
    Case("AveragePool", {"x": ROWS}, KERNEL1, (7, 11, 22)),
    Case("AveragePool", {"x": ROWS}, {**KERNEL1, "count_include_pad": 1}, (11,)),
    Case("AveragePool", {"x": SPACE}, {**KERNEL3, "ceil_mode": 1}, (11, 19)),
    Case("LpPool", {"x": ROWS}, KERNEL1, (11, 22)),
    Case("LpPool", {"x": IMAGE}, {**KERNEL2, "p": 3}, (11, 18)),
    Case("LpPool", {"x": IMAGE}, {"kernel_shape": [2, 2], "dilations": [2, 1]}, (18,)),
    Case("LpPool", {"x": SPACE}, {**KERNEL3, "p": 1}, (11,)),
    *(Case(f"Global{p}Pool", {"x": ROWS}, opsets=(7,)) for p in ("Average", "Max", "Lp")),
    *(Case(f"Global{p}Pool", {"x": SPACE}, opsets=(21,)) for p in ("Average", "Max", "Lp")),
    Case("GlobalLpPool", {"x": IMAGE}, {"p": 3}, (7,)),
    Case(
        "MaxUnpool",
        {"shape": ROWS[:1, :1, :2], "ci": row(1, 3).reshape(1, 1, 2)},
        {"kernel_shape": [2], "strides": [2]},
        (9, 11),
        exact=True,
    ),
    Case(
        "MaxUnpool",
        {"shape": ROWS[:1, :1, :2], "ci": row(1, 6).reshape(1, 1, 2), "c": row(1, 1, 8)},
        {"kernel_shape": [2], "strides": [2]},
        (9, 22),
        exact=True,
    ),
]

RESIZES = [
    Case("Resize", {"x": IMAGE, "cn": NONE, "c": DOUBLE}, opsets=(11,), exact=True),
    Case("Resize", {"x": IMAGE, "cn": NONE, "co": NONE, "c": row(1, 2, 7, 3)}, opsets=(11,)),
    Case("Resize", SCALED, opsets=(13, 19), exact=True),
    Case("Resize", SIZED, opsets=(13, 18), exact=True),
    Case("Resize", COMPUTED, opsets=(13, 19), exact=True),
    Case("Resize", COMPUTED, {"mode": "linear"}, (13,)),
    Case("Resize", {"x": IMAGE, "c": DOUBLE}, opsets=(10,), exact=True),
    Case("Resize", {"x": IMAGE, "c": DOUBLE}, {"mode": "linear"}, (10,)),
    Case("Upsample", {"x": IMAGE}, {"scales": [1.0, 1.0, 2.0, 3.0]}, (7,), exact=True),
    Case("Upsample", {"x": IMAGE, "c": DOUBLE}, {"mode": "linear"}, (9,)),
    Case("Resize", SCALED, {**ASYMMETRIC, "nearest_mode": "floor"}, (13,), exact=True),
    Case("Resize", SCALED, ALIGNED, (13,)),
    Case("Resize", SCALED, {"mode": "cubic", "cubic_coeff_a": -0.5}, (13,)),
    Case("Resize", SIZED, {"mode": "linear", "antialias": 1}, (18,)),
    Case("Resize", SCALED, {"mode": "cubic", "exclude_outside": 1}, (19,)),
    Case("Resize", {"x": IMAGE, "cr": ROI, "n": None, "c": row(1, 2, 7, 3)}, CROP, (13,)),
    Case("Resize", SIZED, {"coordinate_transformation_mode": "half_pixel_symmetric"}, (19,)),
    Case(
        "Resize",
        {"x": IMAGE, "none": None, "nil": None, "c": row(8, 9)},
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "mode": "linear"},
        (18,),
    ),
    Case("GridSample", {"x": IMAGE, "grid": GRID}, opsets=(16, 20), inexact=1e-4),
    Case("GridSample", {"x": IMAGE, "grid": GRID}, {"mode": "bicubic"}, (16,), inexact=1e-4),
    Case("GridSample", {"x": IMAGE, "grid": GRID}, {"padding_mode": "border"}, (20,), inexact=1e-4),
    Case("AffineGrid", {"x": SQUARE[:, :2], "c": row(2, 1, 4, 5)}, opsets=(20,)),
    Case("AffineGrid", {"x": SQUARE[:, :2], "shape": row(2, 1, 4, 5)}, {"align_corners": 1}, (20,)),
]

PICKS = [
    Case("GatherElements", {"x": X, "c": PLACES}, {"axis": 1}, (11, 13), exact=True),
    Case("GatherElements", {"x": X, "i": PLACES}, {"axis": -2}, (13,), exact=True),
    Case("GatherND", {"x": X, "c": TUPLES}, opsets=(11, 13), exact=True),
    Case("GatherND", {"x": X, "c": row(1, 2).reshape(2, 1)}, {"batch_dims": 1}, (12, 13)),
    Case("Scatter", {"x": X, "c": PLACES, "y": X[:, :1]}, {"axis": 1}, (9,), exact=True),
    Case("ScatterElements", {"x": X, "c": PLACES, "y": X[:, :1]}, {"axis": 1}, (11, 13)),
    Case(
        "ScatterElements",
        {"x": X, "c": PLACES, "y": X[:, :1]},
        {"axis": 1, "reduction": "add"},
        (16, 18),
    ),
    Case(
        "ScatterElements",
        {"x": X, "c": PLACES, "y": X[:, :1]},
        {"axis": 1, "reduction": "max"},
        (18,),
    ),
    Case("ScatterND", {"x": X, "c": TUPLES, "y": NEW}, opsets=(11, 13), exact=True),
    Case("ScatterND", {"x": X, "c": TUPLES, "y": NEW}, {"reduction": "mul"}, (16,)),
    Case("ScatterND", {"x": X, "c": TUPLES, "y": NEW}, {"reduction": "min"}, (18,)),
    Case("OneHot", {"i": row(1, -1, 7), "c1": np.array(4), "c2": row(0.0, 2.0)}, opsets=(9, 11)),
    Case("OneHot", {"i": row(1, 0), "c1": row(3), "c2": row(5, 9)}, {"axis": 0}, (11,)),
    *(
        Case(
            "OneHot",
            {"i": row(1, 0, 2).astype(i), "c1": np.array([3], d), "c2": np.array([0, 1], v)},
        )
        for i, d, v in ONE_HOTS
    ),
    Case("NonZero", {"x": SPARSE}, opsets=(9, 13), exact=True),
    Case("NonZero", {"x": SPARSE > 0}, opsets=(13,), exact=True),
    Case("Unique", {"x": WHOLE}, opsets=(11,), results=4, exact=True),
    Case("Unique", {"x": WHOLE.astype(np.float32)}, {"sorted": 0}, (11,), results=4, exact=True),
    Case("Unique", {"x": WHOLE[[0, 2, 0]]}, {"axis": 0}, (11,), results=1, exact=True),
    Case("Trilu", {"x": X}, opsets=(14,), exact=True),
    Case("Trilu", {"x": WHOLE, "c": np.array(-1)}, {"upper": 0}, (14,), exact=True),
    Case("EyeLike", {"x": SPARSE}, {"k": 1}, (9, 22), exact=True),
    Case("EyeLike", {"x": WHOLE}, {"dtype": 1}, (9,), exact=True),
    Case("ReverseSequence", {"x": X, "c": row(1, 2, 0)}, opsets=(10,), exact=True),
    Case("ReverseSequence", {"x": X, "i": row(3, 2)}, {"batch_axis": 0, "time_axis": 1}, (10,)),
    Case("Compress", {"x": X, "c": np.array([True, False, True])}, {"axis": 1}, (9, 11)),
    Case("Compress", {"x": X, "b": np.array([True, False, True])}, opsets=(11,), exact=True),
    Case("Hardmax", {"x": X}, {"axis": 1}, (13,), exact=True),
    Case("Hardmax", {"x": X}, {"axis": 2}, (11,), exact=True),
    Case("LpNormalization", {"x": X}, opsets=(7, 22)),
    Case("LpNormalization", {"x": X}, {"p": 1, "axis": 1}, (7,)),
    Case("Shrink", {"x": X}, opsets=(9,), exact=True),
    Case("Shrink", {"x": X}, {"lambd": 0.25, "bias": 0.5}, (9,)),
    Case("Einsum", {"x": SQUARE, "y": X}, {"equation": "bij, bjk -> bik"}, (12,)),
    Case("Einsum", {"x": SQUARE, "y": X}, {"equation": "...ij,...jk"}, (12,)),
    Case("Einsum", {"x": SQUARE}, {"equation": "bii->b"}, (12,)),
    Case("CastLike", {"x": X * 9, "c": row(1)}, opsets=(15, 19)),
    Case("Det", {"x": SQUARE}, opsets=(11, 22)),
    Case(
        "Col2Im",
        {"x": RNG.normal(size=(2, 12, 10)).astype(np.float32), "c1": row(3, 6), "c2": row(2, 3)},
        {"pads": [0, 1, 1, 0], "strides": [2, 1]},
        (18,),
    ),
    Case("Pad", {"x": X, "c": row(0, 1, 2, 0, 2, -1)}, {"mode": "wrap"}, (19,)),
]


@pytest.mark.parametrize(
    "case", [*POOLS, *RESIZES, *PICKS], ids=lambda c: f"{c.op}-{len(c.operands)}-{c.opsets[0]}"
)
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)


# -- what ONNX says in another way ----------------------------------------------------------------

OTHERS: list[tuple[str, dict[str, str], dict[str, Attr], Change | None]] = [
    ("exp2", {"x": "x"}, {}, Change.REGROUPED),
    ("expm1", {"x": "x"}, {}, Change.REGROUPED),
    ("log1p", {"x": "positive"}, {}, Change.REGROUPED),
    ("log2", {"x": "positive"}, {}, Change.REGROUPED),
    ("log10", {"x": "positive"}, {}, Change.REGROUPED),
    ("rsqrt", {"x": "positive"}, {}, Change.REGROUPED),
    ("square", {"x": "x"}, {}, None),
    ("erfc", {"x": "x"}, {}, Change.REGROUPED),
    ("trunc", {"x": "x"}, {}, None),
    ("log_sigmoid", {"x": "x"}, {}, Change.REGROUPED),
    ("tanh_shrink", {"x": "x"}, {}, Change.REGROUPED),
    ("logit", {"x": "inside"}, {}, Change.REGROUPED),
    ("logit", {"x": "positive"}, {"eps": 0.25}, Change.REGROUPED),
    ("floor_div", {"a": "x", "b": "positive"}, {}, Change.REGROUPED),
    ("floor_div", {"a": "n", "b": "step"}, {}, Change.REGROUPED),
    ("squared_difference", {"a": "x", "b": "positive"}, {}, Change.REGROUPED),
    ("squared_difference", {"a": "n", "b": "step"}, {}, Change.REGROUPED),
    ("flip", {"x": "x"}, {"axes": (0, -1)}, None),
    ("embedding", {"w": "w", "indices": "i"}, {}, None),
    ("embedding", {"w": "w", "indices": "bytes"}, {}, None),
    ("gather_elements", {"x": "w", "indices": "bytes"}, {}, None),
    ("reverse_sequence", {"x": "x", "lengths": "bytes3"}, {}, None),
    ("resize", {"x": "w", "sizes": "bytes2"}, {}, None),
    ("identity", {"x": "x"}, {}, None),
    ("dropout", {"x": "x"}, {"ratio": 0.25}, None),
    ("inverse", {"x": "square"}, {}, None),
    ("adaptive_avg_pool", {"x": "image"}, {"size": (2, 3)}, None),
    ("adaptive_max_pool", {"x": "image"}, {"size": (1, 1)}, None),
    (
        "unfold",
        {"x": "image"},
        {"kernel": (2, 3), "stride": (1, 2), "pad": (0, 1, 1, 0), "dilation": (2, 1)},
        None,
    ),
    ("cumprod", {"x": "x"}, {"axis": 1, "exclusive": True}, None),
    ("global_avg_pool", {"x": "x"}, {"layout": "NHWC"}, None),
]
GIVEN: dict[str, Data] = {
    "x": X,
    "positive": np.abs(X) + np.float32(0.125),
    "inside": RNG.uniform(0.1, 0.9, (2, 3)).astype(np.float32),
    "image": IMAGE,
    "w": RNG.normal(size=(5, 3)).astype(np.float32),
    "i": np.array([[0, 4], [2, 2]]),
    "n": WHOLE,
    "bytes": np.array([[0, 4], [2, 2]], np.uint8),
    "bytes2": np.array([7, 5], np.uint8),
    "bytes3": np.array([1, 0, 2], np.uint8),
    "step": np.array([3, -2, 4, -5]),
    "square": SQUARE,
}


NAMES = {"max_pool_places": ["y", "places"]}


def programmed(op: str, slots: dict[str, str], attrs: dict[str, Attr]) -> Graph:
    graph = Graph("one", "native")
    names = {np.dtype(np.float32): "f32", np.dtype(np.int64): "i64", np.dtype(np.uint8): "u8"}
    operands = {}
    for slot, name in slots.items():
        data = GIVEN[name]
        kind = parse_type("".join(f"{d}x" for d in data.shape) + names[data.dtype])
        operands[slot] = graph.add("input", types=[kind], name=name).result
    made = graph.add(op, operands, attrs, name=NAMES.get(op, ["y"])).results[0]
    graph.add("output", {"y": made})
    return graph


@pytest.mark.parametrize(("op", "slots", "attrs", "change"), OTHERS, ids=lambda v: str(v)[:20])
def test_what_onnx_has_not_is_said_by_other_operators(
    op: str, slots: dict[str, str], attrs: dict[str, Attr], change: Change | None
) -> None:
    graph, ledger = programmed(op, slots, attrs), Ledger()
    feeds = {name: GIVEN[name] for name in slots.values()}
    proto = to_model(graph, ledger)
    onnx.checker.check_model(proto)
    found = [e for e in ledger if e.change != Change.EXACT]
    assert [e.change for e in found] == ([] if change is None else [change])
    assert all(e.subject == "y" for e in found)
    (theirs,) = onnxruntime_runs(proto, feeds)
    assert_close(run(graph, feeds)["y"], theirs, 1e-5, op)


REFUSED: list[tuple[str, dict[str, str], dict[str, Attr], str]] = [
    ("atan2", {"a": "x", "b": "x"}, {}, "atan2 has no form in ONNX"),
    ("reverse_sequence", {"x": "x", "lengths": "bytes2"}, {"time": 2, "batch": 0}, "axes 0 and 1"),
    ("adaptive_avg_pool", {"x": "image"}, {"size": (3, 4)}, "takes windows of several sizes"),
    (
        "max_pool_places",
        {"x": "image"},
        {
            "kernel": (2, 2),
            "stride": (1, 1),
            "pad": (0, 0, 0, 0),
            "dilation": (1, 1),
            "counted": "plane",
        },
        "counts places in the whole tensor",
    ),
]


@pytest.mark.parametrize(("op", "slots", "attrs", "why"), REFUSED, ids=lambda v: str(v)[:20])
def test_what_onnx_cannot_say_is_refused(
    op: str, slots: dict[str, str], attrs: dict[str, Attr], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        to_model(programmed(op, slots, attrs), Ledger())


def test_an_inverse_of_microsofts_is_read(tmp_path: Path) -> None:
    written = to_model(programmed("inverse", {"x": "square"}, {}), Ledger())
    graph = OnnxFrontend().load(save(written, tmp_path), Ledger())
    assert [n.op for n in graph] == ["input", "inverse", "output"]
