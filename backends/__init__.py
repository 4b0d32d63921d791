"""Targets: one folder a runtime, found by entry point."""
