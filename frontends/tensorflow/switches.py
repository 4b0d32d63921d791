"""Replaces each conditional of TensorFlow 1, Switch and Merge nodes, by one node.

A Switch passes its data to one of two outputs by the condition; a Merge returns whichever of its
inputs is computed. The Merge nodes of one condition become one node, inner conditionals first.
"""

from __future__ import annotations

from dataclasses import replace

from qir.errors import InputError

from .graphdef import Branch, FunctionBody, GraphDefNode, GraphSource, ResultPlace

BRANCH_OP = "Cond"
"""The op of the node that replaces a conditional."""
_LOOP_ENTRIES = frozenset(("Enter", "NextIteration"))
_ELSE, _THEN = 0, 1
"""Indices of the results of Switch, and of the inputs of Merge as TensorFlow writes them."""


def replace_switches(source: GraphSource) -> None:
    """Replaces all conditionals, inner ones first."""
    nodes = source.nodes
    merges = [n for n in nodes.values() if n.op == "Merge" and not _begins_loop(source, n)]
    while merges:
        ready = [n for n in merges if len(n.inputs) == 2 and not _has_inner_merge(source, n)]
        conditions = {n.name: _condition(source, n) for n in ready}
        if not ready:
            message = f"Merge {merges[0].name} joins no two branches of one Switch"
            raise InputError(f"{source.name}: {message}")
        first = conditions[ready[0].name]
        # All results of one conditional become one node.
        group = [n for n in ready if conditions[n.name] == first]
        _replace_merges(source, first, group)
        merges = [n for n in merges if n not in group]


def _begins_loop(source: GraphSource, merge: GraphDefNode) -> bool:
    """Returns whether a Merge is the entry of a loop and no conditional."""
    return any(
        name in source.nodes and source.nodes[name].op in _LOOP_ENTRIES for name, _ in merge.inputs
    )


def _controlling_nodes(
    source: GraphSource, place: ResultPlace, *, follows_control: bool
) -> list[tuple[GraphDefNode, int]]:
    """Returns the Switch and Merge results that a result depends on first.

    With `follows_control`, control inputs are followed too. The Switch nodes of loops are
    looked through.
    """
    controlling, visited, todo = [], {place}, [place]
    while todo:
        name, index = todo.pop()
        node = source.nodes.get(name)
        if node is None:
            continue
        is_ring = node.op == "Merge" and _begins_loop(source, node)
        if node.op == "Merge" and not is_ring:
            controlling.append((node, index))
            continue
        if node.op == "Switch" and len(node.inputs) == 2:
            # A Switch of a loop passes values on: the LoopCond tells it from a conditional.
            condition = source.nodes.get(node.inputs[1][0])
            if condition is None or condition.op != "LoopCond":
                controlling.append((node, index))
                continue
        more = [
            *node.inputs,
            *((input_name, 0) for input_name in node.control_inputs if follows_control),
        ]
        todo += [input_name for input_name in more if input_name not in visited]
        visited.update(more)
    return controlling


def _has_inner_merge(source: GraphSource, merge: GraphDefNode) -> bool:
    """Returns whether this Merge depends on another one that is not replaced yet."""
    controlling = [
        end
        for place in merge.inputs
        for end in _controlling_nodes(source, place, follows_control=False)
    ]
    return any(node.op == "Merge" for node, _ in controlling)


def _condition(source: GraphSource, merge: GraphDefNode) -> ResultPlace:
    """Returns the condition of a Merge.

    Raises InputError if its inputs are not the two branches of one condition.
    """
    conditions: set[ResultPlace] = set()
    for branch, place in zip((_ELSE, _THEN), merge.inputs, strict=True):
        # A branch that returns a constant depends on its Switch by a control input only.
        controlling = _controlling_nodes(
            source, place, follows_control=False
        ) or _controlling_nodes(source, place, follows_control=True)
        conditions |= {
            _through_identities(source, node.inputs[1])
            for node, _ in controlling
            if node.op == "Switch"
        }
        if any(index != branch for _, index in controlling):
            conditions.clear()
            break
    if len(conditions) != 1:
        message = f"Merge {merge.name} joins no two branches of one Switch"
        raise InputError(f"{source.name}: {message}")
    return conditions.pop()


def _through_identities(source: GraphSource, place: ResultPlace) -> ResultPlace:
    """Returns a result, looking through Identity nodes, which `tf.cond` adds to its condition."""
    while place[0] in source.nodes and source.nodes[place[0]].op == "Identity":
        place = source.nodes[place[0]].inputs[0]
    return place


def _replace_merges(
    source: GraphSource, condition: ResultPlace, merges: list[GraphDefNode]
) -> None:
    nodes = source.nodes
    controlling = [
        end
        for m in merges
        for place in m.inputs
        for end in _controlling_nodes(source, place, follows_control=False)
    ]
    switches = list({node.name: node for node, _ in controlling}.values())
    inner = replace(source, nodes=dict(nodes), branches=dict(source.branches))
    then, orelse = (
        FunctionBody(
            inner, [[(node.name, side)] for node in switches], [m.inputs[side] for m in merges]
        )
        for side in (_THEN, _ELSE)
    )
    name = f"{merges[0].name}/{BRANCH_OP}"
    if name in nodes:
        raise InputError(f"{source.name}: a branch has the name of the node {name}")
    nodes[name] = GraphDefNode(
        name, BRANCH_OP, [condition, *(node.inputs[0] for node in switches)], {}
    )
    source.branches[name] = Branch(then, orelse)
    for index, merge in enumerate(merges):
        nodes[merge.name] = GraphDefNode(merge.name, "Identity", [(name, index)], {})
