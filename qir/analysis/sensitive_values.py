"""Finds inputs of a root, power or logarithm of a reduction, which few bits are too coarse for.

A normalization that an exporter wrote in its parts is the usual case:

    %s = mul(%x, %x)                                   sensitive: only the reduction reads it
    %m = reduce_mean(%s) {axes = (-1,)}                sensitive: it feeds the root
    %e = add(%m, %eps)                                 sensitive: it feeds the root
    %r = rsqrt(%e)                                     sensitive: the root of a reduction
    %n = mul(%x, %r)                                   sensitive: a factor and a shift follow
    %f = mul(%n, %gamma)                               sensitive: a shift follows
    %y = add(%f, %beta)                                not sensitive

One scale for all rows rounds a small variance to 0, and one over its root to anything at all.
Before its factor and shift a normalized value may hold outliers that these take back.

Other divisors are sensitive where they reach near 0: see `qir.analysis.divisors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qir.analysis.divisors import operands_near_zero
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec

ROOTS = frozenset("sqrt rsqrt reciprocal pow div log log2 log10 log1p exp exp2 expm1".split())
"""Ops that enlarge the relative error of a small operand; of `div` that is the divisor."""
REDUCTIONS = frozenset(
    "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_l1 reduce_l2 "
    "reduce_sum_square reduce_log_sum reduce_log_sum_exp global_avg_pool global_max_pool "
    "global_lp_pool avg_pool1d avg_pool2d avg_pool3d".split()
)
"""Ops that make one number of many."""
_POINTWISE = ROOTS | frozenset(
    "add sub mul max min sum mean neg abs square squared_difference clip relu cast identity".split()
)
"""Arithmetic that a runtime does between a reduction and what reads its result."""
_BEFORE = ROOTS | frozenset("mul sub neg abs square squared_difference".split())
"""Arithmetic on what is reduced: squares and deviations. A sum may be a residual one."""

_APPLY = frozenset({"mul", "div", "add", "sub"})
"""How a statistic, a factor or a shift is applied to what is normalized."""


def sensitive_values(
    graph: Graph, observed_divisors: Mapping[Value, float] | None = None
) -> dict[Value, str]:
    """Returns the values that stay float by default, each with the reason.

    `observed_divisors` holds what calibration found of divisors, as
    `qir.analysis.divisors.observed_divisors` returns it.
    """
    statistics = _statistics(graph)
    roots = [n for n in graph if any(v in statistics for v in _operands_of_root(n))]
    out: dict[Value, str] = {}
    for root in roots:
        said = f"feeds {root.op} of a reduction"
        for value in _feeding(root, statistics):
            out.setdefault(value, said)
    made = {n.result: n for n in roots if n.result in statistics}
    for value in statistics:
        made_by = _root_before(value, made)
        if made_by is not None and any(u.op in _POINTWISE for u in value.users):
            made[value] = made_by
            out.setdefault(value, f"comes from {made_by.op} of a reduction")
    for value in list(made):
        if value in out:
            said = f"is normalized by {made[value].op} of a reduction"
            for applied in _normalized(value, statistics):
                out.setdefault(applied, said)
    for value, said in operands_near_zero(graph, observed_divisors or {}).items():
        out.setdefault(value, said)
    return out


def sensitive_reason(said: str) -> str:
    """Returns why an op that computes or reads a sensitive value stays float."""
    return f"it makes or reads what {said}: few bits are too coarse for that"


def _statistics(graph: Graph) -> dict[Value, None]:
    """Returns the results of reductions, and values computed from these and constants alone."""
    found: dict[Value, None] = {}
    for node in graph:
        if len(node.results) != 1 or not node.result.type.express.is_float:
            continue
        if node.result.type.quant is not None or node.stages:
            continue
        if node.op in REDUCTIONS or _derived(node, found):
            found[node.result] = None
    return found


def _derived(node: Node, known: dict[Value, None]) -> bool:
    computed = [v for v in _data(node) if v.constant is None]
    return bool(computed) and all(v in known for v in computed)


def _data(node: Node) -> Iterator[Value]:
    """Yields the operands that an op of arithmetic, or one that moves elements, computes from."""
    traits = spec(node.op).traits
    if node.op in _POINTWISE:
        yield from node.operands.values()
    elif traits.value_preserving:
        moved = (v for s, v in node.operands.items() if s.split(".")[0] in traits.same_params)
        yield from moved


def _operands_of_root(node: Node) -> Iterable[Value]:
    if node.op not in ROOTS:
        return ()
    return [v for slot, v in node.operands.items() if node.op != "div" or slot == "b"]


def _feeding(root: Node, statistics: dict[Value, None]) -> Iterator[Value]:
    """Yields the statistics that a root is computed from, and values that only feed these."""
    waiting = [v for v in _operands_of_root(root) if v in statistics]
    seen: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        if value.node.op not in REDUCTIONS:
            waiting += [v for v in _data(value.node) if v in statistics]
            continue
        inside = [value.node.operands["x"]]
        while inside:
            summand = inside.pop()
            if summand.node.op in _BEFORE and summand not in seen and _only_for(summand, seen):
                seen.add(summand)
                yield summand
                inside += _data(summand.node)


def _only_for(value: Value, seen: set[Value]) -> bool:
    """Returns whether each reader makes one of these values, or reduces to one."""
    return all(any(made in seen for made in user.results) for user in value.users)


def _normalized(by: Value, statistics: dict[Value, None]) -> Iterator[Value]:
    """Yields what a statistic is applied to, up to the last constant factor or shift after it."""
    for user in by.users:
        made = user.results[0] if user.op in _APPLY and user.results else None
        while made is not None and made not in statistics and (use := made.only_use) is not None:
            others = [v for s, v in use.node.operands.items() if s != use.slot]
            if use.node.op not in _APPLY or not all(v.constant for v in others):
                break
            yield made
            made = use.node.result


def _root_before(value: Value, made: dict[Value, Node]) -> Node | None:
    if value in made:
        return made[value]
    return next((made[v] for v in _data(value.node) if v in made), None)
