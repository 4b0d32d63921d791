"""Passes that choose schemes and turn them into quantized types."""
