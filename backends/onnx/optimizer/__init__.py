"""Effects of onnxruntime's graph optimizer on a written model, and how to prevent them."""
