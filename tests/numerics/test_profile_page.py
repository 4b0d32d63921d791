"""The page on profiles says every field, and the file it shows loads."""

from __future__ import annotations

import re
from pathlib import Path

from qir.numerics.fields import BLOCKS, allowed_text, field_types
from qir.profiles import parse, profile

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "profiles.md"


def test_the_page_lists_every_field_with_its_values() -> None:
    rows = [
        f"| `{block}.{name}` | {allowed_text(kind)} |"
        for block in BLOCKS
        for name, kind in field_types(block).items()
    ]
    lines = PAGE.read_text().splitlines()
    shown = [line for line in lines if re.match(r"\| `\w+\.\w+` \|", line)]
    assert shown == rows


def test_the_profile_on_the_page_loads_and_says_what_it_shows() -> None:
    text, *_ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = parse(text, "page.toml", profile)
    assert found.name == "acme-1.0"
    assert found.rules[0].fields["requant", "round"] == "away"
    assert found.own_groups[0].chain == ("conv2d", "relu")
