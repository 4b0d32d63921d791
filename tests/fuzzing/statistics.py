"""Cases of statistics files: fields and arrays that are wrong under a digest that is right."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from qir.calibration import Batch, InputSpec, Key, Statistics, collect, open_data, parse_rule
from qir.calibration.store import digest
from tests.fuzzing.breaking import break_bytes
from tests.fuzzing.judging import LONGEST, Broken, Try, refused

Array = NDArray[Any]
SPECS = {"x": InputSpec((None, 3), np.dtype(np.float32))}
WATCH = (Key("empty"), Key("odd"), Key("x"), Key("x", 1), Key("y"), Key("\n\u202e\ud7ff"))
RULES = ("minmax", "percentile:99", "mse", "entropy", "average:0.5")
NUMBERS = (0, 1, -1, 2, 5, 7, 63, 64, 2**31, 2**32 - 1, 2**53, 2**62, 2**63, 2**64, 10**9)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    *(None, True, False, 1.5, -0.0, float("inf"), float("nan"), "", "x", "0x1", "-0x1", "0x_1"),
    *("0x" + "f" * 5000, "9" * 5000, 10**4000, [], {}, [[]], [[0, 1]], [[0, 10**9]], [[3, 2]]),
    *([[0, 2], [1, 3]], [[0, 1], [1, 2]], [[0, True]], [[0, 2, 4]], {"data": [[0, 3]]}, {"": []}),
)
"""Contents of a field that none or few can have."""
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)


class Program:
    """Shows its input, and tensors that are odd or empty in some batches."""

    inputs = SPECS

    def __init__(self, digest: str = "program") -> None:
        self.digest = digest

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        x = inputs["x"]
        observe("x", x)
        observe("y", x * np.float32(1e-42))
        observe("empty", x[:0])
        observe("odd", np.where(x > 1, np.float32(np.inf), x))
        if x[0, 0] > 0:
            observe("\n\u202e\ud7ff", np.zeros(2, np.float32))


@dataclass(frozen=True)
class IntactStatistics:
    """A file before it is broken: an unfinished run over some batches of the data."""

    data: Array
    batches: int
    head: dict[str, Any]
    arrays: dict[str, Array]


@lru_cache(4)
def intact_statistics(block: str, folder: Path) -> IntactStatistics:
    """What the cases of a block break; it reads back as it was written."""
    rng = random.Random(block)
    batches = rng.randrange(1, 9)
    random_ = np.random.default_rng(rng.randrange(2**32))
    data = random_.standard_normal((2 * batches, 3)).astype(np.float32)
    source = open_data(data, SPECS, batch=2)
    made = collect(Program(), source, WATCH)
    part = Statistics("program")
    for number, inputs in source.numbered():
        if number == 0 or rng.random() < 0.7:
            with part.batch(source.digest(), number) as batch:
                Program().run(inputs, partial(_add, batch))
    kept = part if rng.random() < 0.7 else made
    path = folder / "whole.stats"
    kept.save(path, unfinished=kept is part)
    if Statistics.load(path) != kept:
        raise Broken("statistics do not come back from their file")
    resumed = collect(Program(), source, WATCH, resume=Statistics.load(path))
    if resumed != made:
        raise Broken("a run that was resumed gives other statistics")
    return IntactStatistics(data, batches, *unsealed(path.read_bytes()))


def _add(batch: Batch, tensor: str, array: Array) -> None:
    for key in WATCH:
        if key.tensor == tensor:
            batch.update(tensor, array, key.axis)


def unsealed(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a file."""
    length = int.from_bytes(content[:8], "little")
    outer = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["qir"])
    return json.loads(outer["head"]), dict(safetensors.numpy.load(content))


def sealed(head: Any, arrays: Mapping[str, Array]) -> bytes:
    """A file with the digest that its contents ask for."""
    text = json.dumps(head, sort_keys=True)
    outer = {"digest": digest(text, arrays), "head": text}
    return safetensors.numpy.save(dict(arrays), {"qir": json.dumps(outer)})


# -- breaking -------------------------------------------------------------------------------------


def broken(rng: random.Random, base: IntactStatistics) -> tuple[Any, dict[str, Array]]:
    """Header and arrays with one to three changes."""
    head: Any = copy.deepcopy(base.head)
    arrays = {name: array.copy() for name, array in base.arrays.items()}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.5:
            head = break_json(rng, head)
        else:
            break_arrays(rng, arrays)
    return head, arrays


