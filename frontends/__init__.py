"""Readers: one folder a format, found by entry point."""
