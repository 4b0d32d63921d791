"""The page of what recorded results do not tell apart is the one that the tests make."""

from __future__ import annotations

from tests.mutation.page import PAGE, text


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == text(), "python -m tests.mutation.page writes it"
