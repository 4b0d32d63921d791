"""Maps that ONNX lacks: functions of primitive operators, run by onnxruntime, read back as maps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.backends.onnx.writer import custom
from qir.errors import Refused
from qir.ir.dtype import F32, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.types import Array, Granularity, QuantType, TensorType, make_param
from qir.ledger import Ledger
from qir.reference.interpreter import run

NF4: tuple[float, ...] = (
    -1.0,
    -0.6961928,
    -0.52507305,
    -0.3949175,
    -0.28444138,
    -0.18477343,
    -0.09105004,
    0.0,
)
NF4 += (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
LOG2 = tuple(s * 2.0**-i for s in (-1, 1) for i in range(8))
ROUNDS = ("", "away", "half_up", "half_down", "up", "down", "zero", "floor", "ceil")
SHAPE = (6, 40)


def array(data: NDArray[np.generic], kind: str = "") -> Array:
    held = np.asarray(data)
    return Array(held, TensorType(held.shape, dtype(kind) if kind else dtype_of(held)), "n")


def blocks(size: int, axis: int = 1) -> Granularity:
    return Granularity(tuple((i, size if i == axis else 1) for i in range(2)))


def plain(
    data: NDArray[np.generic], grain: Granularity | None, storage: str
) -> Array | tuple[float, ...]:
    """Numbers in the one form that they have: in line where they are few."""
    found = make_param(data, grain, "n")
    if isinstance(found, Array) and found.type.dtype.is_integer:
        along = grain is not None and grain.axis is not None
        return array(found.data, "" if along else storage)
    assert found is not None
    return found


def _scales(rng: np.random.Generator, *shape: int) -> Array:
    return array((2.0 ** rng.uniform(-6, -1, shape)).astype(np.float32))


def named(rng: np.random.Generator) -> dict[str, tuple[QuantType, str]]:
    """The schemes that the issue names, each with its rounding."""
    quantized = array(np.asarray(NF4, np.float32))
    return {
        "six bits, symmetric": (
            QuantType(dtype("i6"), F32, scale=(0.07,), bounds=(-31, 31)),
            "",
        ),
        "power of two, halves away": (QuantType(dtype("i8"), F32, scale=(0.03125,)), "away"),
        "nf4 in blocks": (
            QuantType(
                dtype("u4"), F32, _scales(rng, 6, 5), (), blocks(8), kind="lut", codes=quantized
            ),
            "",
        ),
        "log2": (QuantType(dtype("u4"), F32, scale=(1.5,), kind="lut", codes=LOG2), ""),
        "blocks with a real zero": (
            QuantType(
                dtype("u4"),
                F32,
                _scales(rng, 6, 5),
                array(rng.uniform(0, 15, (6, 5)).astype(np.float32)),
                blocks(8),
            ),
            "",
        ),
    }


def generated(seed: int) -> tuple[QuantType, str]:
    """Some map that QuantizeLinear cannot say, and a rounding."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    storage = dtype(chance.choice("u1 i2 u3 i3 u4 i4 u5 i6 u7 i7 u8 i8 i9 u11 i16".split()))
    grains = [None, Granularity(((1, 1),)), Granularity(((0, 1),)), blocks(7), blocks(4, 0)]
    grains += [Granularity(((0, 2), (1, 16))), Granularity(((0, 4),)), Granularity(((1, 7),))]
    grain = chance.choice(grains)
    grid = () if grain is None else grain.grid(SHAPE)
    if grain is not None and grain.axis is not None:
        grid = (SHAPE[grain.axis],)
    sizes = [d for d in grid if isinstance(d, int)]
    scale = (
        plain(_scales(rng, *sizes).data, grain, "")
        if sizes
        else (float(np.float32(2.0 ** rng.uniform(-6, -1))),)
    )
    low, high = storage.bounds
    bounds = (low + 1, high) if high - low > 2 and chance.random() < 0.4 else None
    plus = (float(np.float32(rng.normal())),) if chance.random() < 0.3 and grain is None else None
    if chance.random() < 0.4 and storage.bits <= 8:
        count = chance.randint(2, min(high - low + 1, 17)) if high > low + 1 else 2
        table = tuple(float(np.float32(v)) for v in rng.normal(size=count))
        held = array(np.asarray(table, np.float32)) if count > 8 else table
        made = QuantType(storage, F32, scale, (), grain, kind="lut", codes=held, plus=plus)
        return made, ""
    low = low if bounds is None else bounds[0]
    zero: Array | tuple[float, ...] | tuple[int, ...] = ()
    match chance.randrange(3):
        case 0 if sizes:
            zero = plain(rng.uniform(low, high, sizes).astype(np.float32), grain, "")
        case 0:
            zero = (float(np.float32(rng.uniform(low, high))) + 0.25,)
        case 1 if sizes:
            data = rng.integers(low, high + 1, sizes).astype(storage.carrier)
            zero = plain(data, grain, storage.name)
        case 1:
            zero = (chance.randint(low, high),)
    made = QuantType(storage, F32, scale, zero, grain, bounds, plus=plus)
    return made, chance.choice(ROUNDS)


