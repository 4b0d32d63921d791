"""No kernel on codes that a runtime registers is forgotten: claimed, or listed with the reason."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys

import pytest
import torch

from .registered import PAGE, RUNTIMES, table, text

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
    """Ops with a kernel of codes; TensorFlow is asked in a process of its own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed: its kernels are not listed")
    words = [sys.executable, "-c", _KERNELS]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (line,) = (one for one in said.splitlines() if one.startswith("KERNELS "))
    return set(json.loads(line.partition(" ")[2]))


FOUND = {"torch": of_torch, "tensorflow": of_tensorflow}


@pytest.mark.parametrize("runtime", FOUND)
def test_each_kernel_is_claimed_or_listed_with_the_reason(runtime: str) -> None:
    named = list(table(runtime).names())
    found = FOUND[runtime]()
    assert len(named) == len(set(named)), sorted(n for n in set(named) if named.count(n) > 1)
    assert not found - set(named), f"said nothing of: {sorted(found - set(named))}"
    assert not set(named) - found, f"there is none: {sorted(set(named) - found)}"


@pytest.mark.parametrize("runtime", FOUND)
def test_each_claim_is_one(runtime: str) -> None:
    for row in table(runtime).claimed:
        assert row.claim(row.profiles[0]) != "unknown", row.op


def test_the_page_is_written_anew() -> None:
    assert all((PAGE.parent / "numerics.md").exists() for _ in RUNTIMES)
    assert PAGE.read_text(encoding="utf-8") == text(), "python -m tests.differential.registered"
