"""QIR: one quantization compiler for every framework."""

__version__ = "0.1.0"
