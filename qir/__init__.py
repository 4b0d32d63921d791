"""QIR: one quantization compiler for every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qir.calibration import Statistics
    from qir.evaluating import evaluate
    from qir.inspect.certificates import certify
    from qir.ir.graph import Graph
    from qir.ir.text import parse, print_graph
    from qir.ir.types import Array, TensorType, uniform
    from qir.ir.typetext import parse_type
    from qir.ledger import Ledger
    from qir.mixed_precision import search_recipe
    from qir.pipeline import (
        build,
        calibrate,
        compile,
        fold,
        load,
        optimize,
        plan,
        quantize,
        run,
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
    "compile": "qir.pipeline",
    "diff": "qir.query.diff",
    "constant_value": "qir.reference.constants",
    "evaluate": "qir.evaluating",
    "fold": "qir.pipeline",
    "load": "qir.pipeline",
    "load_program": "qir.programs",
    "optimize": "qir.pipeline",
    "parse": "qir.ir.text",
    "parse_type": "qir.ir.typetext",
    "plan": "qir.pipeline",
    "print_graph": "qir.ir.text",
    "quantize": "qir.pipeline",
    "run": "qir.pipeline",
    "save": "qir.pipeline",
    "search_recipe": "qir.mixed_precision",
    "uniform": "qir.ir.types",
    "verify": "qir.pipeline",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first asked for: `import qir` alone costs nothing."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'qir' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


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
