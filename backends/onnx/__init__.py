"""ONNX models written for onnxruntime or any runtime: float, QDQ, QOperator, integer, few bits."""

from pathlib import Path

from .target import OnnxRuntimeTarget, OnnxTarget
from .versions import FOLDER as PROFILES

MIXED = Path(__file__).with_name("mixed.toml")
"""The target file of activations of 8 bits, or of 16 where they are asked for."""
W8A16 = Path(__file__).with_name("w8a16.toml")
"""The target file of activations of 16 bits."""

__all__ = ["MIXED", "PROFILES", "W8A16", "OnnxRuntimeTarget", "OnnxTarget"]
