"""Removes transposes by moving them past ops that do not depend on axis order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.ops.moves import RESHAPES
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.passes.layout.blocks import reshaped
from qir.passes.layout.crossing import Edit, Reordered, int_list, plan, sizes_of
from qir.rewrite.axis_permutation import (
    Perm,
    composed,
    inverse,
    is_identity,
    permuted_lineage,
    permuted_type,
)
from qir.rewrite.runner.filter import may

_SUMS = frozenset(
    "reduce_mean reduce_sum reduce_prod reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum "
    "reduce_log_sum_exp".split()
)


@dataclass(frozen=True, slots=True)
class Raised:
    """The reshape or unsqueeze that stands for one with a transpose after it."""

    op: str
    perm: Perm
    """What its operand is to be transposed by."""
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    sizes: Array | None = None


def reshape_without_transpose(value: Value, perm: Perm) -> Raised | None:
    """Returns the reshape or unsqueeze that makes a value in that order of axes; None if none
    does."""
    node = value.node
    if node.op not in RESHAPES or node.schemes or is_identity(perm):
        return None
    x = node.operands["x"].type
    # Scales along an axis would have to follow their axis through the reshape.
    if any(kind.quant and kind.quant.granularity for kind in (x, value.type)):
        return None
    if node.op == "unsqueeze":
        added_axes = {a % value.type.rank for a in int_list(node.attrs["axes"])}
        # If the other axes keep their order, the unsqueeze can put its axes elsewhere at once.
        remaining = [axis for axis in perm if axis not in added_axes]
        if remaining == sorted(remaining):
            axes = tuple(i for i, axis in enumerate(perm) if axis in added_axes)
            return Raised("unsqueeze", tuple(range(x.rank)), {"axes": axes})
    source_reshape = reshaped(value.type.shape, x.shape, inverse(perm))
    sizes = sizes_of(tuple(value.type.shape[axis] for axis in perm))
    if source_reshape is None or source_reshape.axis is not None or sizes is None:
        return None
    return Raised("reshape", inverse(source_reshape.perm), {}, sizes)


@dataclass
class Passing:
    """One round over all transposes of a graph."""

    graph: Graph
    name: str
    """The pass that it is done for."""
    ledger: Ledger
    skipped: set[Node]
    """Transposes that are not to be asked about again."""

    def run(self) -> int:
        count = 0
        for node in list(self.graph):
            if node.op == "transpose" and node in self.graph and not node.schemes:
                count += node not in self.skipped and (
                    self._remove_after_reshape(node) or self._remove_before_readers(node)
                )
        return count

    def _may(self, *nodes: Node) -> bool:
        if may(self.name, "through", *nodes):
            return True
        # Rounds repeat until nothing moves: a refusal would be asked for again in each.
        self.skipped.add(nodes[0])
        return False

    def _remove_after_reshape(self, node: Node) -> bool:
        """Removes a transpose after a reshape that can make its order, by a transpose before if
        need be."""
        value = node.operands["x"]
        replacement = reshape_without_transpose(value, int_list(node.attrs["perm"]))
        if replacement is None:
            return False
        x, producer = value.node.operands["x"], value.node.operands["x"].node
        if not is_identity(replacement.perm):
            # The transpose before is changed in place, so nobody else may read it.
            have_one_use = value.only_use is not None and x.only_use is not None
            if producer.op != "transpose" or producer.schemes or not have_one_use:
                return False
        if not self._may(node, value.node):
            return False
        graph, old = self.graph, node.result
        if not is_identity(replacement.perm):
            x = self._with_axes_moved(producer, replacement.perm)
        operands = {"x": x}
        if replacement.sizes is not None:
            operands["shape"] = self._constant(replacement.sizes, f"{node.name}.shape", node)
        new_value = graph.add(
            replacement.op,
            operands,
            replacement.attrs,
            types=[old.type],
            before=node,
            origins=(*value.node.origins, *node.origins),
            profile=value.node.profile,
        ).result
        graph.replace(old, new_value)
        name, lineage = old.name, old.lineage
        self._remove(node)
        graph.rename(new_value, name)
        graph.set_lineage(new_value, lineage)
        return True

    def _with_axes_moved(self, node: Node, perm: Perm) -> Value:
        """Extends a transpose by another order of axes; returns its operand if both cancel."""
        combined = composed(int_list(node.attrs["perm"]), perm)
        if is_identity(combined):
            return node.operands["x"]
        self._turn(node.result, perm)
        self.graph.set_attrs(node, perm=combined)
        return node.result

    def _remove_before_readers(self, node: Node) -> bool:
        """Removes a transpose whose readers can all be edited to read its operand."""
        edits = plan(node.result.uses, int_list(node.attrs["perm"])) if node.used else None
        if edits is None or not self._may(node, *(edit.node for edit in edits)):
            return False
        for edit in edits:
            # The same value may be in several slots, as in x + x.
            for slot, value in list(edit.node.operands.items()):
                if value is node.result:
                    self.graph.set_operand(edit.node, slot, node.operands["x"])
            self._apply(edit)
        self._remove(node)
        return True

    def _apply(self, edit: Edit) -> None:
        graph, node = self.graph, edit.node
        if node.op == "transpose" and is_identity(int_list(edit.attrs["perm"])):
            graph.replace(node.result, node.operands["x"])
            graph.remove(node)
            return
        for slot, array in edit.constants.items():
            self._set_constant(node, slot, array)
        if edit.attrs:
            graph.set_attrs(node, **edit.attrs)
        state = edit.result
        if state is not None:
            for value in node.results:
                if isinstance(state, Reordered):
                    step = f"reordered({state.axis})"
                    graph.set_lineage(value, value.lineage.then(step))
                else:
                    self._turn(value, inverse(state))
        # Terms of these sums come in another order, which may change the last bits of floats.
        if node.op in _SUMS or (edit.constants and node.op in MATRIX_PRODUCTS):
            message = "sums what it reads in another order"
            self.ledger.add(Change.REGROUPED, self.name, node.name, message)

    def _turn(self, value: Value, perm: Perm) -> None:
        tensor_type = permuted_type(value.type, perm)
        assert tensor_type is not None
        self.graph.set_type(value, tensor_type)
        self.graph.set_lineage(value, permuted_lineage(value.lineage, perm))

    def _set_constant(self, node: Node, slot: str, array: Array) -> None:
        """Puts a constant in a slot, after a dequantize where one is there."""
        old = node.operands[slot]
        between = old.node if old.constant is None and old.node.op == "dequantize" else None
        stored = between.operands["x"] if between else old
        name = f"{stored.name}.{node.name}"
        constant = self._constant(array, name, node)
        if stored.node.op == "constant" and slot != "shape":
            self.graph.set_lineage(constant, stored.lineage.then("reordered"))
            self.graph.set_origins(constant.node, stored.node.origins)
        if between is not None:
            constant = self.graph.add(
                "dequantize",
                {"x": constant},
                between.attrs,
                types=[old.type],
                name=self.graph.fresh(f"{old.name}.{node.name}"),
                before=node,
                origins=between.origins,
                profile=between.profile,
            ).result
            self.graph.set_lineage(constant, old.lineage.then("reordered"))
        self.graph.set_operand(node, slot, constant)
        self._remove_unused(old.node)

    def _constant(self, array: Array, name: str, before: Node) -> Value:
        fresh = self.graph.fresh(name)
        return self.graph.constant(array, name=fresh, before=before)

    def _remove(self, node: Node) -> None:
        operands = list(node.operands.values())
        self.graph.remove(node)
        for value in operands:
            self._remove_unused(value.node)

    def _remove_unused(self, node: Node) -> None:
        """Removes a node that nobody reads, and then the operands that only it read."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node in self.graph and not node.used and node.op not in ("input", "output"):
                todo += [value.node for value in node.operands.values()]
                self.graph.remove(node)
