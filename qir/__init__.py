"""QIR: one quantization compiler for every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from qir.calibration import Statistics
    from qir.evaluating import evaluate
    from qir.execution import compile, run
    from qir.inspect.certificates import certify
    from qir.ir.graph import Graph
    from qir.ir.text import parse, print_graph
    from qir.ir.types import Array, TensorType, uniform
    from qir.ir.typetext import parse_type
    from qir.ledger import Ledger
    from qir.loading import load
    from qir.mixed_precision import search_recipe
    from qir.pipeline import (
        build,
        calibrate,
        fold,
        optimize,
        plan,
        quantize,
        save,
        verify,
    )
    from qir.programs import load_program
    from qir.query.diff import diff
    from qir.reference.constants import constant_value

__version__ = "0.1.0"
qir_api = 1
"""The plugin interface that the passes, frontends and targets here are written for."""

_HOMES = {
    "Array": "qir.ir.types",
    "Graph": "qir.ir.graph",
    "Ledger": "qir.ledger",
    "Statistics": "qir.calibration",
    "TensorType": "qir.ir.types",
    "build": "qir.pipeline",
    "calibrate": "qir.pipeline",
    "certify": "qir.inspect.certificates",
    "compile": "qir.execution",
    "diff": "qir.query.diff",
    "constant_value": "qir.reference.constants",
    "evaluate": "qir.evaluating",
    "fold": "qir.pipeline",
    "load": "qir.loading",
    "load_program": "qir.programs",
    "optimize": "qir.pipeline",
    "parse": "qir.ir.text",
    "parse_type": "qir.ir.typetext",
    "plan": "qir.pipeline",
    "print_graph": "qir.ir.text",
    "quantize": "qir.pipeline",
    "run": "qir.execution",
    "save": "qir.pipeline",
    "search_recipe": "qir.mixed_precision",
    "uniform": "qir.ir.types",
    "verify": "qir.pipeline",
}
__getattr__ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES} - {"TYPE_CHECKING", "annotations"})


__all__ = [
    "Array",
    "Graph",
    "Ledger",
    "Statistics",
    "TensorType",
    "build",
    "calibrate",
    "certify",
    "compile",
    "constant_value",
    "diff",
    "evaluate",
    "fold",
    "load",
    "load_program",
    "optimize",
    "parse",
    "parse_type",
    "plan",
    "print_graph",
    "quantize",
    "run",
    "save",
    "search_recipe",
    "uniform",
    "verify",
]
