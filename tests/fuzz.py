"""Random programs, broken texts and files, odd calls: python -m tests.fuzz.

A reader given a broken text or file gives a graph or one line of error, and so does a graph that is
called with odd arguments; a program computes the same bytes in onnxruntime, the reference and the
kernels. Cases run in processes of 2 GB each, 20 s a case; their files lie in memory where there is
/dev/shm. A warning is a finding too. What fails is printed with the case that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from tests.fuzzing import (
    archives,
    asking,
    by_rule,
    corpus,
    float_ops,
    graphs,
    kernels,
    misuse,
    models,
    mxnet,
    program_files,
    recipes,
    statistics,
    texts,
)
from tests.fuzzing.judging import Broken, Try

SLOW = 20
MEMORY = 2 << 30
DEAF = 60.0
"""Seconds without a word after which a process is taken for stuck."""
SHARED = 64
"""So many cases break one graph, each in its own way: making it costs more than breaking it."""
Case = Callable[[Try], None]


@dataclass(frozen=True)
class Kind:
    """A kind of case, and its share of the cases: what is quick is tried more often."""

    case: Case
    share: int


KINDS: dict[str, Kind] = {
    "text": Kind(texts.text_case, 300),
    "qir": Kind(texts.qir_case, 200),
    "onnx": Kind(models.onnx_case, 200),
    "forged": Kind(texts.forged_case, 100),
    "type": Kind(texts.type_case, 100),
    "graph": Kind(graphs.graph_case, 30),
    "beside": Kind(models.beside_case, 40),
    "profile": Kind(models.profile_case, 9),
    "large": Kind(models.large_case, 20),
    "program": Kind(models.program_case, 1),
    "statistics": Kind(statistics.statistics_case, 40),
    "kernels": Kind(kernels.kernels_case, 100),
    "by rule": Kind(by_rule.by_rule_case, 60),
    "float": Kind(float_ops.float_op_case, 2),
    "pattern": Kind(asking.pattern_case, 60),
    "query": Kind(asking.query_case, 100),
    "rules": Kind(asking.rules_case, 60),
    "misuse": Kind(misuse.misuse_case, 40),
    "npz": Kind(archives.npz_case, 60),
    "program file": Kind(program_files.program_file_case, 60),
    "mxnet": Kind(mxnet.mxnet_case, 60),
    "recipe": Kind(recipes.recipe_case, 40),
}
"""A new kind is one file in tests/fuzzing and one line here."""
IN_MEMORY = Path("/dev/shm")
BREAK_MODELS = frozenset({"onnx", "beside"})


def make_ready(kinds: Iterable[str]) -> None:
    """Makes once what cases of these kinds break; processes that are split off have it."""
    if not BREAK_MODELS.isdisjoint(kinds):
        corpus.intact_inputs()


# -- one case -------------------------------------------------------------------------------------


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise Broken(f"it takes more than {SLOW} s")


def attempt(kind: str, seed: int, number: int, folder: Path) -> str:
    """Runs one case and returns why it failed, or nothing."""
    graph_seed = f"{kind}/{seed}/{number // SHARED}"
    attempted = Try(random.Random(f"{kind}/{seed}/{number}"), folder, graph_seed)
    make_ready([kind])  # which is no part of the case's time
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SLOW)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            KINDS[kind].case(attempted)
    except Exception:  # whatever it is, it is a finding
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
    return ""


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Where files are written that are read at once; a disk is slower than what reads them."""
    in_memory = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=in_memory)


