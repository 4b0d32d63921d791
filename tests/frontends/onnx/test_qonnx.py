"""QONNX models: what their ops give is what the package's NumPy code gives, and they go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.backends.onnx.writer.graph import to_model
from qir.errors import PluginError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.differential.onnxruntime.contrib import same_nodes
from tests.frontends.onnx.models import model, save
from tests.oracles.qonnx_vectors import VECTORS, cases, digest

F = np.float32
Reals = NDArray[np.float32]
MODES = ("ROUND", "HALF_EVEN", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
DOMAIN = "qonnx.custom_op.general"


def rounded(x: Reals, mode: str) -> Reals:
    """As `resolve_rounding_mode` of qonnx 1.0.0 has it."""
    with_sign = {
        "UP": lambda a: np.ceil(a),
        "HALF_UP": lambda a: np.floor(a + F(0.5)),
        "HALF_DOWN": lambda a: np.ceil(a - F(0.5)),
    }
    if mode in with_sign:
        return np.asarray(np.sign(x) * with_sign[mode](np.abs(x)), F)
    plain: dict[str, Any] = {"CEIL": np.ceil, "FLOOR": np.floor, "DOWN": np.fix}
    return np.asarray(plain.get(mode, np.round)(x), F)


def ends(bits: Reals, signed: bool, narrow: bool) -> tuple[Reals, Reals]:
    if signed:
        half = np.asarray(2 ** (bits - F(1)), F)
        return np.asarray(-half + F(narrow), F), np.asarray(half - F(1), F)
    return np.asarray(0 * bits, F), np.asarray(2**bits - F(1 + narrow), F)


def quant(
    x: Reals, scale: Reals, zero: Reals, bits: Reals, signed: bool, narrow: bool, mode: str
) -> Reals:
    """As `int_quant` of qonnx 1.0.0 has it."""
    y = x / scale + zero
    if bits == 1 and signed:
        y = np.where(y >= 0, F(1), F(-1))
    else:
        low, high = ends(bits, signed, narrow)
        y = rounded(np.where(y < low, low, np.where(y > high, high, y)), mode)
    return np.asarray((y - zero) * scale, F)


def through(
    op: str,
    feeds: dict[str, Any],
    constants: dict[str, Any],
    folder: Path,
    version: int = 1,
    **attrs: Any,
) -> tuple[Reals, list[str]]:
    """What the interpreter gives, and the ops within; the model is written back as it was."""
    names = {**feeds, **constants}
    order = [n for n in "x s z b os ob".split() if n in names]
    node = helper.make_node(op, order, ["y"], "it", domain=DOMAIN, **attrs)
    info = helper.make_tensor_value_info
    from onnx import numpy_helper

    graph = helper.make_graph(
        [node],
        "g",
        [info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    read = OnnxFrontend().load(save(proto, folder), Ledger())
    check(read)
    written = to_model(read, Ledger())
    same_nodes(proto, written)
    assert {o.domain: o.version for o in written.opset_import}[DOMAIN] == version
    assert OnnxFrontend().load(save(written, folder, "again.onnx"), Ledger()) == read
    ops = [n.op for _, each in read.walk() for n in each]
    return np.asarray(run(read, feeds)["y"], F), ops


def test_recorded_cases_are_read_as_they_are(tmp_path: Path) -> None:
    with np.load(Path(VECTORS) / "quant.npz") as file:
        assert str(file["inputs"]) == digest()
        wanted = file["y"]
    for case, y in zip(cases(), wanted, strict=True):
        constants = {"s": F(case.scale), "z": F(case.zero), "b": F(case.bits)}
        attrs = {"signed": int(case.signed), "narrow": int(case.narrow)}
        found, ops = through(
            "Quant", {"x": case.x}, constants, tmp_path, rounding_mode=case.mode, **attrs
        )
        assert "quantize" in ops
        assert np.array_equal(found, y), case.mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("computed", [False, True])
def test_any_numbers(tmp_path: Path, mode: str, signed: int, computed: bool) -> None:
    rng = np.random.default_rng(31)
    for bits, narrow, size, zero in (
        (3.0, 0, (), 0.0),
        (4.0, 1, (1, 5, 1), 1.0),
        (5.0, 0, (4, 1, 1), 2.5),
        (2.5, 0, (), 0.0),
        (1.0, 0, (), 0.0),
        (7.0, 1, (4, 5, 1), 3.0),
    ):
        scale = np.asarray(2.0 ** rng.integers(-3, 1, size), F)
        x = np.asarray(rng.integers(-40, 41, (4, 5, 6)) / 8, F)
        held = {"s": scale, "z": np.array(zero, F), "b": np.array(bits, F)}
        feeds = {"x": x, **(held if computed else {})}
        found, _ = through(
            *("Quant", feeds, {} if computed else held, tmp_path),
            rounding_mode=mode,
            signed=signed,
            narrow=narrow,
        )
        wanted = quant(x, scale, held["z"], held["b"], signed != 0, narrow != 0, mode)
        assert np.array_equal(found, wanted), f"{bits} bits of {mode}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [16, 17, 20, 23, 24, 25])
def test_many_bits(tmp_path: Path, bits: int, mode: str) -> None:
    rng = np.random.default_rng(bits)
    for signed, narrow, zero in ((1, 0, 0), (0, 0, 0), (1, 1, 5), (0, 1, 5)):
        scale = np.asarray(rng.uniform(0.01, 1), F)
        steps = rng.uniform(-1.2, 1.2, 40) * 2.0**bits
        x = np.asarray(np.concatenate([steps, np.floor(steps) + 0.5]) * scale, F)
        held = {"s": scale, "z": np.array(zero, F), "b": np.array(bits, F)}
        found, _ = through(
            *("Quant", {"x": x}, held, tmp_path), rounding_mode=mode, signed=signed, narrow=narrow
        )
        wanted = quant(x, scale, held["z"], held["b"], signed != 0, narrow != 0, mode)
        assert np.array_equal(found, wanted), f"signed {signed}, zero point {zero}"


@pytest.mark.parametrize("mode", [m for m in MODES if m != "HALF_DOWN"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_zero_points_between_codes(tmp_path: Path, mode: str, bits: int) -> None:
    """Integers too: the zero point is real, one or one a channel, beside scales of any kind."""
    rng = np.random.default_rng(bits)
    for signed, narrow, size in ((0, 0, ()), (1, 1, (5, 1)), (0, 1, (4, 1, 1)), (1, 0, (5, 1))):
        scale = np.asarray(rng.uniform(0.01, 1, size), F)
        low = -(2 ** (bits - 1)) + narrow if signed else 0
        zero = np.asarray(low + rng.uniform(0, 2**bits - 2, size), F)
        x = rng.uniform(-1.2, 1.2, (4, 5, 6)) * 2.0**bits
        x[0], x[1, :, ::2] = np.floor(x[0]) + 0.5, 0
        held = {"s": scale, "z": zero, "b": np.array(bits, F)}
        floats = np.asarray((x - zero) * scale, F)  # ties are where a zero point lets them be
        found, ops = through(
            *("Quant", {"x": floats}, held, tmp_path),
            rounding_mode=mode,
            signed=signed,
            narrow=narrow,
        )
        wanted = quant(floats, scale, zero, held["b"], signed != 0, narrow != 0, mode)
        assert np.array_equal(found, wanted), f"signed {signed}, narrow {narrow}, {size}"
        assert {"quantize", "dequantize"} <= set(ops)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("largest", [1e-30, 1.0, 7.0, 3e38])
@pytest.mark.parametrize("size", [(), (5, 1)])
def test_two_numbers_of_one_bit(
    tmp_path: Path, size: tuple[int, ...], largest: float, computed: bool
) -> None:
    """A table of two: 0 is on the upper side; the least number below it is not, nor is NaN."""
    rng = np.random.default_rng(32)
    x = rng.integers(-2, 3, (4, 5, 6)).astype(F)
    x[0, :, :] = [0.0, -0.0, 1e-45, -1e-45, np.inf, -3e38]
    x[1, 0] = np.nan
    scale = np.asarray((rng.random(size) + 0.1) / 1.1 * largest, F)
    feeds, held = ({"s": scale}, {}) if computed else ({}, {"s": scale})
    found, ops = through("BipolarQuant", {"x": x, **feeds}, held, tmp_path)
    assert np.array_equal(found, np.where(x >= 0, F(1), F(-1)) * scale)
    assert ({"quantize", "dequantize"} <= set(ops)) != computed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("computed", [False, True])
def test_bits_are_dropped(tmp_path: Path, mode: str, computed: bool) -> None:
    rng = np.random.default_rng(33)
    x = np.asarray(rng.integers(-128, 128, (4, 6)) * 0.25, F)
    held = {"s": F(0.25), "z": F(3), "b": F(8)}
    for version, more in ((1, {"ob": F(5)}), (2, {"os": F(2.0), "ob": F(5)})):
        numbers = {n: np.asarray(v, F) for n, v in {**held, **more}.items()}
        feeds = {"x": x, **(numbers if computed else {})}
        constants = {} if computed else numbers
        found, _ = through("Trunc", feeds, constants, tmp_path, version, rounding_mode=mode)
        y = np.asarray(np.round(x / F(0.25) + F(3)), F)
        if version == 1:
            wanted = (rounded(y / F(8), mode) - F(3)) * F(0.25)
        else:
            wanted = (rounded(np.clip(y / F(8), -16, 15), mode) - F(3) / F(8)) * F(2)
        assert np.array_equal(found, wanted), f"version {version}"


@pytest.mark.parametrize("op", ["Quant", "Trunc"])
def test_an_op_whose_rounding_nobody_knows_is_kept(tmp_path: Path, op: str) -> None:
    given = {"s": 0.25, "z": 0, "b": 8, **({"ob": 4} if op == "Trunc" else {})}
    held = {name: np.asarray(number, F) for name, number in given.items()}
    node = helper.make_node(
        op, ["x", *held], ["y"], "it", domain=DOMAIN, rounding_mode="ROUND_TO_ZERO"
    )
    proto = model([node], {"x": (1, [4, 6])}, {"y": (1, [4, 6])}, held, domains=[DOMAIN])
    ledger = Ledger()
    read = OnnxFrontend().load(save(proto, tmp_path), ledger)
    assert [n.op for n in read if n.op not in ("input", "constant", "output")] == ["foreign"]
    said = "rounding_mode 'ROUND_TO_ZERO' is none that QONNX has"
    assert said in str([*ledger])
    with pytest.raises(PluginError, match=said):
        run(read, {"x": np.zeros((4, 6), F)})
    same_nodes(proto, to_model(read, Ledger()))
