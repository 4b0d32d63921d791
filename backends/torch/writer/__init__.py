"""Writes graphs as programs of PyTorch: operators of reals, kernels on quantized tensors."""
