"""The page of kernels is what the engine's tables say."""

import pytest

from qir.backends.cpu.program_file import STEPS
from tests.engine_page import PAGE, elements, text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "`python -m tests.engine_page` writes it"


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_step_has_its_elements(step: str) -> None:
    assert elements(step)
