"""The page on the verifier says what the rules' docstrings say; `python -m` this writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from qir.ir.verify import RULES, VerifierRule
from qir.ir.verify.rule import Severity

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verify.md"
FIRST, NEXT = "## Errors\n", "## With a target\n"


def section(rule: VerifierRule) -> str:
    """One rule: its name, its severity, its docstring."""
    return f"### {rule.name}\n\n*{rule.severity}.* {rule.doc}\n"


def rules() -> str:
    """The part of the page that is made."""
    parts = {s: [section(r) for r in RULES if r.severity == s] for s in get_args(Severity)}
    heads = (f"## {severity.capitalize()}s\n" for severity in parts)
    lines = [
        line for head, part in zip(heads, parts.values(), strict=True) for line in (head, *part)
    ]
    return "\n".join([*lines, ""])


def page() -> str:
    """The page as it should be: what stands before and after the rules is written by hand."""
    text = PAGE.read_text(encoding="utf-8")
    return text[: text.index(FIRST)] + rules() + text[text.index(NEXT) :]


def test_the_page_says_what_the_rules_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.ir.test_verify_page"


def test_every_rule_has_a_name_of_its_own_and_says_what_holds() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        first = rule.doc.partition("\n\n")[0]
        assert first[0].isupper(), rule.name
        assert first.endswith("."), rule.name


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
