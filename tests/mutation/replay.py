"""Comparisons with a runtime, run once and then again and again by a changed profile alone.

What the runtime gave does not depend on the profile, so it is asked once. Of each program that a
comparison runs, the graph, what it was fed, what was wanted and what it asked of profiles are kept.
A changed profile runs those programs alone that ask for what is changed, until one shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.numerics.fields import Rule
from qir.profiles import Profile, Query, library, profile
from qir.profiles.evidence import weaker_claim
from qir.reference.interpreter import run
from tests.differential import one_op, predictions
from tests.differential.torch import kernels as torch_kernels
from tests.differential.torch import test_torch_layers, test_torch_products

Array = NDArray[np.generic]
Check = Callable[[], None]
_RUNS = (torch_kernels, one_op, predictions, test_torch_layers, test_torch_products)
_COUNTS: tuple[Any, ...] = (torch_kernels.Tally, predictions.Count)


@dataclass(eq=False)
class Ran:
    """One program that a comparison ran."""

    graph: Graph
    fed: Mapping[str, Array]
    right: Array
    """What the right profile gives."""
    seconds: float
    asked: dict[str, tuple[str, Query]]
    """Profiles and what was asked of each."""
    how: Mapping[str, Any]
    wanted: Array | None = None
    """What the runtime gave; nothing was said where the comparison held `right` to be it."""

    @property
    def wrong(self) -> int:
        """How many elements the right profile misses."""
        return 0 if self.wanted is None else _differing(self.right, self.wanted)

    def again(self) -> int:
        """How many elements are missed now."""
        (found,) = run(self.graph, self.fed, **self.how).values()
        return _differing(found, self.right if self.wanted is None else self.wanted)


def _differing(found: Array, wanted: Array) -> int:
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return max(found.size, 1)
    same = found == wanted
    if found.dtype.kind == "f":
        same |= np.isnan(found) & np.isnan(wanted)
    return int(same.size - np.count_nonzero(same))


@dataclass
class Replay:
    """All programs of some comparisons, and those that showed a change last in front."""

    exact: list[Ran] = field(default_factory=list)
    near: list[list[Ran]] = field(default_factory=list)
    """Of comparisons that leave room: no change may miss fewer than the right profile does."""
    _rules: dict[str, Rule] = field(default_factory=dict)

    def add(self, check: Check, *modules: ModuleType) -> None:
        """Runs a comparison with the right profile, and keeps its programs.

        Those that the modules of torch, TensorFlow and recorded ops run, or others named.
        """
        with _kept(modules or _RUNS) as ran:
            check()
        assert ran, "a comparison that ran no program"
        for one in ran:
            for key, (name, query) in one.asked.items():
                self._rules.setdefault(key, profile(name).resolve(query))
        if any(one.wrong for one in ran):
            self.near.append(ran)
        else:
            self.exact += ran
            self.exact.sort(key=lambda one: one.seconds)

    def agrees(self) -> None:
        """AssertionError where the profile that stands now misses more than the right one."""
        asked = {key: pair for one in self._all() for key, pair in one.asked.items()}
        other = {k for k, (n, q) in asked.items() if profile(n).resolve(q) != self._rules[k]}
        for number, one in enumerate(self.exact):
            if other & one.asked.keys() and one.again():
                self.exact.insert(0, self.exact.pop(number))
                raise AssertionError("found")
        for ran in self.near:
            some = [one for one in ran if other & one.asked.keys()]
            left = sum(one.wrong for one in some)
            for one in some:
                left -= one.again()
                assert left >= 0, "more is missed"

    def claimed(self) -> None:
        """AssertionError where the profile that stands now claims less of what was asked."""
        for key, (name, query) in {
            k: p for one in self._all() for k, p in one.asked.items()
        }.items():
            was, now = self._rules[key].claim, profile(name).resolve(query).claim
            assert weaker_claim(was, now) == was, f"{query.op} is {now} now"

    def _all(self) -> Iterator[Ran]:
        yield from self.exact
        for ran in self.near:
            yield from ran


@contextmanager
def _kept(modules: tuple[ModuleType, ...]) -> Iterator[list[Ran]]:
    """The programs that are run meanwhile."""
    ran: list[Ran] = []
    asked: dict[str, tuple[str, Query]] = {}
    plain = Profile.resolve

    def resolve(self: Profile, query: Query) -> Rule:
        asked[f"{self.name} {query}"] = self.name, query
        return plain(self, query)

    def seen(graph: Graph, fed: Mapping[str, Array], **more: Any) -> dict[str, Array]:
        library._RESOLVED_RULES.clear()
        asked.clear()
        start = time.perf_counter()
        made = run(graph, fed, **more)
        taken = time.perf_counter() - start
        (found,) = made.values()
        ran.append(Ran(graph, dict(fed), found, taken, dict(asked), more))
        return made

    def counted(of: Any) -> Callable[..., None]:
        add = of.add

        def hold(self: Any, found: Array, wanted: Array, where: object) -> None:
            add(self, found, wanted, where)
            if ran and ran[-1].wanted is None and not _differing(ran[-1].right, np.asarray(found)):
                ran[-1].wanted = np.array(wanted)

        return hold

    with ExitStack() as stack:
        stack.enter_context(patch.object(Profile, "resolve", resolve))
        for module in modules:
            stack.enter_context(patch.object(module, "run", seen))
        for of in _COUNTS:
            stack.enter_context(patch.object(of, "add", counted(of)))
        yield ran
    library._RESOLVED_RULES.clear()
