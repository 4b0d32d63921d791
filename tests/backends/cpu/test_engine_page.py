"""The page of kernels is what the engine's tables say."""

import re
from pathlib import Path

import pytest

from qir.backends.cpu.program import BYTE_KINDS, KERNEL_SETS, PRODUCT_KINDS, VECTOR_KINDS
from qir.backends.cpu.program_file import STEPS
from tests.engine_page import PAGE, elements, text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "`python -m tests.engine_page` writes it"


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_step_has_its_elements(step: str) -> None:
    assert elements(step)


KERNELS = Path(__file__).parents[3] / "qir" / "_kernels"
FAMILIES = {
    **dict.fromkeys(("gemm", "grouped", "depthwise"), PRODUCT_KINDS),
    **dict.fromkeys(("floats", "pooling", "recurrent", "rows", "wide"), VECTOR_KINDS),
    "elementwise": BYTE_KINDS,
}


def test_every_table_of_kernels_is_of_a_family_here() -> None:
    assert {path.parent.name for path in KERNELS.glob("*/kernels.inc")} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_sets_are_those_of_the_tables_of_kernels(family: str) -> None:
    table = (KERNELS / family / "kernels.inc").read_text()
    rows = re.findall(rf"QIR_\w+_KERNEL\((?:qir_{family}_)?(\w+), QIR_ISA_(\w+)", table)
    assert [name for name, _ in rows] == [bit.lower() for _, bit in rows]
    assert tuple(name for name, _ in rows) == KERNEL_SETS[FAMILIES[family]]
