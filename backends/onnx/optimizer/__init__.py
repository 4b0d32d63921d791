"""What onnxruntime's graph optimizer does to a written model, and how to keep it from doing so."""
