"""ONNX models written for onnxruntime or any runtime: float, QDQ, QOperator, integer, few bits."""

from .target import OnnxRuntimeTarget, OnnxTarget
from .versions import FOLDER as PROFILES

__all__ = ["PROFILES", "OnnxRuntimeTarget", "OnnxTarget"]
