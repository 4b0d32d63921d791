"""How graphs are rewritten: passes, the driver that runs them, and patterns."""

from qir.rewrite.driver import Pass, Report, run_passes

__all__ = ["Pass", "Report", "run_passes"]
