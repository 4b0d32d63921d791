"""QIR's own runtime: integer graphs on its SIMD kernels, everything else by the reference."""

from .target import CpuTarget

__all__ = ["CpuTarget"]
