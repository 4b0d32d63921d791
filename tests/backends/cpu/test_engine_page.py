"""The page of kernels is what the engine's tables say."""

import re
from pathlib import Path

import pytest

from qir.backends.cpu.program import kernel_sets
from qir.backends.cpu.program_file import STEPS
from tests.engine_page import PAGE, elements, text

KERNELS = Path(__file__).parents[3] / "qir" / "_kernels"
FAMILIES = {
    "gemm": "conv2d",
    "grouped": "grouped",
    "depthwise": "depthwise",
    "floats": "float_linear",
    "pooling": "max_pool2d",
    "recurrent": "recurrent",
    "rows": "layer_norm",
    "wide": "wide_product",
    "elementwise": "add",
}
"""A step of each family of kernels."""


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "`python -m tests.engine_page` writes it"


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_step_has_its_elements(step: str) -> None:
    assert elements(step)


def test_every_table_of_kernels_is_of_a_family_here() -> None:
    assert {path.parent.name for path in KERNELS.glob("*/kernels.inc")} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_sets_are_those_of_the_tables_of_kernels(family: str) -> None:
    table = (KERNELS / family / "kernels.inc").read_text()
    rows = re.findall(rf"QIR_\w+_KERNEL\((?:qir_{family}_)?(\w+), QIR_ISA_(\w+)", table)
    assert [name for name, _ in rows] == [bit.lower() for _, bit in rows]
    assert tuple(name for name, _ in rows) == kernel_sets(FAMILIES[family])
