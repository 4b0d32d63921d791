"""A new op is a spec, a NumPy function, a name in ONNX and a row in a target file: nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import qir
from qir import registry
from qir.analysis.decisions import Plan
from qir.ir.ops import AttrSpec, Call, Elsewhere, OpSpec, PluginOp, Slot, Traits
from qir.ir.types import QuantType, TensorType
from qir.testing import check_op, require

DOMAIN, SEED = "com.acme", 20260701
Reals = NDArray[np.float32]


def bent(x: Reals, knee: float) -> Reals:
    """x, and half of what goes beyond the knee."""
    return np.where(x > knee, (x + x.dtype.type(knee)) / x.dtype.type(2), x).astype(x.dtype)


def like_x(call: Call) -> tuple[TensorType, ...]:
    """The result is as x, in floats."""
    if not call.express("x").is_float:
        raise call.fail(f"x holds {call.express('x')}; it takes floats")
    return (TensorType(call.shape("x"), call.express("x")),)


BEND = PluginOp(
    OpSpec(
        "acme_bend",
        (Slot("x"),),
        like_x,
        (AttrSpec("knee", "float", 1.0),),
        Traits(elementwise=True),
        doc="x, and half of what goes beyond the knee",
    ),
    bent,
    {"onnx": Elsewhere(DOMAIN, "Bend", attrs={"knee": "at"})},
)
TARGET = """name = "acme-chip"
extends = "onnxruntime"

[[op]]
op = "acme_bend"
slots = { x = "u8 affine tensor", result = "u8 affine tensor" }
"""


class Bend(OpRun):
    """The op for the evaluator of onnx."""

    op_domain = DOMAIN

    def _run(self, x: Reals, at: float = 1.0) -> tuple[Reals]:
        return (bent(x, at),)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """An ONNX file that has the op between two others, where QIR knows the op."""
    made = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["n"], name="neg"),
            helper.make_node("Bend", ["n"], ["b"], domain=DOMAIN, at=0.75, name="bend"),
            helper.make_node("Abs", ["b"], ["y"], name="abs"),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 300])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 300])],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(made, opset_imports=sets, ir_version=10), tmp_path / "net.onnx")
    with registry.offer("qir.ops", "acme_bend", BEND):
        yield tmp_path / "net.onnx"


def quantized(x: Reals, kind: QuantType) -> Reals:
    """What u8 values of x mean, by the formula of ONNX."""
    scale, zero = np.float32(kind.scales()), int(kind.zeros())
    integers = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray((integers - zero) * scale, np.float32)


def becomes(plan: Plan) -> dict[str, str]:
    return {made.node: made.becomes for made in plan.decisions}


def test_the_op_keeps_the_contract_of_ops() -> None:
    require(check_op(BEND))


def test_it_is_loaded_quantized_verified_run_and_written(model: Path, tmp_path: Path) -> None:
    target, written = tmp_path / "chip.toml", tmp_path / "made.onnx"
    target.write_text(TARGET, encoding="utf-8")
    x = np.random.default_rng(SEED).normal(0, 1, (2, 300)).astype(np.float32)

    graph = qir.load(model)
    assert [(n.op, n.attrs.get("knee")) for n in graph if n.name == "b"] == [("acme_bend", 0.75)]
    plain = becomes(qir.plan(graph))
    with_row = becomes(qir.plan(graph, target=str(target)))
    assert (plain["b"], with_row["b"]) == ("float", "integer")

    made = qir.quantize(graph, qir.calibrate(graph, [{"x": x}]), target=str(target))
    assert not [f for f in qir.verify(made) if f.severity == "error"]
    before, use = made["b"].node.operands["x"].node, made["b"].only_use
    assert use is not None
    assert (before.op, use.node.op) == ("dequantize", "quantize")
    first, second = before.operands["x"].type.quant, use.node.result.type.quant
    assert first is not None
    assert second is not None

    ours = qir.run(made, {"x": x})["y"]
    meant = bent(quantized(-x, first), 0.75)
    assert np.array_equal(ours, np.abs(quantized(meant, second)))

    qir.save(made, written, target=str(target), format="qdq")
    onnx.checker.check_model(str(written))
    (given,) = ReferenceEvaluator(str(written), new_ops=[Bend]).run(None, {"x": x})
    assert np.array_equal(ours, given)
    back = qir.load(written)
    assert np.array_equal(qir.run(back, {"x": x})["y"], ours)
