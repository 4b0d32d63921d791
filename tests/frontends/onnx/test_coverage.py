"""The page of operators says what the tables and tests say."""

from __future__ import annotations

from .coverage import PAGE, page


def test_the_page_of_operators_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make docs writes it anew"
