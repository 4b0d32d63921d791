"""Random programs, and files broken at random, for a bounded time: python -m tests.fuzz.

A reader given a broken file gives a graph or one line of error; a program computes the same bytes
in onnxruntime, the reference and the kernels. What fails is printed with the case that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import QirError
from qir.ir import file
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph
from qir.numerics import profile, profile_names
from qir.numerics import reading as profiles
from qir.testing import FORMS, random_graph
from tests.differential.comparison import kernel_differences, read, reference_differences
from tests.differential.models import STYLES, Taste, make
from tests.differential.networks import network
from tests.differential.runtime import run

LONGEST = 240
SLOW = 20.0
Case = Callable[[random.Random, Path], None]


class Broken(AssertionError):
    """What a reader must not do."""


def readers_error(error: QirError) -> None:
    """Broken if an error is not one short line."""
    said = str(error)
    if "\n" in said or len(said) > LONGEST:
        raise Broken(f"an error of {len(said)} characters: {said[:400]!r}") from error


# -- breaking -------------------------------------------------------------------------------------


def break_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bits flipped, bytes overwritten, cut out, repeated or moved; or the end missing."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(out) or 1)
        size = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(6):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at : at + size] = rng.randbytes(size)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                out[at : at + size] = rng.choice((b"\0", b"\xff", b"\x80")) * size
            case _:
                if rng.random() < 0.2:
                    del out[at:]
    return bytes(out)


WORDS = (
    '<>{}()[]:,=%@#"!?*x|. \n\t\\-+0123456789efnainu'.replace(" ", "  "),
    "é\u2028\0\ud7ff",
)


def break_text(rng: random.Random, text: str) -> str:
    """Characters and lines changed, and runs of brackets."""
    out = text
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = out.split("\n")
        at, line = rng.randrange(len(out) or 1), rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                out = out[:at] + rng.choice(rng.choice(WORDS)) + out[at + 1 :]
            case 1:
                out = out[:at] + out[at + rng.choice((1, 3, 20)) :]
            case 2:
                out = out[:at] + rng.choice("([{<!%") * rng.choice((1, 3, 5000)) + out[at:]
            case 3:
                lines[line], lines[0] = lines[0], lines[line]
                out = "\n".join(lines)
            case 4:
                out = "\n".join((*lines[:line], *lines[line + 1 :]))
            case 5:
                out = "\n".join((*lines[:line], lines[line], *lines[line:]))
            case _:
                out = out[:at] + str(rng.choice((-1, 0, 2**31, 2**63, 10**40))) + out[at:]
    return out


def break_model(rng: random.Random, model: onnx.ModelProto) -> None:
    """A model that is still protobuf: nodes, names, attributes, shapes and numbers changed."""
    graph = model.graph
    nodes, constants = list(graph.node), list(graph.initializer)
    names = [n for node in nodes for n in (*node.input, *node.output)] + [""]
    node, constant = rng.choice(nodes), rng.choice(constants) if constants else None
    match rng.randrange(9):
        case 0 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 1:
            node.output[0] = rng.choice(names)
        case 2:
            node.op_type = rng.choice([n.op_type for n in nodes] + ["If", "Loop", "Nothing"])
        case 3:
            graph.node.remove(node)
        case 4 if node.attribute:
            attribute = rng.choice(list(node.attribute))
            numbers = (0, -1, 1, 3, 2**31, -(2**63), 2**63 - 1)
            attribute.ints[:] = [rng.choice(numbers) for _ in range(rng.randrange(5))]
            attribute.i = rng.choice(numbers)
            attribute.type = rng.choice((attribute.type, 1, 2, 3, 7, 5))
        case 5 if constant is not None:
            dims = list(constant.dims) or [1]
            dims[rng.randrange(len(dims))] = rng.choice((0, -1, 1, 2, 2**31, 2**62))
            constant.dims[:] = dims
        case 6 if constant is not None:
            constant.data_type = rng.randrange(26)
        case 7 if constant is not None:
            constant.raw_data = break_bytes(rng, constant.raw_data)
        case _:
            dims = graph.input[0].type.tensor_type.shape.dim
            if dims:
                rng.choice(list(dims)).dim_value = rng.choice((0, -1, 2, 2**40, 2**62))


# -- cases ----------------------------------------------------------------------------------------


def arrays(graph: Graph) -> dict[str, NDArray[np.generic]]:
    """What a graph's text names."""
    return {name: array.data for name, array in array_table(graph).items()}


