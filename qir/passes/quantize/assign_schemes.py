"""Writes the schemes that `qir.analysis.scheme_assignment` decides on the slots of a graph.

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.5, -1.0]) : 1x3xf32
      %m = linear(%x, %w) : 2x1xf32
      %r = relu(%m) : 2x1xf32
      output(y=%r)
    }

By `assign-schemes{target=cpu}` it becomes:

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.5, -1.0]) : 1x3xf32
      %m = linear(%x, %w) : 2x1xf32
          plan {w = "i8<-127:127> symmetric channel minmax",
          x = "u8 affine tensor minmax"}
      %r = relu(%m) : 2x1xf32 plan {result = "u8 affine tensor minmax"}
      output(y=%r)
    }

The target here computes linear and relu in one integer kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from qir.analysis.decisions import Decision, Plan
from qir.analysis.kernel_groups import KernelGroup, find_kernel_groups
from qir.analysis.kernel_table import kernel_table
from qir.analysis.masks import mask_texts, parse_masks
from qir.analysis.scheme_assignment import Schemes, assign_schemes
from qir.analysis.user_rules import UserRule
from qir.calibration import parse_rule
from qir.capability import Capability
from qir.ir.graph import Graph
from qir.ir.scheme import RESULT
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.profiles import Profile, is_profile_file, profile, profile_in, profile_names, read_profile
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.options import option
from qir.target import target


def read_capability(name: str | list[str]) -> Capability:
    """Reads the table of a target, or of the kernels of a profile, by name."""
    if str(name) in profile_names():
        return kernel_table(profile(str(name)))
    return target(str(name)).capability()


def write_capability(table: object) -> str:
    """Returns the name of a table."""
    return table.name if isinstance(table, Capability) else ""


def _range(text: str | list[str]) -> str:
    parse_rule(str(text))
    return str(text)


def _rule_texts(rules: object) -> list[str]:
    return [w.text for w in rules if isinstance(w, UserRule)] if isinstance(rules, tuple) else []


def _read_rules(texts: str | list[str]) -> tuple[UserRule, ...]:
    return tuple(map(UserRule.parse, [texts] if isinstance(texts, str) else texts))


@dataclass(frozen=True)
class AssignSchemes(Pass):
    """Writes on each slot the scheme that a target file asks for."""

    name = "assign-schemes"
    nested = False
    tolerance = Tolerance(why="it writes plans; no number moves")
    capability: Capability = field(
        default_factory=lambda: Capability("none", {}),
        metadata=option(name="target", read=read_capability, write=write_capability, kind="target"),
    )
    """The integer kernels of a target, or of a profile."""
    granularity: Literal["channel", "tensor"] = "channel"
    """Whether a weight has one scale for each channel or one for the tensor."""
    user_rules: tuple[UserRule, ...] = field(
        default=(),
        metadata=option(name="rules", read=_read_rules, write=_rule_texts, kind="list of rule"),
    )
    """The user's rules, such as "op=softmax: float"; the last that matches a slot wins."""
    range_rule: str = field(default="minmax", metadata=option(name="range", read=_range))
    """The range rule of slots for which neither table nor user names one."""
    groups: str = field(default="", metadata=option(kind="profile"))
    """The profile whose kernels get no quantized values inside; empty: the target's own chains."""
    masks: tuple[tuple[str, float], ...] = field(
        default=(),
        metadata=option(read=parse_masks, write=mask_texts, kind="list of number and value"),
    )
    """Values in which calibration found a mask, each with its number.

    The number 0 marks values in which a constant suggests a mask that the data refute.
    """
    divisors: tuple[tuple[str, float], ...] = field(
        default=(),
        metadata=option(read=parse_masks, write=mask_texts, kind="list of number and value"),
    )
    """Divisors with their distance from 0 in calibration, as a share of their range.

    Only those are here on which the ops alone decide otherwise.
    """

    _file: ClassVar[Profile | None] = None
    """The profile of a file that `groups` named."""

    def __post_init__(self) -> None:
        if is_profile_file(self.groups):
            loaded = read_profile(self.groups)
            # The journal names the profile, and no place on this disk.
            object.__setattr__(self, "groups", loaded.name)
            object.__setattr__(self, "_file", loaded)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product and an activation, for QIR's own kernels."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %w = constant([1.0, 0.5, -1.0]) : 1x3xf32\n  %m = linear(%x, %w) : 2x1xf32\n"
            "  %r = relu(%m) : 2x1xf32\n  output(y=%r)\n}\n"
        )
        yield cls(read_capability("cpu")), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        kernels = None
        if self.groups:
            # Values inside a kernel of the profile are never stored, so they get no scheme.
            kernels = find_kernel_groups(graph, self._file or profile_in(graph, self.groups))
        _, schemes = assign_schemes(
            graph,
            self.capability,
            self.granularity,
            self.user_rules,
            kernels,
            self.masks,
            self.divisors,
        )
        count = 0
        for node, slots in schemes.items():
            for slot, scheme in slots.items():
                # Any other rule comes from the target's table or from a user rule, and stays.
                rule = self.range_rule if scheme.range == "minmax" else scheme.range
                requested = replace(scheme, range=rule)
                if node.schemes.get(slot) != requested:
                    graph.set_scheme(node, slot, requested)
                    count += 1
        if count:
            self._report_missing_kernels(kernels or (), schemes, ledger)
        return count

    def _report_missing_kernels(
        self, kernels: Iterable[KernelGroup], schemes: Schemes, ledger: Ledger
    ) -> None:
        """Reports kernels of the profile `groups` that the target does not have."""
        for kernel in kernels:
            ops, planned = tuple(n.op for n in kernel.ops), schemes.get(kernel.last, {})
            if len(ops) > 1 and RESULT in planned and not self.capability.chain(ops):
                message = f"{' |> '.join(ops)} as {self.groups} has it, "
                message += "float between quantized values: "
                message += f"{self.capability.name} has no such kernel"
                ledger.add(Change.REGROUPED, self.name, kernel.last.name, message)


__all__ = ["AssignSchemes", "Decision", "Plan", "Schemes", "UserRule", "assign_schemes"]
