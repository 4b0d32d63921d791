"""Writes graphs as programs of PyTorch: float operators, kernels on quantized tensors."""
