"""What ops do near 0: which operand may not become 0, and which results stay near it."""

DIVISOR_SLOTS = {"div": "b", "pow": "a"} | dict.fromkeys(
    "reciprocal rsqrt log log2 log10".split(),
    "x",
)
"""The slot of what may not become 0, by op; of `pow` where the exponent is negative."""
KEEPING_NEAR_0 = frozenset("relu abs neg square sqrt cast identity clip max".split())
"""Ops whose result is near 0 where their operand is."""
