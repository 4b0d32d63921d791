"""The order of a graph's nodes: a linked list whose nodes have ranks.

Asking which of two nodes comes first costs nothing, and neither does putting one in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from qir.ir.node import Node

_GAP = 1 << 24
_SPARSITY_PER_BIT = 1.6  # how much sparser a range must be for each bit it is wider


class Order:
    """Nodes one after another."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: Node | None = None
        self._last: Node | None = None

    def __iter__(self) -> Iterator[Node]:
        node = self._first
        while node is not None:
            # Read before the yield: the caller may remove the node, or move it.
            following = node._next
            yield node
            node = following

    def __reversed__(self) -> Iterator[Node]:
        node = self._last
        while node is not None:
            following = node._prev
            yield node
            node = following

    def insert(self, node: Node, before: Node | None) -> None:
        """Puts a node before another, or last."""
        if before is None and self._last is not None:
            node._prev = last = self._last
            node._next = None
            node._rank = last._rank + _GAP
            last._next = self._last = node
            return
        after = self._last if before is None else before._prev
        node._rank = self._between(after, before)
        node._prev, node._next = after, before
        if after is None:
            self._first = node
        else:
            after._next = node
        if before is None:
            self._last = node
        else:
            before._prev = node

    def take_out(self, node: Node) -> None:
        """Closes the gap that a node leaves."""
        if node._prev is None:
            self._first = node._next
        else:
            node._prev._next = node._next
        if node._next is None:
            self._last = node._prev
        else:
            node._next._prev = node._prev
        node._prev = node._next = None

    def _between(self, after: Node | None, before: Node | None) -> int:
        if before is None:
            return (after._rank if after else 0) + _GAP
        if before._rank - (after._rank if after else 0) < 2:
            _make_room(before)
        return ((after._rank if after else 0) + before._rank) // 2


def _make_room(node: Node) -> None:
    """Spreads the ranks around a node, over the smallest range that is sparse enough.

    Tags of Bender et al., "Two simplified algorithms for maintaining order in a list": an
    insertion costs logarithmic time on average, wherever nodes are put in.
    """
    first = last = node
    count, bits = 1, 0
    while count * _SPARSITY_PER_BIT**bits > 1 << bits or bits < 2:
        bits += 1
        low = node._rank >> bits << bits
        while first._prev and first._prev._rank >= low:
            first, count = first._prev, count + 1
        while last._next and last._next._rank < low + (1 << bits):
            last, count = last._next, count + 1
    step = (1 << bits) // count
    for i in range(count):
        first._rank = low + i * step + step // 2
        assert i == count - 1 or first._next is not None
        first = first._next or first
