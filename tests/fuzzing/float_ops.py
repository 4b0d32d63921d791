"""Float ops of the reference and the kernels against onnxruntime, at random shapes and values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir import pipeline
from qir.backends.cpu import floats
from qir.errors import Refused
from qir.ir.dtype import dtype_of
from qir.ir.graph import Graph
from qir.ir.ops import OPS
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.target import target
from tests.fuzzing.float_products import PRODUCTS
from tests.fuzzing.float_uses import ALONG_AXES, ELEMENTS, WINDOWS, Draw, Rng, Use
from tests.fuzzing.judging import Broken, Try
from tests.reference.cases import CASES
from tests.reference.oracles import Array, Exact

ULP = 2.0**-24
CURVE = 2.0**-17
"""Relative error allowed to float32 functions, and to what is normalized by them."""
LARGE = 1 << 20
"""Operands of more elements run in the reference alone: the cpu target calls the reference."""

UNCOMPARED = {
    **dict.fromkeys(("input", "output", "constant"), "they compute nothing"),
    **dict.fromkeys(("fused", "foreign", "if", "loop", "scan"), "they run other ops"),
    **dict.fromkeys(
        ("quantize", "dequantize", "requantize", "recode", "choose_qparams", "qparams"),
        "tests/differential compares quantized values",
    ),
    "fake_quantize": "tests/differential compares quantized values",
    "embedding_bag": "tests/reference/test_sums.py compares it with torch",
    **dict.fromkeys(("matmul_integer", "conv_integer"), "they compute integers"),
    **{f"logical_{op}": "it takes no floats" for op in ("and", "or", "xor", "not")},
    **{f"bit_{op}": "it takes no floats" for op in ("and", "or", "xor", "not", "shift")},
}
"""Ops that are not drawn here, and why."""


def _moved(op: str) -> Draw:
    """The use of `tests/reference/cases.py`, with other values."""

    def draw(rng: Rng, number: int) -> Use:
        case = CASES[op]
        arrays = case.arrays(int(rng.integers(2**32)))
        return Use(arrays, case.attrs, "curve", constant=case.constant)

    return draw


DRAWN: dict[str, Draw] = {**ELEMENTS, **ALONG_AXES, **WINDOWS, **PRODUCTS}
DRAWS: dict[str, Draw] = {
    **{op: _moved(op) for op in OPS if op in CASES and op not in UNCOMPARED},
    **DRAWN,
}
"""How a use of each op is drawn."""


def missing() -> list[str]:
    """Ops of the table that are neither compared nor listed as not compared."""
    return sorted(set(OPS) - set(DRAWS) - set(UNCOMPARED))


def check(op: str, seed: object, number: int) -> None:
    """Raises Broken where the reference, the kernels and onnxruntime disagree on one use."""
    rng = np.random.default_rng(list(f"{op}/{seed}/{number}".encode()))
    use = DRAWS[op](rng, number)
    graph, feeds = graph_of(op, use)
    made = pipeline.run(graph, feeds)
    expected = _expected(graph, use, feeds)
    allowed = _allowed(graph, use, feeds, expected)
    about = f"{op}({_shapes(use)}) {dict(use.attrs)}"
    for name, wanted in expected.items():
        _compare(f"{about}: {name}", made[name], wanted, allowed[name])
    if sum(x.size for x in feeds.values()) < LARGE:
        try:
            kernels = pipeline.compile(graph, target="cpu", threads=1)(**feeds)
        except Refused:  # shapes that depend on data
            return
        for name, wanted in made.items():
            found = np.asarray(kernels[name])
            if (
                op in floats.LOWERINGS and op not in floats.BIT_EXACT_OPS
            ):  # it has an order of its own
                _compare(f"{about}: {name} of cpu", found, expected[name], allowed[name])
            elif found.tobytes() != wanted.tobytes():
                raise Broken(f"{about}: {name} of cpu is not that of the reference")


def float_op_case(attempt: Try) -> None:
    """A random use of a float op gives the same in onnxruntime, reference and kernels."""
    op = attempt.rng.choice(sorted(DRAWS))
    check(op, attempt.rng.randrange(2**32), attempt.rng.randrange(64))


def graph_of(op: str, use: Use) -> tuple[Graph, dict[str, Array]]:
    """Returns a graph of one op, and what it is run on."""
    graph, operands = Graph("case", "native"), {}
    for slot, data in use.operands.items():
        if slot in use.constant:
            operands[slot] = graph.constant(Stored.of(data, slot))
        else:
            kind = TensorType(data.shape, dtype_of(data))
            operands[slot] = graph.add("input", types=[kind], name=slot).result
    node = graph.add(op, operands, dict(use.attrs))
    graph.add("output", {f"y{i}": v for i, v in enumerate(node.results)})
    return graph, {s: d for s, d in use.operands.items() if s not in use.constant}


def _expected(graph: Graph, use: Use, feeds: Mapping[str, Array]) -> dict[str, Array]:
    if use.expected is not None:
        return {f"y{i}": made for i, made in enumerate(use.expected)}
    return _judge(graph, feeds)


def _judge(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime computes, its optimizer off."""
    session = target("onnxruntime").session(graph, threads=1, optimize=False)  # type: ignore[attr-defined]
    return {name: np.asarray(made) for name, made in session(**feeds).items()}


def _allowed(
    graph: Graph, use: Use, feeds: Mapping[str, Array], expected: Mapping[str, Array]
) -> dict[str, Exact | float]:
    """How far each element of each result may lie from what is expected."""
    if use.bound == "sum":
        sizes = _judge(graph, {slot: np.abs(x) for slot, x in feeds.items()})
        return {n: 2 * (use.terms + 4) * ULP * x.astype(np.float64) for n, x in sizes.items()}
    if use.bound == "curve":
        return {
            n: CURVE * np.maximum(1.0, np.abs(x.astype(np.float64))) for n, x in expected.items()
        }
    if use.bound == "near":
        return {n: CURVE * float(np.abs(x).max(initial=1.0)) for n, x in expected.items()}
    return dict.fromkeys(expected, 0.0)


def _compare(about: str, made: Array, wanted: Array, allowed: Exact | float) -> None:
    if made.shape != wanted.shape or made.dtype.kind != wanted.dtype.kind:
        raise Broken(
            f"{about} is {made.dtype}{list(made.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        )
    if made.dtype.kind != "f" or not np.isfinite(wanted).all():
        if not np.array_equal(made, wanted, equal_nan=made.dtype.kind == "f"):
            raise Broken(f"{about} differs")
        return
    off = np.abs(made.astype(np.float64) - wanted.astype(np.float64)) - allowed
    if not (off <= 0).all():
        at = np.unravel_index(int(np.argmax(off)), off.shape)
        raise Broken(f"{about} is {made[at]} at {[int(i) for i in at]}, not {wanted[at]}")


def _shapes(use: Use) -> str:
    return ", ".join(f"{slot}: {'x'.join(map(str, x.shape))}" for slot, x in use.operands.items())
