"""The reference: one NumPy function an op, and the interpreter that runs graphs by them."""
