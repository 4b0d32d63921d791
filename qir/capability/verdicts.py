"""Compares a program with a target's table: which ops it supports on integers, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from qir.capability.table import Capability, OpCapability
from qir.errors import TypeRuleError
from qir.ir.attrs import Attr, same
from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import (
    PLAIN_INTEGER_PRODUCTS,
    QPARAMS_OPS,
    RETYPING_OPS,
    is_float_width_cast,
    is_integral,
)
from qir.ir.scheme import RESULT, Scheme
from qir.ir.types import Array, QuantType
from qir.query.display import why_foreign

COMPUTES_IN_FLOAT = "it computes in float"
"""The reason of an op that quantized values have nothing to do with."""
Taken: TypeAlias = Literal["integer", "float", "refused"]
STRUCTURAL_OPS = frozenset({"input", "constant", "output", "if", "loop", "scan"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one op on a target."""

    node: str
    op: str
    taken: Taken
    """Refused is what works on integers, or is plainly meant to, in a way that the target
    has not."""
    reason: str = ""
    """Why not in integers; with an op that another's kernel computes, which that is."""
    path: str = ""
    origin: str = ""
    defect: bool = False
    """Whether the target would compute it wrongly."""


def verdicts(table: Capability, graph: Graph) -> Iterator[Verdict]:
    """Yields a verdict for every op that computes, in bodies too; integer form, QDQ form or
    neither."""
    for path, part in graph.walk():
        yield from _Judge(table, path).all(part)


@dataclass(frozen=True, slots=True)
class _SlotType:
    """What is in a slot."""

    quant: QuantType | None
    count: bool = False
    """Plain whole numbers: a bias in the accumulator's unit."""
    constant: Array | None = None
    axis: int | None = None
    """The axis that may have a scale for each index."""


def unsupported_op_text(name: str, op: str, attrs: Mapping[str, Attr] | None = None) -> str:
    """Returns why a target takes an op in no integers: its table has no row for it.

    With the attributes of a float op, also names the pass that rewrites it.
    """
    if spec(op).traits.value_preserving:
        return f"it moves elements alone; the table of {name} plans no integers for {op}"
    lowering = spec(op).traits.lowering
    lowered_by = "" if attrs is None or lowering is None else lowering(attrs)
    remedy = f"; `qir opt -p {lowered_by}` rewrites it" if lowered_by else ""
    return f"{name} has no integer {op}{remedy}"


def _refusal(reason: str) -> tuple[Taken, str]:
    return "refused", reason


