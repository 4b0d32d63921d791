"""What kinds of file are recognized, and what is said of those that are damaged."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorflow as tf
from google.protobuf.descriptor import Descriptor  # type: ignore[import-untyped]
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

import qir
from qir.errors import InputError
from qir.frontends.tensorflow import TensorFlowFrontend, foreign
from qir.frontends.tensorflow.messages import GraphDefMessage, SavedModelMessage
from qir.ledger import Ledger
from qir.reference.interpreter import run

from .comparison import build_graph_def, save_graph_def
from .networks import frozen, network

X = np.ones((2, 8, 8, 3), np.float32)
W = np.ones((3, 3, 3, 4), np.float32)


def small() -> Any:
    """Returns a graph of a convolution."""
    return build_graph_def(lambda x: tf.nn.relu(tf.nn.conv2d(x, W, 1, "SAME")), (X,))[0]


def fields(kind: Descriptor, seen: set[str]) -> None:
    """Holds a message and those in it to TensorFlow's numbers and types."""
    theirs: dict[str, Any] = {f.name: f for f in _theirs(kind.name).fields}
    for field in kind.fields:
        other = theirs[field.name]
        assert field.number == other.number, f"{kind.name}.{field.name}"
        assert field.is_repeated == other.is_repeated
        wire = {field.type, other.type}
        assert len(wire) == 1 or wire == {field.TYPE_INT32, field.TYPE_ENUM}
        if field.message_type and field.message_type.name not in seen:
            seen.add(field.message_type.name)
            if not field.message_type.GetOptions().map_entry:
                fields(field.message_type, seen)
            elif (value := field.message_type.fields_by_name["value"].message_type) is not None:
                fields(value, seen)


def _theirs(name: str) -> Descriptor:
    pool = graph_pb2.DESCRIPTOR.pool
    scopes = {
        "ListValue": "AttrValue.",
        "Dim": "TensorShapeProto.",
        "ArgDef": "OpDef.",
        "MetaInfoDef": "MetaGraphDef.",
        "AnyList": "CollectionDef.",
    }
    package = "google.protobuf." if name == "Any" else "tensorflow."
    found: Descriptor = pool.FindMessageTypeByName(f"{package}{scopes.get(name, '')}{name}")
    return found


def test_messages_have_the_numbers_of_tensorflow() -> None:
    seen: set[str] = set()
    fields(GraphDefMessage.DESCRIPTOR, seen)
    fields(SavedModelMessage.DESCRIPTOR, seen)
    assert {"NodeDef", "TensorProto", "FunctionDef", "ListValue", "Dim", "AssetFileDef"} <= seen


def test_a_graph_is_parsed_as_tensorflow_parses_it() -> None:
    model, _, _ = network("lstm")
    data = frozen(model)
    theirs, ours = graph_pb2.GraphDef.FromString(data), GraphDefMessage.FromString(data)
    assert [(n.name, n.op, list(n.input)) for n in ours.node] == [
        (n.name, n.op, list(n.input)) for n in theirs.node
    ]
    for a, b in zip(ours.node, theirs.node, strict=True):
        assert a.attr.keys() == b.attr.keys()
        assert a.attr["value"].tensor.tensor_content == b.attr["value"].tensor.tensor_content
        assert {k: v.WhichOneof("value") for k, v in a.attr.items()} == {
            k: v.WhichOneof("value") for k, v in b.attr.items()
        }


def test_tensors_are_read_as_tensorflow_reads_them() -> None:
    from qir.frontends.tensorflow.elements import tensor_elements

    kinds = "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    for name in (*kinds.split(), "bool"):
        kind = tf.as_dtype(name)
        for data in ([[0, 1, 1], [1, 0, 1]], [[1, 1, 1], [1, 1, 1]], [], 1):
            wanted = np.asarray(data).astype(kind.as_numpy_dtype)
            proto = tf.make_tensor_proto(wanted, kind)
            plain = graph_pb2.GraphDef()
            plain.node.add(name="c", op="Const").attr["value"].tensor.CopyFrom(proto)
            plain.node[0].attr["value"].tensor.ClearField("tensor_content")
            for held in (proto, plain.node[0].attr["value"].tensor):
                theirs = tf.make_ndarray(held) if held.ByteSize() else wanted
                ours = tensor_elements(held, "c")
                assert ours.dtype == theirs.dtype
                assert np.array_equal(ours, theirs)


