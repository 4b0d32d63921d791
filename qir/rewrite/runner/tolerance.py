"""How far a pass may change results; validation checks it."""

from __future__ import annotations

from qir.records import record


@record
class Tolerance:
    """How far a pass may move a tensor, if the tensors before it have not moved."""

    ulps: float = 0.0
    """Float values: units in the last place of the tensor's largest number, in the tensor's own
    type."""
    codes: float = 0
    """Quantized values: steps."""
    why: str = ""

    @property
    def exact(self) -> bool:
        """Whether no bit may change."""
        return not self.ulps and not self.codes

    @property
    def compared(self) -> bool:
        """Whether there is a limit that numbers are held to."""
        return self.ulps != float("inf")

    def __str__(self) -> str:
        if not self.compared:
            text = "not compared"
        elif self.exact:
            text = "exact"
        else:
            steps = f"{self.codes:g} quantized step{'s' if self.codes != 1 else ''}"
            parts = [f"{self.ulps:g} ulp" if self.ulps else "", steps if self.codes else ""]
            text = " and ".join(part for part in parts if part)
        return f"{text}: {self.why}" if self.why else text


EXACT = Tolerance(why="numbers stay what they are")
"""No bit may change: for rewrites that move, rename or remove, or compute in the same order."""
REGROUPED = Tolerance(64, 1, "equal in exact arithmetic, rounded in another place")
"""Floats may move a little: rewrites that compute in another order, or round elsewhere."""
ANOTHER = Tolerance(float("inf"), float("inf"), "the program means something else afterwards")
"""Numbers change on request, as quantizing does: only the form of the graph is checked."""