class _Judge:
    def __init__(self, table: Capability, path: str) -> None:
        self.table = table
        self.path = path
        self.heads: dict[Node, Node] = {}
        """Ops computed in another's kernel."""

    def all(self, graph: Graph) -> Iterator[Verdict]:
        for node in graph:
            if (
                node.op in STRUCTURAL_OPS | RETYPING_OPS | QPARAMS_OPS
                or is_integral(node)
                or is_float_width_cast(node)
            ):
                continue
            defect = next((d for d in self.table.defects if d.hits(node)), None)
            taken, reason = self._judge(node) if defect is None else _refusal(defect.reason)
            op = " |> ".join(s.op for s in node.stages) or node.op
            origin = str(node.origins[0]) if node.origins else ""
            yield Verdict(node.name, op, taken, reason, self.path, origin, defect is not None)

    def _judge(self, node: Node) -> tuple[Taken, str]:
        if node.op == "foreign":
            return "float", why_foreign(node)
        if node.op in PLAIN_INTEGER_PRODUCTS:
            return "float", f"sums of raw integers are not in the table of {self.table.name}"
        # Its head was judged before: nodes come in the order of computing.
        if node in self.heads:
            return "integer", f"in the kernel of {self.heads[node].name}"
        if node.stages:
            obstacle = self._chain(node)
            return ("refused", obstacle) if obstacle else ("integer", "")
        if node.bodies:
            return "float", "a group with a body"
        if self._while_running(node):
            return "integer", ""
        on_integers = any(v.type.quant for v in (*node.operands.values(), *node.results))
        epilogue, result = self._kernel(node)
        if on_integers:
            # In integer form kernels are groups already, so there is nothing to look for behind the
            # op.
            epilogue, result = [], node.results[0].type.quant if node.results else None
        if not on_integers and not self._meant(node, result):
            return "float", COMPUTES_IN_FLOAT
        obstacle = self._obstacle(node, result, epilogue)
        if not obstacle:
            self.heads.update(dict.fromkeys(epilogue, node))
            return "integer", ""
        product = spec(node.op).traits.weight is not None
        # A product in QDQ form is plainly meant for integers; other ops around it may well be
        # float.
        return ("refused" if on_integers or product else "float"), obstacle

    def _while_running(self, node: Node) -> bool:
        """Returns whether a kernel quantizes the op's data while it runs, next to quantized
        weights."""
        traits = spec(node.op).traits
        if node.op not in self.table.dynamic.ops or traits.weight is None:
            return False
        slot_types = _slots(node.op, node.operands, node.attrs)
        data, weight = slot_types[traits.data].quant, slot_types[traits.weight].quant
        return data is not None and data.dynamic and weight is not None and not weight.dynamic

    # -- QDQ form -----------------------------------------------------------------------------

    def _kernel(self, node: Node) -> tuple[list[Node], QuantType | None]:
        """Returns the ops after it that one kernel computes too, and the quantized type that is
        stored in the end."""
        epilogue: list[Node] = []
        if len(node.results) > 1:
            return epilogue, _common_result_type(node)
        value = node.results[0] if node.results else None
        # Only along single uses: a value read twice must exist, so no kernel can swallow it.
        while value is not None and (use := value.only_use) is not None:
            ops = (node.op, *(t.op for t in epilogue))
            if use.node.op == "quantize":
                is_complete = not epilogue or self.table.chain(ops)
                return (epilogue, use.node.result.type.quant) if is_complete else ([], None)
            if not use.node.results or not self.table.leads((*ops, use.node.op)):
                break
            epilogue.append(use.node)
            value = use.node.results[0]
        return [], None

    def _meant(self, node: Node, result: QuantType | None) -> bool:
        """Returns whether everything that it computes with is read from integers, and its result
        stored so."""
        bias = spec(node.op).traits.bias
        operands_read = [
            v for s, v in node.operands.items() if s != bias and v.type.express.is_float
        ]
        return (
            result is not None
            and bool(operands_read)
            and all(v.node.op == "dequantize" for v in operands_read)
        )

    # -- one op -------------------------------------------------------------------------------

    def _obstacle(self, node: Node, result: QuantType | None, epilogue: Sequence[Node]) -> str:
        """Returns why the target does not take an op as it is; empty where it does."""
        if reason := self.table.float_reason(node):
            return reason
        row = self.table.kernel((node.op, *(tail.op for tail in epilogue)))
        if row is None:
            return unsupported_op_text(self.table.name, node.op)
        slot_types = _slots(node.op, node.operands, node.attrs)
        slot_types[RESULT] = _SlotType(result)
        return self._misfit(row, node.attrs, slot_types) or self._unshared(row, slot_types)

    def _chain(self, node: Node) -> str:
        """Returns why the target has no such kernel of several ops; empty where it has."""
        ops = tuple(stage.op for stage in node.stages)
        row = self.table.kernel(ops)
        if row is None:
            return unsupported_op_text(self.table.name, ops[0])
        if not self.table.chain(ops):
            return f"{self.table.name} has no kernel {' |> '.join(ops)}"
        for stage in node.stages[:-1]:
            if stage.type is not None:
                return f"it rounds after {stage.op}; {self.table.name} rounds once, at the end"
        slot_types = _slots(ops[0], node.stage_operands(0), node.stages[0].attrs)
        slot_types[RESULT] = _SlotType(node.result.type.quant)
        return self._misfit(row, node.stages[0].attrs, slot_types)

    def _misfit(
        self, row: OpCapability, attrs: Mapping[str, Attr], slot_types: Mapping[str, _SlotType]
    ) -> str:
        name = self.table.name
        for attr, allowed in (row.when or {}).items():
            if not any(same(attrs.get(attr), v) for v in allowed):
                return f"{attr} = {attrs.get(attr)!r}: the table of {name} has {allowed[0]!r}"
        for slot, slot_type in slot_types.items():
            base = slot.split(".")[0]
            if row.must(base, slot_type.constant is not None):
                return f"{slot} is computed; the table of {name} has a constant there"
            allowed_here = row.allowed(base, slot_type.constant is not None)
            if not allowed_here:
                if slot_type.quant is not None:
                    return f"{slot} is quantized; the table of {name} has none there"
                continue
            if not any(_matches_scheme(scheme, slot_type) for scheme in allowed_here):
                accepted = " or ".join(str(a).removesuffix(" minmax") for a in allowed_here)
                return (
                    f"{slot} is {_scheme_text(slot_type.quant)}; the table of {name} has {accepted}"
                )
        return ""

    def _unshared(self, row: OpCapability, slot_types: Mapping[str, _SlotType]) -> str:
        """Returns why quantized values cannot be moved as they are; empty where they can."""
        quant_types = {
            s: h.quant for s, h in slot_types.items() if s.split(".")[0] in row.share and h.quant
        }
        for (one, a), (other, b) in pairwise(quant_types.items()):
            if not a.has_same_mapping(b):
                return (
                    f"{one} and {other} have different quantization parameters; "
                    f"{self.table.name} only moves quantized values"
                )
        return ""


