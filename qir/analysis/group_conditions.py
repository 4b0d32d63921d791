"""Conditions that a profile's groups name, each a question about ops between codes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qir.ir.dtype import I32, I64, U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType, uniform
from qir.ledger import Change, Ledger
from qir.numerics import affine_of
from qir.profiles import Profile, choosing, profile, query_of
from qir.profiles.kernel_forms import holds_ranges
from qir.reference.quantized import bounds
from qir.rewrite.fusing import (
    LINES,
    PRODUCTS,
    TAILS,
    Match,
    accumulator_scale,
    is_tail,
    moves_codes,
)

_SHARE = 0.99
"""Of its scale, what a map has at least whose scale is made less for the ends of a clip."""
_ULPS = 8


def tails_of(found: Profile) -> frozenset[str]:
    """The activations that kernels of a profile end in."""
    behind = {op for group in found.groups for op in group.chain[1:]}
    return frozenset(op for op in behind if [s.name for s in spec(op).operands] == ["x"])


def offset(match: Match, found: Profile) -> bool:
    """Whether codes have a zero point, of which a profile's runtime knows none."""
    rule = found.resolve(choosing("u8"))
    maps = [v.type.quant for slot, v in match.codes.items() if v is not match.bias]
    known = [q for q in (*maps, match.result) if q is not None and not q.dynamic]
    return rule.quantize.zero == "none" and any(np.any(q.zeros()) for q in known)


def drops_tails(found: Profile) -> bool:
    """Whether a profile's runtime drops activations that cut no code."""
    return any("redundant_tail" in group.needs for group in found.groups)


def join_tails(graph: Graph, found: Profile, ledger: Ledger) -> int:
    """Makes one of two activations in a row, if a profile's runtime drops what cuts nothing: a relu
    before a clip is part of it, and the last before a quantize goes where it cuts no code. Says
    how many went."""
    if not drops_tails(found):
        return 0
    count = 0
    for last in [node for node in graph if node.op in TAILS]:
        first = last.operands["x"].node
        if first.op not in TAILS or first.result.only_use is None or first.stages or last.stages:
            continue
        if first.op == "relu" and last.op == "clip":
            least = last.attrs.get("min")
            least = max(least, 0.0) if isinstance(least, float) else 0.0
            graph.set_attrs(last, **{**last.attrs, "min": least})
            graph.set_operand(last, "x", first.operands["x"])
            gone, said = first, "relu is part of the clip behind it"
        elif _before_codes(last):
            graph.replace(last.result, first.result)
            gone, said = last, f"{last.op} cuts no code, and is dropped"
        else:
            continue
        graph.remove(gone)
        ledger.add(Change.EXACT, "group", gone.name, said)
        count += 1
    return count


def _before_codes(node: Node) -> bool:
    """Whether one quantize alone reads an activation that cuts none of its codes."""
    use = node.result.only_use
    quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
    static = quant is not None and not quant.dynamic and quant.grain is None
    return quant is not None and static and _cuts_nothing(node, quant)


def _cuts_nothing(node: Node, quant: QuantType) -> bool:
    rule = profile("native").resolve(query_of(node))
    return bounds(node.op, node.attrs, affine_of(quant), rule) == (quant.low, quant.high)


def why_cut(node: Node, scheme: Scheme) -> str:
    """Why an activation cuts codes of a scheme, as far as that shows without data; or nothing."""
    ends = node.attrs.get("min"), node.attrs.get("max")
    low, high = (0.0, None) if node.op == "relu" else ends if node.op == "clip" else (None, None)
    above = isinstance(low, float) and low > 0
    if above or (isinstance(high, float) and high < 0):
        return "its ends leave out 0, for which codes have room"
    if scheme.scale is not None:
        scale = np.asarray(scheme.scale, np.float32)
        kind = uniform(scheme.storage, scale, scheme.zero or 0, bounds=scheme.bounds)
        cut = not _cuts_nothing(node, kind)
    else:
        far = [abs(end) for end in (low, high) if isinstance(end, float)]
        even = scheme.symmetric and scheme.zero != scheme.low
        cut = even and bool(far) and (len(far) < 2 or far[0] != far[1])
    return f"it cuts codes that are {scheme}" if cut else ""


def uncut(kind: QuantType, clips: Sequence[Node]) -> QuantType:
    """A map by which clips cut no code, its scale a little less; the same where that is none.

    The ends of a clip from -1 to 1 lie half a step from the last codes, on either side of which
    the rounding of the scale leaves them.
    """
    if kind.dynamic or kind.grain is not None or all(_cuts_nothing(c, kind) for c in clips):
        return kind
    first = np.float32(kind.scales())
    zero, least = int(np.asarray(kind.zeros())), first
    for clip in clips:
        for name, code in (("min", kind.low), ("max", kind.high)):
            end, steps = clip.attrs[name], abs(code - zero) - 0.5
            if isinstance(end, float) and (code - zero) * end > 0 and steps > 0:
                least = min(least, np.float32(abs(end) / steps))
    if least < first * _SHARE:
        return kind
    for _ in range(_ULPS):
        found = replace(kind, scale=(float(least),))
        if all(_cuts_nothing(c, found) for c in clips):
            return found
        least = np.nextafter(least, np.float32(0))
    return kind


