"""The passes, one a file; found by entry point like a stranger's."""
