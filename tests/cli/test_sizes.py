"""What a model weighs is told with its data beside it."""

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.command import qir
from tests.cli.models import network

BESIDE = ["w1", "w2", "w3"]


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """The network with its weights in two files beside it, one within a folder."""
    model = network()
    path = tmp_path / "model.onnx"
    (tmp_path / "data").mkdir()
    for name, place in zip(BESIDE, ("weights", "weights", "data/last"), strict=True):
        tensor = next(t for t in model.graph.initializer if t.name == name)
        file = tmp_path / place
        offset = file.stat().st_size if file.exists() else 0
        with file.open("ab") as stream:
            stream.write(tensor.raw_data)
        for key, value in (("location", place), ("offset", str(offset))):
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
    onnx.save(model, path)
    return path


def test_data_beside_a_model_are_part_of_its_size(apart: Path, made: Path) -> None:
    held = sum(f.stat().st_size for f in apart.parent.rglob("*") if f.is_file())
    assert held > apart.stat().st_size + 4 * (6 * 27 + 8 * 54 + 40) - 1

    shown = json.loads(qir("show", apart, "--json").out)
    assert shown["file_bytes"] == held

    output = apart.with_name("q.onnx")
    words = ("quantize", apart, "--data", made / "samples.npy", "-o", output, "--json")
    told = json.loads(qir(*words).out)
    assert (told["file_bytes"], told["output_bytes"]) == (held, output.stat().st_size)


def test_data_that_are_copied_along_are_part_of_what_was_written(
    apart: Path, tmp_path: Path
) -> None:
    output = tmp_path / "copied" / "model.onnx"
    output.parent.mkdir()
    told = json.loads(qir("convert", apart, "-o", output, "--json").out)
    copied = [f for f in output.parent.rglob("*") if f.is_file()]
    assert len(copied) == 3
    assert told["output_bytes"] == sum(f.stat().st_size for f in copied)


def test_data_of_branches_functions_and_sparse_tensors_are_found(tmp_path: Path) -> None:
    """In a function's Constant, in a branch's initializer, and in the parts of a sparse tensor."""
    from qir.frontend import frontend_for

    def beside(place: str) -> onnx.TensorProto:
        (tmp_path / place).write_bytes(bytes(8))
        tensor = onnx.TensorProto(name=place, data_type=onnx.TensorProto.INT64, dims=[1])
        tensor.external_data.add(key="location", value=place)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        return tensor

    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.INT64
    then = onnx.helper.make_graph(
        [node("Identity", ["branch"], ["t"])],
        "then",
        [],
        [info("t", kind, [1])],
        [beside("branch")],
    )
    other = onnx.helper.make_graph(
        [node("Constant", [], ["e"], value=beside("attribute"))], "else", [], [info("e", kind, [1])]
    )
    sparse = onnx.helper.make_sparse_tensor(beside("values"), beside("indices"), [4])
    graph = onnx.helper.make_graph(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        "g",
        [info("c", onnx.TensorProto.BOOL, [])],
        [info("y", kind, [1])],
        sparse_initializer=[sparse],
    )
    ids = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    constant = node("Constant", [], ["y"], value=beside("function"))
    function = onnx.helper.make_function("own", "F", [], ["y"], [constant], ids)
    model = onnx.helper.make_model(graph, opset_imports=ids, functions=[function])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    names = {file.name for file in frontend_for(path).files(path)}
    assert names == {f.name for f in tmp_path.iterdir()}
    assert len(names) == 6
