"""A Resize of integers is kept, and gives onnxruntime's bytes; one of floats is the standard's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric"),
)
FORMS = [("linear", np.uint8), ("linear", np.int8), ("cubic", np.uint8)]
SCALES = ((0.3, 3.0), (1.5, 1.5), (2.7, 0.6), (1.1, 1.0))


def resized(
    folder: Path, x: NDArray[np.generic], scales: tuple[float, ...], opset: int, **attrs: str
) -> tuple[Path, dict[str, NDArray[np.generic]]]:
    """A model with that Resize alone, whose batch has no size, and what is fed to it."""
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], "it", None, None, None, **attrs)
    held = numpy_helper.from_array(np.array((1, 1, *scales), np.float32), "s")
    info = helper.make_tensor_value_info("x", KINDS[x.dtype.name], ["n", *x.shape[1:]])
    graph = helper.make_graph([node], "g", [info], [onnx.ValueInfoProto(name="y")], [held])
    path, of = folder / "m.onnx", [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    return path, {"x": x}


@pytest.mark.parametrize(("mode", "kind"), FORMS)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("opset", [13, 19])
def test_of_codes_it_gives_the_bytes_of_onnxruntime(
    tmp_path: Path, mode: str, kind: type[np.integer[Any]], coordinates: str, opset: int
) -> None:
    if coordinates == "half_pixel_symmetric" and opset < 19:
        return  # it is newer
    rng = np.random.default_rng(7)
    limits = np.iinfo(kind)
    x = rng.integers(limits.min, limits.max + 1, (2, 1, 6, 6)).astype(kind)
    marks = {"mode": mode, "coordinate_transformation_mode": coordinates}
    tried = 0
    for scales in SCALES:
        path, feed = resized(tmp_path, x, scales, opset, **marks)
        try:
            wanted = onnxruntime.InferenceSession(path.read_bytes()).run(None, feed)[0]
        except Exception:
            continue  # onnxruntime has no kernel for it
        graph = pipeline.load(path)
        assert [n.op for n in graph if n.op == "foreign"] == ["foreign"]
        (got,) = pipeline.run(graph, feed).values()
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted), f"{scales}: {got}, not {wanted}"
        tried += 1
    assert tried


def test_of_reals_its_places_are_those_of_the_standard(tmp_path: Path) -> None:
    """By scales that are computed: corners go by a size that is no whole number yet."""
    attrs = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], "it", None, None, None, **attrs)
    x, s = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
        for n, d in (("x", [1, 1, 4, 4]), ("s", [4]))
    )
    graph = helper.make_graph([node], "g", [x, s], [onnx.ValueInfoProto(name="y")])
    path, of = tmp_path / "m.onnx", [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=8), path)
    data = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    feed = {"x": data, "s": np.array([1, 1, 0.8, 0.8], np.float32)}
    (got,) = pipeline.run(pipeline.load(path), feed).values()
    places = np.arange(3) * 3 / (4 * 0.8 - 1)
    assert got.shape == (1, 1, 3, 3)
    np.testing.assert_allclose(got[0, 0], 4 * places[:, None] + places, rtol=1e-5)
