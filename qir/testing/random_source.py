"""The one source of chance, and the forms of a random graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["float", "qdq", "integer", "whole"]
"""What kind of graph is made."""
Pick: TypeAlias = Callable[[int], int]
"""A whole number from 0 to below another: the one source of chance."""

FORMS: tuple[Form, ...] = ("float", "qdq", "integer")
"""Networks that passes quantize, in each form."""
EVERY: tuple[Form, ...] = (*FORMS, "whole")
"""Those, and whatever the language can say: every op, bodies, dynamic types, foreign nodes."""
