"""Compiled kernels; they know NumPy arrays and nothing else of QIR."""