def graph_of(quant: QuantType, rounding: str, seed: int) -> Graph:
    """x quantized and dequantized, less weights that are held as integers."""
    rng = np.random.default_rng(seed)
    graph = Graph("main", "ort-1.31")
    x = graph.add("input", types=[TensorType(SHAPE, F32)], name="x").result
    kind = TensorType(SHAPE, quant)
    q = graph.add("quantize", {"x": x}, {"round": rounding}, types=[kind], name="q").result
    real = graph.add("dequantize", {"x": q}, name="r").result
    count = quant.high - quant.low
    if quant.codes is not None:
        count = min(
            count, np.size(quant.codes.data if isinstance(quant.codes, Array) else quant.codes) - 1
        )
    held = (quant.low + rng.integers(0, count + 1, SHAPE)).astype(quant.storage.carrier)
    w = graph.constant(Array(held, kind, "w"), name="w")
    weights = graph.add("dequantize", {"x": w}, name="v").result
    y = graph.add("sub", {"a": real, "b": weights}, name="y").result
    graph.add("output", {"y": y, "r": real})
    return graph


def random_floats(quant: QuantType, seed: int) -> NDArray[np.float32]:
    """Numbers around the integers, many at ties, beyond both ends, and those that are none."""
    rng = np.random.default_rng(seed)
    scale = np.float32(np.median(np.asarray(quant.scales(), np.float32)))
    span = min(quant.high - quant.low, 300)
    steps = rng.integers(-2 * span, 2 * span + 1, SHAPE) / np.float32(2)
    x = (steps * scale + (rng.normal(size=SHAPE) * (rng.random(SHAPE) < 0.4) * scale)).astype(
        np.float32
    )
    odd = [0.0, -0.0, 1e-40]
    if custom.needs_function(
        quant, SHAPE, constant=False
    ):  # onnxruntime's kernel for blocks makes much of those
        odd += [np.inf, -np.inf, 1e30, -1e30, np.nan]
    x[0, : len(odd)] = odd
    return x


def check(quant: QuantType, rounding: str, seed: int, tmp_path: Path, target: str) -> None:
    graph = graph_of(quant, rounding, seed)
    path = tmp_path / "m.onnx"
    pipeline.save(graph, path, target=target, force=True)
    feeds = {"x": random_floats(quant, seed)}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    theirs = dict(zip(names, session.run(None, feeds), strict=True))
    ours = run(graph, feeds)
    for name, found in theirs.items():
        same = (found == ours[name]) | (np.isnan(found) & np.isnan(ours[name]))
        at = tuple(np.argwhere(~same)[0]) if not same.all() else ()
        said = f"seed {seed}, {quant!r} {rounding}: {name} at {at}"
        assert same.all(), f"{said}: {found[at]} for {ours[name][at]}"
    back = pipeline.load(path)
    assert [n.op for n in back if n.op != "constant"] == [
        n.op for n in graph if n.op != "constant"
    ], f"seed {seed}"
    assert back["q"].type == graph["q"].type, f"seed {seed}: {back['q'].type}"
    assert back["q"].node.attrs == graph["q"].node.attrs
    held, wanted = back["w"].constant, quant
    if not custom.needs_function(quant, SHAPE, constant=True):
        wanted = replace(quant, bounds=None)  # a DequantizeLinear of constants has none to say
    assert held is not None
    assert held.type.element == wanted, f"seed {seed}"
    given = graph["w"].constant
    assert given is not None
    assert (held.data == given.data).all()


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("name", list(named(np.random.default_rng(0))))
def test_a_scheme_that_onnx_lacks_runs_and_comes_back(
    tmp_path: Path, name: str, target: str
) -> None:
    quant, rounding = named(np.random.default_rng(1))[name]
    check(quant, rounding, 3, tmp_path, target)


