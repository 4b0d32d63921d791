"""Finds the branches of TensorFlow 1, Switch and Merge, and puts one node in their place."""

from __future__ import annotations

from dataclasses import replace

from qir.errors import InputError

from .graphdef import Branch, FunctionBody, GraphDefNode, GraphSource, Place

SWITCHED = "Cond"
"""The op of a node that stands for the Switch and Merge nodes of a branch."""
_RING = frozenset(("Enter", "NextIteration"))
_ELSE, _THEN = 0, 1
"""The results of Switch, and the inputs of Merge in the order that TensorFlow writes them in."""


def join_switches(source: GraphSource) -> None:
    """Replaces the Merge nodes of each condition, those of inner branches first."""
    nodes = source.nodes
    left = [n for n in nodes.values() if n.op == "Merge" and not _is_ring(source, n)]
    while left:
        ready = [n for n in left if len(n.inputs) == 2 and not _inner(source, n)]
        conditions = {n.name: _condition(source, n) for n in ready}
        if not ready:
            said = f"Merge {left[0].name} joins no two branches of one Switch"
            raise InputError(f"{source.name}: {said}")
        first = conditions[ready[0].name]
        group = [n for n in ready if conditions[n.name] == first]
        _join(source, first, group)
        left = [n for n in left if n not in group]


def _is_ring(source: GraphSource, merge: GraphDefNode) -> bool:
    """Returns whether a Merge begins a loop."""
    return any(name in source.nodes and source.nodes[name].op in _RING for name, _ in merge.inputs)


def _ends(source: GraphSource, place: Place, *, waits: bool) -> list[tuple[GraphDefNode, int]]:
    """Returns the results of Switch that a result hangs on, and Merge nodes on the way to them.

    With `waits`, nodes that only order others count too. The Switch of a loop is passed.
    """
    found, seen, todo = [], {place}, [place]
    while todo:
        name, index = todo.pop()
        node = source.nodes.get(name)
        if node is None:
            continue
        is_ring = node.op == "Merge" and _is_ring(source, node)
        if node.op == "Merge" and not is_ring:
            found.append((node, index))
            continue
        if node.op == "Switch" and len(node.inputs) == 2:
            condition = source.nodes.get(node.inputs[1][0])
            if condition is None or condition.op != "LoopCond":
                found.append((node, index))
                continue
        more = [*node.inputs, *((each, 0) for each in node.waits if waits)]
        todo += [each for each in more if each not in seen]
        seen.update(more)
    return found


def _inner(source: GraphSource, merge: GraphDefNode) -> bool:
    """Returns whether a Merge that was not replaced yet leads to this one."""
    ends = [end for place in merge.inputs for end in _ends(source, place, waits=False)]
    return any(node.op == "Merge" for node, _ in ends)


def _condition(source: GraphSource, merge: GraphDefNode) -> Place:
    """Returns what decides between the inputs of a Merge; raises InputError where they do not
    fit."""
    conditions: set[Place] = set()
    for side, place in zip((_ELSE, _THEN), merge.inputs, strict=True):
        ends = _ends(source, place, waits=False) or _ends(source, place, waits=True)
        conditions |= {_named(source, node.inputs[1]) for node, _ in ends if node.op == "Switch"}
        if any(index != side for _, index in ends):
            conditions.clear()
            break
    if len(conditions) != 1:
        said = f"Merge {merge.name} joins no two branches of one Switch"
        raise InputError(f"{source.name}: {said}")
    return conditions.pop()


def _named(source: GraphSource, place: Place) -> Place:
    """Returns the result that nodes only name again, as `tf.cond` does with its condition."""
    while place[0] in source.nodes and source.nodes[place[0]].op == "Identity":
        place = source.nodes[place[0]].inputs[0]
    return place


def _join(source: GraphSource, condition: Place, merges: list[GraphDefNode]) -> None:
    nodes = source.nodes
    ends = [end for m in merges for place in m.inputs for end in _ends(source, place, waits=False)]
    switches = list({node.name: node for node, _ in ends}.values())
    inner = replace(source, nodes=dict(nodes), branches=dict(source.branches))
    then, orelse = (
        FunctionBody(
            inner, [[(node.name, side)] for node in switches], [m.inputs[side] for m in merges]
        )
        for side in (_THEN, _ELSE)
    )
    name = f"{merges[0].name}/{SWITCHED}"
    if name in nodes:
        raise InputError(f"{source.name}: a branch has the name of the node {name}")
    nodes[name] = GraphDefNode(
        name, SWITCHED, [condition, *(node.inputs[0] for node in switches)], {}
    )
    source.branches[name] = Branch(then, orelse)
    for index, merge in enumerate(merges):
        nodes[merge.name] = GraphDefNode(merge.name, "Identity", [(name, index)], {})
