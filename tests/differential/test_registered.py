"""No kernel on integers that a runtime registers is forgotten: claimed, or listed with the
reason."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys

import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state

from .registered import FOLDER, PAGE, table, text

_SPACES = ("quantized", "_quantized", "onednn", "quantized_decomposed", "quantization")
_WORDS = re.compile(
    r"quantize|int8|int4|_int_mm|4bit|fbgemm|qparams|scaled_mm|fake_quant|::qlinear"
)
_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "QuantizedCPU")


def of_torch() -> set[str]:
    """Names without a signature's own (`add.Scalar_out`), of results given or in place."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    has, found = torch._C._dispatch_has_kernel_for_dispatch_key, set()
    for name in torch._C._dispatch_get_all_op_names():
        space = name.partition("::")[0]
        if space in ("mkldnn", "static_runtime", "inductor"):  # real data alone
            continue
        coded = has(name, "QuantizedCPU")
        if not coded and space not in _SPACES:
            if not _WORDS.search(name) or not any(has(name, key) for key in _KEYS):
                continue
        if "quantile" not in name and "backward" not in name:
            short = name.partition(".")[0].removesuffix("_out")
            found.add(short.removesuffix("_"))
    return found


_KERNELS = """
import json
from tensorflow.python.framework import kernels
codes = {11, 12, 13, 15, 16}
found = set()
for kernel in kernels.get_all_registered_kernels().kernel:
    types = {t for c in kernel.constraint for t in c.allowed_values.list.type}
    if kernel.device_type == "CPU" and (types & codes or "uantiz" in kernel.op):
        found.add(kernel.op)
    if kernel.device_type == "CPU" and "FakeQuant" in kernel.op:
        found.add(kernel.op)
print("KERNELS", json.dumps(sorted(found)))
"""


def of_tensorflow() -> set[str]:
    """Ops with a kernel of integers; TensorFlow is asked in a process of its own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed: its kernels are not listed")
    words = [sys.executable, "-c", _KERNELS]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (line,) = (one for one in said.splitlines() if one.startswith("KERNELS "))
    return set(json.loads(line.partition(" ")[2]))


_CODES = re.compile(r"\bu?int(8|4|16)\b")
_CODED = re.compile(r"^Q[A-Z]|Quant|NBits|Integer|Bnb4|Q4$")


def of_onnxruntime() -> set[str]:
    """Kernels of the CPU provider, those of ONNX's own domain by their bare names."""
    found = set()
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.provider != "CPUExecutionProvider":
            continue
        kinds = [kind for one in kernel.type_constraints.values() for kind in one]
        if _CODED.search(kernel.op_name) or any(_CODES.search(kind) for kind in kinds):
            found.add(f"{kernel.domain}::{kernel.op_name}".removeprefix("::"))
    return found


_OF_CODES = re.compile(r"^ipex::q|woq|weight_only|quant|fp8|e4m3|e5m2|nf4|Llga|int[48]")


def of_ipex() -> set[str]:
    """Kernels by name, of all that were registered when results were recorded."""
    names = (FOLDER / "vectors" / "ipex" / "registered.txt").read_text(encoding="utf-8").split()
    return {name for name in names if _OF_CODES.search(name)}


FOUND = {
    "torch": of_torch,
    "tensorflow": of_tensorflow,
    "onnxruntime": of_onnxruntime,
    "ipex": of_ipex,
}


@pytest.mark.parametrize("runtime", FOUND)
def test_each_kernel_is_claimed_or_listed_with_the_reason(runtime: str) -> None:
    named, newer = list(table(runtime).names()), table(runtime).newer
    found = FOUND[runtime]()
    assert len(named) == len(set(named)), sorted(n for n in set(named) if named.count(n) > 1)
    assert not found - set(named), f"said nothing of: {sorted(found - set(named))}"
    gone = set(named) - found - newer
    assert not gone, f"there is none: {sorted(gone)}"


@pytest.mark.parametrize("runtime", FOUND)
def test_each_claim_is_one(runtime: str) -> None:
    for row in table(runtime).claimed:
        assert row.claim(row.profiles[0]) != "unknown", row.op


@pytest.mark.parametrize("runtime", FOUND)
def test_each_test_that_is_named_speaks_of_the_kernel(runtime: str) -> None:
    for test, kernels in table(runtime).held.items():
        said = (FOLDER / test).read_text(encoding="utf-8")
        missing = [k for k in kernels if not re.search(rf"\b{k.rpartition(':')[2]}\b", said)]
        assert not missing, f"{test} says nothing of {missing}"


def test_onnxruntime_has_no_kernel_for_ordered_codes() -> None:
    """QOrderedMatMul and the like are schemas alone on CPUs, and so is QLinearReduceMean."""
    assert not [name for name in of_onnxruntime() if "QOrdered" in name or "ReduceMean" in name]


def test_the_page_is_written_anew() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "python -m tests.differential.registered"
