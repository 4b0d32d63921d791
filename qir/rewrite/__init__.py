"""What the author of a pass needs: passes, patterns, tolerances, and the runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from qir.rewrite.patterns.match import Match
    from qir.rewrite.patterns.mismatch import why_not
    from qir.rewrite.patterns.parser import parse_pattern
    from qir.rewrite.patterns.pattern import (
        FLOW,
        Ops,
        Pattern,
        Term,
        Var,
        chain,
        every,
        maybe,
        near,
        one_of,
        optional,
        pattern,
        repeated,
        rest,
        such,
    )
    from qir.rewrite.patterns.replacement import replacement
    from qir.rewrite.patterns.rewriting import PatternPass, Rewrite
    from qir.rewrite.runner.contract import Pass
    from qir.rewrite.runner.driver import Report, run_passes
    from qir.rewrite.runner.filter import may
    from qir.rewrite.runner.options import option
    from qir.rewrite.runner.tolerance import ANOTHER, EXACT, REGROUPED, Tolerance

_HOMES = {
    "ANOTHER": "qir.rewrite.runner.tolerance",
    "EXACT": "qir.rewrite.runner.tolerance",
    "FLOW": "qir.rewrite.patterns.pattern",
    "Match": "qir.rewrite.patterns.match",
    "Ops": "qir.rewrite.patterns.pattern",
    "Pass": "qir.rewrite.runner.contract",
    "Pattern": "qir.rewrite.patterns.pattern",
    "PatternPass": "qir.rewrite.patterns.rewriting",
    "REGROUPED": "qir.rewrite.runner.tolerance",
    "Report": "qir.rewrite.runner.driver",
    "Rewrite": "qir.rewrite.patterns.rewriting",
    "Term": "qir.rewrite.patterns.pattern",
    "Tolerance": "qir.rewrite.runner.tolerance",
    "Var": "qir.rewrite.patterns.pattern",
    "chain": "qir.rewrite.patterns.pattern",
    "every": "qir.rewrite.patterns.pattern",
    "may": "qir.rewrite.runner.filter",
    "maybe": "qir.rewrite.patterns.pattern",
    "near": "qir.rewrite.patterns.pattern",
    "one_of": "qir.rewrite.patterns.pattern",
    "option": "qir.rewrite.runner.options",
    "optional": "qir.rewrite.patterns.pattern",
    "parse_pattern": "qir.rewrite.patterns.parser",
    "pattern": "qir.rewrite.patterns.pattern",
    "repeated": "qir.rewrite.patterns.pattern",
    "replacement": "qir.rewrite.patterns.replacement",
    "rest": "qir.rewrite.patterns.pattern",
    "run_passes": "qir.rewrite.runner.driver",
    "such": "qir.rewrite.patterns.pattern",
    "why_not": "qir.rewrite.patterns.mismatch",
}
__getattr__ = lazy_exports(__name__, _HOMES)

__all__ = [
    "ANOTHER",
    "EXACT",
    "FLOW",
    "REGROUPED",
    "Match",
    "Ops",
    "Pass",
    "Pattern",
    "PatternPass",
    "Report",
    "Rewrite",
    "Term",
    "Tolerance",
    "Var",
    "chain",
    "every",
    "may",
    "maybe",
    "near",
    "one_of",
    "option",
    "optional",
    "parse_pattern",
    "pattern",
    "repeated",
    "replacement",
    "rest",
    "run_passes",
    "such",
    "why_not",
]
