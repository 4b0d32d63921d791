"""Chains of ops on each float32 by itself, joined to one step.

GELU, as exporters write it, is five such ops. Each of its own reads and writes the whole tensor;
one step that takes some thousand floats through all of them keeps what is between them in the
nearest cache. Every op is rounded as before, so every byte is the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from qir._kernels._cpu import Plan
from qir.records import record

from .builder import Buffer, PendingStep

MAX_OPS, MAX_INPUTS, MAX_CONSTANTS = 16, 8, 8
"""What the kernel takes (`qir/_kernels/pointwise/pointwise.h`)."""
FLOAT_BYTES = 4
"""Bytes of a float32 element."""
KINDS = {"real": "real", "function": "function", "float_unary": "unary"}
"""Methods of a plan that a chain may hold, and their kinds there."""


@record
class _Op:
    """An op on each float: what it reads, whole tensors or single constants, and writes."""

    kind: str
    name: str
    reads: tuple[Buffer, ...]
    result: Buffer
    options: tuple[float, float]


@dataclass(slots=True)
class _CallOfStep:
    """Stands in for a plan and keeps the call by which a step adds itself."""

    method: str = ""
    args: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def keep(*args: object, **options: object) -> None:
            self.method, self.args, self.options = method, args, options

        return keep


def joined_chains(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Returns the steps of a program, of which chains of ops on each float are joined."""
    users = Counter(buffer for step in steps for buffer in (*step.reads, *step.writes))
    out: list[PendingStep] = []
    chain: list[tuple[PendingStep, _Op]] = []

    def close() -> None:
        if len(chain) > 1:
            out.append(_chain([step for step, _ in chain], [op for _, op in chain]))
        else:
            out.extend(step for step, _ in chain)
        chain.clear()

    for step in steps:
        op = _op(step)
        if op is None or not _continues([op for _, op in chain], op, users):
            close()
        if op is None:
            out.append(step)
        else:
            chain.append((step, op))
    close()
    return out


def _op(step: PendingStep) -> _Op | None:
    """Returns a step as an op on each float; None for another one."""
    # The kinds of unary steps have the name of their op: the call says what they are.
    if step.kind not in ("real", "function") and not step.kind.startswith("float_"):
        return None
    recorder = _CallOfStep()
    step.add(cast("Plan", recorder), cast("Callable[[Buffer], int]", lambda buffer: buffer))
    if recorder.method not in KINDS:
        return None
    _, *operands, result = recorder.args
    # One that is computed in place reads what it writes, which a chain has no number for.
    if result in operands or any(_constant(x) is None and x.size != result.size for x in operands):
        return None
    low, high = (float(recorder.options.get(name, 0.0)) for name in "ab")
    kind = KINDS[recorder.method]
    return _Op(kind, str(recorder.options["op"]), tuple(operands), result, (low, high))


def _constant(buffer: Buffer) -> float | None:
    """Returns the number of a buffer that holds one finite constant."""
    if buffer.data is None or buffer.size != FLOAT_BYTES:
        return None
    number = float(np.asarray(buffer.data).reshape(-1).view(np.float32)[0])
    return number if math.isfinite(number) else None


def _continues(chain: Sequence[_Op], op: _Op, users: Counter[Buffer]) -> bool:
    """Returns whether an op may be the next of a chain: it alone, or ops of the chain before it,
    read what the chain has made."""
    if not chain:
        return True
    last = chain[-1].result
    if last not in op.reads or op.result.size != last.size or len(chain) == MAX_OPS:
        return False
    ops = [*chain, op]
    made = [o.result for o in chain]
    # What a later step or the caller reads must be written as a whole.
    seen = Counter(buffer for o in ops for buffer in o.reads)
    if any(buffer.external or users[buffer] != seen[buffer] + 1 for buffer in made):
        return False
    inputs, constants = _operands(ops)
    return len(inputs) <= MAX_INPUTS and len(constants) <= MAX_CONSTANTS


def _operands(ops: Sequence[_Op]) -> tuple[list[Buffer], list[Buffer]]:
    """Returns the tensors and the constants that a chain reads, each once."""
    made = {op.result for op in ops}
    read = dict.fromkeys(b for op in ops for b in op.reads if b not in made)
    constants = [b for b in read if _constant(b) is not None]
    return [b for b in read if b not in constants], constants


def _chain(steps: Sequence[PendingStep], ops: Sequence[_Op]) -> PendingStep:
    """Returns one step for several."""
    inputs, constants = _operands(ops)
    values = [*inputs, *constants, *(op.result for op in ops)]
    number = {buffer: i for i, buffer in enumerate(values)}
    listed = [
        (op.kind, op.name, number[op.reads[0]], number[op.reads[-1]], *op.options) for op in ops
    ]
    numbers = [_constant(buffer) or 0.0 for buffer in constants]
    name, target = " ".join(step.name for step in steps), ops[-1].result
    return PendingStep(
        name,
        "pointwise",
        tuple(inputs),
        (target,),
        steps[-1].shape,
        lambda plan, at: plan.pointwise(
            name, [at(x) for x in inputs], at(target), constants=numbers, ops=listed,
            size=target.size // FLOAT_BYTES,
        ),
    )  # fmt: skip
