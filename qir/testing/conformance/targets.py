"""What every target is held to: its table, its profile, what it writes and what it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import pipeline, registry
from qir.capability import Capability
from qir.errors import InputError, PluginError, QirError, Refused, UsageError
from qir.frontend import Frontend, frontend_for
from qir.inspect.compare import compare
from qir.ir.graph import Graph
from qir.ir.quantized_ops import CONVERSION_OPS
from qir.ir.text import print_graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from qir.rewrite import run_passes
from qir.target import Executable, Plans, Target
from qir.testing.conformance.checklist import Broken, Check, Checklist, Unseen, demand, refusing
from qir.testing.random_graphs import random_graph, sample_inputs

SEEDS = (1, 2, 3, 5)
"""Of the networks that are tried."""
REALS = 1e-4
"""Float values may differ by so much of the largest, as sums are made in another order."""
Arrays = Mapping[str, NDArray[np.generic]]


def check_target(
    given: Target | type[Target], graphs: Sequence[Graph] = (), *, codes: int = 1
) -> tuple[Check, ...]:
    """Holds a target to its contract, on these float graphs, its own `samples` or random ones.

    What it makes of quantized values may be `codes` from what the reference computes under its
    profile.
    """
    target = given() if isinstance(given, type) else given
    checks = Checklist()
    checks.check("has a name, forms and a suffix that fit", partial(_form, target))
    checks.check("its profile is known", partial(_profile, target))
    if not checks.check("its table is read and about ops that there are", partial(_table, target)):
        return checks.told()
    floats: list[Graph] = list(graphs)
    if not floats and not checks.check("brings samples", partial(_samples, target, floats)):
        return checks.told()
    quantized: list[Graph] = []

    def quantize() -> str:
        quantized.extend(_quantized(target, graph) for graph in floats)
        quantized_values = sum(
            v.type.quant is not None for g in quantized for v in g.values.values()
        )
        return f"{len(quantized)} networks, {quantized_values} quantized values"

    if not checks.check("models are quantized by its table", quantize):
        return checks.told()
    checks.check("takes what its table says it takes", partial(_taken, target, quantized))
    programs = [*floats, *quantized]
    if target.formats:
        checks.check(
            "writes files, each at once, the same again", partial(_emits, target, programs)
        )
        checks.check("refuses a form that it does not have", partial(_no_form, target, floats[0]))
        look = partial(_reads_back, target, programs, codes)
        checks.check("what it writes means what was written", look)
    if type(target).compile is not Target.compile:
        look = partial(_runs, target, programs, codes)
        checks.check("runs as the reference does under its profile", look)
        checks.check("runs again to the same bytes", partial(_again, target, programs))
    return checks.told()


def _form(target: Target) -> str:
    kind = type(target)
    for name in ("name", "profile"):
        demand(isinstance(getattr(target, name, None), str), f"{kind.__name__} has no {name}")
    writes, runs = bool(kind.formats), kind.compile is not Target.compile
    plans = issubclass(kind, Plans)
    nothing_to_do = "it has no formats and does not compile: nothing can be done with it"
    demand(writes or runs or plans, nothing_to_do)
    demand(writes == (kind.emit is not Target.emit), "formats and emit are there together")
    demand(not writes or kind.suffix.startswith("."), f"suffix {kind.suffix!r} begins with a point")
    doing = [
        *(["writes " + ", ".join(kind.formats)] if writes else []),
        *(["runs"] if runs else []),
        *(["plans"] if plans else []),
    ]
    return " and ".join(doing)


def _profile(target: Target) -> str:
    return profile(target.profile).name


def _table(target: Target) -> str:
    table = target.capability()
    demand(isinstance(table, Capability), "capability() gives no qir.capability.Capability")
    demand(table.name == target.name, f"the table calls itself {table.name!r}")
    return f"{len(table.ops)} ops, {len(table.chains)} chains"


def _samples(target: Target, floats: list[Graph]) -> str:
    """Adds the target's own samples, or random networks where it brings none."""
    floats.extend(target.samples())
    if not floats:
        floats.extend(random_graph(seed) for seed in SEEDS)
        return f"none: {len(floats)} random networks are used"
    for number, graph in enumerate(floats):
        demand(isinstance(graph, Graph), f"sample {number} is no qir.Graph")
        if faults := errors(graph):
            raise Broken(f"sample {number} is no program: {faults[0]}")
    return f"{len(floats)} of its own"


def _quantized(target: Target, graph: Graph) -> Graph:
    samples = [sample_inputs(graph, seed) for seed in range(3)]
    with _offered(target):
        statistics = pipeline.calibrate(graph, samples)
        quantized = pipeline.quantize(graph, statistics, target=target.name)
    if faults := errors(quantized):
        raise Broken(f"a model quantized for it is no program: {faults[0]}")
    return quantized


