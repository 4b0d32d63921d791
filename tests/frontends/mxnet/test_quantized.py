"""Quantized symbols give the bytes that MXNet 1.9.1 gave, tensor by tensor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.errors import InputError
from qir.ir.node import Value
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from tests.frontends.comparison import difference

from .recorded_cases import Array, Case, cases

CASES = cases("quantized")
*FUSED, GELU = cases("fused")
"""Models with layers in groups of several channels, and with other functions than relu."""
UNCALIBRATED = cases("uncalibrated")
"""Models that choose ranges while they run."""
MODES = cases("modes")
"""One network in every mode of quantize_model, of which MXNet runs eight."""
MODE = "naive", "entropy", "none"
RUN, REFUSED = ([case for case in MODES if bool(case.refused) is no] for no in (False, True))


@pytest.mark.parametrize("case", [*CASES, *FUSED, *UNCALIBRATED, *RUN], ids=lambda case: case.name)
def test_a_quantized_symbol_gives_the_bytes_of_mxnet(case: Case, tmp_path: Path) -> None:
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    made: dict[str, Array] = {}

    def see(value: Value, data: Array) -> None:
        made[value.name] = np.asarray(data)

    results = run(graph, case.inputs, observe=see)
    near = 0.0 if case in UNCALIBRATED or case in MODES else 1e-6
    for name, wanted in case.inner.items():
        ours = made[name.removesuffix("_output0").removesuffix("_output")]
        assert ours.dtype == wanted.dtype, name
        assert np.array_equal(ours, wanted), name
    pairs = zip(results.values(), case.results, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, near))] == []


def test_groups_and_declared_ranges_are_those_of_the_file(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name.startswith("residual naive auto"))
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    nodes = {node["name"]: node.get("attrs", {}) for node in json.loads(case.symbol)["nodes"]}
    calibrated = {name: attrs for name, attrs in nodes.items() if "max_calib_range" in attrs}
    assert len(calibrated) == 3
    for name, attrs in calibrated.items():
        (value,) = (v for node in graph for v in node.results if v.name == name)
        assert value.type.quant is not None
        declared = value.type.quant.declared
        assert declared is not None
        assert declared.high == (float(np.float32(attrs["max_calib_range"])),)
        assert declared.low == (float(np.float32(attrs["min_calib_range"])),)
    chains = [[stage.op for stage in node.stages] for node in graph if node.op == "fused"]
    assert chains == [["conv2d", "relu"], ["conv2d", "add", "relu"]]


def test_names_of_onednn_are_those_of_mkldnn(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name.startswith("residual naive auto"))
    first = qir.load(case.write(tmp_path), inputs=case.given())
    path = case.write(tmp_path)
    path.write_text(case.symbol.replace('"op": "_sg_mkldnn_', '"op": "_sg_onednn_'))
    again = qir.load(path, inputs=case.given())
    made = [run(graph, case.inputs) for graph in (first, again)]
    assert all(np.array_equal(made[0][name], made[1][name]) for name in made[0])
    assert "_sg_onednn_conv" in {origin.op for node in again for origin in node.origins}


def test_a_range_of_another_tensor_is_refused(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "max_pool2d")
    held = json.loads(case.symbol)
    (pool,) = (n for n in held["nodes"] if n["op"] == "_contrib_quantized_pooling")
    first = next(i for i, n in enumerate(held["nodes"]) if n["op"] == "_contrib_quantize_v2")
    pool["inputs"][1] = [first, 1, 0]
    path = case.write(tmp_path)
    path.write_text(json.dumps(held))
    with pytest.raises(InputError, match="operand 0 comes with the range of another tensor"):
        qir.load(path, inputs=case.given())


@pytest.mark.parametrize("name", ["int8 2", "residual naive auto tensor-wise"])
def test_a_bias_of_zeros_has_a_range_of_nothing(name: str, tmp_path: Path) -> None:
    case = next(case for case in (*CASES, *UNCALIBRATED) if case.name == name)
    held = {n: d for n, d in case.parameters.items() if "bias" in n and d.dtype == np.int8}
    assert held
    case = replace(case, parameters={**case.parameters, **{n: d * 0 for n, d in held.items()}})
    plain = qir.load(case.write(tmp_path), inputs=case.given())
    ends = {f"{n}_{end}": np.zeros(1, np.float32) for n in held for end in ("min", "max")}
    ends |= {n: np.full_like(d, 127) for n, d in held.items()}  # as MXNet stores 0 / 0
    case = replace(case, parameters={**case.parameters, **ends})
    graph = qir.load(case.write(tmp_path), inputs=case.given())
    (ours,), (theirs,) = (run(g, case.inputs).values() for g in (graph, plain))
    assert np.array_equal(ours, theirs)


def test_what_mxnet_refuses_to_run_is_in_the_ledger(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name.startswith("residual naive auto"))
    path = case.write(tmp_path)
    path.write_text(case.symbol.replace('"out_type": "auto"', '"out_type": "uint8"'))
    ledger = Ledger()
    qir.load(path, inputs=case.given(), ledger=ledger)
    (entry,) = (e for e in ledger if e.change is Change.UNVERIFIED)
    assert "MXNet 1.9.1 does not run uint8 with a range that begins below 0" in entry.reason


def test_mxnet_refuses_ten_of_the_modes() -> None:
    found = [case.name for case in REFUSED]
    assert found == [
        "auto none channel-wise",
        "int8 entropy tensor-wise",
        "int8 entropy channel-wise",
        "int8 none channel-wise",
        *(f"uint8 {mode} {each}-wise" for mode in MODE for each in ("tensor", "channel")),
    ]
    assert len(RUN) == 8


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_mxnet_refuses_is_read_and_runs(case: Case, tmp_path: Path) -> None:
    ledger = Ledger()
    graph = qir.load(case.write(tmp_path), inputs=case.given(), ledger=ledger)
    (ours,) = run(graph, case.inputs).values()
    said = [e.reason for e in ledger if e.change is Change.UNVERIFIED]
    # Whether data go below 0 is not known of ranges that are chosen while a model runs.
    assert all("MXNet 1.9.1" in reason for reason in said)
    assert said or case.name == "uint8 none tensor-wise"
    kind, mode, _ = case.name.split()
    if kind != "uint8":  # which cuts the data off at 0
        (other,) = (c for c in RUN if c.name == f"auto {mode} tensor-wise")
        assert difference(ours, other.results[0], 0.03) == ""


@pytest.mark.parametrize(
    ("name", "layers"),
    [("leaky", {"act_0": "ties", "add_act_1": "ties", "eltwise_0": "unsigned"}), ("curved", {})],
)
def test_what_is_known_of_functions_is_in_the_ledger(
    name: str, layers: dict[str, str], tmp_path: Path
) -> None:
    (case,) = (case for case in FUSED if case.name == name)
    ledger = Ledger()
    qir.load(case.write(tmp_path), inputs=case.given(), ledger=ledger)
    found = {e.subject: e.reason for e in ledger if e.change is Change.UNVERIFIED}
    assert found
    for layer, said in layers.items():
        assert any(subject.endswith(layer) and said in found[subject] for subject in found)


def test_a_gelu_behind_a_convolution_is_refused(tmp_path: Path) -> None:
    """MXNet rounds all of its negative values to 0, whatever the calibrated range holds."""
    (conv,) = (data for name, data in GELU.inner.items() if "conv" in name)
    assert conv.min() == 0
    with pytest.raises(
        InputError, match="other numbers than gelu after a convolution; quantize the float model"
    ):
        qir.load(GELU.write(tmp_path), inputs=GELU.given())
