"""The support matrix that target files make up, against the matrix as it was published."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from qir import pipeline
from qir.calibration import Statistics
from qir.errors import UsageError
from qir.inspect.targets import MatrixRow, forms, kinds, matrix, require_kind, targets
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.scheme import parse_scheme
from qir.ir.text import parse
from qir.profiles import parameters_for_range, profile
from qir.target import Plans, target
from tests.cli.command import assert_one_line
from tests.cli.command import qir as command
from tests.differential.torch.profile_in_use import named

INT8 = "scale = 2*max(|rmin|,|rmax|)/(127+128-1)"
UINT8 = "scale = max(rmin,rmax)/255"
HALVES = "scale = max(|rmin|,|rmax|)/(255/2)"
AFFINE = "scale = (rmax-rmin)/255, zero_point = 0 - round(rmin/scale)"
BOTH = "activation int8/uint8, weight int8"
ROWS = {
    ("TensorFlow", "oneDNN"): (BOTH, "-"),
    ("PyTorch", "FBGEMM"): ("activation uint8, weight int8", "activation uint8"),
    ("PyTorch IPEX", "oneDNN"): (BOTH, "-"),
    ("MXNet", "oneDNN"): (BOTH, "-"),
    ("ONNX Runtime", "MLAS"): ("weight int8", "activation uint8"),
}
"""What is symmetric and what asymmetric, by framework and library."""
FORMULAS = {
    "TensorFlow": {"int8 symmetric": INT8, "uint8 symmetric": UINT8},
    "PyTorch IPEX": {"int8 symmetric": INT8, "uint8 symmetric": UINT8},
    "MXNet": {"int8 symmetric": INT8, "uint8 symmetric": UINT8},
    "PyTorch": {"int8 symmetric": HALVES, "uint8 symmetric": HALVES, "uint8 affine": AFFINE},
    "ONNX Runtime": {"int8 symmetric": INT8, "uint8 affine": AFFINE},
}
FORMS = {
    "static": {
        "PyTorch": {"eager", "FX", "PT2E", "IPEX"},
        "TensorFlow": {"stock (oneDNN)", "Intel"},
        "ONNX Runtime": {"QLinear ops", "QDQ"},
        "MXNet": set[str](),
    },
    "dynamic": {"PyTorch": {"eager", "FX", "PT2E", "IPEX"}, "ONNX Runtime": {"integer ops"}},
    "training": {"PyTorch": {"eager", "FX", "IPEX"}, "TensorFlow": {"stock", "Intel"}},
}
"""The forms of each kind, by framework."""


@cache
def rows() -> dict[tuple[str, str], MatrixRow]:
    return {(row.framework, row.library): row for row in matrix()}


@pytest.mark.parametrize("place", ROWS, ids=" ".join)
def test_a_row_has_the_cells_and_formulas_of_the_matrix(place: tuple[str, str]) -> None:
    row = rows()[place]
    assert (row.symmetric, row.asymmetric) == ROWS[place]
    found = {re.sub("<.*>", "", f.values): f.matrix for f in row.formulas}
    assert found == FORMULAS[place[0]]


@pytest.mark.parametrize("kind", FORMS)
def test_the_forms_of_a_kind_are_those_of_the_matrix(kind: str) -> None:
    found = {}
    for cell in forms()[kind].split("; "):
        framework, _, names = cell.partition(": ")
        found[framework] = set(names.split(", ")) - {""}
    for framework, wanted in FORMS[kind].items():
        assert found[framework] == wanted


TODAY = {
    ("MXNet", "oneDNN", "int8 symmetric"): "scale = max(|rmin|,|rmax|)/127.5",
    ("MXNet", "oneDNN", "uint8 symmetric"): "scale = max(|rmin|,|rmax|)/255.5",
    ("ONNX Runtime", "MLAS", "int8<-127:127> symmetric"): "",
    ("ONNX Runtime", "MLAS", "uint8 affine"): (
        "scale = (rmax-rmin)/255, zero_point = round(0 - rmin/scale)"
    ),
    ("PyTorch", "FBGEMM", "int8<-127:127> symmetric"): "scale = max(|rmin|,|rmax|)/127",
    ("PyTorch", "FBGEMM", "uint8 affine"): (
        "scale = (rmax-rmin)/127, zero_point = 0 - round(rmin/scale)"
    ),
    ("PyTorch", "FBGEMM", "uint8 symmetric"): "scale = max(|rmin|,|rmax|)/63.5, zero_point = 64",
    ("PyTorch", "oneDNN", "uint8 affine"): "",
    ("PyTorch", "QNNPACK", "uint8 affine"): "",
    ("TensorFlow", "oneDNN", "int8 symmetric"): "",
    ("TensorFlow", "oneDNN", "uint8 symmetric"): "",
}
"""Measured of today's frameworks: MXNet since 1.6 divides by the half of 255; FBGEMM's default
observers reduce activations to seven bits; onnxruntime's tool rounds after it subtracts."""