def _offered(target: Target) -> AbstractContextManager[None]:
    """Within this the target is found by its name, though it is not installed."""
    known = target.name in registry.names("qir.targets")
    return nullcontext() if known else registry.offer("qir.targets", target.name, type(target))


def _taken(target: Target, quantized: Sequence[Graph]) -> str:
    refused = taken = 0
    for graph in quantized:
        for verdict in target.verdicts(graph):
            taken += verdict.taken != "refused"
            refused += verdict.taken == "refused"
        refusals = [f for f in target.verify(graph) if f.severity == "error"]
        demand(not refusals, f"it refuses what was quantized for it: {refusals and refusals[0]}")
    return f"{taken} ops taken, {refused} left float"


def _emits(target: Target, programs: Sequence[Graph]) -> str:
    count = {form: 0 for form in target.formats}
    for form in target.formats:
        for number, graph in enumerate(programs):
            text = print_graph(graph)
            with tempfile.TemporaryDirectory() as folder:
                # Written twice under two names: bytes must not depend on the path or on hash order.
                paths = [Path(folder, _name(target, form, name)) for name in "ab"]
                if not all([_written(target, graph, path, form) for path in paths]):
                    demand(not list(Path(folder).iterdir()), f"{form}: refused, and a file is left")
                    continue
                file_names = sorted(p.name for p in Path(folder).iterdir())
                expected_names = sorted(p.name for path in paths for p in target.files(path))
                demand(
                    file_names == expected_names,
                    f"{form}: {', '.join(file_names) or 'nothing'} is there",
                )
                first, second = ([_bytes(p) for p in target.files(path)] for path in paths)
                demand(first == second, f"{form}: program {number} is written as other bytes again")
            # Emitting must not edit the caller's program, which other forms are written from.
            demand(print_graph(graph) == text, f"{form}: program {number} has changed")
            count[form] += 1
    form = target.formats[0]
    demand(count[form], f"{form}, the default form, is refused for all networks; {_HINT}")
    return ", ".join(f"{many} {form}" for form, many in count.items())


def _name(target: Target, form: str, stem: str) -> str:
    """Returns the name of a file of a form; of a folder it is the stem alone."""
    return stem if form in target.folders else f"{stem}{target.suffix_of(form)}"


def _bytes(path: Path) -> bytes:
    """Returns what was written: a file, or all files of a folder with their names."""
    if path.is_file():
        return path.read_bytes()
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return b"".join(str(f.relative_to(path)).encode() + f.read_bytes() for f in files)


def _written(target: Target, graph: Graph, path: Path, form: str) -> bool:
    """Writes a program; False where it has no such form, and Refused says so."""
    try:
        target.emit(graph, path, Ledger(), format=form, lossy=True)
    except Refused as error:
        demand(len(str(error).splitlines()) == 1, f"{form} is refused, but not in one line")
        return False
    return True


_HINT = "samples() of the target may return graphs that it takes"


def _no_form(target: Target, graph: Graph) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a{target.suffix}")
        with refusing("a form that there is not") as raised:
            target.emit(graph, path, Ledger(), format="no-such-form")
        demand(isinstance(raised.error, UsageError), "a form that there is not is no UsageError")
        demand(not path.exists(), "a file is there, though the form was refused")


def _read(target: Target, path: Path) -> tuple[Frontend | None, Graph | None]:
    """Returns a file read by a frontend; nothing where none reads it, or not yet all that is in
    it."""
    try:
        reader = frontend_for(path)
    except InputError:
        return None, None
    try:
        return reader, reader.load(path, Ledger())
    except InputError as error:
        if type(target).compile_file is not Target.compile_file:
            return None, None
        raise Broken(f"{error}") from error
    except QirError:
        return None, None


