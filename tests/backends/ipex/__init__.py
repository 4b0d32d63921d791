"""Recipes and modules of Intel's extension for PyTorch."""
