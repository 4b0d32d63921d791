"""ONNX models written for onnxruntime: float, QDQ and QOperator."""

from pathlib import Path

from .target import OnnxRuntimeTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of onnxruntime lie."""

__all__ = ["PROFILES", "OnnxRuntimeTarget"]
