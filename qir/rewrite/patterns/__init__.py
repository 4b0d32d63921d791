"""Patterns: subgraphs written as they look, how they are matched, and why one does not match."""
