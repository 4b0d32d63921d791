"""Cases of what users write: patterns, queries, rules and capability tables."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import islice
from pathlib import Path

from qir import pipeline
from qir.analysis.user_rules import UserRule
from qir.calibration.observers import parse_rule
from qir.capability import Capability, load, verdicts
from qir.ir.graph import Graph
from qir.query.query import query, query_values
from qir.rewrite.patterns.matching import matches
from qir.rewrite.patterns.mismatch import why_not
from qir.rewrite.patterns.parser import parse_pattern
from qir.rewrite.runner.options import parse_passes
from qir.testing import EVERY, random_graph
from tests.fuzzing.breaking import break_text, break_tokens
from tests.fuzzing.judging import Broken, Try, refused

MOST = 2_000
"""Errors quote what a user wrote, and are never longer."""
PATTERNS = (
    "mul(mul(%x, 0.5), add(erf(div(%x, near 1.5 within 0.01)), 1.0))",
    "erf(%x) where (result.uses > 1)",
    "relu|erf(%x)",
    "mul(%x, %h) ordered where (has(a))",
    "mul(mul(%x, 0.5), add(relu?(erf(%d)), 1.0))",
    "linear(%x, %w, bias=maybe %b)",
    "conv2d(%x, %w, ...) {stride = (2, 2)} where (w.bits == 8)",
    "concat(%a, relu(%b), ... more) {axis = 0 or 1}",
    "concat(xs=[%a, ..., %c]) {axis = 1}",
    "concat(xs=every %a as part)",
    "repeat 2..9 as one (%h: relu(add(matmul(%h, %w), %h))) from %x",
    "matmul(%x, %w) |> add(., %r) |> relu",
    "conv2d(%x, %w) |> ... |> relu(.)",
    "pattern p { %w where (rank == 3) return matmul(%x, %w) }",
    "pattern p { %t = top_k(%x) return relu(%t), %t[1] }",
    "pattern p {\n  # of codes too\n  %t = relu(%x)\n  return tanh(%t)\n}",
)
QUERIES = (
    'op == "conv2d" and w.bits == 8 and uses > 1',
    "any(result.shape, it > 3) or not has(bias)",
    'matches(name, "*conv*") and max(w.scale) / 2 >= 1e-3 ** 1',
    'op in ("relu", "clip") or attr.axis not in (0, -1)',
    'slot("xs.0").node.op == "relu" and len(operands) % 2 == 1',
    "all(inputs, it.rank == 4) and abs(sum(stride)) // 2 < 3",
    "quantized and not constant and zero == 0",
    "shape[0] == 1 and shape.1 <= 64 and min(shape) > 0",
    "min(result.shape) > 1 and origin.name != result.name",
)
RULES = (
    "name=/conv1/* slot=w: i8<-127:127> symmetric channel",
    "op=softmax: float",
    "u8 affine tensor",
    "op=conv2d slot=x: u8 affine tensor minmax",
    "op=[cl]* name=?: i8 symmetric tensor percentile:99.9",
    "slot=bias op=linear: i32 symmetric channel",
)
RANGES = ("minmax", "percentile:99.99", "mse", "kl", "ema:0.9", "std:3")
PASSES = (
    "prune; fold-constants{limit=4096}; clean-moves",
    "recover; fold-shapes{sizes=N:3}",
    "group{profile=native}; open-groups",
)


def _broken(rng: random.Random, text: str) -> str:
    """Returns a text broken in words or characters; sometimes very deep, sometimes whole."""
    match rng.randrange(20):
        case 0:
            return text
        case 1:
            opened, closed = rng.choice(("()", "[]", "{}", ("relu(", ")"), ("not ", ""), ("-", "")))
            depth = rng.choice((50, 500, 20_000))
            return opened * depth + text + closed * rng.choice((0, depth))
        case 2:
            return f"{text} {rng.choice(('and', 'or', '+', '|>', ',', '{', '=='))} " * rng.choice(
                (3, 300, 5000)
            )
    return (break_tokens if rng.random() < 0.7 else break_text)(rng, text)


@lru_cache(8)
def _graph(block: str) -> Graph:
    rng = random.Random(block)
    return random_graph(rng.randrange(2**32), rng.choice(EVERY), decorated=rng.random() < 0.5)


def pattern_case(attempt: Try) -> None:
    """A broken pattern is refused in one line, or matches, or says why it does not."""
    text = _broken(attempt.rng, attempt.rng.choice(PATTERNS))
    pattern = refused(lambda: parse_pattern(text), MOST)
    if pattern is None:
        return
    printed = refused(lambda: parse_pattern(str(pattern)), MOST)
    if printed is None or str(printed) != str(pattern):
        raise Broken(f"a pattern does not print as what it is: {pattern}")
    graph = _graph(attempt.block)
    refused(lambda: list(matches(graph, pattern)), MOST)
    for node in islice(graph, 5):
        refused(lambda node=node: str(why_not(pattern, node)), MOST)  # type: ignore[misc]


def query_case(attempt: Try) -> None:
    """A broken query is refused in one line, or finds nodes or values."""
    text = _broken(attempt.rng, attempt.rng.choice(QUERIES))
    ask = query if attempt.rng.random() < 0.6 else query_values
    refused(lambda: ask(_graph(attempt.block), text), MOST)


def rules_case(attempt: Try) -> None:
    """Broken rules, range rules, passes and capability tables are refused in one line or hold."""
    rng = attempt.rng
    match rng.randrange(5):
        case 0:
            text = _broken(rng, rng.choice(RANGES))
            refused(lambda: parse_rule(text), MOST)
        case 1:
            text = _broken(rng, rng.choice(PASSES))
            refused(lambda: parse_passes(text), MOST)
        case 2 | 3:
            text = _broken(rng, rng.choice(RULES))
            refused(lambda: UserRule.parse(text), MOST)
            graph = _graph(attempt.block)
            refused(lambda: pipeline.plan(graph, rules=[text]), MOST)
        case _:
            _table(attempt)


@lru_cache(1)
def _tables() -> tuple[str, ...]:
    places = (Path(__file__).parents[2] / "backends").glob("*/*.toml")
    return tuple(path.read_text(encoding="utf-8") for path in sorted(places))


def _table(attempt: Try) -> None:
    rng = attempt.rng
    lines = rng.choice(_tables()).split("\n\n")
    text = "\n\n".join([lines[0], *rng.sample(lines[1:], min(4, len(lines) - 1))])
    path = attempt.folder / "table.toml"
    path.write_text(
        (break_tokens if rng.random() < 0.5 else break_text)(rng, text),
        encoding="utf-8",
        errors="surrogatepass",
    )
    capability: Capability | None = refused(lambda: load(path), MOST)
    if capability is not None:
        graph = _graph(attempt.block)
        refused(lambda: list(verdicts(capability, graph)), MOST)
