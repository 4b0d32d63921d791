"""The page of claims is the one that the profiles make."""

import re

import pytest

from qir.profiles import profile, profile_names
from qir.profiles.evidence import parse_counts
from tests.numerics_page import PAGE, ROOT, numerics_page
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


def test_a_kernel_without_figures_says_on_what_its_claim_rests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    kernels = re.findall(
        r"^\| `[^`]+` \| [^|]*\| (?:exact|within [^|]*) \|  \|  \|  \| ([^|]*) \| ([^|]*)\|$",
        text,
        re.MULTILINE,
    )
    assert len(kernels) > 20
    for said, evidence in kernels:
        assert said == "follows from the rule of its first op" or parse_counts(evidence)


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (
            "onnxruntime 1.31.1: 35,000 elements with NaN, infinities and ties, 0 differ",
            (35_000, 0),
        ),
        ("quantized::conv2d: 1 of 41,000 differ; zero after: 3 %", (41_000, 1)),
        ("scale, zero and codes of 300 weights, 0 differ", (300, 0)),
        ("qlinear 0 of 80,006 and qconv 0 of 52,808 differ; inverted 67", (132_814, 0)),
        ("TensorFlow 2.21.0 MEAN: 12,022 results, 0 differ", (12_022, 0)),
        ("0 of 7,680 codes and 0 of 3,840 floats differ; the gain 0.4 %", (11_520, 0)),
        ("all codes of 8 bits and 9,000 of 32: 0 of 160,000 differ", (160_000, 0)),
        ("all code pairs for 180 sets of scales, 0 differ", (180 * 65536, 0)),
        ("all codes in 240 maps each: 0 differ", (240 * 256, 0)),
        ("all pairs of quantized values for 180 sets of scales, 0 differ", (180 * 65536, 0)),
        ("all quantized values in 240 quantized types each: 0 differ", (240 * 256, 0)),
        ("a third of all codes; of equal channels 1 of 13,000 differs", None),
        ("codes are moved and compared, not computed with", None),
        ("up to 20 % differ", None),
    ],
)
def test_counts_are_read_from_evidence(evidence: str, found: tuple[int, int] | None) -> None:
    assert parse_counts(evidence) == found


def test_the_picture_is_current() -> None:
    wanted = "python -m tests.picture_of_steps"
    assert PICTURE.read_text(encoding="utf-8") == picture(), f"`{wanted}` writes it"
