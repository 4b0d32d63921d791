"""The command line: one file a verb."""

from qir.cli.app import main

__all__ = ["main"]
