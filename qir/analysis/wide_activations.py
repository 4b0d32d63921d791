"""Finds the user rules that give an op 16-bit activations, where a target has them."""

from __future__ import annotations

from qir.capability import Capability
from qir.ir.node import Node
from qir.ir.scheme import RESULT, Scheme


def wide_rules(node: Node, table: Capability, pattern: str) -> tuple[str, ...]:
    """Returns rules that give an op activations of 16 bits, for the names that a pattern matches.

    There are none where a slot takes no such scheme, and where 16 bits are the default.
    """
    row = table.ops[node.op]
    read = (s.split(".")[0] for s, v in node.operands.items() if v.constant is None)
    rules, narrow = [], False
    for slot in dict.fromkeys((RESULT, *(slot for slot in read if slot in row.slots))):
        allowed = row.allowed(slot, False)
        scheme = next((each for each in allowed if _wide(each)), None)
        if scheme is None:
            return ()
        narrow = narrow or scheme is not allowed[0]
        where = "" if slot == RESULT else f" slot={slot}"
        rules.append(f"name={pattern}{where}: {scheme}".removesuffix(" minmax"))
    return tuple(rules) if narrow else ()


def _wide(scheme: Scheme) -> bool:
    return all(storage.bits == 16 for storage in scheme.storages)
