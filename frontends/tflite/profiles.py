"""The numerics profiles that quantized models of TensorFlow Lite are read under."""

PROFILE = "tflite-2.21.xnnpack"
"""What an interpreter of TensorFlow 2.21 computes as it comes: by XNNPACK where that can."""
SAME, VALID = f"{PROFILE}.same", f"{PROFILE}.valid"
"""Convolutions whose stride leaves data unread, by the padding that the file says."""
OPEN = f"{PROFILE}.open"
"""Transposed convolutions whose sizes are computed, which XNNPACK leaves to another kernel."""
