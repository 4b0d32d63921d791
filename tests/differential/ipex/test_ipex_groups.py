"""What kernels Intel's extension for PyTorch made of programs, and what its profile groups them to.

`make oracle-ipex` records them again: of each program the ops of its traced graph in order, those
of one ipex::LlgaFusionGroup in brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from qir.ir.graph import Graph
from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.ipex.programs import FAMILIES, Program, some
from tests.oracles.ipex_programs import MADE

from .test_ipex_programs import grouped, results

HELD = dict(line.split(" ", 1) for line in MADE.read_text(encoding="utf-8").splitlines())
NAMED: Mapping[str, str] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "_convolution"),
    **dict.fromkeys(("adaptive_avg_pool", "global_avg_pool"), "adaptive_avg_pool2d"),
    "silu": "sigmoid mul",
    "hard_sigmoid": "hardsigmoid",
    "hard_swish": "hardswish",
    "clip": "hardtanh",
}
"""What torch calls ops."""
_EDGES = ("quantize_per_tensor", "dequantize")
UNGROUPED = ("transposed", "apart")
"""Families of which no kernel on integers is predicted."""


def recorded(text: str) -> Iterator[str]:
    """The kernels whose operands were integers, and ` real` behind those whose result is none."""
    real: bool | str = False
    tokens = text.replace("[", " [ ").replace("]", " ] ").split()
    while tokens:
        op = tokens.pop(0)
        if op == "[":
            end = tokens.index("]")
            ops, tokens = tokens[:end], tokens[end + 1 :]
            if "dequantize" in ops or real == "at once":
                said = " ".join(name for name in ops if name not in _EDGES)
                yield said if ops[-1] == _EDGES[0] else f"{said} real"
            real = False
        elif op in _EDGES:
            real = "at once" if op == "dequantize" else False
        elif op == "matmul" and real == "at once":
            tail = "relu" if tokens[0] == "relu_" else ""
            if tokens[bool(tail)] == _EDGES[0]:  # of three axes, of floats
                yield f"matmul {tail}".strip()
            real = True
        elif real:
            real = True
        else:
            yield op


def predicted(graph: Graph) -> Iterator[str]:
    """The kernels on integers of a grouped program, so said."""
    for node in graph:
        coded = any(value.type.quant for value in node.operands.values())
        if not coded or node.op in ("quantize", "dequantize", "output"):
            continue
        chain = [s.op for s in node.stages] or [node.op]
        said = " ".join(NAMED.get(op, op) for op in chain)
        yield said if node.result.type.quant else f"{said} real"


@cache
def asked(family: str) -> tuple[Program, ...]:
    return tuple(some(family))


def agree(family: str) -> None:
    """AssertionError where a program is grouped to other kernels than were made of it."""
    for program in asked(family):
        wanted, found = list(recorded(HELD[program.key])), list(predicted(grouped(program)))
        assert found == wanted, f"{program.key}: {found} for {wanted}"


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNGROUPED])
def test_programs_are_grouped_to_the_kernels_that_were_made(family: str) -> None:
    agree(family)


def apart() -> None:
    """AssertionError where a kernel on integers is predicted to another map than its data's, and
    gives what the extension does not."""
    for program, wanted in results("apart"):
        graph = grouped(program)
        if program.name == "apart_relu" or graph.outputs["y"].node.op != "quantize":
            (found,) = run(graph, program.feeds).values()
            note(found, wanted)
            assert np.array_equal(found, wanted), program.key


def test_what_gives_codes_of_another_map_is_no_kernel_on_codes() -> None:
    apart()
