"""The page of claims is the one that the profiles make."""

import re

import pytest

from qir.numerics import profile, profile_names
from tests.numerics_page import PAGE, ROOT, counted, numerics_page
from tests.picture_of_steps import PICTURE, picture


def test_the_page_is_current() -> None:
    wanted = "python -m tests.numerics_page"
    assert PAGE.read_text(encoding="utf-8") == numerics_page(), f"`{wanted}` writes it"


def test_the_page_names_every_profile_and_files_that_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^## `(.+)`$", text, re.MULTILINE)) == set(profile_names())
    paths = set(re.findall(r"`pytest (\S+)`", text))
    assert paths
    assert not [path for path in paths if not list(ROOT.glob(path))]


def test_nothing_is_claimed_exact_without_evidence() -> None:
    bare = [
        f"{name}, line {rule.line}: {', '.join(rule.ops)}"
        for name in profile_names()
        for rule in profile(name).rules
        if str(rule.fields.get(("", "claim"), "unknown")) != "unknown"
        and not rule.fields.get(("", "evidence"))
    ]
    assert not bare


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (
            "onnxruntime 1.31.1: 35,000 elements with NaN, infinities and ties, 0 differ",
            ("35,000", "0"),
        ),
        ("quantized::conv2d: 1 of 41,000 differ; zero after: 3 %", ("41,000", "1")),
        ("scale, zero and codes of 300 weights, 0 differ", ("", "0")),
        ("codes are moved and compared, not computed with", ("", "")),
        ("up to 20 % differ", ("", "")),
    ],
)
def test_counts_are_read_from_evidence(evidence: str, found: tuple[str, str]) -> None:
    assert counted(evidence) == found


def test_the_picture_is_current() -> None:
    wanted = "python -m tests.picture_of_steps"
    assert PICTURE.read_text(encoding="utf-8") == picture(), f"`{wanted}` writes it"
