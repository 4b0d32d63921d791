"""Well-known networks with seeded weights, through every target of PyTorch and onnxruntime."""
