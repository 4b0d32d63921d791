"""All cases by which TensorFlow Lite's arithmetic is recorded, made from seeds: NumPy alone."""

from __future__ import annotations

import hashlib

from backends.tflite.models import CaseOperand as CaseOperand
from backends.tflite.models import OpCase as OpCase
from tests.oracles.tflite_dynamic import DYNAMIC
from tests.oracles.tflite_edges import EDGES
from tests.oracles.tflite_elements import ELEMENTS
from tests.oracles.tflite_ends import ENDS
from tests.oracles.tflite_more import MORE
from tests.oracles.tflite_operands import Suites
from tests.oracles.tflite_others import OTHERS
from tests.oracles.tflite_products import PRODUCTS
from tests.oracles.tflite_tails import ACTIVATIONS

SUITES: Suites = PRODUCTS | ELEMENTS | MORE | ACTIVATIONS | DYNAMIC | OTHERS | EDGES | ENDS
"""Every suite of cases, by the name of its file."""


def digest(cases: list[OpCase]) -> str:
    """One hash of many cases."""
    return hashlib.sha256("".join(case.digest() for case in cases).encode()).hexdigest()[:32]
