"""Passes that remove what is unused, repeated or undone."""
