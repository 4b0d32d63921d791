"""Target files: TOML tables of what a target can run, which may extend other target files."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from qir.capability.table import (
    Capability,
    ChainCapability,
    Condition,
    Defect,
    Dynamic,
    OpCapability,
    slots_of,
    texts,
    values_of,
)
from qir.errors import ParseError, PluginError
from qir.ir.ops import OPS
from qir.ir.scheme import Scheme, parse_scheme
from qir.profiles.toml_positions import Path as Keys
from qir.profiles.toml_positions import places

VERSION = 1
"""Of the target files that this QIR reads."""
SUFFIX = ".toml"
"""Of target files."""
Installed: TypeAlias = Callable[[str], Capability]
"""Gives the table of an installed target, by name."""

_TABLES = {
    "op": ("op", "slots", "share", "constant", "when", "computed", "unasked", "ranks"),
    "chain": ("chain", "cuts", "result", "summand", "last_reader", "when"),
    "float": ("op", "reason", "when"),
    "defect": ("op", "reason", "when"),
    "remove": ("op", "chain"),
}
"""The keys of each table of rows."""
_HEAD = ("name", "extends", "version", "profile", "rounding", "dynamic", *_TABLES)
_PLACE = re.compile(r"(?P<said>.*) \(at (?:line (?P<line>\d+).*|end of document)\)", re.DOTALL)


def load(
    path: Path, installed: Installed | None = None, above: tuple[Path, ...] = ()
) -> Capability:
    """Reads a target file and those that it extends.

    `extends` names a file beside it, such as "x86.toml", or an installed target, which `installed`
    gives. Raises PluginError naming file, line and what is wrong.
    """
    return _File(path, installed, above).capability()


def extended(path: Path) -> str:
    """Returns what a target file extends; empty where it extends nothing. Raises PluginError."""
    return _File(path).text("extends")


@dataclass
class _File:
    path: Path
    installed: Installed | None = None
    above: tuple[Path, ...] = ()
    """The files on whose behalf this one is read."""
    ops: dict[str, OpCapability] = field(default_factory=dict)
    chains: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Each with whether its activations may cut values."""
    rows_of_chains: dict[tuple[str, ...], ChainCapability] = field(default_factory=dict)
    floats: list[Condition] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)

    # -- the text -----------------------------------------------------------------------------

    @cached_property
    def source(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise PluginError(f"{self.path.name}: it is no UTF-8 text") from error
        except OSError as error:
            raise PluginError(f"{self.path}: {error.strerror or error}") from error

    @cached_property
    def data(self) -> Mapping[str, object]:
        try:
            return tomllib.loads(self.source)
        except tomllib.TOMLDecodeError as error:
            found = _PLACE.fullmatch(str(error))
            said = found["said"] if found else str(error)
            line = (found and found["line"]) or len(self.source.splitlines()) or 1
            raise PluginError(f"{self.path.name}, line {line}: {said}") from error
        except RecursionError as error:
            said = "its brackets lie too deep within each other"
            raise PluginError(f"{self.path.name}: {said}") from error
        except ValueError as error:  # Python reads integers of 4,300 digits at most
            raise PluginError(f"{self.path.name}: a number has too many digits") from error

    @cached_property
    def lines(self) -> Mapping[Keys, int]:
        return places(self.source)

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Within this, errors name the line of a key; PluginErrors do already."""
        try:
            yield
        except (ParseError, TypeError) as error:
            known = (keys[:length] for length in range(len(keys), 0, -1))
            line = next((self.lines[k] for k in known if k in self.lines), 1)
            raise PluginError(f"{self.path.name}, line {line}: {error}") from error

    def text(self, key: str, default: str = "") -> str:
        with self.at(key):
            found = self.data.get(key, default)
            if not isinstance(found, str):
                raise ParseError(f"{key} is a text, not {found!r}")
            return found

    # -- the table ----------------------------------------------------------------------------

    def capability(self) -> Capability:
        self.version()
        self.known("key", self.data, _HEAD)
        base = self.base()
        if base is not None:
            self.ops |= base.ops
            self.chains |= {chain: chain not in base.uncut for chain in base.chains}
            self.rows_of_chains |= base.rows
            self.floats += base.floats
            self.defects += base.defects
        for table, keys in _TABLES.items():
            for index, row in enumerate(self.rows(table)):
                with self.at(table, index):
                    self.known(f"key of [[{table}]]", row, keys, table, index)
                    getattr(self, f"take_{table}")(row, index)
        named = self.text("name", self.path.stem if base else "")
        if not named:
            raise PluginError(f"{self.path.name}, line 1: it says no name")
        return Capability(
            named,
            self.ops,
            tuple(self.chains),
            tuple(self.defects),
            frozenset(chain for chain, cuts in self.chains.items() if not cuts),
            self.rows_of_chains,
            {**(base.rounding if base else {}), **self.rounding()},
            tuple(self.floats),
            dynamic=self.dynamic(base.dynamic if base else Dynamic()),
            profile=self.text("profile", base.profile if base else ""),
        )

    def dynamic(self, base: Dynamic) -> Dynamic:
        """What the file says of quantizing while a model runs, else what it extends says."""
        found = self.data.get("dynamic")
        if found is None:
            return base
        with self.at("dynamic"):
            if not isinstance(found, dict):
                raise ParseError("dynamic is a table")
            self.known("key of dynamic", found, ("rule", "scale", "ops"), "dynamic")
            rule, scale = (texts(found.get(k, getattr(base, k)))[0] for k in ("rule", "scale"))
            return Dynamic(rule, scale, texts(found.get("ops", base.ops)))

    def rounding(self) -> dict[str, str]:
        """How a quantize that no kernel absorbs rounds, by storage."""
        with self.at("rounding"):
            found = self.data.get("rounding", {})
            if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
                raise ParseError("rounding is a table of storage types and their roundings")
            return dict(found)

    def version(self) -> None:
        with self.at("version"):
            found = self.data.get("version", VERSION)
            if found != VERSION:
                raise ParseError(
                    f"it is a target file of version {found}; this QIR reads {VERSION}"
                )

    def base(self) -> Capability | None:
        """The table that this file extends."""
        named = self.text("extends")
        if not named:
            return None
        line = (*self.above, self.path.resolve())
        with self.at("extends"):
            if named.endswith(SUFFIX):
                other = self.path.parent / named
                if other.resolve() in line:
                    raise ParseError(f"it extends {named}, which extends it, in a circle")
                if not other.is_file():
                    raise ParseError(f"there is no file {named} beside it")
                return load(other, self.installed, line)
            if self.installed is None:
                raise ParseError(
                    f"extends {named!r}: name a file beside it, such as 'base{SUFFIX}'"
                )
            try:
                return self.installed(named)
            except PluginError as error:
                raise ParseError(str(error)) from error

    def rows(self, table: str) -> list[Mapping[str, object]]:
        found = self.data.get(table, [])
        with self.at(table):
            if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
                raise ParseError(f"{table} is written [[{table}]]")
        return found

    def known(
        self, what: str, given: Collection[str], names: Collection[str], *above: str | int
    ) -> None:
        for key in given:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
                with self.at(*above, key):
                    raise ParseError(f"no {what} {key!r}; {hint}")

    def named(self, table: str, row: Mapping[str, object], index: int) -> tuple[str, ...]:
        """The ops that a row is about."""
        if "op" not in row:
            raise ParseError(f"[[{table}]] says no op")
        with self.at(table, index, "op"):
            found = texts(row["op"])
            for op in found:
                if op not in OPS:
                    near = difflib.get_close_matches(op, OPS, 1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise ParseError(f"no op {op!r}{hint}")
            return found

    # -- rows ---------------------------------------------------------------------------------

    def take_op(self, row: Mapping[str, object], index: int) -> None:
        """Adds a row, or puts it in the place of the one of the same op."""
        for op in self.named("op", row, index):
            when = self.values("op", row, index)
            self.ops[op] = OpCapability(
                op,
                self.slots(op, row, index, "slots"),
                self.listed(row, index, "share"),
                self.listed(row, index, "constant"),
                when or None,
                self.slots(op, row, index, "computed"),
                str(row.get("unasked", "")),
                self.ranks(op, row, index),
            )
            self.floats = [each for each in self.floats if each.op != op or each.when]

    def slots(
        self, op: str, row: Mapping[str, object], index: int, key: str
    ) -> dict[str, tuple[Scheme, ...]]:
        with self.at("op", index, key):
            found = row.get(key, {})
            if not isinstance(found, dict):
                raise ParseError(f"{op}: {key} is a table")
        out: dict[str, tuple[Scheme, ...]] = {}
        for slot, schemes in found.items():
            with self.at("op", index, key, slot):
                out |= slots_of(op, {slot: schemes})
        return out

    def ranks(self, op: str, row: Mapping[str, object], index: int) -> dict[str, int]:
        with self.at("op", index, "ranks"):
            found = row.get("ranks", {})
            if not isinstance(found, dict) or not all(type(v) is int for v in found.values()):
                raise ParseError(f"{op}: ranks are a table of slots and whole numbers")
            return dict(found)

    def listed(self, row: Mapping[str, object], index: int, key: str) -> tuple[str, ...]:
        with self.at("op", index, key):
            return texts(row.get(key, ()))

    def values(
        self, table: str, row: Mapping[str, object], index: int
    ) -> dict[str, tuple[str | int | float | bool, ...]]:
        with self.at(table, index, "when"):
            return values_of(row.get("when", {}))

    def take_chain(self, row: Mapping[str, object], index: int) -> None:
        chain = self.chain("chain", row, index)
        self.chains[chain] = bool(row.get("cuts", True))
        result, summand = (self.schemes(row, index, key) for key in ("result", "summand"))
        alone = bool(row.get("last_reader", False))
        self.rows_of_chains[chain] = ChainCapability(
            result, summand, alone, self.values("chain", row, index)
        )

    def schemes(self, row: Mapping[str, object], index: int, key: str) -> tuple[Scheme, ...]:
        with self.at("chain", index, key):
            return tuple(parse_scheme(text) for text in texts(row.get(key, ())))

    def chain(self, table: str, row: Mapping[str, object], index: int) -> tuple[str, ...]:
        if "chain" not in row:
            raise ParseError(f"[[{table}]] says no chain")
        with self.at(table, index, "chain"):
            return texts(row["chain"])

    def take_float(self, row: Mapping[str, object], index: int) -> None:
        """Keeps an op in float: always, and then its row goes, or where attributes are so."""
        when = self.values("float", row, index)
        for op in self.named("float", row, index):
            self.floats.append(Condition(op, self.reason("float", row, index), when))
            if not when:
                self.ops.pop(op, None)

    def take_defect(self, row: Mapping[str, object], index: int) -> None:
        when = self.values("defect", row, index)
        for op in self.named("defect", row, index):
            self.defects.append(Defect(op, self.reason("defect", row, index), when))

    def reason(self, table: str, row: Mapping[str, object], index: int) -> str:
        if "reason" not in row:
            raise ParseError(f"[[{table}]] says no reason")
        with self.at(table, index, "reason"):
            return texts(row["reason"])[0]

    def take_remove(self, row: Mapping[str, object], index: int) -> None:
        """Takes out rows that the extended file brought."""
        if not row:
            raise ParseError("[[remove]] says neither op nor chain")
        if "op" in row:
            for op in self.named("remove", row, index):
                if self.ops.pop(op, None) is None:
                    raise ParseError(f"what it extends has no row of op {op!r}")
        if "chain" in row:
            chain = self.chain("remove", row, index)
            self.rows_of_chains.pop(chain, None)
            if self.chains.pop(chain, None) is None:
                raise ParseError(f"what it extends has no chain {' |> '.join(chain)}")


__all__ = ["SUFFIX", "VERSION", "Installed", "extended", "load"]