def _common_result_type(node: Node) -> QuantType | None:
    """Returns the one quantized type that all of an op's results that are read are stored with."""
    uses = [value.only_use for value in node.results if value.uses]
    quant_types = [
        u.node.result.type.quant for u in uses if u is not None and u.node.op == "quantize"
    ]
    shared_types = [
        quant
        for quant in quant_types
        if quant is not None and quant.has_same_mapping(quant_types[0] or quant)
    ]
    return shared_types[0] if shared_types and len(shared_types) == len(uses) else None


def _slots(
    op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> dict[str, _SlotType]:
    """Returns what is in the op's own slots, seen through dequantize."""
    row = spec(op)
    out: dict[str, _SlotType] = {}
    for slot, value in operands.items():
        if row.slot(slot) is None:
            continue
        is_integer = not value.type.express.is_float
        source = value
        if value.type.quant is None and value.node.op == "dequantize":
            source = value.node.operands.get("x", value)
        out[slot] = _SlotType(
            source.type.quant, is_integer, source.constant, _axis(op, slot, operands, attrs)
        )
    return out


def _axis(
    op: str, slot: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> int | None:
    traits = spec(op).traits
    if slot == traits.bias:
        return operands[slot].type.rank - 1
    if slot != traits.weight or traits.weight_axis is None:
        return None
    try:
        return traits.weight_axis(make_call(op, operands, attrs))
    except TypeRuleError:  # the verifier's own finding
        return None


def _matches_scheme(scheme: Scheme, slot_type: _SlotType) -> bool:
    """Returns whether quantized values are what a slot takes."""
    quant = slot_type.quant
    if quant is None:
        return slot_type.count and scheme.storage.bits == 32
    if quant.storage not in scheme.storages or quant.dynamic or quant.has_float_zero:
        return False
    # A scheme may allow several storages; bounds and zero points are those of the one in use.
    scheme = scheme.with_storage(quant.storage)
    if quant.kind != "uniform" or quant.plus is not None:
        return False
    if not _bounds_within(scheme, quant, slot_type.constant):
        return False
    per_channel = (
        scheme.granularity == "channel" and quant.axis is not None and quant.axis == slot_type.axis
    )
    if quant.granularity is not None and not per_channel:
        return False
    zeros = np.asarray(quant.zeros())
    if scheme.symmetric and scheme.zero is None and (zeros != _symmetric_zero(quant)).any():
        return False
    if scheme.zero is not None and (zeros != scheme.zero).any():
        return False
    scales = np.asarray(quant.scales())
    return scheme.scale is None or bool((scales == np.float32(scheme.scale)).all())


def _bounds_within(scheme: Scheme, quant: QuantType, constant: Array | None) -> bool:
    """Returns whether integers keep to the bounds: by their type, or where they are constant by
    themselves."""
    if scheme.low <= quant.low and quant.high <= scheme.high:
        return True
    if constant is None or not constant.contents.size:
        return False
    data = constant.data
    return bool(scheme.low <= int(data.min()) and int(data.max()) <= scheme.high)


def _symmetric_zero(quant: QuantType) -> int:
    """Returns the zero point of symmetric quantized values."""
    return 0 if quant.storage.kind == "int" else 1 << quant.storage.bits - 1


def _scheme_text(quant: QuantType | None) -> str:
    """Returns a quantized type in the words of schemes."""
    if quant is None:
        return "float"
    bounds = f"<{quant.low}:{quant.high}>" if quant.bounds else ""
    if quant.dynamic:
        return f"{quant.storage}{bounds} with parameters from operands"
    if quant.kind != "uniform":
        return f"{quant.storage} with a table of quantized values"
    zeros = np.asarray(quant.zeros())
    symmetric = not quant.has_float_zero and not (zeros != _symmetric_zero(quant)).any()
    granularity = "tensor"
    if quant.granularity is not None:
        granularity = "blocks" if quant.axis is None else f"axis {quant.axis}"
    return f"{quant.storage}{bounds} {'symmetric' if symmetric else 'affine'} {granularity}"
