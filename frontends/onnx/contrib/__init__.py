"""Operators of onnxruntime's own domain, read as groups."""
