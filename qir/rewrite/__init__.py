"""How graphs are rewritten: passes, the driver that runs them, and patterns."""

from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.driver import Report, run_passes
from qir.rewrite.runner.tolerance import ANOTHER, EXACT, REGROUPED, Tolerance

__all__ = ["ANOTHER", "EXACT", "REGROUPED", "Pass", "Report", "Tolerance", "run_passes"]
