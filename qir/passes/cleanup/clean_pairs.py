"""Removes a quantize after a dequantize where every stored integer comes back.

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %d = dequantize(%x) : 2xf32
      %q = quantize(%d) : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%q) : 2x!quant.uniform<u8:f32, 0.5:3>
      output(y=%y)
    }

By `clean-pairs` it becomes:

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%x) : 2x!quant.uniform<u8:f32, 0.5:3>
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.quantized_ops import CONVERSION_OPS
from qir.ir.text import parse
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change
from qir.profiles import NamedProfile, Profile
from qir.reference.interpreter import rules_of, run_node
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Pattern, Var, op
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite

_MOVES = frozenset(
    "transpose reshape flatten squeeze unsqueeze slice flip expand tile identity".split()
)
"""What moves elements, whatever they are."""
_MAX_STEPS = 4
_MAX_TRIED = 1 << 20
"""Quantized values times scales that a proof tries; what has more stays."""


def _unchanged_source(graph: Graph, match: Match) -> Value | None:
    """Returns earlier quantized values that the steps up to the root give back unchanged."""
    target_type, steps = match.root.result.type, list[Node]()
    node = match.root
    # Companions would be computed parameters, about which a trial says nothing.
    while len(steps) < _MAX_STEPS and node.op in CONVERSION_OPS and len(node.operands) == 1:
        steps.insert(0, node)
        x = node.operands["x"]
        # A planned op between is to be carried out; only the root's own plan goes with it.
        if node is not match.root and node.schemes:
            return None
        # The shortest way back is tried first; a longer one may hold where it does not.
        if x.type == target_type and _returns_every_integer(graph, x, steps):
            return x
        node = x.node
    return None


def _moved_integers(graph: Graph, match: Match) -> Value | None:
    """Quantized values that are moved instead of their numbers, where these are quantized by the
    same quantized type."""
    root = match.root
    moves = _preceding_moves(root.operands["x"])
    dequantize = moves[-1].operands["x"].node if moves else root
    if (
        dequantize.op != "dequantize"
        or dequantize.schemes
        or len(dequantize.operands) > 1
        or len(root.operands) > 1
    ):
        return None
    value, element = dequantize.operands["x"], root.result.type.element
    quant = value.type.quant
    # Scales along an axis would have to move with the elements.
    if value.type.element != element or quant is None or quant.granularity is not None:
        return None
    if not _returns_every_integer(graph, value, [dequantize, root]):
        return None
    for node in reversed(moves):
        tensor_type = TensorType(node.result.type.shape, element)
        moved = graph.add(
            node.op,
            {**node.operands, "x": value},
            node.attrs,
            types=[tensor_type],
            origins=node.origins,
        )
        value = moved.result
    return value


def _preceding_moves(value: Value) -> list[Node]:
    """Returns the moves that made a value, the last first; nobody else reads what they make."""
    moves: list[Node] = []
    while value.node.op in _MOVES and value.only_use is not None and not value.node.schemes:
        moves.append(value.node)
        value = value.node.operands["x"]
    return moves


def _source_of_recodes(graph: Graph, match: Match) -> Value | None:
    """Returns the value that one recode or two give back unchanged."""
    node = match.root
    for _ in range(2):
        x = node.operands["x"]
        if len(node.operands) > 1 or (node is not match.root and node.schemes):
            return None
        if x.type == match.root.result.type:
            return x
        node = x.node
        if node.op != "recode":
            return None
    return None


def _returns_every_integer(graph: Graph, x: Value, steps: list[Node]) -> bool:
    """Returns whether every integer of a value comes back, by each of the scales that it may
    have."""
    elements = [value.type.element for value in (x, *(step.result for step in steps))]
    rules = [rules_of(graph, step) for step in steps]
    key = tuple(
        (step.op, element, named.name, tuple(step.attrs.items()))
        for step, element, named in zip(steps, elements, rules, strict=False)
    )
    profiles = tuple(named.find() for named in rules)
    proof = _PROOFS.get(key)
    # Another graph may mean another profile by that name.
    if proof is not None and all(a is b for a, b in zip(proof[0], profiles, strict=True)):
        return proof[1]
    holds = _try_every_integer(x.type.quant, steps, rules)
    # A bound on memory in long sessions; a proof that is lost is only found again.
    if len(_PROOFS) >= _MAX_PROOFS:
        _PROOFS.clear()
    _PROOFS[key] = (profiles, holds)
    return holds


_MAX_PROOFS = 4096
_PROOFS: dict[tuple[object, ...], tuple[tuple[Profile, ...], bool]] = {}
"""What was found for a row of ops on types; for the profiles that stood after the names."""


def _try_every_integer(
    quant: QuantType | None, steps: list[Node], rules: list[NamedProfile]
) -> bool:
    if quant is None or quant.dynamic:
        return False
    integers = _every_integer(quant)
    if integers is None:
        return False
    result: NDArray[np.generic] = integers
    graph = Graph()
    value = graph.add("input", types=[TensorType(integers.shape, quant)]).result
    for step, named in zip(steps, rules, strict=True):
        tensor_type = TensorType(integers.shape, step.result.type.element)
        node = graph.add(step.op, {"x": value}, step.attrs, types=[tensor_type])
        try:
            with np.errstate(all="ignore"):
                (result,) = run_node(node, {"x": result}, named)
        # What an op refuses for one integer it may refuse in the model: nothing is proven.
        except QirError:
            return False
        value = node.result
    # As bytes: NaN of an 8-bit float equals nothing, and -0.0 equals 0.0.
    return result.dtype == integers.dtype and result.tobytes() == integers.tobytes()


def _every_integer(quant: QuantType) -> NDArray[np.generic] | None:
    """Returns all integers along a last axis, for each index of the axis that has scales of its
    own."""
    count = 1
    leading: tuple[int, ...] = ()
    if quant.granularity is not None:
        if quant.axis is None:
            return None
        count = int(np.size(quant.scales()))
        leading = (*(1,) * quant.axis, count)
    if quant.storage.is_float:
        if quant.storage.bits != 8:
            return None
        integers = np.arange(256, dtype=np.uint8).view(quant.storage.carrier)
    else:
        low, high = TensorType((*leading, 1), quant).bounds
        if (high - low + 1) * count > _MAX_TRIED:
            return None
        integers = np.arange(low, high + 1).astype(quant.storage.carrier)
    return np.ascontiguousarray(np.broadcast_to(integers, (*leading, integers.size)))


_CONVERTED = Var("x").check(
    "quantizing or dequantizing made it, or it is quantized",
    lambda value: value.node.op in CONVERSION_OPS or value.type.quant is not None,
)
_PAIRS = Rewrite(
    Pattern(
        "same-codes",
        (op.any_of("quantize", "requantize")(_CONVERTED),),
        codes=True,
        doc="Quantized values that stay what they are.",
    ),
    _unchanged_source,
    Change.EXACT,
    "every quantized value stays what it is",
)
_MOVED = Rewrite(
    Pattern(
        "moved-codes",
        (
            op.quantize(
                Var("x").check(
                    "it has no other use, and moves made it", lambda x: bool(_preceding_moves(x))
                )
            ),
        ),
        codes=True,
        doc="Quantized values that only change places.",
    ),
    _moved_integers,
    Change.EXACT,
    "every stored integer comes back; integers are moved",
)
_RECODES = Rewrite(
    Pattern("same-bits", (op.recode(Var("x")),), codes=True, doc="Bits read as they were."),
    _source_of_recodes,
    Change.EXACT,
    "the same bits of the same type",
)


@dataclass(frozen=True)
class CleanPairs(PatternPass):
    """Removes quantize after dequantize, requantize and recode that change no stored integer.

    The proof is a trial: every quantized value of the type goes through the ops by the profile that
    they follow, by every scale of the axis, and all must come back as the bytes they were; so
    nothing is assumed about rounding. The types on both ends are equal. Where moves (transpose,
    reshape, slice and their like) are between and one quantized type goes for all elements,
    quantized values are moved. What cannot be tried stays: scales that are computed or be in
    blocks, and quantized values of more than 2^20 values, such as 32-bit biases.
    """

    name = "clean-pairs"
    rewrites = (_PAIRS, _MOVED, _RECODES)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Quantized values that are quantized again by the same numbers."""
        text = (
            "graph main as native {\n  %x = input() : 2x4xf32\n"
            "  %q = quantize(%x) : 2x4x!quant.uniform<u8:f32, 0.3:128>\n"
            "  %d = dequantize(%q) : 2x4xf32\n"
            "  %p = quantize(%d) : 2x4x!quant.uniform<u8:f32, 0.3:128>\n"
            "  %e = dequantize(%p) : 2x4xf32\n  output(y=%e)\n}\n"
        )
        yield cls(), parse(text)
