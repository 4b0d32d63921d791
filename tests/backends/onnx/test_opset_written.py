"""What is written is of the operator set that it is written for, and onnxruntime takes it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state

from qir import pipeline
from qir.backends.onnx.opset import check
from qir.backends.onnx.writer.graph import Dialect, to_model
from qir.errors import InputError, Refused
from qir.ledger import Ledger
from tests.frontends.onnx.models import model

from . import (
    test_attention_operators,
    test_axis_operators,
    test_convolution_operators,
    test_elementwise_operators,
    test_index_operators,
    test_recurrent_operators,
    test_shape_operators,
)
from .operators import Case, onnxruntime_runs

F = np.float32
FLOAT, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(5)
X = RNG.normal(size=(2, 6, 4, 4)).astype(F)
Feeds = dict[str, NDArray[Any]]


def saved(folder: Path, proto: onnx.ModelProto, opset: int | None = None) -> onnx.ModelProto:
    """The model, read and written again."""
    source, made = folder / "source.onnx", folder / "made.onnx"
    onnx.save(proto, source)
    made.unlink(missing_ok=True)
    pipeline.save(pipeline.load(source), made, opset=opset, ledger=Ledger())
    return onnx.load(made)


def normalization(opset: int, held: Feeds, fed: Feeds) -> onnx.ModelProto:
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=3)
    inputs = {n: (FLOAT, list(a.shape)) for n, a in {"x": X, **fed}.items()}
    return model([node], inputs, {"y": (FLOAT, list(X.shape))}, held, opset)


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_a_group_norm_is_read_whatever_its_numbers_are_by(tmp_path: Path, opset: int) -> None:
    count = 3 if opset < 21 else 6
    held = {n: RNG.normal(size=count).astype(F) for n in "sb"}
    proto = normalization(opset, held, {})
    made = saved(tmp_path, proto)
    graph = pipeline.load(tmp_path / "source.onnx")
    assert [n.op for n in graph if n.op not in ("input", "constant", "output")] == ["group_norm"]
    (wanted,), (found,) = (onnxruntime_runs(p, {"x": X}) for p in (proto, made))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    ours = np.asarray(pipeline.run(graph, {"x": X})["y"], np.float64)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


def test_a_group_norm_by_computed_groups_is_kept(tmp_path: Path) -> None:
    fed = {n: RNG.normal(size=3).astype(F) for n in "sb"}
    proto = normalization(18, {}, fed)
    made = saved(tmp_path, proto)
    assert [n.op_type for n in made.graph.node] == ["GroupNormalization"]
    (wanted,), (found,) = (onnxruntime_runs(p, {"x": X, **fed}) for p in (proto, made))
    assert (found == wanted).all()


def test_group_norms_whose_groups_do_not_fit_are_no_models(tmp_path: Path) -> None:
    onnx.save(normalization(18, {n: np.ones(4, F) for n in "sb"}, {}), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="6 channels, 3 groups, 4xf32 for 's'"):
        pipeline.load(tmp_path / "m.onnx")


PARTS = [(1, -1), (-2, None), (3, 1), (0, 2), (-9, 9), (0, -7), (2, None)]


@pytest.mark.parametrize("opset", [13, 14, 15])
@pytest.mark.parametrize(("start", "end"), PARTS)
def test_some_sizes_are_cut_from_all_where_shape_gives_all(
    tmp_path: Path, opset: int, start: int, end: int | None
) -> None:
    attrs: dict[str, Any] = {"start": start} | ({} if end is None else {"end": end})
    node = helper.make_node("Shape", ["x"], ["y"], **attrs)
    proto = model([node], {"x": (FLOAT, ["a", 6, "b", "c"])}, {"y": (I64, [None])}, {}, 15)
    made = saved(tmp_path, proto, opset)
    onnx.checker.check_model(made, full_check=True)
    assert [(o.domain, o.version) for o in made.opset_import] == [("", opset)]
    (wanted,), (found,) = (onnxruntime_runs(p, {"x": X}) for p in (proto, made))
    assert found.tolist() == wanted.tolist()


EVERY = [
    *test_attention_operators.CASES,
    *test_axis_operators.CASES,
    *test_convolution_operators.CASES,
    *test_elementwise_operators.CASES,
    *test_index_operators.POOLS,
    *test_index_operators.RESIZES,
    *test_index_operators.PICKS,
    *test_recurrent_operators._cases(),
    *test_shape_operators.CASES,
]


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.op)
def test_each_operator_is_of_the_set_it_is_written_for(case: Case) -> None:
    """Or it is refused in one line; ONNX finds no fault, and onnxruntime computes the same."""
    proto = case.proto(max(case.opsets))
    with TemporaryDirectory() as folder:
        onnx.save(proto, Path(folder) / "m.onnx")
        graph = pipeline.load(Path(folder) / "m.onnx")
    wanted, told = onnxruntime_runs(proto, case.feeds()), list[str]()
    for opset in (13, 16, 18, 20, 22, 24, 26):
        try:
            made = to_model(graph, Ledger(), Dialect(opset=opset))
        except Refused as error:
            told.append(str(error))
            continue
        onnx.checker.check_model(made)
        for one, other in zip(onnxruntime_runs(made, case.feeds()), wanted, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            if one.dtype != object:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not any("\n" in said for said in told)


def test_an_attribute_or_operator_of_a_later_set_is_refused() -> None:
    late = helper.make_node("Shape", ["x"], ["y"], "late", start=1)
    inside = helper.make_graph([late], "g", [], [])
    loop = helper.make_node("If", ["c"], ["y"], "if", then_branch=inside, else_branch=inside)
    for node in (late, loop):
        made = helper.make_model(helper.make_graph([node], "g", [], []))
        with pytest.raises(Refused, match="late: Shape of opset 13 has no attribute 'start'"):
            check.check(made, 13)
        check.check(made, 15)
    gelu = helper.make_node("Gelu", ["x"], ["y"])
    with pytest.raises(Refused, match="y: opset 19 has no operator Gelu"):
        check.check(helper.make_model(helper.make_graph([gelu], "g", [], [])), 19)


def test_what_onnxruntime_left_behind_is_known() -> None:
    """Kernels that none of its CPU provider's has for the newest form, which no function is."""
    ranges: dict[str, set[tuple[int, int]]] = {}
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and not kernel.domain:
            first, last = kernel.version_range
            ranges.setdefault(kernel.op_name, set()).add((first, last))
    missing = set()
    for name, held in ranges.items():
        for opset in range(13, 27):
            try:
                schema = onnx.defs.get_schema(name, opset, "")
            except onnx.defs.SchemaError:
                continue
            since, kinds = schema.since_version, ("has_function", "has_context_dependent_function")
            if schema.deprecated or any(getattr(schema, kind) for kind in kinds):
                continue
            if not any(a == since or a < since <= b < 2**31 - 1 for a, b in held):
                missing.add((name, since))
    assert missing == {(name, 22) for name in check.WITHOUT_KERNEL}