@pytest.mark.parametrize("place", TODAY, ids=" ".join)
def test_where_todays_framework_differs_both_formulas_are_told(
    place: tuple[str, str, str],
) -> None:
    framework, library, values = place
    found = {f.values: f.today for f in rows()[framework, library].formulas}
    assert found[values] == TODAY[place]


def evaluated(text: str, rmin: float, rmax: float) -> tuple[float, float | None]:
    """The scale and zero point of a printed formula."""
    names: dict[str, object] = {"rmin": rmin, "rmax": rmax, "max": max, "round": np.rint}
    for part in text.split(", zero_point"):
        name, _, said = part.partition("= ")
        python = re.sub(r"\|(\w+)\|", r"abs(\1)", said)
        names[name.strip() or "zero"] = eval(python, {"abs": abs}, dict(names))
    scale, zero = names["scale"], names.get("zero")
    assert isinstance(scale, float)
    assert zero is None or isinstance(zero, int | float)
    return scale, zero


def test_what_is_printed_of_today_is_what_quantizing_gives() -> None:
    high, checked = np.asarray(2.9, np.float32), 0
    for place, row in rows().items():
        for printed in row.formulas:
            for name in printed.profiles:
                upward = printed.values == "uint8 symmetric" and place[0] != "PyTorch"
                low = np.asarray(
                    0 if upward else -0.7, np.float32
                )  # upward ones are never negative
                scale, zero = evaluated(printed.today or printed.matrix, float(low), float(high))
                storage, _, how = printed.values.partition(" ")
                scheme = parse_scheme(f"{storage.replace('int', 'i').replace('ui', 'u')} {how}")
                found = parameters_for_range(
                    profile(name), low, high, scheme, weight=printed.role == "weight"
                )
                assert np.isclose(found[0], scale, rtol=1e-6), (place, printed)
                assert zero is None or found[1] == zero, (place, printed)
                checked += 1
    assert checked >= 15


Plan: TypeAlias = dict[str, "tuple[str, ...] | None"]
U8, W = "u8 affine tensor minmax", "i8<-127:127> symmetric channel minmax"
SIGNED = "u8|i8 by sign symmetric tensor minmax zero(0)"
UP, ABOUT = "u8 symmetric tensor minmax zero(0)", "i8 symmetric tensor minmax"
ABOVE = f"{ABOUT} zero(0)"
PART = "u8 affine tensor fixed(0.00390625:0)"


def affine(data: str, weight: str = W, **others: tuple[str, ...] | None) -> Plan:
    """The plan of a target that stores every activation alike; `others` are ops of other plans."""
    usual: Plan = {
        "conv2d": (data, weight, data),
        "add": (data, data, data),
        "max_pool2d": (data, data),
        "sigmoid": (data, data),
        "concat": (data, data, data),
        "global_avg_pool": (data, data),
        "flatten": (data, data),
        "matmul": (data, weight, data),
        "softmax": (data, PART),
    }
    return usual | others


PLANS: dict[str, Plan] = {
    "onnxruntime": affine(U8),
    "onnx": affine(U8),
    "cpu": affine(U8),
    "onnxruntime-mixed": affine(U8),
    "onnxruntime-w8a16": affine(
        "u16 affine tensor minmax",
        softmax=("u16 affine tensor minmax", "u16 affine tensor fixed(1.52587890625e-05:0)"),
    ),
    "pytorch-x86": affine(U8, softmax=None),
    "pytorch-fbgemm": affine(U8, softmax=None),
    "pytorch-onednn": affine(U8, softmax=None),
    "pytorch-qnnpack": affine(U8, softmax=None, sigmoid=(U8, PART), concat=(U8, PART, U8)),
    "pytorch-fbgemm-symmetric": affine("u8 symmetric tensor minmax", softmax=None),
    "pt2e": {"conv2d": (U8, W, U8), "flatten": (U8, U8), "linear": (U8, W, U8)},
    "tensorflow-onednn": {
        "conv2d": (SIGNED, W, UP),
        "flatten": (SIGNED, SIGNED),
        "matmul": (SIGNED, W, ABOUT),
    },
    "mxnet-onednn": affine(
        SIGNED,
        "i8 symmetric channel minmax",
        conv2d=(SIGNED, "i8 symmetric channel minmax", UP),
        add=(ABOVE, UP, SIGNED),
        concat=(SIGNED, UP, SIGNED),
        matmul=(SIGNED, "i8 symmetric channel minmax", ABOUT),
        sigmoid=None,
        softmax=None,
    ),
}
"""For each op type the schemes of data, of weights or the second operand, and of the result; None
or no entry: it stays float. Of convolutions, that of the first, which ends in a relu."""


