"""ONNX models: float, QDQ and QOperator, read into the language."""

from .frontend import OnnxFrontend

__all__ = ["OnnxFrontend"]