def aligned(opset: int) -> onnx.ModelProto:
    node = helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], "roi", output_height=2)
    held = {"r": np.array([[0, 0, 3, 3]], F), "i": np.array([1])}
    return model([node], {"x": (FLOAT, list(X.shape))}, {"y": (FLOAT, None)}, held, opset)


def test_operators_that_onnxruntime_left_behind_are_refused(tmp_path: Path) -> None:
    said = "roi: onnxruntime 1.31 has no kernel for RoiAlign of opset 22 and newer; `opset=21`"
    proto = aligned(16)
    (wanted,) = onnxruntime_runs(proto, {"x": X})
    for opset in (13, 16, 21):
        if opset < 16:
            with pytest.raises(Refused):
                saved(tmp_path, proto, opset)
            continue
        assert (onnxruntime_runs(saved(tmp_path, proto, opset), {"x": X})[0] == wanted).all()
    with pytest.raises(Refused, match=said):
        saved(tmp_path, proto, 22)


def test_a_source_that_onnxruntime_does_not_run_is_told_of(tmp_path: Path) -> None:
    onnx.save(aligned(22), tmp_path / "m.onnx")
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        onnxruntime.InferenceSession(tmp_path / "m.onnx")
    ledger = Ledger()
    made = tmp_path / "made.onnx"
    pipeline.save(pipeline.load(tmp_path / "m.onnx"), made, opset=23, ledger=ledger)
    said = "onnxruntime 1.31 has no kernel for RoiAlign of opset 22 and newer, as in the source"
    assert [e.subject for e in ledger if e.reason == said] == ["roi"]


