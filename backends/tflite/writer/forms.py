"""Converts a graph to the form that is written: channels last, kernels as groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from qir.analysis.claims import claim_entries
from qir.analysis.integer_boundary import with_storage
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops.layers import RECURRENT_OPS
from qir.ir.quantized_ops import CONVERSION_OPS, STRUCTURAL_OPS
from qir.ir.types import Array, QuantType
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.forms.expand_qdq import ExpandQdq, expand
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.passes.forms.group.pairs import put_pair
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.forms.raise_linear import RaiseLinear
from qir.passes.layout import Layout
from qir.passes.loops.unroll import Unroll
from qir.passes.recover import Recover
from qir.profiles import Profile, dequantize_by_profile, library_of
from qir.rewrite import run_passes
from qir.rewrite.fusing import ChainMatch, only_moves_quantized
from qir.rewrite.linear_layers import as_linear

from . import transposed
from .kernels import DYNAMIC, integer_problem, is_fused_clip, on_integers, written_profile
from .rows import rows_as_images
from .sixteen import compute_in_16_bits

PROFILE = "tflite-2.21.xnnpack"
"""The numerics profile of written files."""
STEP = "tflite writer"
_RECOVERED = Recover(("relus", "clip", "gelu", "sigmoids"))
"""Finds activations that have an operator and were written as several ops."""
_REPEATED = RECURRENT_OPS | {"loop", "scan"}
"""Ops that compute step by step: each step becomes ops of its own."""
_FAMILY = "tflite-2.21."
_MIDDLE = 128


@dataclass(frozen=True)
class _OperatorGroups(Group):
    """Groups what TensorFlow Lite has one operator for, with the activations that it knows."""

    def steps(self, rules: Profile) -> tuple[str, ...]:
        """Returns the preparation that a converter does; files hold its result."""
        return "quantize_constants", "linear_layers"

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        last = match.ops[-1]
        if len(match.ops) > 1 and last.op == "clip" and not is_fused_clip(last):
            return False
        return super().allows(match, graph)


_TRANSPOSED = "conv_transpose2d"
_MOVES = frozenset(
    "flatten squeeze unsqueeze slice gather expand tile depth_to_space space_to_depth flip".split()
)
"""Ops that move elements, of which profiles name no groups; nor do they of `_TRANSPOSED`."""


@dataclass(frozen=True)
class _QuantizedMoves(FuseQdq):
    """Moves quantized values instead of their floats, where one type is on both sides."""

    name = "fuse-qdq"

    def fusible_ops(self, graph: Graph) -> frozenset[str]:
        return _MOVES | {_TRANSPOSED}

    def epilogue_ops(self, graph: Graph) -> frozenset[str]:
        return frozenset()

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        if match.anchor.op == _TRANSPOSED:
            return match.quantize is not None
        return match.quantize is not None and only_moves_quantized(match)


def converted(graph: Graph, ledger: Ledger) -> Graph:
    """Returns a copy in which each node is an operator of TensorFlow Lite, or a few of them."""
    out = graph.copy()
    OpenGroups("* |> *", chains=True).run(out, ledger)
    if any(node.op in _REPEATED for node in out):
        Unroll(keep_large=True).run(out, ledger)
    quantized = any(v.type.quant is not None for v in out.values.values())
    if quantized and not out.profile.startswith(_FAMILY):
        _take_over(out, ledger)
    # Kernels of a file that was read: what they compute is known, defects included.
    kernels = (node for node in out if node.op not in CONVERSION_OPS | STRUCTURAL_OPS)
    own = {node.results[0].name for node in kernels if on_integers(node)}
    out = run_passes(out, [FoldConstants(), FoldShapes(), _RECOVERED, RaiseLinear()], ledger)
    rows_as_images(out)
    _means_for_pools(out)
    _pad_before_averages(out)
    transposed.cut_by_slices(out)
    if quantized:
        _leave_data_to_kernels(out, ledger)
        compute_in_16_bits(out, ledger, STEP)
        _QuantizedMoves().run(out, ledger)
        transposed.store_biases(out)
    _group(out, ledger)
    # Kernels are found first: a transpose next to a dequantize would hide them.
    Layout(to="nhwc").run(out, ledger)
    _transpose_signed(out)
    _float_where_needed(out, ledger, own)
    _constants_of_floats(out)
    out.prune()
    for node in out:
        if node.op not in STRUCTURAL_OPS and (profile := written_profile(node)):
            out.set_profile(node, profile)
    return out


def _take_over(graph: Graph, ledger: Ledger) -> None:
    """Takes kernels of another runtime apart, and its rounding away; u8 data become i8."""
    if graph.profile not in ("", "native"):
        reason = f"computed as {PROFILE}, not {graph.profile}"
        ledger.add(Change.REGROUPED, STEP, graph.name, reason)
    ExpandQdq().run(graph, ledger)
    graph.profile = PROFILE
    for node in graph:
        if node.op == "quantize" and node.attrs["round"]:
            graph.set_attrs(node, round="")
        if node.profile:
            graph.set_profile(node, None)
    _store_signed(graph, ledger)


def _store_signed(graph: Graph, ledger: Ledger) -> None:
    """Stores u8 data as i8 with a zero point that is 128 lower: the same float values."""
    _convert_ends(graph)
    for node in list(graph):
        if node.op == "output":
            continue
        for value in node.results:
            quant = value.type.quant
            users = {use.node.op for use in value.uses}
            moved = node.op in ("quantize", "constant") and users <= {"dequantize", "requantize"}
            if quant is None or not moved or not _is_plain_u8(quant):
                continue
            signed = value.type.with_element(with_storage(quant, I8))
            if (array := value.constant) is not None:
                data = (array.data.astype(np.int16) - _MIDDLE).astype(np.int8)
                name = graph.fresh(f"{value.name}.signed")
                made = graph.constant(Array(data, signed, name), name=name, before=node)
                graph.set_origins(made.node, node.origins)
                graph.replace(value, made)
            else:
                graph.set_type(value, signed)
            reason = "stored as i8 with a zero point 128 lower; its float values stay"
            ledger.add(Change.REGROUPED, STEP, value.name, reason)


def _convert_ends(graph: Graph) -> None:
    """Leaves inputs and outputs of u8 as they are, with a conversion between them and i8."""
    for value in graph.inputs:
        quant = value.type.quant
        users = {use.node.op for use in value.uses}
        if quant is not None and _is_plain_u8(quant) and users == {"dequantize"}:
            kind = value.type.with_element(with_storage(quant, I8))
            fresh = graph.fresh(f"{value.name}.i8")
            node = graph.add("requantize", {"x": value}, types=[kind], name=fresh)
            graph.replace(value, node.result, except_in=node)
    for name, value in graph.outputs.items():
        quant = value.type.quant
        users = {use.node.op for use in value.uses}
        if quant is not None and _is_plain_u8(quant) and users <= {"dequantize", "output"}:
            if value.node.op == "quantize":
                fresh = graph.fresh(f"{value.name}.u8")
                node = graph.add("requantize", {"x": value}, types=[value.type], name=fresh)
                graph.set_operand(graph.output, name, node.result)


def _transpose_signed(graph: Graph) -> None:
    """Transposes i8 instead of u8 at the ends: microcontrollers have no kernel for the latter."""
    for node in list(graph):
        use = node.results[0].only_use if node.results else None
        ops = () if use is None else (node.op, use.node.op)
        if use is None or ops not in (("transpose", "requantize"), ("requantize", "transpose")):
            continue
        x, last = node.operands["x"], use.node
        transpose, kind = last if last.op == "transpose" else node, last.result.type
        if transpose.result.type.dtype != U8:
            continue
        # The same two ops in the other order: the elements of one, in the order of the other.
        first = (
            kind.with_element(x.type.element)
            if last is transpose
            else x.type.with_element(kind.element)
        )
        between = graph.add(last.op, {"x": x}, last.attrs, types=[first], before=node)
        made = graph.add(node.op, {"x": between.result}, node.attrs, types=[kind], before=last)
        graph.substitute(last, made.result, gone=[node])


def _is_plain_u8(quant: QuantType) -> bool:
    is_plain = quant.kind == "uniform" and not quant.dynamic and not quant.has_float_zero
    return is_plain and quant.storage == U8 and quant.plus is None and quant.granularity is None


def _leave_data_to_kernels(graph: Graph, ledger: Ledger) -> None:
    """Gives layers whose data are quantized while the model runs the float data.

    Their operators quantize these themselves, each row or image with a scale of its own.
    """
    as_linear(graph, library_of(graph).find(PROFILE), Ledger())
    for node in list(graph):
        slot = "a" if node.op == "matmul" else "x"
        data, weights = node.operands.get(slot), node.operands.get("b" if slot == "a" else "w")
        if node.op not in DYNAMIC or data is None or data.node.op != "dequantize":
            continue
        source = data.node.operands["x"]
        quant = source.type.quant
        if quant is None or not quant.dynamic or source.node.op != "quantize":
            continue
        if weights is None or weights.node.op != "dequantize":
            continue
        graph.set_operand(node, slot, source.node.operands["x"])
        reason = "its operator quantizes its data, each row by itself"
        ledger.add(Change.REGROUPED, STEP, node.results[0].name, reason)
    graph.prune()


def _means_for_pools(graph: Graph) -> None:
    """Replaces averages of all pixels by means over their axes."""
    for node in list(graph):
        if node.op != "global_avg_pool" or node.stages:
            continue
        x = node.operands["x"]
        axes = (
            range(1, x.type.rank - 1) if node.attrs["layout"] == "NHWC" else range(2, x.type.rank)
        )
        made = graph.add(
            "reduce_mean",
            {"x": x},
            {"axes": tuple(axes), "keep": True},
            types=[node.result.type],
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        graph.substitute(node, made.result)


def _pad_before_averages(graph: Graph) -> None:
    """Pads before averages that count padding, as their operator counts none."""
    for node in list(graph):
        pad = node.attrs.get("pad")
        if node.op != "avg_pool2d" or not node.attrs["count_pad"] or node.stages:
            continue
        if not isinstance(pad, tuple) or not any(pad):
            graph.set_attrs(node, count_pad=False)
            continue
        if node.attrs["ceil"]:
            continue
        x = node.operands["x"]
        top, left, bottom, right = pad
        last = node.attrs["layout"] == "NHWC"
        pads = (
            (0, top, left, 0, 0, bottom, right, 0)
            if last
            else (0, 0, top, left, 0, 0, bottom, right)
        )
        made = graph.add("pad", {"x": x}, {"pads": pads}, before=node, origins=node.origins).result
        quant = x.node.operands["x"].type.quant if x.node.op == "dequantize" else None
        graph.set_operand(node, "x", made if quant is None else put_pair(graph, made, quant, node))
        graph.set_attrs(node, pad=(0, 0, 0, 0), count_pad=False)


def _group(graph: Graph, ledger: Ledger) -> None:
    """Makes groups of the kernels; of the ledger's entries about it only claims stay true."""
    grouping = Ledger()
    _OperatorGroups(PROFILE).run(graph, grouping)
    kept = {entry.change for entry in claim_entries("unknown", STEP, "")}
    ledger.extend(entry for entry in grouping if entry.change in kept)