def cases(kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Cases without end, in a fixed order, kinds in turn by their shares."""
    counts: Counter[str] = Counter()
    if len(kinds) == 1:
        order = list(kinds)
    else:
        smallest_share = min(KINDS[k].share for k in kinds)
        # Each kind is spread evenly over a turn, so that rare kinds do not come last.
        positions = [
            ((i + 0.5) / max(1, KINDS[k].share // smallest_share), k)
            for k in kinds
            for i in range(max(1, KINDS[k].share // smallest_share))
        ]
        order = [k for _, k in sorted(positions)]
    while True:
        for kind in order:
            yield kind, counts[kind]
            counts[kind] += 1


# -- a process ------------------------------------------------------------------------------------


def work(pipe: Connection, seed: int) -> None:
    """Runs the cases that come through a pipe, in little memory, and says how each went."""
    # A forked process already holds what its parent had: the limit comes on top of that.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory_limit = max(
        MEMORY, pages * resource.getpagesize() + MEMORY // 2
    )  # who forked it may hold much
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    with own_folder() as folder:
        while (batch := pipe.recv()) is not None:
            for kind, number in batch:
                pipe.send((kind, number, attempt(kind, seed, number, Path(folder))))


@dataclass
class Worker:
    """A process, and the cases it still has to do."""

    seed: int
    process: multiprocessing.process.BaseProcess = field(init=False)
    pipe: Connection = field(init=False)
    todo: list[tuple[str, int]] = field(default_factory=list)
    heard: float = 0.0

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(target=work, args=(child_end, self.seed), daemon=True)
        self.process.start()
        # Only the child holds its end now, so that its death ends the connection.
        child_end.close()

    def give(self, batch: list[tuple[str, int]]) -> None:
        self.todo, self.heard = batch, time.monotonic()
        self.pipe.send(batch)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


# -- running --------------------------------------------------------------------------------------


@dataclass
class Run:
    """Cases until the count is reached or the time is over, in so many processes."""

    kinds: Sequence[str]
    seed: int
    jobs: int
    count: int | None
    seconds: float | None
    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def __call__(self) -> int:
        start = time.monotonic()
        end = None if self.seconds is None else start + self.seconds
        limits = [f"{self.count} cases"] if self.count is not None else []
        limits += [f"{self.seconds:g} s"] if self.seconds is not None else []
        print(f"seed {self.seed}, {' or '.join(limits)} of {', '.join(self.kinds)}", flush=True)
        make_ready(self.kinds)
        self.work(start, end)
        unfinished = self.count is not None and self.done.total() < self.count
        print(
            f"{', '.join(f'{self.done[k]} {k}' for k in self.kinds)}: {self.done.total()} cases"
            f"{f' of {self.count}, the time was over' if unfinished else ''} in "
            f"{time.monotonic() - start:.0f} s; {self.failed.total()} failed"
        )
        return int(bool(self.failed))

    def work(self, start: float, end: float | None) -> None:
        """Hands out the cases and listens."""
        parcels_left = self.parcels()
        workers = [Worker(self.seed) for _ in range(self.jobs)]
        last_shown = start
        try:
            idle = [w for w in workers if not self.supply(w, parcels_left, end)]
            while busy := [w for w in workers if w not in idle]:
                wait([w.pipe for w in busy], timeout=1.0)
                for worker in busy:
                    # A process that died or is stuck gives its other cases to a new one.
                    alive = self.hear(worker)
                    if not alive:
                        workers[workers.index(worker)] = worker = self.again(worker)
                    if not worker.todo and not self.supply(worker, parcels_left, end):
                        idle.append(worker)
                if time.monotonic() - last_shown > 60:
                    last_shown = time.monotonic()
                    print(f"   {self.done.total()} cases in {last_shown - start:.0f} s", flush=True)
        finally:
            for worker in workers:
                worker.end()

    def parcels(self) -> Iterator[list[tuple[str, int]]]:
        """The cases, those that break one graph together; with a count, so many of them."""
        collected: dict[str, list[tuple[str, int]]] = {kind: [] for kind in self.kinds}
        for case in islice(cases(self.kinds), self.count):
            parcel = collected[case[0]]
            parcel.append(case)
            if len(parcel) == min(SHARED, KINDS[case[0]].share):
                yield parcel
                collected[case[0]] = []
        yield from filter(None, collected.values())

    def supply(
        self, worker: Worker, parcels_left: Iterator[list[tuple[str, int]]], end: float | None
    ) -> bool:
        """Gives a process its next cases; whether there are any."""
        batch = None if end is not None and time.monotonic() > end else next(parcels_left, None)
        if batch is None:
            return False
        worker.give(batch)
        return True

    def hear(self, worker: Worker) -> bool:
        """Takes what a process says; whether it still lives."""
        try:
            while worker.todo and worker.pipe.poll():
                kind, number, why = worker.pipe.recv()
                worker.todo.remove((kind, number))
                worker.heard = time.monotonic()
                self.note(kind, number, why)
        except (EOFError, OSError):
            return False
        return time.monotonic() - worker.heard < DEAF or not worker.todo

    def again(self, worker: Worker) -> Worker:
        """Another process, for one that died or is stuck, with the cases that it left."""
        worker.end()
        (kind, number), *remaining = worker.todo
        self.note(kind, number, f"the process ended, or was silent for {DEAF:g} s")
        replacement = Worker(self.seed)
        if remaining:
            replacement.give(remaining)
        return replacement

    def note(self, kind: str, number: int, why: str) -> None:
        self.done[kind] += 1
        if why:
            self.failed[kind] += 1
            print(f"-- {kind}: repeat with --seed {self.seed} --case {kind}:{number}")
            print(why, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, help="so many cases")
    parser.add_argument("--seconds", type=float, help="no longer; 60 where no count is given")
    parser.add_argument("--jobs", "-j", type=int, default=1, help="so many processes")
    parser.add_argument("--seed", type=int, default=None, help="by default another each time")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="by default all")
    parser.add_argument("--case", help="one case only, as it was printed: KIND:NUMBER")
    arguments_read = parser.parse_args(arguments)
    seed = (
        random.SystemRandom().randrange(2**32)
        if arguments_read.seed is None
        else arguments_read.seed
    )
    if arguments_read.case:
        kind, _, number = arguments_read.case.partition(":")
        with own_folder() as folder:
            why = attempt(kind, seed, int(number), Path(folder))
        print(why or "it passes")
        return int(bool(why))
    seconds = arguments_read.seconds or (None if arguments_read.count else 60.0)
    return Run(
        arguments_read.kind or list(KINDS), seed, arguments_read.jobs, arguments_read.count, seconds
    )()


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
