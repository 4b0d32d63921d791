"""The page of kernels is what the engine's tables say."""

import re
from pathlib import Path

import pytest

from qir.backends.cpu.program import kernel_sets
from qir.backends.cpu.program_file import STEPS
from tests.engine_page import PAGE, elements, text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "`python -m tests.engine_page` writes it"

KERNELS = Path(__file__).parents[3] / "qir" / "_kernels"


@pytest.mark.parametrize(
    ("folder", "step"),
    [
        ("gemm", "conv2d"),
        ("gemm", "matmul"),
        ("depthwise", "depthwise"),
        ("grouped", "grouped"),
        ("floats", "float_linear"),
        ("elementwise", "add"),
        ("pooling", "max_pool2d"),
        ("rows", "layer_norm"),
        ("recurrent", "recurrent"),
        ("wide", "wide_product"),
    ],
)
def test_the_sets_of_a_step_are_those_of_its_kernels(folder: str, step: str) -> None:
    table = (KERNELS / folder / "kernels.inc").read_text()
    rows = re.findall(r"^QIR_\w+\(.*QIR_ISA_(\w+)", table, re.MULTILINE)
    assert kernel_sets(step) == tuple(row.lower() for row in rows)


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_step_has_its_elements(step: str) -> None:
    assert elements(step)