def _reads_back(target: Target, programs: Sequence[Graph], codes: int) -> str:
    count, reader_name = 0, ""
    for form in target.formats:
        for number, graph in enumerate(programs):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, _name(target, form, "a"))
                if not _written(target, graph, path, form):
                    continue
                inputs, subject = sample_inputs(graph, number), f"{form}: program {number}"
                reader, back = _read(target, path)
                if reader is None or back is None:
                    actual = _from_file(target, path, inputs)
                    expected = pipeline.run(_grouped(target, graph), inputs, profile=target.profile)
                    _near(graph, expected, actual, codes, f"{subject}, its file run by it,")
                    count, reader_name = count + 1, "the target itself"
                    continue
            # By position, as formats may not keep names.
            names = dict(zip(inputs, (v.name for v in back.inputs), strict=True))
            renamed_inputs = {names[name]: data for name, data in inputs.items()}
            meant_graph = (
                _grouped(target, graph) if _integer(back) and not _integer(graph) else graph
            )
            expected, actual = pipeline.run(meant_graph, inputs), pipeline.run(back, renamed_inputs)
            demand(len(actual) == len(expected), f"{subject}, read back, has {len(actual)} outputs")
            by_name = dict(
                zip(expected, actual.values(), strict=True)
            )  # formats may name them anew
            _near(graph, expected, by_name, codes, f"{subject}, read back,")
            count, reader_name = count + 1, f"frontend {reader.name}"
    if not count:
        raise Unseen(f"the target writes none of the networks; {_HINT}")
    return f"{count} files, by {reader_name}"


def _integer(graph: Graph) -> bool:
    """Returns whether ops of a program compute on quantized values: it rounds where its kernels
    do."""
    computing = [node for node in graph if node.op not in CONVERSION_OPS and node.results]
    return any(value.type.quant for node in computing for value in node.operands.values())


def _from_file(target: Target, path: Path, inputs: Arrays) -> Arrays:
    """Returns what a target computes of a file that it wrote; Unseen where it runs none."""
    if type(target).compile_file is Target.compile_file:
        reason = "and the target does not run its files (compile_file)"
        raise Unseen(f"no frontend reads {target.suffix} files, {reason}: nobody can tell")
    try:
        results = target.compile_file(path)(**inputs)
    except PluginError as error:
        raise Unseen(f"not tried: {error}") from None
    return {name: np.asarray(data) for name, data in results.items()}


def _near(graph: Graph, expected: Arrays, actual: Arrays, codes: int, what: str) -> None:
    """Demands that results are as near as they must be: integers by steps, floats by their size."""
    for difference in compare(graph, expected, actual):
        if difference.equal:
            continue
        if difference.codes is not None:
            is_close = difference.codes <= codes + 1e-3
            distance = f"{difference.codes:g} steps from the reference, {codes} may be"
        else:
            # Relative to the largest value: a sum's error grows with its terms, not with its
            # result.
            size = float(np.abs(expected[difference.name].astype(np.float64)).max(initial=1e-30))
            is_close = difference.largest <= REALS * size
            distance = f"{difference.largest:g} from the reference, which reaches {size:g}"
        demand(is_close, f"{what} output {difference.name} is {distance}")


def _grouped(target: Target, graph: Graph) -> Graph:
    """Returns the program as the runtime of a target groups it."""
    own = target.computed(graph, Ledger())
    return own or run_passes(graph, [Group(target.profile)], Ledger())


def _runs(target: Target, programs: Sequence[Graph], codes: int) -> str:
    ran, equal = 0, 0
    for number, graph in enumerate(programs):
        inputs = sample_inputs(graph, number)
        if (program := _compiled(target, graph)) is None:
            continue
        wanted = pipeline.run(_grouped(target, graph), inputs, profile=target.profile)
        made = program(**inputs)
        given = {name: np.asarray(data) for name, data in made.items()}
        _near(graph, wanted, given, codes, f"program {number}, run by it,")
        ran += 1
        equal += all(found.equal for found in compare(graph, wanted, given))
    demand(ran, f"it refuses to run all networks; {_HINT}")
    return f"{ran} programs, {equal} to the byte"


def _compiled(target: Target, graph: Graph, threads: int | None = None) -> Executable | None:
    """A program made ready to run; None where Refused says that the target does not take it."""
    try:
        return target.compile(graph, threads=threads)
    except Refused as error:
        demand(len(str(error).splitlines()) == 1, "a program is refused, but not in one line")
        return None
    except PluginError as error:
        raise Unseen(f"not tried: {error}") from None


def _again(target: Target, programs: Sequence[Graph]) -> str:
    ran = 0
    for number, graph in enumerate(programs):
        inputs = sample_inputs(graph, number)
        ready = [one for n in (1, 2) if (one := _compiled(target, graph, n)) is not None]
        demand(len(ready) != 1, f"program {number}: refused with one number of threads alone")
        if not ready:
            continue
        runs = [each(**inputs) for each in (*ready, *ready)]
        ran += 1
        made = [{n: np.asarray(a).tobytes() for n, a in run.items()} for run in runs]
        same = all(each == made[0] for each in made)
        demand(same, f"program {number}: other bytes again, or with another number of threads")
    demand(ran, f"it refuses to run all networks; {_HINT}")
    return f"{ran} programs, twice, with one thread and two"


__all__ = ["check_target"]
