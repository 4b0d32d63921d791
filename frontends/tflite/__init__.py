"""The TensorFlow Lite frontend: `.tflite` files, read without TensorFlow."""

from .frontend import TfliteFrontend

__all__ = ["TfliteFrontend"]
