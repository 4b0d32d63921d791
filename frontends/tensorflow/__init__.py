"""Reads TensorFlow: frozen graphs, SavedModel folders, Keras files, and Keras models in memory."""

from .frontend import TensorFlowFrontend

__all__ = ["TensorFlowFrontend"]
