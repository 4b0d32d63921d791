"""Groups the ops of a QDQ graph that become one kernel each in the files of a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qir.capability import Capability
from qir.ir.dtype import U8
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.quantized_ops import CONVERSION_OPS
from qir.ir.scheme import RESULT, Scheme
from qir.ir.text import parse
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.profiles import Profile
from qir.rewrite import Pass
from qir.rewrite.fusing import ChainMatch

from .preparation import STEPS


@dataclass(frozen=True)
class KernelGroups(Group):
    """Wraps the groups of a profile that the target's table has too, as the reference computes
    them.

    The others stay between dequantize and quantize, as they are in the target's files.
    """

    table: Capability = field(default_factory=lambda: Capability("none", {}))

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a function whose kernel the table lacks."""
        text = (
            "graph main as torch-2.13.x86 {\n  %x = input() : 2x3xf32\n"
            "  %y = sigmoid(%x) : 2x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        return super().allows(match, graph) and self._is_in_table(match)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = lower_dynamic_linear(graph, self.name, ledger) + lower_packed_tables(graph)
        count += lower_splits(graph) if "split" in self.table.ops else 0
        count += self._separate_float_ops(graph)
        return count + super().run(graph, ledger)

    def _separate_float_ops(self, graph: Graph) -> int:
        """Puts an identity between ops that stay float and the dequantize before them.

        Otherwise layout inference would take them for kernels on integers.
        """
        # Ops whose kernels the table lacks are float in the files, so they must not be grouped.
        anchors, count = {group.chain[0] for group in self.kernel_profile(graph).groups}, 0
        for node in list(graph):
            has_kernel = node.op in self.table.ops and not self.table.float_reason(node)
            if has_kernel or node.stages or node.op not in anchors - CONVERSION_OPS:
                continue
            for slot, value in list(node.operands.items()):
                if value.node.op == "dequantize":
                    name = graph.fresh(f"{value.name}.float")
                    separator = graph.add("identity", {"x": value}, name=name, before=node)
                    graph.set_operand(node, slot, separator.result)
                    count += 1
        return count

    def _is_in_table(self, match: ChainMatch) -> bool:
        ops = tuple(node.op for node in match.ops)
        entry = self.table.ops.get(ops[0])
        if entry is None or (len(ops) > 1 and not self.table.chain(ops)):
            return False
        if match.result is None or self.table.float_reason(match.anchor):
            return False
        if not any(
            _fits_fixed_parameters(scheme, match.result) for scheme in entry.slots.get(RESULT, ())
        ):
            return False
        weight = spec(ops[0]).traits.weight
        held = match.operands.get(weight or "")
        quant = held.type.quant if held is not None else None
        if quant is None:
            return True
        granularities = {scheme.granularity for scheme in entry.slots.get(weight or "", ())}
        return (
            quant.granularity is None and "tensor" in granularities
        ) or "channel" in granularities


class GraphLayout(KernelGroups):
    """The same kernels without the layout steps: PyTorch itself computes in channels_last."""

    def steps(self, named: Profile) -> tuple[str, ...]:
        return tuple(step for step in named.prepare if step not in STEPS)


def lower_dynamic_linear(graph: Graph, step: str, ledger: Ledger) -> int:
    """Makes linear layers read data that are dynamically quantized as integers.

        %d = dequantize(%q, x.scale=%s, x.zero=%z); %y = linear(%d, %w.dq, bias=%b)

    becomes

        %y = linear(%q, %w, x.scale=%s, x.zero=%z, bias=%b)

    The result is float, as that of quantized::linear_dynamic.
    """
    count = 0
    for node in [n for n in graph if n.op == "linear" and not n.stages]:
        data, weight = (node.operands[slot].node for slot in ("x", "w"))
        if not (
            _is_dynamically_quantized(data)
            and weight.op == "dequantize"
            and len(weight.operands) == 1
        ):
            continue
        quantized = weight.operands["x"]
        quant = quantized.type.quant
        if quantized.constant is None or quant is None or str(quant.storage) != "i8":
            continue
        operands = {"x": data.operands["x"], "w": quantized}
        operands |= {slot: data.operands[slot] for slot in ("x.scale", "x.zero")}
        operands |= {slot: v for slot, v in node.operands.items() if slot == "bias"}
        lowered = graph.add(
            "linear",
            operands,
            types=[node.result.type],
            name=graph.fresh(node.name),
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        name, lineage = node.result.name, node.result.lineage
        graph.replace(node.result, lowered.result)
        graph.remove(node)
        graph.rename(lowered.result, name)
        graph.set_lineage(lowered.result, lineage)
        reason = "a linear layer on integers that are chosen while the model runs, of float result"
        ledger.add(Change.REGROUPED, step, name, reason)
        count += 1
    return count + (graph.prune() if count else 0)


def lower_packed_tables(graph: Graph) -> int:
    """Makes embeddings of rows with float zero points read the integers.

    quantized::embedding_byte dequantizes the rows that it reads itself: its table holds integers
    alone.
    """
    count = 0
    for node in [n for n in graph if n.op in ("embedding", "embedding_bag") and not n.stages]:
        table = node.operands["w"].node
        if table.op != "dequantize" or len(table.operands) > 1:
            continue
        quantized = table.operands["x"]
        quant = quantized.type.quant
        if quantized.constant is None or quant is None or not quant.has_float_zero:
            continue
        graph.set_operand(node, "w", quantized)
        count += 1
    return count + (graph.prune() if count else 0)


def lower_splits(graph: Graph) -> int:
    """Makes a split of quantized data one slice for each part that is read.

    Both are views with the same strides; a slice has one result, as a kernel does.
    """
    splits = [n for n in graph if n.op == "split" and n.operands["x"].node.op == "dequantize"]
    for node in splits:
        axis, start, sizes = node.attrs["axis"], 0, node.attrs["sizes"]
        assert isinstance(sizes, tuple)
        for part, size in zip(node.results, sizes, strict=True):
            assert isinstance(size, int)
            bounds = {"starts": (start,), "ends": (start + size,), "axes": (axis,), "steps": (1,)}
            start += size
            if not part.uses:
                continue
            name, lineage = part.name, part.lineage
            piece = graph.add(
                "slice",
                {"x": node.operands["x"]},
                bounds,
                name=graph.fresh(name),
                before=node,
                origins=node.origins,
                profile=node.profile,
            )
            graph.replace(part, piece.result)
            graph.rename(part, graph.fresh(f"{name}.part"))
            graph.rename(piece.result, name)
            graph.set_lineage(piece.result, lineage)
        graph.remove(node)
    return len(splits)


def _is_dynamically_quantized(data: Node) -> bool:
    """Returns whether data are quantized at run time by PyTorch's own rule."""
    if data.op != "dequantize" or "x.scale" not in data.operands:
        return False
    quantize = data.operands["x"].node
    scale = data.operands["x.scale"].node
    if quantize.op != "quantize" or scale.op != "choose_qparams":
        return False
    quantizes_same_data = (
        # Both must read the same data: otherwise the range is of another tensor.
        quantize.operands["x"] is scale.operands["x"]
        and quantize.operands.get("scale") is scale.results[0]
    )
    return (
        quantizes_same_data
        and scale.attrs["rule"] == "torch.dynamic"
        and scale.attrs["storage"] == U8
    )


def _fits_fixed_parameters(scheme: Scheme, quant: QuantType) -> bool:
    """Returns whether a result has the scale and zero point that a scheme fixes, if any."""
    if scheme.storage != quant.storage or quant.granularity is not None:
        return False
    scale = scheme.scale is None or bool((quant.scales() == scheme.scale).all())
    return scale and (scheme.zero is None or bool((quant.zeros() == scheme.zero).all()))


__all__ = ["GraphLayout", "KernelGroups"]