def _float_where_needed(graph: Graph, ledger: Ledger, own: Collection[str]) -> None:
    """Computes in float what TensorFlow Lite has no kernel on integers for."""
    for node in list(graph):
        if node.op in STRUCTURAL_OPS or node.op in CONVERSION_OPS or node not in graph:
            continue
        if why := integer_problem(node, own=node.results[0].name in own):
            name = node.results[0].name
            expand(graph, node)
            ops = " |> ".join(stage.op for stage in node.stages) or node.op
            reason = f"{ops} in float between integers: {why}"
            ledger.add(Change.REGROUPED, STEP, name, reason)
    graph.prune()


def _constants_of_floats(graph: Graph) -> None:
    """Replaces dequantized constants, such as weights of float layers, by floats."""
    for node in list(graph):
        if node.op != "dequantize" or not _is_folded(node.operands["x"]):
            continue
        x = node.operands["x"]
        assert x.constant is not None
        assert x.type.quant is not None
        rules = library_of(graph).find(node.profile or PROFILE)
        floats = dequantize_by_profile(rules, x.constant.data, x.type.quant)
        data = floats.astype(node.result.type.dtype.carrier)
        name = graph.fresh(f"{node.name}.floats")
        made = graph.constant(Array(data, node.result.type, name), name=name, before=node)
        graph.set_origins(made.node, node.origins)
        graph.substitute(node, made)


def _is_folded(x: Value) -> bool:
    return x.constant is not None and x.type.quant is not None and not x.type.quant.dynamic
