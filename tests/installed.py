"""The numerics profiles of the onnxruntime that is installed, to which tests hold it."""

from qir.target import target

OPTIMIZED = target("onnxruntime").profile
UNOPTIMIZED = f"{OPTIMIZED}.noopt"