def break_json(rng: random.Random, value: Any) -> Any:
    """One place of a JSON value gets another content, or goes, or comes twice."""
    places = [(value, key) for key in keys(value)]
    for place, key in places:  # grows: breadth first
        places += [(place[key], inner) for inner in keys(place[key])]
    if not places or rng.random() < 0.01:
        return rng.choice(ODD)
    holder, key = rng.choice(places)
    old = holder[key]
    match rng.randrange(6):
        case 0 | 1 | 2 if isinstance(old, int):
            holder[key] = old + rng.choice((-1, 1))
        case 0 | 1 | 2 if isinstance(old, str) and "0x" in old:
            holder[key] = hex(int(old, 16) + rng.choice((1, -1)) * (1 << rng.randrange(0, 600, 7)))
        case 1:
            del holder[key]
        case 2 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(old))
        case 3 if isinstance(holder, list):
            other = rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        case 4 if isinstance(holder, dict):
            holder[rng.choice((f"{key} ", "", "zz"))] = copy.deepcopy(old)
        case _:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    return value


def keys(value: Any) -> list[Any]:
    """Where a JSON value holds others."""
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def break_arrays(rng: random.Random, arrays: dict[str, Array]) -> None:
    """One array gets other elements, another length, type or shape, or goes."""
    name = rng.choice(sorted(arrays) or ["counts"])
    array = arrays.setdefault(name, np.zeros(5, np.uint64))
    flat = array.reshape(-1)
    at = rng.randrange(flat.size or 1)
    some = slice(at, at + rng.choice((1, 2, 100)))
    match rng.randrange(10):
        case 0:
            arrays[name] = array.astype(rng.choice(("f4", "f8", "u1", "i8", "u8", "f2", "u4")))
        case 1:
            arrays[name] = array.reshape(rng.choice(((1, -1), (-1, 1), (-1, 1, 1))))
        case 2:
            arrays[name] = np.delete(flat, some)
        case 3:
            arrays[name] = np.insert(flat, min(at, flat.size), flat[some])
        case 4 if rng.random() < 0.3:
            del arrays[name]
        case 4:
            arrays[rng.choice(("", "more", "Counts"))] = array
        case 5 if flat.size:
            other = rng.randrange(flat.size)
            flat[[at, other]] = flat[[other, at]]
        case 6 if flat.size:
            content = break_bytes(rng, flat.tobytes())
            cut = len(content) // flat.itemsize * flat.itemsize
            arrays[name] = np.frombuffer(content[:cut], flat.dtype).copy()
        case _ if flat.size and flat.dtype.kind == "f":
            flat[at] = rng.choice((*FLOATS, flat[at] * 2))
        case _ if flat.size:
            near, most = int(flat[at]), int(np.iinfo(flat.dtype).max)
            wanted = rng.choice((near + 1, near - 1, *NUMBERS, most, most - near))
            flat[at] = min(max(wanted, 0), most)


# -- judging --------------------------------------------------------------------------------------


def statistics_case(attempt: Try) -> None:
    """A wrong file is refused in one line; what is accepted can be used for all that there is."""
    base, rng = intact_statistics(attempt.block, attempt.folder), attempt.rng
    with np.errstate(all="ignore"):
        head, arrays = broken(rng, base)
    path = attempt.folder / "case.stats"
    path.write_bytes(sealed(head, arrays))
    longest = LONGEST + len(str(path))
    loaded = refused(lambda: Statistics.load(path), longest)
    if loaded is None:
        return
    loaded.save(attempt.folder / "again.stats", unfinished=loaded.unfinished)
    again = unsealed((attempt.folder / "again.stats").read_bytes())
    if again[0] != head or any((again[1][n] != arrays[n]).any() for n in again[1]):
        raise Broken("statistics are not written as they were read")
    for key in loaded:
        numbers = loaded.log(key).batches
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(loaded.batches):
            raise Broken(f"the log of {key} names batches that are not there")
        for rule in map(parse_rule, RULES):
            refused(partial(rule.range, loaded[key], loaded.log(key)))
    other = Statistics(loaded.model)
    with other.batch("elsewhere", 0) as batch:
        batch.update("x", np.ones(3, np.float32))
    refused(lambda: other.merge(loaded))
    Statistics(loaded.model).merge(loaded)
    resume(base, loaded, longest)


def resume(base: IntactStatistics, loaded: Statistics, longest: int) -> None:
    """Goes on from accepted statistics; Broken where a batch is then counted twice, or not."""
    program = Program(loaded.model)
    source = open_data(base.data, SPECS, batch=2)
    done = refused(lambda: collect(program, source, WATCH, resume=loaded), longest)
    if done is None:
        return
    if done.done(source.digest()) != frozenset(range(base.batches)):
        raise Broken("a resumed run has not all batches, or more")
    if Key("x") in done and done[Key("x")].finite > base.data.size:
        raise Broken("a resumed run counts values twice")