WITHOUT = """
import sys
import qir
graph = qir.load(sys.argv[1])
assert "conv2d" in [node.op for node in graph]
print(sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras"}))
"""


def test_a_frozen_graph_is_read_without_tensorflow(tmp_path: Path) -> None:
    path = save_graph_def(small(), tmp_path / "g.pb")
    command = [sys.executable, "-c", WITHOUT, str(path)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert made.stdout == "[]\n"


def test_files_of_other_formats_are_left_to_others(tmp_path: Path) -> None:
    frontend = TensorFlowFrontend()
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", value[:1], value[1:]))
    onnx.save(model, tmp_path / "onnx.pb")
    save_graph_def(small(), tmp_path / "graph.pb")
    (tmp_path / "text.pb").write_text("node { name: 'x' }")
    assert frontend.accepts(tmp_path / "graph.pb")
    assert not frontend.accepts(tmp_path / "onnx.pb")
    assert not frontend.accepts(tmp_path / "text.pb")
    assert not frontend.accepts(tmp_path)
    assert frontend.accepts(tmp_path / "missing.pb")
    for name in ("onnx.pb", "text.pb"):
        with pytest.raises(InputError, match=rf"{name}: is no frozen graph \(GraphDef\) or model"):
            qir.load(tmp_path / name)


def cycle(proto: Any) -> None:
    relu = next(n for n in proto.node if n.op == "Relu")
    next(n for n in proto.node if n.op == "Conv2D").input[0] = relu.name


def missing(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Relu").input[0] = "nowhere"


def function(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    node.op = "PartitionedCall"
    node.attr["f"].func.name = "gone"


def larger(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Const")
    node.attr["value"].tensor.tensor_shape.dim[0].size = 1 << 40


def shorter(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Const")
    node.attr["value"].tensor.tensor_content = b"abc"


def unknown_type(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Placeholder").attr["dtype"].type = 7


def other_type(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Const").attr["dtype"].type = 99


def unheard_of(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Const").attr["value"].tensor.dtype = 77


def twice(proto: Any) -> None:
    proto.node.add().CopyFrom(proto.node[0])


def waiting(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Conv2D")
    node.input.append("^Relu")


def third(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Conv2D")
    node.input.append(node.input[0])


def second(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    node.input.append(node.input[0])


def no_type(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Conv2D").attr["T"].type = 0


def no_such_type(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Conv2D").attr["T"].type = 99


def below(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Placeholder")
    node.attr["shape"].shape.dim[1].size = -5


def empty(proto: Any) -> None:
    del proto.node[:]


def unknown_op(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Relu").op = "DecodeJpeg"


def rank(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Conv2D")
    node.attr["strides"].list.i[:] = [1, 0, 1]


def standing(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Conv2D")
    node.attr["strides"].list.i[:] = [1, 0, 0, 1]


def flat(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Const")
    tensor = node.attr["value"].tensor
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    del tensor.tensor_shape.dim[:]
    tensor.tensor_shape.dim.add(size=int(np.prod(sizes)))


def unknown_mode(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    low, high = (proto.node.add(op="Const", name=name) for name in ("low", "high"))
    for end, value in ((low, -1.0), (high, 1.0)):
        end.attr["dtype"].type = 1
        end.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.float32(value)))
    node.op, node.input[:] = "QuantizeV2", [node.input[0], "low", "high"]
    del node.attr["T"]
    node.attr["T"].type, node.attr["mode"].s = 11, b"SOME"


def bits(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    node.op, node.attr["num_bits"].i = "FakeQuantWithMinMaxArgs", 1 << 40


def parts(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    node.op, node.attr["num"].i = "Unpack", 1 << 40


def flat_crops(proto: Any) -> None:
    node = next(n for n in proto.node if n.op == "Relu")
    for name, data in (("blocks", [1, 1]), ("crops", [0, 0])):
        end = proto.node.add(op="Const", name=name)
        end.attr["dtype"].type = 3
        end.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.asarray(data, np.int32)))
    node.op, node.input[:] = "BatchToSpaceND", [node.input[0], "blocks", "crops"]


def recursive(proto: Any) -> None:
    inner = proto.library.function.add()
    inner.signature.name = "again"
    inner.signature.input_arg.add(name="a", type=1)
    inner.signature.output_arg.add(name="b", type=1)
    node = next(n for n in proto.node if n.op == "Relu")
    called = inner.node_def.add(op="PartitionedCall", name="c", input=["a"])
    inner.ret["b"] = "c:output:0"
    node.op = "PartitionedCall"
    for each in (node, called):
        each.attr["f"].func.name = "again"


def bare_exit(proto: Any) -> None:
    next(n for n in proto.node if n.op == "Relu").op = "Exit"
    del next(n for n in proto.node if n.op == "Exit").input[:]


DAMAGES: dict[Callable[[Any], None], str] = {
    cycle: "node Relu hangs on its own result|node Conv2D hangs on its own result",
    waiting: "node (Relu|Conv2D) hangs on its own result",
    third: "Conv2D Conv2D is not read: it has 3 inputs, and takes 2",
    second: "Relu Relu is not read: it has 2 inputs, and takes 1",
    no_type: "Conv2D Conv2D has T = 0, which is no element type",
    no_such_type: "Conv2D Conv2D has T = 99, which is no element type",
    below: r"Placeholder x0 is an input of the shape \[2, -5, 8, 3\]; open sizes are -1",
    missing: "Relu reads 'nowhere', which the file lacks",
    function: "PartitionedCall Relu calls 'gone', a function that the file lacks",
    larger: r"Const .* has the shape \[1099511627776, .*\], more than any file holds",
    shorter: "Const .* has the shape .* and 3 bytes of elements",
    unknown_type: "Placeholder x0 is an input of string, which is not read",
    other_type: "Const .* states type number 99 and holds f32",
    unheard_of: "Const .* holds type number 77, which is not read",
    twice: "two nodes are named x0",
    empty: "is a GraphDef without nodes",
    unknown_op: "DecodeJpeg Relu is no op that is read; cut it off, .*",
    rank: "Conv2D .* is not read: its strides are",
    standing: r"Conv2D .* is not read: its strides are \[1, 0, 0, 1\]",
    flat: "its operands, 2x8x8x3xf32 and 108xf32, and its attributes do not fit each other$",
    bits: "Relu is not read: its quantized values have 1099511627776 bits; 1 to 32 are read",
    parts: "Unpack Relu is not read: it has 1099511627776 results; 1 to 65536 are read",
    flat_crops: "BatchToSpaceND Relu is not read: its operands, 2x8x8x4xf32 and 2xi32 and 2xi32, ",
    unknown_mode: "QuantizeV2 Relu is not read: its mode is 'SOME'; it cannot be kept either",
    recursive: "Relu calls functions more than 64 deep",
    bare_exit: "Exit Relu has 0 inputs, which is too few",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_file_is_refused_in_one_line(
    damage: Callable[[Any], None], tmp_path: Path
) -> None:
    proto = small()
    damage(proto)
    path = save_graph_def(proto, tmp_path / "g.pb")
    with pytest.raises(InputError, match=DAMAGES[damage]) as found:
        TensorFlowFrontend().load(path, Ledger())
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)


def attributes(rng: random.Random) -> Any:
    """Returns a graph, one or two of whose attributes say something else."""
    proto = build_graph_def(_several_ops, (X,))[0]
    for _ in range(rng.choice((1, 2))):
        node = rng.choice([n for n in proto.node if n.attr])
        other = rng.choice([n for n in proto.node if n.attr])
        name = rng.choice(sorted(node.attr))
        attr, shape = node.attr[name], node.attr[name].tensor.tensor_shape
        match rng.choice(("taken", "missing", "number", "list", "shape")):
            case "taken":
                attr.CopyFrom(other.attr[rng.choice(sorted(other.attr))])
            case "missing":
                del node.attr[name]
            case "number":
                attr.i = rng.choice((-1, 0, 3, 1 << 40))
            case "list":
                attr.list.i[:] = rng.choices((-1, 0, 1, 2, 1 << 40), k=rng.randrange(6))
            case "shape":
                sizes = rng.choices((-1, 0, 1, 3, 108, 1 << 40), k=rng.randrange(4))
                del shape.dim[:]
                for size in sizes:
                    shape.dim.add(size=size)
    return proto


def _several_ops(x: Any) -> Any:
    y = tf.nn.max_pool2d(tf.nn.conv2d(x, W, 1, "SAME"), 2, 2, "VALID")
    y = tf.concat([tf.pad(y, [[0, 0], [1, 1], [0, 0], [0, 0]])[:, :4, ::2], y[:, :, :2]], -1)
    return tf.unstack(tf.quantization.fake_quant_with_min_max_args(y), axis=2)[0]


PYTHON_TEXT = re.compile(r"[A-Z][a-z]+(Error|Exception)\b|values to unpack|NoneType|<class|object")


def test_attributes_that_say_anything_are_refused_without_python_text(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "1"))
    rng = random.Random(seed)
    refused = 0
    for _ in range(60):
        path = save_graph_def(attributes(rng), tmp_path / "g.pb")
        try:
            TensorFlowFrontend().load(path, Ledger())
        except InputError as error:
            refused += 1
            assert not PYTHON_TEXT.search(str(error)), f"seed {seed}: {error}"  # noqa: PT017
    assert refused


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    data = small().SerializeToString()
    path = tmp_path / "g.pb"
    for size in range(1, len(data), 7):
        path.write_bytes(data[:size])
        try:
            TensorFlowFrontend().load(path, Ledger())
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017 - some lengths hold a whole graph


@pytest.mark.slow
def test_files_that_tensorflow_cannot_load_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.h5").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.h5: TensorFlow does not load it: .+"):
        qir.load(tmp_path / "model.h5")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"VarHandleOp")
    with pytest.raises(InputError, match=r"folder: the folder lacks variables/"):
        qir.load(folder)


@pytest.mark.slow
def test_variables_that_are_damaged_or_elsewhere_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = _signed(tmp_path / "model", 2)
    data = next((folder / "variables").glob("*data*"))
    whole = data.read_bytes()
    data.write_bytes(whole[:3])
    with pytest.raises(InputError, match=r"the files in variables/: Read less bytes"):
        qir.load(f"{folder}#half")
    data.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"model: variables/.*data.* leads out of the folder"):
        qir.load(f"{folder}#half")


def test_a_keras_file_that_is_no_archive_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"PK cut short")
    with pytest.raises(InputError, match=r"model\.keras: is damaged: a \.keras file is a zip"):
        qir.load(tmp_path / "model.keras")


def test_a_saved_model_without_the_tag_of_serving_is_refused(tmp_path: Path) -> None:
    proto = saved_model_pb2.SavedModel()
    path = tmp_path / "saved_model.pb"
    path.write_bytes(b"\x08\x01")
    with pytest.raises(InputError, match=r"its saved_model\.pb holds no graph$"):
        qir.load(tmp_path)
    for tags in (("train",), ()):
        proto.meta_graphs.add().meta_info_def.tags.extend(tags)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=r"holds 2 graphs \(tags: train, none\), none of them"):
        qir.load(tmp_path)


def asset(meta: Any, name: str) -> None:
    meta.asset_file_def.add(filename=name)


def packed_asset(meta: Any, name: str) -> None:
    packed = meta.collection_def["saved_model_assets"].any_list.value.add()
    packed.Pack(meta_graph_pb2.AssetFileDef(filename=name))


def writing(meta: Any, name: str) -> None:
    meta.graph_def.library.function.add().node_def.add(op="WriteFile", name=name)


LEAVING = "leads out of the folder; save the model with a copy of it$"


@pytest.mark.parametrize(
    ("add", "name", "message"),
    [
        (asset, "../../etc/passwd", f"its asset '../../etc/passwd' {LEAVING}"),
        (asset, "/etc/passwd", f"its asset '/etc/passwd' {LEAVING}"),
        (packed_asset, "a/../../x", f"its asset 'a/../../x' {LEAVING}"),
        (writing, "w", "WriteFile w may open any file .*; save the model without it$"),
    ],
)
def test_a_saved_model_that_names_files_elsewhere_is_refused_before_any_is_opened(
    add: Callable[[Any, str], None],
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "run", None)  # no child is started
    proto = saved_model_pb2.SavedModel()
    meta = proto.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    add(meta, name)
    (tmp_path / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=message):
        qir.load(tmp_path)


def test_an_asset_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    proto = saved_model_pb2.SavedModel()
    asset(proto.meta_graphs.add(), "words.txt")
    folder = tmp_path / "model"
    (folder / "assets").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    (tmp_path / "elsewhere").write_text("x")
    (folder / "assets/words.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"model: assets/words\.txt leads out of the folder; put"):
        qir.load(folder)


def test_a_folder_whose_graph_is_text_is_refused(tmp_path: Path) -> None:
    proto = saved_model_pb2.SavedModel()
    asset(proto.meta_graphs.add(), "../../etc/passwd")
    folder = tmp_path / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pbtxt").write_text(str(proto))
    with pytest.raises(InputError, match=r"model: saved_model\.pbtxt is text; save the model with"):
        qir.load(folder, frontend="tensorflow")


def test_a_child_that_dies_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    (tmp_path / "model.h5").write_bytes(b"HDF")
    with pytest.raises(InputError, match=r"TensorFlow was killed \(signal 11\) [a-z ]+$"):
        qir.load(tmp_path / "model.h5")
    dying.write_text("#!/bin/sh\nkill -KILL $$\n")
    with pytest.raises(InputError, match=r"killed \(signal 9\) .*; memory may not suffice$"):
        qir.load(tmp_path / "model.h5")
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    foreign.close()
    proto, _ = build_graph_def(lambda x: tf.math.betainc(x, x, x), (X,))
    path = save_graph_def(proto, tmp_path / "g.pb")
    with pytest.raises(
        InputError, match=r"g\.pb: Betainc .* \(TensorFlow ended with status -11\)$"
    ):
        qir.load(path)


@pytest.mark.slow
def test_code_that_a_keras_file_holds_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    given = tf.keras.Input((4,))
    name = str(mark)  # a closure over plain text can be saved
    layer = tf.keras.layers.Lambda(lambda x: (open(name, "w"), x)[1], output_shape=(4,))
    model = tf.keras.Model(given, layer(given))
    for suffix in (".h5", ".keras"):
        path = tmp_path / f"model{suffix}"
        model.save(path)
        mark.unlink(missing_ok=True)
        with pytest.raises(InputError, match="holds code, such as a Lambda layer, which"):
            qir.load(path)
        assert not mark.exists()


def _signed(folder: Path, version: int) -> Path:
    """Writes a SavedModel with the signatures `twice` and `half` and one variable."""
    if version == 2:
        module = tf.Module()
        module.w = tf.Variable([2.0, 0.5])
        spec = tf.TensorSpec((None, 3), tf.float32, name="x")
        calls = [tf.function(lambda x, i=i: {"y": x * module.w[i]}, [spec]) for i in (0, 1)]
        signatures = dict(zip(("twice", "half"), calls, strict=True))
        tf.saved_model.save(module, str(folder), signatures)
        return folder
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 3), "x")
        w = v1.get_variable("w", initializer=[2.0, 0.5], use_resource=False)
        info = v1.saved_model.build_tensor_info
        signatures = {
            name: v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(x * w[i])}, "p")
            for i, name in enumerate(("twice", "half"))
        }
        session.run(w.initializer)
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return folder


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", [1, 2])
def test_a_signature_of_a_saved_model_is_named_in_its_path(version: int, tmp_path: Path) -> None:
    folder = _signed(tmp_path / "model", version)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, factor in (("twice", 2.0), ("half", 0.5)):
        graph = qir.load(f"{folder}#{name}")
        assert [value.name for value in graph.inputs] == ["x"]
        assert np.array_equal(run(graph, {"x": x})["y"], x * np.float32(factor))
    for path in (str(folder), f"{folder}#third"):
        with pytest.raises(InputError, match=r"signatures are half, twice; .* model#half"):
            qir.load(path)
    with pytest.raises(InputError, match="none#half"):
        qir.load(tmp_path / "none#half")