def test_a_group_counts_as_the_operator_it_is_written_as(tmp_path: Path) -> None:
    """The Gelu within a BiasGelu asks for no operator set."""
    node = helper.make_node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")
    held = {"b": RNG.normal(size=4).astype(F)}
    shape = (FLOAT, list(X.shape))
    proto = model([node], {"x": shape}, {"y": shape}, held, 14, ("com.microsoft",))
    (wanted,) = onnxruntime_runs(proto, {"x": X})
    for opset in (None, 13, 15, 19):
        made = saved(tmp_path, proto, opset)
        assert {o.domain: o.version for o in made.opset_import}[""] == (opset or 14)
        assert [n.op_type for n in made.graph.node] == ["BiasGelu"]
        assert (onnxruntime_runs(made, {"x": X})[0] == wanted).all()


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_along_an_open_axis_are_kept_and_say_why(tmp_path: Path, op: str) -> None:
    kinds = (FLOAT, TensorProto.INT8) if op == "QuantizeLinear" else (TensorProto.INT8, FLOAT)
    node = helper.make_node(op, ["x", "s", "z"], ["y"], axis=0)
    held: Feeds = {"s": np.array([0.1, 0.2, 0.3], F), "z": np.array([0, 1, 2], np.int8)}
    proto = model([node], {"x": (kinds[0], ["d", 4])}, {"y": (kinds[1], ["d", 4])}, held, 19)
    onnx.save(proto, tmp_path / "m.onnx")
    ledger = Ledger()
    pipeline.load(tmp_path / "m.onnx", ledger=ledger)
    said = f"kept as onnx {op}: it has 3 scales along axis 0, whose size the file leaves open"
    assert [e.subject for e in ledger if e.reason == f"{said}; 3 there would do"] == ["y"]
    data = RNG.integers(-9, 9, (3, 4)).astype(F if op == "QuantizeLinear" else np.int8)
    (wanted,) = onnxruntime_runs(proto, {"x": data})
    assert (onnxruntime_runs(saved(tmp_path, proto), {"x": data})[0] == wanted).all()


@pytest.mark.parametrize("standard", [False, True])
def test_swish_is_opened_where_onnxruntime_does_not(tmp_path: Path, standard: bool) -> None:
    node = helper.make_node("Swish", ["x"], ["y"], alpha=0.5)
    shape = (FLOAT, list(X.shape))
    onnx.save(model([node], {"x": shape}, {"y": shape}, {}, 24), tmp_path / "m.onnx")
    graph = pipeline.load(tmp_path / "m.onnx")
    made = to_model(graph, Ledger(), Dialect(standard=standard, opset=26))
    onnx.checker.check_model(made)
    own = ["Swish"] if standard else ["Mul", "Sigmoid", "Mul"]
    assert [n.op_type for n in made.graph.node] == own
    if not standard:
        (found,) = onnxruntime_runs(made, {"x": X})
        np.testing.assert_allclose(found, X / (1 + np.exp(-X / 2)), rtol=1e-5, atol=1e-6)