@cache
def network() -> tuple[Graph, Statistics]:
    """One op of each type, and statistics of it."""
    rng = np.random.default_rng(0)
    graph = parse("graph main as native { %x = input() : 2x3x8x8xf32  output(y=%x) }")

    def constant(*shape: int) -> Value:
        return graph.constant(rng.normal(0, 0.3, shape).astype(np.float32))

    def add(op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        return graph.add(op, operands, attrs, name=op).result

    weights = {"w": constant(3, 3, 3, 3), "bias": constant(3)}
    conv = add("conv2d", {"x": graph["x"], **weights}, pad=(1, 1, 1, 1))
    relu = add("relu", {"x": conv})
    weights = {"w": constant(3, 3, 3, 3), "bias": constant(3)}
    other = graph.add("conv2d", {"x": relu, **weights}, {"pad": (1, 1, 1, 1)}, name="last").result
    total = add("add", {"a": other, "b": relu})
    pool = add("max_pool2d", {"x": total}, kernel=(2, 2), stride=(2, 2))
    both = add("concat", {"xs.0": pool, "xs.1": add("sigmoid", {"x": pool})}, axis=1)
    flat = add("flatten", {"x": add("global_avg_pool", {"x": both})})
    graph.set_operand(
        graph.output,
        "y",
        add("softmax", {"x": add("matmul", {"a": flat, "b": constant(6, 5)})}),
    )
    data = rng.normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    return graph, pipeline.calibrate(graph, data)


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_of_each_op_type_is_that_of_the_row(name: str) -> None:
    graph, statistics = network()
    for decision in pipeline.plan(graph, target=name).decisions:
        if decision.node in ("relu", "last"):
            continue
        wanted = PLANS[name].get(decision.op)
        assert decision.integer == (wanted is not None), decision
        traits = spec(decision.op).traits
        bias = traits.bias
        texts = {s: t.split(" share(")[0] for s, t in decision.schemes.items() if s != bias}
        slots = ("x", "a", "xs.0", "w", "b", "xs.1", "result")
        assert tuple(texts[slot] for slot in slots if slot in texts) == (wanted or ()), decision
    relu = next(d for d in pipeline.plan(graph, target=name).decisions if d.node == "relu")
    assert relu.group == "conv2d"
    made = pipeline.quantize(graph, statistics, target=name)
    stored = {n.operands["x"].name: n.result.type.quant for n in made if n.op == "quantize"}
    assert stored
    for value, kind in stored.items():
        assert kind is not None
        op = {"last": "conv2d", "x": ""}.get(value, value)
        scheme = (PLANS[name].get(op) or ("u8|i8|u16",))[-1] if value != "last" else "u8|i8|u16"
        assert str(kind.storage) in scheme.split()[0], (value, kind)
        if "symmetric" in scheme:
            assert set(np.ravel(kind.zeros())) <= {0, 64}, (value, kind)


FEW = "weights of 8 or 4 bits"
KINDS = {
    "onnxruntime": {
        "w8a8": "yes",
        "w8a16": "no",
        "dynamic": "yes",
        "weights of 8 or 4 bits": "yes",
    },
    "onnxruntime-w8a16": {"w8a8": "no", "w8a16": "yes"},
    "onnxruntime-mixed": {"w8a8": "yes", "w8a16": "yes"},
    "pytorch-x86": {"w8a8": "yes", "dynamic": "yes", "training": "yes", "float16": "no"},
    "mxnet-onednn": {"w8a8": "yes", "dynamic": ".qir files", "training": "no"},
    "cpu": {"w8a8": ".qir files", "dynamic": ".qir files"},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_target_says_which_kinds_it_has(name: str) -> None:
    found = {kind.kind: kind.state for kind in kinds(target(name))}
    assert found.items() >= KINDS[name].items()


def test_files_that_cannot_hold_a_kind_are_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"write a \.qir file, or name another target: onnx, onnx"):
        require_kind(target("mxnet-onednn"), "weights")
    require_kind(target("onnxruntime"), "weights")
    for each in targets():
        if isinstance(each, Plans) or not each.capability().row.forms:
            continue
        assert "static" in each.capability().row.forms, each.name


def test_the_command_prints_every_row_and_formula_literally() -> None:
    printed = command("targets", "--matrix").out
    for place, (symmetric, asymmetric) in ROWS.items():
        if place in rows():
            line = next(x for x in printed.splitlines() if re.match(rf" *{'  +'.join(place)} ", x))
            assert re.split("  +", line.strip())[2:4] == [symmetric, asymmetric]
    assert all(formula in printed for formula in (INT8, UINT8, HALVES, AFFINE))
    assert "post-training static (needs calibration data)" in printed


def test_the_list_names_each_target_with_its_storage() -> None:
    told = json.loads(command("targets", "--json").out)["targets"]
    listed = {each["name"]: each for each in told}
    assert set(listed) >= set(PLANS)
    assert listed["pytorch-fbgemm-symmetric"]["activations"] == ["u8 symmetric"]
    assert listed["tensorflow-onednn"]["activations"] == ["u8|i8 symmetric"]
    assert listed["cpu"]["status"] == "runs"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("onnxruntme",), "no target 'onnxruntme'; did you mean 'onnxruntime'?"),
        (("./nobody.toml",), "nobody.toml: No such file"),
        (("cpu", "--matrix"), "give one of NAME, --matrix and --schema"),
    ],
)
def test_bad_words_get_one_line(words: tuple[str, ...], said: str) -> None:
    outcome = command("targets", *words)
    assert_one_line(outcome, 2)
    assert said in outcome.err


