"""Replaces each while loop of TensorFlow 1 by one node.

Such a loop is a frame: Enter -> Merge -> Switch -> body -> NextIteration -> Merge, with LoopCond
for the condition and Exit for each result.
"""

from __future__ import annotations

from dataclasses import replace

from qir.errors import InputError

from .graphdef import FRAME_OPS, GraphDefNode, GraphSource, LoopParts, ResultPlace

LOOP_OP = "Frame"
"""The op of the node that replaces a frame."""
_BINARY_CONTROL = ("Merge", "Switch")
"""Control flow ops with two inputs."""


def replace_frames(source: GraphSource) -> dict[str, LoopParts]:
    """Replaces all frames; returns the parts of each loop, by the name of its node."""
    frames: dict[str, list[GraphDefNode]] = {}
    for node in source.nodes.values():
        if node.op in FRAME_OPS and len(node.inputs) < (2 if node.op in _BINARY_CONTROL else 1):
            message = f"{node.op} {node.name} has {len(node.inputs)} inputs"
            raise InputError(f"{source.name}: {message}, which is too few")
        if node.op == "Enter":
            frames.setdefault(str(node.attrs["frame_name"].s, "utf-8"), []).append(node)
    return {name: _replace_frame(source, name, enters) for name, enters in frames.items()}


def _replace_frame(source: GraphSource, frame: str, enters: list[GraphDefNode]) -> LoopParts:
    nodes = source.nodes
    entered = {node.name for node in enters}
    # Each carried value has a Merge of its first and its next value.
    merges = [
        node
        for node in nodes.values()
        if node.op == "Merge" and any(name in entered for name, _ in node.inputs)
    ]
    names = {node.name for node in merges}
    switches = {
        node.inputs[0][0]: node
        for node in nodes.values()
        if node.op == "Switch" and node.inputs[0][0] in names
    }
    conditions = {node.inputs[1][0] for node in switches.values()}
    if len(conditions) != 1 or names - switches.keys():
        raise InputError(f"{source.name}: the loop {frame} has no single condition")
    inner = replace(source, nodes=dict(nodes))
    starts: list[ResultPlace] = []
    args: list[list[ResultPlace]] = []
    results: list[ResultPlace] = []
    for merge in merges:
        enter, next_iteration = (nodes.get(name) for name, _ in merge.inputs)
        if enter is None or next_iteration is None or next_iteration.op != "NextIteration":
            raise InputError(f"{source.name}: Merge {merge.name} of the loop {frame} has no ring")
        starts.append(enter.inputs[0])
        # The condition reads the Merge, the body the second output of the Switch.
        args.append([(merge.name, 0), (switches[merge.name].name, 1)])
        results.append(next_iteration.inputs[0])
    for node in enters:
        # Enter nodes of constants are invariant: they have no Merge.
        if node.attrs["is_constant"].b:
            starts.append(node.inputs[0])
            args.append([(node.name, 0)])
    index_by_switch = {switches[merge.name].name: i for i, merge in enumerate(merges)}
    for node in list(nodes.values()):
        if node.op == "Exit" and node.inputs[0][0] in index_by_switch:
            nodes[node.name] = GraphDefNode(
                node.name, "Identity", [(frame, index_by_switch[node.inputs[0][0]])], {}
            )
    if frame in nodes:
        raise InputError(f"{source.name}: the loop {frame} has the name of a node")
    nodes[frame] = GraphDefNode(frame, LOOP_OP, starts, {})
    (condition,) = conditions
    return LoopParts(inner, args, nodes[condition].inputs[0], inner, args, results)
