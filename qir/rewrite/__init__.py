"""How graphs are rewritten: passes, and the driver that runs them."""

from qir.rewrite.driver import Pass, Report, run_passes

__all__ = ["Pass", "Report", "run_passes"]