def test_one_target_is_shown_op_by_op_with_its_kinds() -> None:
    shown = command("targets", "pytorch-fbgemm-symmetric").out
    for said in (
        f"profile    {named('fbgemm')}",
        r"w8a8                    yes",
        "x/result u8 symmetric tensor; w i8<-127:127> symmetric channel or",
        "conv2d |> relu",
        "its kernel gives zero point 0, which no symmetric type has",
    ):
        assert said in shown
    told = json.loads(command("targets", "pytorch-fbgemm-symmetric", "--json").out)
    tanh = next(row for row in told["ops"] if row["op"] == "tanh")
    assert tanh["slots"]["result"] == ["u8 symmetric tensor fixed(0.0078125:128)"]


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxruntime-w8a16"])
def test_what_is_said_of_kinds_without_data_is_written(name: str, tmp_path: Path) -> None:
    graph, _ = network()
    state = {kind.kind: kind.state for kind in kinds(target(name))}
    assert (state["dynamic"], state[FEW]) == ("yes", "yes")
    made = pipeline.quantize_dynamic(graph, target=name)
    pipeline.save(made, tmp_path / "dynamic.onnx", target=name, format="integer")
    for weights in ("i8:16", "i4:16"):
        made = pipeline.quantize_weights(graph, weights, target=name)
        pipeline.save(made, tmp_path / f"{weights[:2]}.onnx", target=name, format="nbits")
    assert len(list(tmp_path.iterdir())) == 3


def test_activations_of_16_bits_run_in_onnxruntime_as_the_reference_says() -> None:
    graph, statistics = network()
    rng = np.random.default_rng(0)
    for shape in ((3, 3, 3, 3), (3,)) * 2 + ((6, 5),):
        rng.normal(0, 0.3, shape)  # the network's own weights, drawn before its data
    seen = rng.normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    made = pipeline.quantize(graph, statistics, target="onnxruntime-w8a16")
    kind = made["x.q"].type.quant
    assert kind is not None
    width = seen.max().astype(np.float64) - seen.min().astype(np.float64)
    assert kind.scales() == np.float32(width / 65535)
    runtime = target("onnxruntime-w8a16")
    told = pipeline.run(made, {"x": seen[:2]})["y"]
    ran = np.asarray(runtime.compile(made)(x=seen[:2])["y"])
    assert np.abs(ran - told).max() <= 2 * 2**-16, "a value of 16 bits beside a tie"


IPEX = """
name = "{name}"
profile = "ipex-2.8"
framework = "PyTorch"
extension = "IPEX"
library = "oneDNN"
formulas = "onednn"
forms = {{ static = ["IPEX"], dynamic = ["IPEX"], training = ["IPEX"] }}
[[op]]
op = "linear"
slots = {{ x = "{data}", w = "i8 symmetric channel", result = "{data}" }}
"""


def test_files_of_other_makers_fill_their_row(tmp_path: Path) -> None:
    for name in ("u8", "i8"):
        text = IPEX.format(name=name, data=f"{name} symmetric tensor")
        (tmp_path / f"{name}.toml").write_text(text)
    made = [target(str(tmp_path / f"{name}.toml")) for name in ("u8", "i8")]
    (row,) = matrix(made)
    place = ("PyTorch IPEX", "oneDNN")
    assert (row.framework, row.library) == place
    assert (row.symmetric, row.asymmetric) == ROWS[place]
    assert {f.values: f.matrix for f in row.formulas} == FORMULAS[place[0]]
    today = {f.values: f.today for f in row.formulas}
    assert today["int8 symmetric"] == "scale = max(|rmin|,|rmax|)/127.5"
    assert today["uint8 symmetric"] == "scale = max(|rmin|,|rmax|)/127.5, zero_point = 128"
    assert forms(made)["training"] == "PyTorch: IPEX"