def text_case(rng: random.Random, folder: Path) -> None:
    """A printed graph parses back; a broken one is refused in one line, or is a graph."""
    graph = random_graph(rng.randrange(2**32), rng.choice(FORMS), decorated=rng.random() < 0.5)
    text = print_graph(graph, origins=rng.random() < 0.3)
    if parse(text, arrays(graph)) != graph:
        raise Broken("a graph does not read back")
    try:
        again = parse(break_text(rng, text), arrays(graph))
    except QirError as error:
        readers_error(error)
        return
    if parse(print_graph(again), arrays(again)) != again:
        raise Broken("a graph that was read does not print as what it is")


def qir_case(rng: random.Random, folder: Path) -> None:
    """A broken .qir file is refused, or holds what was written."""
    graph = random_graph(rng.randrange(2**32), rng.choice(FORMS))
    path = folder / "case.qir"
    file.write(path, file.Bundle(graph, {"native": "name = 'native'\n"}, ""))
    whole = path.read_bytes()
    path.write_bytes(break_bytes(rng, whole))
    try:
        again = pipeline.load(path)
    except QirError as error:
        readers_error(error)
        return
    if again != graph:
        raise Broken("a broken file was read as another graph")


def onnx_case(rng: random.Random, folder: Path) -> None:
    """A broken ONNX model is refused in one line, or is a graph."""
    seed = rng.randrange(2**32)
    if rng.random() < 0.5:
        model = network(seed, layers=3).proto
    else:
        model = make(seed, Taste(layers=3), qdq=rng.random() < 0.5).proto
    data = model.SerializeToString()
    if rng.random() < 0.6:
        for _ in range(rng.choice((1, 1, 2, 3))):
            break_model(rng, model)
        data = model.SerializeToString()
    else:
        data = break_bytes(rng, data)
    path = folder / "case.onnx"
    path.write_bytes(data)
    try:
        graph = pipeline.load(path)
    except QirError as error:
        readers_error(error)
        return
    print_graph(graph)


def profile_case(rng: random.Random, folder: Path) -> None:
    """A broken profile is refused in one line, or is a profile."""
    name = rng.choice(profile_names())
    try:
        made = profiles.parse(break_text(rng, profile(name).text), name, profile)
    except QirError as error:
        readers_error(error)
        return
    if profiles.parse(profiles.dumps(made), name, profile).defaults != made.defaults:
        raise Broken("a profile that was read does not print as what it is")


def program_case(rng: random.Random, folder: Path) -> None:
    """A random integer network gives the same bytes in onnxruntime, reference and kernels."""
    seed = rng.randrange(2**32)
    taste = Taste(rng.choice(("u8", "i8")), rng.choice(STYLES), layers=rng.randrange(1, 9))
    model = make(seed, taste, exposed=True)
    judge = run(model.proto, model.feeds, optimize=False)
    graph, where = read(model.proto), f"{taste}, seed {seed}"
    found = reference_differences(where, graph, model.feeds, judge, "ort-1.31.noopt")
    found += kernel_differences(where, graph, model.feeds, judge, threads=rng.randrange(1, 4))
    if found:
        raise Broken("\n".join(map(str, found)))


CASES: dict[str, Case] = {
    "text": text_case,
    "qir": qir_case,
    "onnx": onnx_case,
    "profile": profile_case,
    "program": program_case,
}


# -- running --------------------------------------------------------------------------------------


def attempt(kind: str, seed: int, number: int, folder: Path) -> str:
    """One case; why it failed, or nothing."""
    rng = random.Random(f"{kind}/{seed}/{number}")
    start = time.monotonic()
    try:
        CASES[kind](rng, folder)
    except Exception:  # whatever it is, it is a finding
        return traceback.format_exc(limit=-6)
    spent = time.monotonic() - start
    return f"it took {spent:.0f} s" if spent > SLOW else ""


def fuzz(kinds: Sequence[str], seconds: float, seed: int) -> int:
    """Cases of all kinds in turn until the time is over; 1 if any failed."""
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    end = time.monotonic() + seconds
    print(f"seed {seed}, {seconds:g} s of {', '.join(kinds)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for kind in kinds:
                why = attempt(kind, seed, counts[kind], Path(folder))
                if why:
                    failed[kind] += 1
                    print(f"-- {kind}: repeat with --seed {seed} --case {kind}:{counts[kind]}")
                    print(why, flush=True)
                counts[kind] += 1
    done = ", ".join(f"{counts[k]} {k}" for k in kinds)
    print(f"{done}; {failed.total()} failed")
    return int(bool(failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another each time")
    parser.add_argument("--kind", action="append", choices=sorted(CASES), help="by default all")
    parser.add_argument("--case", help="one case only, as it was printed: KIND:NUMBER")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    if given.case:
        kind, _, number = given.case.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            why = attempt(kind, seed, int(number), Path(folder))
        print(why or "it passes")
        return int(bool(why))
    return fuzz(given.kind or list(CASES), given.seconds, seed)


if __name__ == "__main__":
    sys.exit(main())
