"""LSTM and GRU layers of float32: one step per layer, computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.node import Node, Value
from qir.ir.ops.recurrent import DEFAULT_ACTIVATIONS, DIRECTIONS

from .builder import CannotLower, ProgramBuilder, sizes

RECURRENT_OPS = frozenset({"lstm", "gru"})


def lower_layer(b: ProgramBuilder, node: Node) -> None:
    """Lowers an LSTM or GRU with constant weights and the usual activations."""
    _require_supported(node)
    operands = node.operands
    w, r = (_constant(operands, slot) for slot in ("w", "r"))
    directions, rows = w.shape[:2]
    bias = np.zeros((directions, 2 * rows), np.float32)
    if "bias" in operands:
        # One bias vector is that of the input product; the recurrent one stays zero.
        given_bias = _constant(operands, "bias")
        bias[:, : given_bias.shape[1]] = given_bias
    peephole = _constant(operands, "peephole").reshape(-1) if "peephole" in operands else None
    batch_first = node.attrs["batch_first"] is True
    x = operands["x"]
    steps, batch = sizes(x)[1::-1] if batch_first else sizes(x)[:2]
    reverse = DIRECTIONS[str(node.attrs["direction"])] == (True,)
    reset_after = node.op == "gru" and node.attrs["linear_before_reset"] is True
    source = b.buffer(x)
    initial_states = [b.buffer(operands[slot]) for slot in ("h0", "c0") if slot in operands]
    has_state = [slot in operands for slot in ("h0", "c0")]
    targets = [b.allocate(value) for value in node.results]
    name, op = node.name, node.op
    b.add(
        name,
        "recurrent",
        [source, *initial_states],
        targets,
        sizes(node.results[0]),
        lambda plan, at: plan.recurrent(
            name,
            at(source),
            at(targets[0]),
            at(targets[1]),
            at(targets[2]) if op == "lstm" else None,
            w,
            r,
            bias,
            op=op,
            steps=steps,
            batch=batch,
            h0=at(initial_states[0]) if has_state[0] else None,
            c0=at(initial_states[-1]) if has_state[1] else None,
            back=reverse,
            batch_first=batch_first,
            reset_after=reset_after,
            peephole=peephole,
        ),
    )


def _require_supported(node: Node) -> None:
    """Raises CannotLower for a layer with features that the kernel has not."""
    for slot in ("lengths", "proj"):
        if slot in node.operands:
            raise CannotLower(f"no kernel computes a layer with {slot}")
    values = (*node.operands.values(), *node.results)
    if any(value.type.element != F32 for value in values):
        raise CannotLower("not all that it reads and makes is float32")
    directions = len(DIRECTIONS[str(node.attrs["direction"])])
    names = node.attrs["activations"]
    if names and names != DEFAULT_ACTIVATIONS[node.op] * directions:
        raise CannotLower("no kernel has other activations than sigmoid and tanh")
    if node.attrs["clip"] is not None or node.attrs.get("input_forget") is True:
        raise CannotLower("no kernel bounds gates or joins them")
    if node.inner:
        raise CannotLower("no kernel rounds inside of a layer")


def _constant(operands: Mapping[str, Value], slot: str) -> NDArray[np.float32]:
    constant = operands[slot].constant
    if constant is None:
        raise CannotLower(f"{slot} is no constant")
    return np.ascontiguousarray(constant.data, np.float32)
