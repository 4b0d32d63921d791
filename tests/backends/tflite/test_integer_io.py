"""Files that take and give integers: the interpreter's are those of the file with floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir.passes.forms.integer_io import IntegerIo
from tests.backends.tensorflow.networks import Net, branches, inverted, padded, residual
from tests.differential.tensorflow.kernels import HAS_VNNI

tensorflow = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
TARGET = "tflite"
NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches, "padded": padded}
STORAGES = {"i8": np.int8, "u8": np.uint8}


def interpreter(path: Path, batch: int = 1) -> Any:
    """TensorFlow's interpreter as it comes, with room for a batch."""
    made = tensorflow.lite.Interpreter(str(path), num_threads=1)
    for tensor in made.get_input_details():
        made.resize_tensor_input(tensor["index"], [batch, *tensor["shape"][1:]])
    made.allocate_tensors()
    return made


def operators(path: Path) -> list[str]:
    kind = tensorflow.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    made = tensorflow.lite.Interpreter(str(path), experimental_op_resolver_type=kind)
    return [each["op_name"] for each in made._get_ops_details()]


def run(path: Path, data: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    made = interpreter(path, len(data))
    made.set_tensor(made.get_input_details()[0]["index"], data)
    made.invoke()
    return [made.get_tensor(each["index"]) for each in made.get_output_details()]


def sizes(net: Net) -> tuple[int, ...]:
    """The sizes of a sample."""
    _, *sample = net.graph["x"].type.shape
    return tuple(size for size in sample if isinstance(size, int))


def saved(net: Net, path: Path, io: str) -> Path:
    feeds = {"x": np.random.default_rng(4).normal(0, 1, (4, *sizes(net))).astype(np.float32)}
    made = qir.quantize(net.graph, qir.calibrate(net.graph, [feeds]), target=TARGET, io=io)
    qir.save(made, path, target=TARGET)
    return path


def floats_of(tensor: dict[str, Any], integers: NDArray[np.generic]) -> NDArray[np.float32]:
    """What integers of a tensor mean, by the scale and zero point in the file."""
    scale, zero = tensor["quantization"]
    made: NDArray[np.float32] = np.float32(scale) * (integers.astype(np.int32) - zero).astype("f")
    return made


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("io", ["integer", "u8"])
def test_the_interpreter_gives_the_integers_of_the_file_with_floats(
    name: str, io: str, tmp_path: Path
) -> None:
    net = NETWORKS[name](7)
    plain = saved(net, tmp_path / "floats.tflite", "float")
    integer = saved(net, tmp_path / "integers.tflite", io)
    made = interpreter(integer)
    (x,), (y,) = made.get_input_details(), made.get_output_details()
    storage = STORAGES["u8" if io == "u8" else "i8"]
    assert x["dtype"] == y["dtype"] == storage
    low = np.iinfo(storage).min
    given = np.random.default_rng(5).integers(low, low + 256, (8, *sizes(net))).astype(storage)
    # The floats that integers mean are quantized to these integers, however they are rounded.
    (wanted,) = run(plain, floats_of(x, given))
    (found,) = run(integer, given)
    assert found.dtype == storage
    assert len(np.unique(found)) > 20
    assert np.array_equal(floats_of(y, found), wanted)
    assert np.array_equal(found, qir.run(qir.load(integer), {"x": given})["y"])


@pytest.mark.parametrize("io", ["integer", "u8", "u8:float"])
def test_no_operator_converts_but_for_another_storage(io: str, tmp_path: Path) -> None:
    found = operators(saved(inverted(7), tmp_path / "integers.tflite", io))
    plain = operators(saved(inverted(7), tmp_path / "floats.tflite", "float"))
    ends = {"integer": [], "u8": ["QUANTIZE"] * 2, "u8:float": ["QUANTIZE", "DEQUANTIZE"]}[io]
    assert [op for op in found if op in ("QUANTIZE", "DEQUANTIZE")] == ends
    inner = [op for op in plain if op not in ("QUANTIZE", "DEQUANTIZE")]
    assert [op for op in found if op not in ("QUANTIZE", "DEQUANTIZE")] == inner


def test_transposes_of_unsigned_images_are_of_signed_ones(tmp_path: Path) -> None:
    net = Net(3, 8, 1)
    net.graph.set_operand(net.graph.output, "y", net.conv(net.x, 5))
    found = operators(saved(net, tmp_path / "integers.tflite", "u8"))
    assert found == ["QUANTIZE", "TRANSPOSE", "CONV_2D", "TRANSPOSE", "QUANTIZE"]


def test_unsigned_ends_of_another_runtimes_model_stay_unsigned(tmp_path: Path) -> None:
    net = residual(3)
    feeds = {"x": np.random.default_rng(4).normal(0, 1, (4, *sizes(net))).astype(np.float32)}
    statistics = qir.calibrate(net.graph, [feeds])
    for io in ("float", "integer"):
        made = qir.quantize(net.graph, statistics, io=io)  # for onnxruntime, of u8
        qir.save(made, tmp_path / f"{io}.tflite", target=TARGET)
    made = interpreter(tmp_path / "integer.tflite")
    (x,), (y,) = made.get_input_details(), made.get_output_details()
    assert x["dtype"] == y["dtype"] == np.uint8
    given = np.random.default_rng(5).integers(0, 256, (8, *sizes(net))).astype(np.uint8)
    (found,) = run(tmp_path / "integer.tflite", given)
    (wanted,) = run(tmp_path / "float.tflite", floats_of(x, given))
    assert np.array_equal(floats_of(y, found), wanted)
    found_ops, float_ops = (operators(tmp_path / f"{io}.tflite") for io in ("integer", "float"))
    as_conversions = ["QUANTIZE" if op == "DEQUANTIZE" else op for op in float_ops]
    assert sorted(found_ops) == sorted(as_conversions)


def test_a_file_with_floats_is_read_and_written_with_integers(tmp_path: Path) -> None:
    net = residual(3)
    plain = saved(net, tmp_path / "floats.tflite", "float")
    made = qir.optimize(qir.load(plain), [IntegerIo()])
    qir.save(made, tmp_path / "later.tflite", target=TARGET)
    at_once = saved(net, tmp_path / "integers.tflite", "integer")
    data = np.random.default_rng(2).integers(-128, 128, (3, *sizes(net))).astype(np.int8)
    (later,), (direct,) = run(tmp_path / "later.tflite", data), run(at_once, data)
    assert np.array_equal(later, direct)
    assert "QUANTIZE" not in operators(tmp_path / "later.tflite")


@pytest.mark.parametrize("name", ["inverted", "windows", "dense"])
def test_the_pass_makes_what_tensorflows_converter_makes(name: str, tmp_path: Path) -> None:
    from tests.frontends.tflite.networks import NETWORKS as OF_KERAS
    from tests.frontends.tflite.networks import build, converted

    model = build(OF_KERAS[name], 3)
    wanted = converted(model, "int8", 3, tmp_path / "wanted.tflite")
    plain = converted(model, "int8_float_ends", 3, tmp_path / "floats.tflite")
    made = qir.optimize(qir.load(plain), [IntegerIo()])
    qir.save(made, tmp_path / "made.tflite", target=TARGET)
    first, second = interpreter(wanted), interpreter(tmp_path / "made.tflite")
    for ends in ("get_input_details", "get_output_details"):
        (a,), (b,) = getattr(first, ends)(), getattr(second, ends)()
        assert (a["dtype"], a["quantization"]) == (b["dtype"], b["quantization"])
    (_, *sample) = first.get_input_details()[0]["shape"]
    given = np.random.default_rng(5).integers(-128, 128, (8, *sample)).astype(np.int8)
    (theirs,), (ours,) = run(wanted, given), run(tmp_path / "made.tflite", given)
    assert np.array_equal(ours, theirs)
    assert not {"QUANTIZE", "DEQUANTIZE"} & set(operators(tmp_path / "made.tflite"))


def test_a_file_of_integers_takes_and_gives_others_and_floats(tmp_path: Path) -> None:
    first = saved(residual(7), tmp_path / "integers.tflite", "integer")
    graph = qir.load(first)
    shape = (8, *sizes(residual(7)))
    given = np.random.default_rng(6).integers(-128, 128, shape).astype(np.int8)
    (wanted,) = run(first, given)
    unsigned, mixed = tmp_path / "unsigned.tflite", tmp_path / "mixed.tflite"
    qir.save(qir.optimize(graph, [IntegerIo("u8", "u8")]), unsigned, target=TARGET)
    qir.save(qir.optimize(graph, [IntegerIo("u8", "float")]), mixed, target=TARGET)
    stored = (given.astype(np.int16) + 128).astype(np.uint8)
    (found,) = run(unsigned, stored)
    assert found.dtype == np.uint8
    assert np.array_equal(found.astype(np.int16) - 128, wanted)
    (floats,) = run(mixed, stored)
    (details,) = interpreter(first).get_output_details()
    assert np.array_equal(floats, floats_of(details, wanted))
    back = qir.optimize(qir.load(unsigned), [IntegerIo("i8", "i8")])
    qir.save(back, tmp_path / "signed.tflite", target=TARGET)
    assert "QUANTIZE" in operators(unsigned)
    assert "QUANTIZE" not in operators(tmp_path / "signed.tflite")
    assert np.array_equal(run(tmp_path / "signed.tflite", given)[0], wanted)
