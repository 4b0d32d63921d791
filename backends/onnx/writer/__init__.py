"""Writes a graph as an ONNX model, operator by operator."""