@pytest.mark.parametrize("seed", range(40))
def test_any_scheme_runs_and_comes_back(tmp_path: Path, seed: int) -> None:
    check(*generated(seed), seed, tmp_path, "onnx")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(600))
def test_many_schemes_run_and_come_back(tmp_path: Path, seed: int) -> None:
    check(*generated(1000 + seed), seed, tmp_path, "onnx")


def test_a_function_whose_operators_were_edited_is_what_they_say(tmp_path: Path) -> None:
    quant, rounding = named(np.random.default_rng(1))["six bits, symmetric"]
    path = tmp_path / "m.onnx"
    pipeline.save(graph_of(quant, rounding, 3), path)
    proto = onnx.load(path)
    function = next(f for f in proto.functions if f.name.startswith("Quantize"))
    clip = next(n for n in function.node if n.op_type == "Round")
    clip.op_type = "Floor"
    onnx.save(proto, path)
    graph = pipeline.load(path)
    assert "floor" in [n.op for n in graph]
    feeds = {"x": random_floats(quant, 3)}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = session.run(["r"], feeds)[0]
    np.testing.assert_array_equal(run(graph, feeds)["r"], theirs)


def test_what_primitive_operators_do_not_say_is_refused(tmp_path: Path) -> None:
    inner = QuantType(dtype("u8"), F32, scale=(0.01,))
    data = np.full((6, 5), 9, np.uint8)
    held = Array(data, TensorType(data.shape, inner), "s")
    twice = QuantType(dtype("u4"), F32, held, (), blocks(8))
    with pytest.raises(Refused, match="its scales are quantized themselves"):
        pipeline.save(graph_of(twice, "away", 1), tmp_path / "m.onnx", ledger=Ledger())
    wide = QuantType(dtype("i24"), F32, scale=(0.01,))
    path = tmp_path / "wide.onnx"
    pipeline.save(graph_of(wide, "", 1), path)  # as what it does, and read so
    feeds = {"x": random_floats(wide, 1)}
    wanted = pipeline.run(graph_of(wide, "", 1), feeds)
    session = onnxruntime.InferenceSession(str(path))
    names = [each.name for each in session.get_outputs()]
    ran = dict(zip(names, session.run(names, feeds), strict=True))
    back = pipeline.run(pipeline.load(path), feeds)
    for name in names:
        assert np.array_equal(ran[name], wanted[name]), name
        assert np.array_equal(back[name], wanted[name]), name


def test_codes_of_a_width_that_onnx_lacks_go_on_to_what_is_kept(tmp_path: Path) -> None:
    quant, rounding = named(np.random.default_rng(1))["six bits, symmetric"]
    path, again = tmp_path / "m.onnx", tmp_path / "again.onnx"
    pipeline.save(graph_of(quant, rounding, 3), path)
    proto = onnx.load(path)
    node = onnx.helper.make_node("ReduceMax", ["q"], ["most"], keepdims=0)
    proto.graph.node.append(node)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("most", 3, []))
    onnx.save(proto, path)
    graph = pipeline.load(path)
    assert str(graph["most"].type) == "i8"
    pipeline.save(graph, again)
    feeds = {"x": random_floats(quant, 3)}
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(["most"], feeds)
    (found,) = onnxruntime.InferenceSession(str(again)).run(["most"], feeds)
    assert wanted == found == run(graph, feeds)["most"] == 31
