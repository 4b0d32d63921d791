"""What the author of a pass needs: passes, patterns, tolerances, and the runner."""

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
