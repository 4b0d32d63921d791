"""Finds the profiles that a graph names: those that it carries, then those that are installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from qir.errors import GraphError, ProfileError
from qir.ir.carried_profiles import ProfileText
from qir.ir.graph import Graph
from qir.ir.node import CarriedProfile, GraphLike
from qir.numerics.fields import Rule
from qir.profiles.library import (
    is_installed,
    is_profile_file,
    parse_profile,
    profile,
    profile_names,
    read_profile,
)
from qir.profiles.processor import on_processor, require_instruction_set
from qir.profiles.profile import Profile, Query
from qir.records import record


@record
class ProfileLibrary:
    """Profiles by name: some of its own, then those that are installed."""

    own: Mapping[str, CarriedProfile] = field(default_factory=lambda: MappingProxyType({}))
    processor_specific: bool = False
    """Whether rules are those that hold on one processor: `isa`, or this one if that is None."""
    isa: str | None = None

    def find(self, name: str) -> Profile:
        """Returns the profile of that name; raises ProfileError if there is none, or if the text
        that a graph was parsed from holds one that cannot be read."""
        carried = self.own.get(name)
        if carried is None:
            found = profile(name)
        elif isinstance(carried, ProfileText):
            found = _read_carried(carried)
        else:
            found = cast("Profile", carried)
        return on_processor(found, self.isa) if self.processor_specific else found

    def named(self, name: str) -> NamedProfile:
        """Returns a name whose profile is found once a rule is asked of it."""
        return NamedProfile(name, self)

    def on_processor(self, isa: str | None = None) -> ProfileLibrary:
        """Returns the library as it is on `isa`, else on this processor; UsageError for a name
        that is no instruction set."""
        require_instruction_set(isa)
        return ProfileLibrary(self.own, True, isa)

    def with_profile(self, added: Profile) -> ProfileLibrary:
        """Returns the library with one more profile of its own, which takes its name."""
        return replace(self, own={**self.own, added.name: added})


@record
class NamedProfile:
    """The name of a profile, and where it is found once a rule is asked of it.

    Float ops ask for none, so that a graph may name a profile that nobody has.
    """

    name: str
    library: ProfileLibrary = field(default_factory=ProfileLibrary)

    def resolve(self, query: Query) -> Rule:
        """Returns the profile's rule for a query; raises ProfileError if there is no profile."""
        return self.find().resolve(query)

    def find(self) -> Profile:
        """Returns the profile; raises ProfileError if there is none."""
        return self.library.find(self.name)

    def on_processor(self) -> NamedProfile:
        """Returns the profile as it is on this processor."""
        return NamedProfile(self.name, self.library.on_processor())


NO_PROFILE = NamedProfile("")
"""For float ops, which ask no profile."""


@lru_cache(maxsize=64)
def _read_carried(carried: ProfileText) -> Profile:
    """Reads a profile of a graph's text. One text gives one object, by which rules are cached."""
    try:
        found = parse_profile(carried.name, carried.text)
    except ProfileError as error:
        raise ProfileError(f"the graph's text holds a profile: {error}") from error
    if found.name != carried.name:
        raise ProfileError(
            f"the graph's text calls a profile {carried.name}, whose name is {found.name}"
        )
    return found


def library_of(graph: GraphLike | None) -> ProfileLibrary:
    """Returns the profiles that a graph and its bodies mean by their names."""
    if graph is None or not graph.own_profiles:
        return ProfileLibrary()
    return ProfileLibrary(graph.own_profiles)


def profile_in(graph: GraphLike, name: str) -> Profile:
    """Returns the profile that a graph means by a name; raises ProfileError if there is none."""
    return library_of(graph).find(name)


def read_profile_for(graph: GraphLike, text: str | Profile) -> Profile:
    """Returns the profile that a user names for a graph, as `read_profile` does; the graph may
    carry it."""
    if isinstance(text, Profile):
        return text
    return read_profile(text) if is_profile_file(text) else profile_in(graph, text)


def carry_profile(graph: Graph, added: Profile) -> bool:
    """Adds a profile to those that a graph carries, unless it is installed; says if it is new.

    Raises ProfileError where the graph means another by that name, or another is installed: files
    are read with the installed one.
    """
    if is_installed(added):
        return False
    if added.name in profile_names():
        raise ProfileError(
            f"an installed profile is named {added.name} and says something else; give this one "
            f"another name"
        )
    try:
        return graph.carry_profile(added)
    except GraphError as error:
        raise ProfileError(f"{error}; give one of the two another name") from error
