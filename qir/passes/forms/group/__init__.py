"""Groups the ops that a runtime computes as one kernel, so that its bytes can be predicted.

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %d = dequantize(%x) : 2xf32
      %s = add(%d, %d) : 2xf32
      %y = quantize(%s) : 2x!quant.uniform<u8:f32, 1.0:3>
      output(y=%y)
    }

By `group{as=ort-1.31}` it becomes:

    graph main as ort-1.31 {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = add(%x, %x) : 2x!quant.uniform<u8:f32, 1.0:3>
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import ClassVar

from qir.analysis.activations import fused_activations
from qir.analysis.claims import claim_entries
from qir.analysis.group_conditions import has_zero_point
from qir.analysis.kernel_groups import KernelGroup, find_kernel_groups, is_float, wrap_as_group
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ledger import Change, Entry, Ledger
from qir.profiles import Profile, carry_profile, is_profile_file, profile_in, read_profile
from qir.profiles.conditions import conditions
from qir.profiles.preparation import preparation_steps
from qir.profiles.profile import FLOAT_STORAGE
from qir.profiles.profile import GroupEntry as GroupEntry
from qir.rewrite import Tolerance
from qir.rewrite.fusing import ChainMatch, Fusing
from qir.rewrite.preparation import Preparation
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.options import option


@dataclass(frozen=True)
class Group(Fusing):
    """Groups ops as a profile says; the graph follows that profile afterwards.

    In a float graph, ops that would be one kernel once quantized become one group of float ops.
    No number moves by that.
    """

    name = "group"
    nested = False
    tolerance = Tolerance(inf, inf, "numbers become those that the runtime computes")
    profile: str = field(default="", metadata=option(name="as", kind="profile"))
    """The profile whose groups are wrapped, by name or as a file; empty: the graph's own."""

    _file: ClassVar[Profile | None] = None
    """The profile of a file, which the graph carries from then on."""

    def __post_init__(self) -> None:
        if is_profile_file(self.profile):
            loaded = read_profile(self.profile)
            # The journal names the profile, and no place on this disk.
            object.__setattr__(self, "profile", loaded.name)
            object.__setattr__(self, "_file", loaded)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        carried = self._file is not None and carry_profile(graph, self._file)
        return carried + self._run(graph, ledger)

    def _run(self, graph: Graph, ledger: Ledger) -> int:
        rules = self.kernel_profile(graph)
        # A float graph is grouped as it would be once quantized, so that a plan can name the
        # kernels.
        if is_float(graph):
            count = self._group_floats(graph, rules, ledger) if self.profile else 0
        else:
            count = self._prepare(graph, rules, ledger) + super().run(graph, ledger)
        if self.profile and self.profile != graph.profile:
            graph.profile = self.profile
            count += 1
        return count

    def _prepare(self, graph: Graph, rules: Profile, ledger: Ledger) -> int:
        """Runs the profile's preparation steps; returns how many places changed.

        They repeat what the runtime does to a model when it loads it, before it groups.
        """
        preparation = Preparation(rules, ledger, self.name, partial(self._wrap, graph.profile))
        available = preparation_steps()
        return sum(available[step].run(graph, preparation) for step in self.steps(rules))

    def steps(self, rules: Profile) -> tuple[str, ...]:
        """Returns the preparation steps that are taken, in order."""
        return rules.prepare

    def _wrap(self, name: str, trial: Graph) -> None:
        """Groups a small graph of its own, on which a preparation step tries what happens."""
        trial.profile = self.profile or name
        super().run(trial, Ledger())

    def _group_floats(self, graph: Graph, rules: Profile, ledger: Ledger) -> int:
        count = 0
        for kernel in find_kernel_groups(graph, rules):
            ops = kernel.ops
            if len(ops) < 2 or not may(self.name, kernel_text(kernel, rules), ops[-1], *ops[:-1]):
                continue
            name = wrap_as_group(graph, ops).name
            message = " |> ".join(n.op for n in ops) + " as one float group"
            ledger.add(Change.EXACT, self.name, name, message)
            count += 1
        return count

    def kernel_profile(self, graph: Graph) -> Profile:
        return profile_in(graph, self.profile or graph.profile)

    def fusible_ops(self, graph: Graph) -> frozenset[str]:
        return frozenset(op for group in self.kernel_profile(graph).groups for op in group.chain)

    def epilogue_ops(self, graph: Graph) -> frozenset[str]:
        return fused_activations(self.kernel_profile(graph))

    def fuses_adds(self, graph: Graph) -> bool:
        return any("add" in group.chain[1:] for group in self.kernel_profile(graph).groups)

    def fuses_float_data(self, graph: Graph) -> bool:
        entries = self.kernel_profile(graph).groups
        return any(
            FLOAT_STORAGE in kinds for entry in entries for kinds in entry.when.storage.values()
        )

    def rewrite_name(self, match: ChainMatch, graph: Graph) -> str:
        """Returns the chain, and the line of the profile that makes it one kernel."""
        entry = _entry_text(self.kernel_profile(graph), self._entry_for(match, graph))
        return f"{super().rewrite_name(match, graph)} by {entry}"

    def claim_entries(self, match: ChainMatch, graph: Graph) -> tuple[Entry, ...]:
        """Returns the ledger entry of the profile's claim, for kernels that are not exact."""
        entry = self._entry_for(match, graph)
        return claim_entries(entry.claim if entry else "unknown", self.name, match.anchor.name)

    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        entry = self._entry_for(match, graph)
        if entry is None or has_zero_point(match, self.kernel_profile(graph)):
            return False
        if match.has_float_data and FLOAT_STORAGE not in entry.when.storage.get(
            spec(match.anchor.op).traits.data, ()
        ):
            return False
        return all(conditions()[need].met(match) for need in entry.needs)

    def _entry_for(self, match: ChainMatch, graph: Graph) -> GroupEntry | None:
        """Returns the profile's entry for a chain, if it has one."""
        kind = "real" if match.result is None else "codes"
        chain = tuple(n.op for n in match.ops)
        return self.kernel_profile(graph).group(chain, match.query, result=kind)


def kernel_text(kernel: KernelGroup, rules: Profile) -> str:
    """Returns a kernel's ops, and the line of the profile that makes them one kernel."""
    return f"{' |> '.join(kernel.chain)} by {_entry_text(rules, kernel.entry)}"


def _entry_text(rules: Profile, entry: GroupEntry | None) -> str:
    key = entry.key if entry else None
    # A profile may inherit its groups: the file named is the one in which the entry stands.
    names = (m.head.name for m in reversed(rules.layers) if any(g.key == key for g in m.own_groups))
    file_name = next(names, rules.head.name)
    return f"{file_name}.toml:{entry.line if entry else 0}"


__all__ = ["Group", "fused_activations", "kernel_text"]
