"""Reads TorchScript: evaluates what is known, and turns the rest into calls of operators."""
