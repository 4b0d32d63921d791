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
from qir.passes.layout.crossing import Edit, Mixed, plan, sizes_of, wholes
from qir.rewrite.axis_permutation import Perm, composed, inverse, still, turned_lineage, turned_type
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


def raised(value: Value, perm: Perm) -> Raised | None:
    """Returns what makes a value with its axes in that order, if anything makes it by reshaping."""
    node = value.node
    if node.op not in RESHAPES or node.schemes or still(perm):
        return None
    x = node.operands["x"].type
    if any(kind.quant and kind.quant.granularity for kind in (x, value.type)):
        return None
    if node.op == "unsqueeze":
        new = {a % value.type.rank for a in wholes(node.attrs["axes"])}
        left = [axis for axis in perm if axis not in new]
        if left == sorted(left):
            axes = tuple(i for i, axis in enumerate(perm) if axis in new)
            return Raised("unsqueeze", tuple(range(x.rank)), {"axes": axes})
    found = reshaped(value.type.shape, x.shape, inverse(perm))
    sizes = sizes_of(tuple(value.type.shape[axis] for axis in perm))
    if found is None or found.axis is not None or sizes is None:
        return None
    return Raised("reshape", inverse(found.perm), {}, sizes)


@dataclass
class Passing:
    """One round over all transposes of a graph."""

    graph: Graph
    name: str
    """The pass that it is done for."""
    ledger: Ledger
    left: set[Node]
    """Transposes that are not to be asked about again."""

    def run(self) -> int:
        count = 0
        for node in list(self.graph):
            if node.op == "transpose" and node in self.graph and not node.schemes:
                count += node not in self.left and (self._raise(node) or self._pass(node))
        return count

    def _may(self, *nodes: Node) -> bool:
        if may(self.name, "through", *nodes):
            return True
        self.left.add(nodes[0])
        return False

    def _raise(self, node: Node) -> bool:
        """Takes out a transpose after what only reshapes, where none or another is before that."""
        value = node.operands["x"]
        found = raised(value, wholes(node.attrs["perm"]))
        if found is None:
            return False
        x, maker = value.node.operands["x"], value.node.operands["x"].node
        if not still(found.perm):
            alone = value.only_use is not None and x.only_use is not None
            if maker.op != "transpose" or maker.schemes or not alone:
                return False
        if not self._may(node, value.node):
            return False
        graph, old = self.graph, node.result
        if not still(found.perm):
            x = self._moved(maker, found.perm)
        operands = {"x": x}
        if found.sizes is not None:
            operands["shape"] = self._constant(found.sizes, f"{node.name}.shape", node)
        made = graph.add(
            found.op,
            operands,
            found.attrs,
            types=[old.type],
            before=node,
            origins=(*value.node.origins, *node.origins),
            profile=value.node.profile,
        ).result
        graph.replace(old, made)
        name, lineage = old.name, old.lineage
        self._drop(node)
        graph.rename(made, name)
        graph.set_lineage(made, lineage)
        return True

    def _moved(self, node: Node, perm: Perm) -> Value:
        """Returns what a transpose makes, with its axes in that order."""
        whole = composed(wholes(node.attrs["perm"]), perm)
        if still(whole):
            return node.operands["x"]
        self._turn(node.result, perm)
        self.graph.set_attrs(node, perm=whole)
        return node.result

    def _pass(self, node: Node) -> bool:
        """Takes out a transpose that all that reads it can do without."""
        edits = plan(node.result.uses, wholes(node.attrs["perm"])) if node.used else None
        if edits is None or not self._may(node, *(edit.node for edit in edits)):
            return False
        for edit in edits:
            for slot, value in list(edit.node.operands.items()):
                if value is node.result:
                    self.graph.set_operand(edit.node, slot, node.operands["x"])
            self._do(edit)
        self._drop(node)
        return True

    def _do(self, edit: Edit) -> None:
        graph, node = self.graph, edit.node
        if node.op == "transpose" and still(wholes(edit.attrs["perm"])):
            graph.replace(node.result, node.operands["x"])
            graph.remove(node)
            return
        for slot, array in edit.held.items():
            self._hold(node, slot, array)
        if edit.attrs:
            graph.set_attrs(node, **edit.attrs)
        state = edit.result
        if state is not None:
            for value in node.results:
                if isinstance(state, Mixed):
                    step = f"reordered({state.axis})"
                    graph.set_lineage(value, value.lineage.then(step))
                else:
                    self._turn(value, inverse(state))
        if node.op in _SUMS or (edit.held and node.op in MATRIX_PRODUCTS):
            said = "sums what it reads in another order"
            self.ledger.add(Change.REGROUPED, self.name, node.name, said)

    def _turn(self, value: Value, perm: Perm) -> None:
        kind = turned_type(value.type, perm)
        assert kind is not None
        self.graph.set_type(value, kind)
        self.graph.set_lineage(value, turned_lineage(value.lineage, perm))

    def _hold(self, node: Node, slot: str, array: Array) -> None:
        """Puts a constant in a slot, after a dequantize where one is there."""
        old = node.operands[slot]
        between = old.node if old.constant is None and old.node.op == "dequantize" else None
        held = between.operands["x"] if between else old
        name = f"{held.name}.{node.name}"
        made = self._constant(array, name, node)
        if held.node.op == "constant" and slot != "shape":
            self.graph.set_lineage(made, held.lineage.then("reordered"))
            self.graph.set_origins(made.node, held.node.origins)
        if between is not None:
            made = self.graph.add(
                "dequantize",
                {"x": made},
                between.attrs,
                types=[old.type],
                name=self.graph.fresh(f"{old.name}.{node.name}"),
                before=node,
                origins=between.origins,
                profile=between.profile,
            ).result
            self.graph.set_lineage(made, old.lineage.then("reordered"))
        self.graph.set_operand(node, slot, made)
        self._clear(old.node)

    def _constant(self, array: Array, name: str, before: Node) -> Value:
        fresh = self.graph.fresh(name)
        return self.graph.constant(array, name=fresh, before=before)

    def _drop(self, node: Node) -> None:
        makers = list(node.operands.values())
        self.graph.remove(node)
        for value in makers:
            self._clear(value.node)

    def _clear(self, node: Node) -> None:
        """Takes out what nobody reads any more, and what only that has read."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node in self.graph and not node.used and node.op not in ("input", "output"):
                todo += [value.node for value in node.operands.values()]
                self.graph.remove(node)
