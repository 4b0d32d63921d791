"""What every test shares: how hypothesis searches, and what programs go through."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import costs, sampling

if TYPE_CHECKING:
    from tests.counting import Recorder
    from tests.plugin.through import Through

# Shared machines are slow at odd moments: a deadline would fail tests that are right.
# The blob printed with a failure repeats it.
settings.register_profile("qir", deadline=None, print_blob=True, database=None)
settings.load_profile("qir")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what passes make of the graphs in tests/golden into their files",
    )
    parser.addoption(
        "--through",
        metavar="TARGET",
        help="send what the reference is to run out by this target and back, such as loopback",
    )
    parser.addoption(
        "--whole",
        action="store_true",
        help="run every case of the tests that are sampled, as `make test-all` does",
    )
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each test, drawn by SEED, as `make check` does",
    )
    parser.addoption(
        "--counts",
        action="store_true",
        help="count what is compared by the tests that run, into tests/differential/counts.json",
    )


_COSTS: Counter[str] = Counter()
"""CPU seconds by test file, summed where the reports of all workers arrive."""
_PHASE: pytest.StashKey[float] = pytest.StashKey()
_COUNTS: pytest.StashKey[Recorder] = pytest.StashKey()
_THROUGH: pytest.StashKey[Through] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    # CUDA builds of torch bring triton, whose LLVM aborts if TensorFlow has loaded its own before.
    if find_spec("triton") is not None:
        importlib.import_module("triton._C.libtriton")
    named = any("[" in str(word) for word in config.args)  # cases that somebody asks for by name
    sampling.begin(whole=config.getoption("--whole") or config.getoption("--counts") or named)
    if name := config.getoption("--through"):
        from tests.plugin.through import begin  # before any test imports what it replaces

        config.stash[_THROUGH] = begin(name)
    if config.getoption("--counts"):
        from tests.counting import Recorder, listen

        config.stash[_COUNTS] = Recorder()
        config.add_cleanup(listen(config.stash[_COUNTS]).close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if left_out := sampling.select(items, config.getoption("--cases")):
        config.hook.pytest_deselected(items=left_out)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # no worker waits for a long file at the end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    recorder = item.config.stash.get(_COUNTS, None)
    if recorder is not None:
        name = "" if item.get_closest_marker("uncounted") else item.nodeid.partition("[")[0]
        recorder.begin(name)
    yield
    if recorder is not None and recorder.test:  # not where it was skipped or failed
        recorder.ran.add(recorder.test)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_PHASE] = costs.cpu_seconds()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent = dict(report.user_properties).get(costs.KEY, 0.0)
    _COSTS[report.location[0]] += spent  # type: ignore[operator]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # Every phase counts from the end of the one before, so that nothing is counted twice.
    now = costs.cpu_seconds()
    report = yield
    report.user_properties.append((costs.KEY, now - item.stash.get(_PHASE, now)))
    item.stash[_PHASE] = now
    recorder = item.config.stash.get(_COUNTS, None)
    if recorder is not None and report.skipped:
        recorder.skipped.add(item.nodeid.partition("[")[0])
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the counts, or hands those of a worker to the session that writes them."""
    recorder = session.config.stash.get(_COUNTS, None)
    if recorder is None:
        return
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["counts"] = recorder.packed()
        return
    from tests.counting import write

    write(recorder)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    output = getattr(node, "workeroutput", {})
    recorder = node.config.stash.get(_COUNTS, None)  # type: ignore[attr-defined]
    if recorder is not None and "counts" in output:
        recorder.take(output["counts"])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    from tests.processors import closing_lines

    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    for line in [*costs.listed(_COSTS), *closing_lines(reasons), *sampling.closing_lines()]:
        terminalreporter.write_line(line)
    if through := config.stash.get(_THROUGH, None):
        if through.came_back:  # with several workers each has its own count
            terminalreporter.write_line(through.told())
