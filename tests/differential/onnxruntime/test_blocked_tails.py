"""Products of real data and weights of few bits before an activation: which of them onnxruntime's
optimizer leaves in float32 is predicted, and is said of the written model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from tests.installed import OPTIMIZED

from .test_blocked_data import SEED, Case, Reals, data

NUMBERS = {"none": 0.0, "six": 6.0, "low": -1e6, "high": 1e6, "two": 2.0}
RELU, CLIP, WIDE = "r = Relu(p)", "r = Clip(p, none, six)", "r = Clip(p, low, high)"
MUL, CODES, RAISED = "y = Mul(r, two)", "y = QuantizeLinear(r, t, u)", "y = QuantizeLinear(r, t, v)"


@dataclass(frozen=True)
class Ending:
    """What reads a product: lines `result = Op(operands)`, and which results are shown.

    `p` is the product, `u` a zero point in the middle of the integers, `v` the zero point 0.
    """

    lines: tuple[str, ...]
    shown: str = "y"

    def __str__(self) -> str:
        return f"{', '.join(self.lines)} shows {self.shown}"


ROUNDED = [
    Ending((RELU,), "r"),
    Ending((RELU, MUL), "y r"),
    Ending((RELU, MUL, "also = Add(r, two)"), "y also"),
    Ending((RELU, "y = Mul(r, r)")),
    Ending((RELU, CODES), "y r"),
    Ending((RELU, CODES, "also = Mul(r, two)"), "y also"),
    Ending((RELU, MUL, "k = Clip(p, none, six)", "also = Add(k, two)"), "y also"),
    Ending(("r = LeakyRelu(p)", MUL)),
    Ending(("y = Mul(p, two)",)),
]
"""Readers that leave the optimizer its choice."""
FLOAT = [
    Ending((RELU, MUL)),
    Ending((RELU, MUL), "y p"),
    Ending((RELU, "k = Relu(r)", "y = Mul(k, two)")),
    Ending((RELU, "k = Clip(r, none, six)", "y = Mul(k, two)")),
    Ending((CLIP, MUL)),
    Ending((WIDE, MUL)),
    Ending((RELU, CODES)),
    Ending((CLIP, CODES)),
    Ending((RELU, RAISED), "y p"),
    Ending((WIDE, CODES), "y p"),
    Ending(("r = Clip(p, , ends)", CODES)),
    Ending(("r = Clip(p, , ends)", MUL)),
    Ending((RELU, MUL, "also = QuantizeLinear(p, t, u)"), "y also"),
    Ending(("y = QuantizeLinear(p, t, u)",), "y p"),
]
"""Readers beside which it leaves the product in float32."""
UNCUT = [Ending((RELU, RAISED)), Ending((WIDE, CODES)), Ending(("y = QuantizeLinear(p, t, u)",))]
"""Those beside which it does so before 1.32, and since then where the integers have 8 bits."""
PRODUCTS = [
    Case(block=0),
    Case(block=0, op="Gemm", bias=True),
    Case(block=0, bias=True),
    Case(block=0, bits=16),
    Case(block=0, bits=16, bias=True),
    Case(block=0, rank=3),
    Case(block=0, rank=3, bias=True),
]


def model(case: Case, ending: Ending) -> tuple[onnx.ModelProto, list[str]]:
    """The model, and the results that it shows."""
    made = case.model()
    graph, product = made.graph, made.graph.output[0].name

    def names(text: str, by: str) -> list[str]:
        return [product if name == "p" else name for name in text.split(by)]

    for line in ending.lines:
        result, call = line.split(" = ")
        op, operands = call.rstrip(")").split("(")
        graph.node.append(helper.make_node(op, names(operands, ", "), [result]))
    for name, number in NUMBERS.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float32), name))
    kind = next(held.data_type for held in graph.initializer if held.name == "u")
    graph.initializer.append(helper.make_tensor("v", kind, (), [0]))
    if any("ends" in line for line in ending.lines):  # computed, of data
        graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["ends"], keepdims=0))
    shown = names(ending.shown, " ")
    del graph.output[:]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in shown)
    return made, shown


def computed(path: Path, feeds: dict[str, Reals]) -> tuple[list[NDArray[Any]], bool]:
    """What onnxruntime gives, and whether it made a kernel for few bits."""
    optimized = path.with_name("optimized.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(optimized)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {node.op_type for node in onnx.load(optimized).graph.node}
    return session.run(None, feeds), "MatMulNBits" in kinds


def judged(case: Case, ending: Ending, folder: Path) -> bool:
    """Whether onnxruntime rounds the data, as QIR predicts: the graph, its results, its ledger."""
    feeds, source = data(case), folder / "m.onnx"
    made, shown = model(case, ending)
    source.write_bytes(made.SerializeToString())
    results, kernel = computed(source, feeds)
    graph, written, ledger = qir.load(source), Ledger(), Ledger()
    qir.save(graph, folder / "q.onnx", format="qdq", ledger=written)
    Group(profile=OPTIMIZED).run(graph, ledger)
    assert any("rounded to 8 bits" in e.reason for e in ledger) == kernel
    said = [e.reason for e in written if "at accuracy level 4" in e.reason]
    since = any(reason.startswith("since 1.32") for reason in said)
    assert (bool(said) and (not since or wide())) == kernel, said
    mine = qir.run(graph, feeds)
    for name, wanted in zip(shown, results, strict=True):
        found = np.asarray(mine[name]).astype(np.float64)
        # A code may be beside a tie, where a sum in another order makes the next one of it.
        least = 1.0 if wanted.dtype.kind == "u" else 1e-6 * float(np.abs(wanted).max())
        assert np.abs(found - wanted).max() <= least, f"seed {SEED}, {name}"
    return kernel


def wide() -> bool:
    return "round_wide_data" in profile(OPTIMIZED).prepare


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_data_are_rounded_beside_readers_that_are_no_lone_activation(
    case: Case, tmp_path: Path
) -> None:
    for number, ending in enumerate(ROUNDED):
        (tmp_path / str(number)).mkdir()
        assert judged(case, ending, tmp_path / str(number)), ending


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_data_stay_real_before_an_activation_that_is_read_once(case: Case, tmp_path: Path) -> None:
    turned = case.rank == 3 and case.bias  # one gemm between reshapes, which read the product
    for number, ending in enumerate(FLOAT):
        (tmp_path / str(number)).mkdir()
        assert judged(case, ending, tmp_path / str(number)) == turned, ending


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_before_codes_of_16_bits_that_nothing_cuts_the_version_decides(
    case: Case, tmp_path: Path
) -> None:
    turned = case.rank == 3 and case.bias
    for number, ending in enumerate(UNCUT):
        (tmp_path / str(number)).mkdir()
        rounded = judged(case, ending, tmp_path / str(number))
        between = turned and len(ending.lines) > 1  # a lone quantize goes before the reshape
        assert rounded == (between or (case.bits == 16 and wide())), ending


@pytest.mark.parametrize("given", [False, True])
def test_data_stay_real_beside_weights_that_the_caller_may_give(
    given: bool, tmp_path: Path
) -> None:
    """Real weights of which onnxruntime makes integers; of those that may be given, when it
    runs."""
    case = Case("i8", -1, bias=True, quantized="x", bits=16)
    made, _ = model(case, Ending(("y = QuantizeLinear(p, t, u)",)))
    graph, floats = made.graph, np.random.default_rng(SEED).normal(size=(case.depth, 32))
    graph.node.remove(next(n for n in graph.node if n.output[0] == "d"))
    graph.initializer.append(numpy_helper.from_array(floats.astype(np.float32), "d"))
    if given:
        graph.input.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, floats.shape))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    wanted, kernel = computed(tmp_path / "m.onnx", data(case))
    assert kernel == (wide() and not given)
    found, ledger = qir.load(tmp_path / "m.onnx"), Ledger()
    Group(profile=OPTIMIZED).run(found, ledger)
    assert any("rounded to 8 bits" in e.reason for e in ledger) == kernel
    (quantized,) = qir.run(found, data(case)).values()
    assert np.abs(np.asarray(quantized).astype(np.int64) - wanted[0]).max() <= 1, f"seed {SEED}"
