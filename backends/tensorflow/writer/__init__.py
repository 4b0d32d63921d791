"""Writes graphs as TensorFlow's GraphDef, without TensorFlow."""
