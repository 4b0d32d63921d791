"""The forms of an ONNX model: float, QDQ, QCDQ, QOperator, integer, few bits."""
