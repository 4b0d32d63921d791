"""How graphs are rewritten: passes, the driver that runs them, and patterns."""

from qir.rewrite.contract import Pass
from qir.rewrite.driver import Report, run_passes
from qir.rewrite.tolerance import ANOTHER, EXACT, REGROUPED, Tolerance

__all__ = ["ANOTHER", "EXACT", "REGROUPED", "Pass", "Report", "Tolerance", "run_passes"]
