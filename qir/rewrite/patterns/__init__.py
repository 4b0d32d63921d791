"""Patterns: subgraphs written as code, their matching, and the reasons why one does not match."""
