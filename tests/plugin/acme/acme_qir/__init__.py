"""A stranger's plugins: they import what QIR's pages name, and nothing of its tests."""

from pathlib import Path

qir_api = 1

PROFILES = Path(__file__).parent / "profiles"