def _kept_map(match: Match) -> bool:
    first = next(iter(match.codes.values())).type.quant
    return first is not None and match.result is not None and first.same_map(match.result)


def _same_storage(match: Match) -> bool:
    parameters = {spec(match.head.op).traits.bias}
    if match.head.op in PRODUCTS | LINES:
        parameters.add(spec(match.head.op).traits.weight)
    kinds = {
        v.type.quant.storage for s, v in match.codes.items() if v.type.quant and s not in parameters
    }
    return len(kinds | ({match.result.storage} if match.result else set())) == 1


def _redundant_tail(match: Match) -> bool:
    """Whether the activations cut nothing that the result's codes could hold."""
    if match.result is None:
        return len(match.ops) == 1
    return all(_cuts_nothing(node, match.result) for node in match.ops[1:])


def _bias_unit(match: Match, storages: Collection[DType] = (I32,)) -> bool:
    if match.bias is None or match.bias.type.quant is None:
        return match.bias is None or match.bias.constant is not None
    wanted = accumulator_scale(match.head, match.codes)
    if match.bias.type.quant.storage not in storages or wanted is None:
        return False
    off = np.abs(match.bias.type.quant.scales().astype(np.float64) - wanted)
    return bool(np.all(off <= 1e-6 + 0.01 * np.abs(wanted.astype(np.float64))))


def _bias_codes(match: Match) -> bool:
    bias = match.bias
    if bias is None:
        return True
    if bias.type.quant is not None:
        return bias.type.quant.storage == I32
    quant = match.codes[spec(match.head.op).traits.weight or ""].type.quant
    if bias.constant is None or bias.type.rank != 1 or quant is None:
        return False
    return quant.grain is None or np.shape(quant.scales()) == bias.type.shape


def _bias_i32(match: Match) -> bool:
    quant = match.bias.type.quant if match.bias else None
    return match.bias is None or (quant is not None and quant.storage == I32)


def _one_scale(match: Match) -> bool:
    quant = match.codes[spec(match.head.op).traits.weight or "w"].type.quant
    return quant is None or quant.grain is None


def _signed_pair(match: Match) -> bool:
    traits = spec(match.head.op).traits
    x, w = (match.codes[s].type.quant for s in (traits.data, traits.weight or ""))
    return x is None or w is None or x.storage.kind != "int" or w.storage.kind == "int"


def _left_real(match: Match) -> bool:
    readers = _readers(match.last.result)
    if any(node.op == "quantize" for node in readers):
        return False
    if len(readers) != 1 or not is_tail(readers[0]):
        return True
    behind = readers[0].result
    shown = any(use.node.op == "output" for use in behind.uses)
    return shown or len(_readers(behind)) != 1


def _readers(value: Value) -> list[Node]:
    """Who reads a value in a graph; what chooses numbers of codes makes these codes too."""
    readers = [use.node for use in value.uses if use.node.op != "output"]
    chosen = [n.results[0] for n in readers if _chooses(n)]
    return [n for n in readers if n.op != "quantize" or n.operands.get("scale") not in chosen]


def _chooses(node: Node) -> bool:
    """Whether it chooses numbers of codes as DynamicQuantizeLinear does."""
    plain = not any(node.attrs.get(name) for name in ("symmetric", "keep", "bounds"))
    return plain and (node.attrs.get("rule"), node.attrs.get("storage")) == ("onnx.dynamic", U8)


def _unit_gain(match: Match) -> bool:
    attrs = match.head.attrs
    return match.bias is None or (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) == (1.0, 1.0)


def _coded(match: Match) -> bool:
    return all(v.type.quant is not None for v in match.codes.values())


def _held_ranges(match: Match) -> bool:
    return holds_ranges(match.result, (value.type.quant for value in match.codes.values()))


def _no_dilation(match: Match) -> bool:
    return match.head.attrs.get("dilation", (1, 1)) == (1, 1)


def _bilinear(match: Match) -> bool:
    attrs, x, y = match.head.attrs, match.head.operands["x"].type, match.head.result.type
    axes = attrs["axes"] or [i for i, size in enumerate(x.shape) if size != y.shape[i]]
    kinds = (attrs["mode"], attrs["antialias"], attrs["policy"])
    places = attrs["coordinates"] in ("half_pixel", "align_corners")
    assert isinstance(axes, list | tuple)
    return kinds == ("linear", False, "stretch") and places and len(axes) == 2


NEEDS: Mapping[str, Callable[[Match], bool]] = {
    "same_map": moves_codes,
    "kept_map": _kept_map,
    "held_ranges": _held_ranges,
    "same_storage": _same_storage,
    "redundant_tail": _redundant_tail,
    "bias_unit": _bias_unit,
    "bias_wide": partial(_bias_unit, storages=(I32, I64)),
    "bias_codes": _bias_codes,
    "bias_i32": _bias_i32,
    "signed_pair": _signed_pair,
    "one_scale": _one_scale,
    "left_real": _left_real,
    "unit_gain_with_bias": _unit_gain,
    "coded_operands": _coded,
    "no_dilation": _no_dilation,
    "bilinear": _bilinear,
}
"""The conditions that profiles name, each a question about a match."""
