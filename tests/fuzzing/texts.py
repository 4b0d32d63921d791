"""Cases of text, types and .qir files."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import ParseError
from qir.ir import file
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, parse_type, print_graph
from qir.ir.types import Array, TensorType
from qir.ir.verify import verify
from qir.testing import EVERY, odd_type, random_graph
from tests.fuzzing.breaking import ODD, break_bytes, break_text, break_tokens
from tests.fuzzing.judging import LONGEST, Broken, Try, refused


@dataclass(frozen=True)
class IntactModel:
    """A graph before it is broken."""

    graph: Graph
    text: str
    arrays: dict[str, NDArray[np.generic]]
    data: bytes


@lru_cache(4)
def intact_model(block: str, folder: Path) -> IntactModel:
    """The graph that the cases of a block break; it reads back from its text and its file."""
    rng = random.Random(block)
    form, decorated = rng.choice(EVERY), rng.random() < 0.5
    graph = random_graph(rng.randrange(2**32), form, decorated=decorated)
    text = print_graph(graph, origins=rng.random() < 0.5)
    if parse(text, arrays(graph)) != graph:
        raise Broken("a graph does not read back")
    path = folder / "whole.qir"
    file.write(path, file.Bundle(graph, {"native": "name = 'native'\n"}, ""))
    if file.read(path).graph != graph:
        raise Broken("a graph does not come back from its file")
    return IntactModel(graph, text, arrays(graph), path.read_bytes())


def arrays(graph: Graph) -> dict[str, NDArray[np.generic]]:
    """Returns the arrays that a graph's text names."""
    return {name: array.data for name, array in array_table(graph).items()}


def sound(graph: Graph) -> bool:
    """Whether the verifier finds no error; Broken unless such a graph prints as what it is."""
    findings = verify(graph)
    if any("\n" in str(finding) for finding in findings):
        raise Broken("a finding of more than one line")
    if any(finding.severity == "error" for finding in findings):
        refused(lambda: parse(print_graph(graph, origins=True), arrays(graph)))
        return False
    if parse(print_graph(graph, origins=True), arrays(graph)) != graph:
        raise Broken("a graph does not print as what it is")
    return True


def text_case(attempt: Try) -> None:
    """A broken text is refused in one line, or is a graph."""
    base = intact_model(attempt.block, attempt.folder)
    rng = attempt.rng
    change = break_tokens if rng.random() < 0.7 else break_text
    broken = change(rng, base.text)
    graph = refused(lambda: parse(broken, base.arrays))
    if graph is not None:
        sound(graph)


def type_case(attempt: Try) -> None:
    """A broken type is refused in one line, or is a type that reads back."""
    rng = attempt.rng
    by_name: dict[str, Array] = {}

    def name(array: Array) -> str:
        by_name[f"a{len(by_name)}"] = array
        return f"@a{len(by_name) - 1}"

    def print_type(kind: TensorType) -> str:
        by_name.clear()
        return kind.text(name)

    text = print_type(odd_type(rng.randrange))
    arrays_of_type = dict(by_name)
    if rng.random() < 0.9:
        text = break_tokens(rng, text)

    def find(array_name: str) -> Array:
        if array_name not in arrays_of_type:
            raise ParseError(f"array @{array_name} is not given")
        return arrays_of_type[array_name]

    kind = refused(lambda: parse_type(text, find))
    if kind is not None:
        again = print_type(kind)
        if parse_type(again, lambda n: by_name[n]) != kind:
            raise Broken(f"a type does not read back: {again}")


def qir_case(attempt: Try) -> None:
    """A file with broken bytes is refused, or holds what was written."""
    base = intact_model(attempt.block, attempt.folder)
    graph = _loaded(attempt, break_bytes(attempt.rng, base.data))
    if graph is not None and graph != base.graph:
        raise Broken("a broken file was read as another graph")


def forged_case(attempt: Try) -> None:
    """A file that is wrong and says that it is whole: its hash is made anew."""
    base, rng = intact_model(attempt.block, attempt.folder), attempt.rng
    length = int.from_bytes(base.data[:8], "little")
    table = json.loads(base.data[8 : 8 + length])
    data = base.data[8 + length :]
    meta = table["__metadata__"]
    match rng.randrange(4):
        case 0:
            meta["text"] = break_tokens(rng, meta["text"])
        case 1:
            meta[rng.choice(sorted(meta))] = rng.choice(ODD)
        case 2 if len(table) > 1:
            row = table[rng.choice([key for key in table if key != "__metadata__"])]
            row[rng.choice(sorted(row))] = rng.choice(
                (None, -1, [], [0], [0, 0], [1, 2], [2**62, 2**63], "F32", "F8", {}, [1.5, True])
            )
        case _:
            index = rng.randrange(len(data) or 1)
            data = data[:index] + rng.randbytes(min(8, len(data) - index)) + data[index + 8 :]
    whole_file = _sealed(table, data)
    graph = _loaded(attempt, whole_file)
    if graph is not None:
        sound(graph)


def _sealed(table: dict[str, dict[str, object]], data: bytes) -> bytes:
    """Returns the bytes of a file with the hash that its contents ask for, where they have one."""
    meta = {key: str(part) for key, part in table["__metadata__"].items()}
    places = {}
    for name, row in table.items():
        shape, ends = row.get("shape"), row.get("data_offsets")
        if isinstance(shape, list) and isinstance(ends, list) and len(ends) == 2:
            kind = file.KINDS.get(str(row.get("dtype")))
            if kind is not None and all(type(n) is int for n in (*shape, *ends)):
                places[name] = file.ArrayExtent(np.dtype(kind), tuple(shape), ends[0], ends[1])
    hash_ = file.digest(meta, places, lambda n: iter((data[places[n].start : places[n].end],)))
    table["__metadata__"] |= {"hash": hash_}
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def _loaded(attempt: Try, data: bytes) -> Graph | None:
    path = attempt.folder / "case.qir"
    path.write_bytes(data)
    return refused(lambda: pipeline.load(path), LONGEST + len(str(path)))
