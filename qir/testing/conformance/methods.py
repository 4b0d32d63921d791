"""What every method is held to: integers within bounds, as near to the op in float as it says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import OpError
from qir.ir.dtype import F32, I8, U8
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import TensorType
from qir.numerics import MethodField
from qir.profiles import PluginMethod, profile, query_for_op
from qir.profiles.methods import BUILT_IN
from qir.reference import methods
from qir.reference.products import ProductKernel
from qir.reference.quantized import run_on_floats
from qir.testing.conformance.checklist import Check, Checklist, demand
from qir.testing.integer_networks import random_map
from qir.testing.op_samples import feed

COUNT = 30
"""So many calls of each op are looked for."""
Operands = dict[str, NDArray[np.generic]]


def check_method(name: str, given: PluginMethod) -> tuple[Check, ...]:
    """Checks a method against its contract, on random quantized inputs of its ops."""
    checks = Checklist()
    with ExitStack() as stack:
        if name not in registry.names("qir.methods"):
            stack.enter_context(registry.offer("qir.methods", name, given))
        checks.check("names ops, and blocks that there are", partial(_form, name, given))
        for op in given.ops:
            calls: list[tuple[ProductKernel, Operands]] = []

            def found(op: str = op, calls: list[tuple[ProductKernel, Operands]] = calls) -> str:
                calls.extend(_calls(name, op))
                demand(calls, f"no call of {op} on quantized values was found")
                return f"{len(calls)} calls"

            if checks.check(f"{op}: there are calls on quantized values", found):
                look = partial(_near, calls, given.within)
                checks.check(
                    f"{op}: gives quantized values, at most {given.within} steps from the float op",
                    look,
                )
                checks.check(f"{op}: same operands, same bytes", partial(_pure, calls))
    return checks.told()


def check_methods(table: Mapping[str, PluginMethod]) -> tuple[Check, ...]:
    """Holds a table of methods to what their profiles rely on."""
    checks = Checklist()
    for name, given in table.items():
        checks.check(f"{name}: names ops that there are", partial(_ops, given))
    return checks.told()


def _ops(given: PluginMethod) -> str:
    return ", ".join(spec(op).name for op in given.ops) or "any"


def _form(name: str, given: PluginMethod) -> str:
    clash = registry.clash("qir.methods", name)
    demand(name not in BUILT_IN, f"{name} is the name of a method of qir itself")
    demand(not clash, clash)
    demand(given.ops, "ops is empty: no profile could use it")
    for op in given.ops:
        spec(op)
        demand(op not in INTEGER_SUM_LAYERS, f"{op} accumulates; a profile says how by its fields")
    demand(given.within >= 0, f"within = {given.within} is less than 0")
    return ", ".join(given.ops)


def _calls(name: str, op: str) -> list[tuple[ProductKernel, Operands]]:
    """Uses of an op with quantized values of random maps in the place of its float values."""
    out: list[tuple[ProductKernel, Operands]] = []
    rules = profile("native")
    for seed in range(COUNT):
        chance = random.Random(seed)
        pick, rng = chance.randrange, np.random.default_rng(seed)
        node = feed(pick, Graph("main"), op, [])
        if node is None or len(node.results) != 1 or node.result.type.dtype is not F32:
            continue
        types: dict[str, TensorType] = {}
        arrays: Operands = {}
        for slot, value in node.operands.items():
            assert value.constant is not None
            types[slot], arrays[slot] = value.type, value.constant.data
            if value.type.dtype is F32:
                kind = random_map(pick, (U8, I8)[pick(2)])
                types[slot] = value.type.with_element(kind)
                integers = rng.integers(kind.low, kind.high, arrays[slot].shape, endpoint=True)
                arrays[slot] = integers.astype(kind.storage.carrier)
        if not any(kind.quant for kind in types.values()):
            continue
        result = node.result.type.with_element(random_map(pick, (U8, I8)[pick(2)]))
        rule = rules.resolve(query_for_op(op, node.attrs, types, result))
        out.append(
            (ProductKernel(op, node.attrs, types, result, replace(rule, method=None)), arrays)
        )
    return [(replace(k, rule=replace(k.rule, method=MethodField(name))), a) for k, a in out]


def _near(calls: list[tuple[ProductKernel, Operands]], within: int) -> str:
    tried = furthest = 0
    refused = ""
    for kernel, arrays in calls:
        try:
            made = methods.run(kernel, arrays)
        except OpError as error:
            # A method may refuse what its runtime has no kernel for, but not every call.
            refused = str(error)
            continue
        quant = kernel.result.quant
        assert quant is not None
        wanted = run_on_floats(replace(kernel, rule=replace(kernel.rule, method=None)), arrays)
        said = f"{kernel.op} on {', '.join(map(str, kernel.types.values()))}"
        demand(made.shape == wanted.shape, f"{said}: {list(made.shape)}, not {list(wanted.shape)}")
        demand(made.dtype == quant.storage.carrier, f"{said}: {made.dtype}, not {quant.storage}")
        if made.size:
            low, high = int(made.min()), int(made.max())
            bounds = f"{low}..{high}, the type holds {quant.low}..{quant.high}"
            demand(quant.low <= low and high <= quant.high, f"{said}: {bounds}")
            far = int(np.abs(made.astype(np.int64) - wanted.astype(np.int64)).max())
            demand(far <= within, f"{said}: {far} steps from the float op")
            furthest = max(furthest, far)
        tried += 1
    demand(tried, f"it refuses every call: {refused}")
    return f"{tried} calls, {len(calls) - tried} refused, at most {furthest} steps off"


def _pure(calls: list[tuple[ProductKernel, Operands]]) -> None:
    for kernel, arrays in calls:
        before = {slot: data.tobytes() for slot, data in arrays.items()}
        try:
            made = [methods.run(kernel, arrays).tobytes() for _ in range(2)]
        except OpError:
            continue
        demand(made[0] == made[1], f"{kernel.op}: other bytes the second time")
        after = {slot: data.tobytes() for slot, data in arrays.items()}
        demand(before == after, f"{kernel.op}: an operand has changed")


__all__ = ["check_method", "check_methods"]
