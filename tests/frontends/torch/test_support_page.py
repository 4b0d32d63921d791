"""The page of PyTorch's quantization support says what is so: each entry is tried again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.processors import has

from .support_entries import SECTIONS
from .support_modules import Entry, Row
from .support_page import PAGE, outcome

ENTRIES = [(title, name) for title, rows in SECTIONS.items() for name in rows]
BY_PLATFORM = pytest.mark.skipif(
    not has("vnni") or has("amx"), reason="profiles of PyTorch speak of VNNI, equal without AMX"
)


def written() -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Yields the rows of the page."""
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = part.partition("\n")[0]
        for name, rest in re.findall(r"^\| `(.+?)` \| (.*) \|$", part, re.M):
            yield (title, name), re.split(r" (?<!\\)\| ", rest)


ROWS = dict(written())


def row(title: str, name: str) -> Row:
    return SECTIONS[title][name]


def test_the_page_has_every_entry() -> None:
    assert list(ROWS) == ENTRIES
    assert len(ROWS) >= 259


def test_what_is_not_read_or_written_says_why() -> None:
    assert [key for key, (*tried, said) in ROWS.items() if "no" in tried and not said] == []
    assert [key for key, (read, *_, said) in ROWS.items() if not read and not said] == []


def test_whatever_is_read_or_written_computes_what_pytorch_does() -> None:
    assert [key for key, found in ROWS.items() if "differ" in found] == []


@BY_PLATFORM
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("title", "name"), ENTRIES)
def test_an_entry_does_what_the_page_says(title: str, name: str) -> None:
    tried = row(title, name)
    found, page = list(outcome(tried)), ROWS[title, name]
    if isinstance(tried, Entry) and tried.near is not None:  # float sums, which a processor orders
        found, page = (["near" if w == "equal" else w for w in words] for words in (found, page))
    assert found == page
