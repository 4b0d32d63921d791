"""ONNX models written for onnxruntime or any runtime: float, QDQ, QOperator, integer, few bits."""

from pathlib import Path

from .target import OnnxRuntimeTarget, OnnxTarget

PROFILES = Path(__file__).with_name("profiles")
"""Where the numerics profiles of onnxruntime lie."""

__all__ = ["PROFILES", "OnnxRuntimeTarget", "OnnxTarget"]
