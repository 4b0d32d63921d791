"""Writes graphs as files of TensorFlow Lite; no TensorFlow is needed."""
