"""Replaces convolutions between SpaceToBatchND and BatchToSpaceND by dilated ones.

TensorFlow writes a dilated convolution as one of stride 1 over blocks of its data, for which the
data are padded; the result is cropped. The kernel has dilations of its own, at any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .elements import tensor_elements
from .graphdef import GraphDefNode, GraphSource, ResultPlace
from .messages import GraphDefMessage

_CONVOLUTIONS = frozenset(("Conv2D", "DepthwiseConv2dNative"))
BLOCK_PADDING = "BLOCKS"
"""The padding of such a convolution: inputs 2 and 3 are the paddings and the crops of its blocks,
rows for the last axes of its image."""


@dataclass(frozen=True)
class _Dilated:
    """The nodes of a dilated convolution, and the sizes of its blocks."""

    before: GraphDefNode
    first: GraphDefNode
    convolution: GraphDefNode
    after: GraphDefNode
    blocks: tuple[int, ...]


def replace_dilations(source: GraphSource) -> None:
    """Replaces all convolutions on blocks whose sizes are constant."""
    # A value that another node reads too must exist, so only chains of single readers are replaced.
    reads = Counter(name for node in source.nodes.values() for name, _ in node.inputs)
    for node in list(source.nodes.values()):
        if node.op != "BatchToSpaceND" or len(node.inputs) != 3:
            continue
        found = _dilated(source, node, reads)
        if found is not None:
            _replace(source, found)


def _dilated(source: GraphSource, after: GraphDefNode, reads: Mapping[str, int]) -> _Dilated | None:
    """Returns the convolution whose blocks a node joins; None for other nodes."""
    chain = [after]
    squeezed = _only_read(source, after, reads)
    # A convolution along one axis is one of images of height 1 in TensorFlow.
    if squeezed is not None and squeezed.op == "Squeeze":
        chain.append(squeezed)
    convolution = _only_read(source, chain[-1], reads)
    if convolution is None or not _is_plain(convolution):
        return None
    first = convolution
    before = _only_read(source, first, reads)
    if before is not None and before.op == "ExpandDims" and len(chain) == 2:
        first, before = before, _only_read(source, before, reads)
        # The axis of height 1, before width and channels.
        if _integers(source, first.inputs[1]) not in ((1,), (-3,)):
            return None
    if before is None or before.op != "SpaceToBatchND" or len(before.inputs) != 3:
        return None
    blocks = _integers(source, before.inputs[1])
    count = 2 if first is convolution else 1
    if blocks is None or len(blocks) != count or blocks != _integers(source, after.inputs[1]):
        return None
    return _Dilated(before, first, convolution, after, blocks)


def _only_read(
    source: GraphSource, node: GraphDefNode, reads: Mapping[str, int]
) -> GraphDefNode | None:
    """Returns the node of the first input, if no other node reads that."""
    name, index = source.resolve(node.inputs[0]) if node.inputs else ("", 0)
    return source.nodes.get(name) if index == 0 and reads[name] == 1 else None


def _is_plain(node: GraphDefNode) -> bool:
    """Returns whether a node is a convolution without padding, strides and dilations."""
    if node.op not in _CONVOLUTIONS or len(node.inputs) != 2:
        return False
    # Blocks already make the dilation: another stride or dilation would be one of blocks.
    ones = {*node.attrs["strides"].list.i} if "strides" in node.attrs else {1}
    if "dilations" in node.attrs:
        ones |= {*node.attrs["dilations"].list.i}
    layout = node.attrs["data_format"].s if "data_format" in node.attrs else b"NHWC"
    return node.attrs["padding"].s == b"VALID" and layout == b"NHWC" and ones == {1}


def _integers(source: GraphSource, place: ResultPlace) -> tuple[int, ...] | None:
    """Returns the elements of a constant; None for other nodes."""
    node = source.nodes.get(source.resolve(place)[0])
    if node is None or node.op != "Const":
        return None
    elements = tensor_elements(node.attrs["value"].tensor, f"{source.name}: {node.name}")
    return tuple(int(each) for each in elements.reshape(-1))


def _replace(source: GraphSource, found: _Dilated) -> None:
    """Lets the convolution read what was divided into blocks, with dilations of that size."""
    made, convolution = GraphDefMessage(), found.convolution
    attrs = made.node.add().attr
    attrs["dilations"].list.i.extend((1, *(1,) * (2 - len(found.blocks)), *found.blocks, 1))
    attrs["padding"].s = BLOCK_PADDING.encode()
    convolution.attrs = {**convolution.attrs, **attrs}
    found.first.inputs = [found.before.inputs[0], *found.first.inputs[1:]]
    convolution.inputs = [*convolution.inputs, found.before.inputs[2], found.after.inputs[2]]
    last = found.after.inputs[0]
    # The last node keeps its name, by which others and the outputs of the model refer to it.
    source.nodes[found.after.name] = GraphDefNode(found.after.name, "Identity", [last], {})
