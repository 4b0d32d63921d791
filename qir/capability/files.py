"""Reads target files: TOML tables of what a target supports, which may extend other files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from qir.capability.names import require, require_attributes, require_ops, require_slot
from qir.capability.table import (
    KINDS,
    Capability,
    ChainCapability,
    Defect,
    Dynamic,
    MatrixPosition,
    OpCapability,
    OpCondition,
    schemes_of,
    slots_of,
    texts,
    values_of,
    word,
)
from qir.errors import ParseError, PluginError, ProfileError
from qir.ir.dtype import dtype
from qir.ir.ops.quantization import ROUND_MODES, scale_rule_names
from qir.ir.scheme import Scheme, parse_scheme
from qir.numerics.scale_rules import families, printed_rules
from qir.profiles import profile
from qir.profiles.toml_positions import Path as Keys
from qir.profiles.toml_positions import value_positions

VERSION = 1
"""Of the target files that this QIR reads."""
SUFFIX = ".toml"
"""Of target files."""
Installed: TypeAlias = Callable[[str], Capability]
"""Gives the table of an installed target, by name."""

TABLES = {
    "op": ("op", "slots", "share", "constant", "when", "computed", "unasked", "ranks"),
    "chain": ("chain", "cuts", "result", "summand", "last_reader", "when"),
    "float": ("op", "reason", "when"),
    "defect": ("op", "reason", "when"),
    "remove": ("op", "chain"),
}
"""The keys of each table of rows."""
_ROW = ("framework", "extension", "library", "formulas")
HEAD = (
    "name",
    "extends",
    "version",
    "profile",
    "rounding",
    "dynamic",
    "replace",
    *_ROW,
    "forms",
    *TABLES,
)
DYNAMIC = ("rule", "scale", "ops", "bounds")
_TOML_ERROR = re.compile(r"(?P<said>.*) \(at (?:line (?P<line>\d+).*|end of document)\)", re.DOTALL)


def load(
    path: Path, installed: Installed | None = None, above: tuple[Path, ...] = ()
) -> Capability:
    """Reads a target file and those that it extends.

    `extends` names a file next to it, such as "x86.toml", or an installed target, which `installed`
    gives. Raises PluginError naming file, line and what is wrong.
    """
    return _File(path, installed, above).capability()


def schema_text() -> str:
    """Returns the JSON Schema of target files, for editors and other tools."""
    return Path(__file__).with_name("target.schema.json").read_text(encoding="utf-8")


def load_extended(path: Path) -> str:
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
    floats: list[OpCondition] = field(default_factory=list)
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
            position = _TOML_ERROR.fullmatch(str(error))
            problem = position["said"] if position else str(error)
            line = (position and position["line"]) or len(self.source.splitlines()) or 1
            raise PluginError(f"{self.path.name}, line {line}: {problem}") from error
        except RecursionError as error:
            problem = "its brackets are too deep within each other"
            raise PluginError(f"{self.path.name}: {problem}") from error
        except ValueError as error:  # Python reads integers of 4,300 digits at most
            raise PluginError(f"{self.path.name}: a number has too many digits") from error

    @cached_property
    def lines(self) -> Mapping[Keys, int]:
        return value_positions(self.source)

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Within this, errors name the line of a key, and the key; PluginErrors do already."""
        try:
            yield
        except (ParseError, ProfileError, TypeError) as error:
            prefixes = (keys[:length] for length in range(len(keys), 0, -1))
            # The nearest enclosing key that has a line: inline tables have none for what is in
            # them.
            line = next((self.lines[k] for k in prefixes if k in self.lines), 1)
            names = [k for k in (keys[2:] or keys) if isinstance(k, str)]
            is_named = not names or re.search(rf"\b{re.escape(names[-1])}\b", str(error))
            message = f"{error}" if is_named else f"{'.'.join(names)}: {error}"
            raise PluginError(f"{self.path.name}, line {line}: {message}") from error

    def text(self, key: str, default: str = "") -> str:
        with self.at(key):
            value = self.data.get(key, default)
            if not isinstance(value, str):
                raise ParseError(f"{key} is a text, not {value!r}")
            return value

    # -- the table ----------------------------------------------------------------------------

    def capability(self) -> Capability:
        self.version()
        self.known("key", self.data, HEAD)
        base = self.base()
        if base is None and "replace" in self.data:
            with self.at("replace"):
                raise ParseError("replace speaks of what it extends; say extends = NAME")
        if base is not None:
            base = self.replaced(base)
            self.ops |= base.ops
            self.chains |= {chain: chain not in base.uncut for chain in base.chains}
            self.rows_of_chains |= base.rows
            self.floats += base.floats
            self.defects += base.defects
        # In the order of TABLES: what is removed is looked for among what was inherited or added.
        for table, keys in TABLES.items():
            for index, row in enumerate(self.rows(table)):
                with self.at(table, index):
                    self.known(f"key of [[{table}]]", row, keys, table, index)
                    getattr(self, f"take_{table}")(row, index)
        name = self.text("name", self.path.stem if base else "")
        if not name:
            raise PluginError(f"{self.path.name}, line 1: it says no name")
        return Capability(
            name,
            self.ops,
            tuple(self.chains),
            tuple(self.defects),
            frozenset(chain for chain, cuts in self.chains.items() if not cuts),
            self.rows_of_chains,
            {**(base.rounding if base else {}), **self.rounding()},
            tuple(self.floats),
            dynamic=self.dynamic(base.dynamic if base else Dynamic()),
            profile=self.profile() or (base.profile if base else ""),
            row=self.row(base.row if base else MatrixPosition()),
        )

    def profile(self) -> str:
        """Returns the numerics profile that it names; raises ParseError for one that there is
        not."""
        name = self.text("profile")
        with self.at("profile"):
            return profile(name).name if name else ""

    def row(self, base: MatrixPosition) -> MatrixPosition:
        """Its row of the support matrix, which says of what it leaves open what the base says."""
        framework, extension, library, formulas = (
            self.text(key, getattr(base, key)) for key in _ROW
        )
        with self.at("formulas"):
            if formulas:
                require(f"no formulas {formulas!r}", formulas, [*families(), *printed_rules()])
        forms = self.table("forms")
        self.known("kind of forms", forms, KINDS, "forms")
        own_forms = {}
        for kind, names in forms.items():
            with self.at("forms", kind):
                own_forms[kind] = texts(names)
        return MatrixPosition(framework, extension, library, formulas, {**base.forms, **own_forms})

    def table(self, key: str) -> Mapping[str, object]:
        """Returns a table of the head; empty where there is none."""
        with self.at(key):
            value = self.data.get(key, {})
            if not isinstance(value, dict):
                raise ParseError(f"{key} is a table, not {value!r}")
            return value

    def replaced(self, base: Capability) -> Capability:
        """What it extends, with other schemes in the place of some."""
        replacements: dict[Scheme, tuple[Scheme, ...]] = {}
        known = {str(scheme): scheme for scheme in base.schemes()}
        for old, new in self.table("replace").items():
            with self.at("replace", old):
                scheme = parse_scheme(old)
                require(f"what it extends has no scheme {old!r}", str(scheme), known)
                replacements[scheme] = schemes_of(new)
        return base.with_schemes(replacements)

    def dynamic(self, base: Dynamic) -> Dynamic:
        """Returns what the file says of quantizing while a model runs, else what it extends
        says."""
        table = self.table("dynamic")
        self.known("key of dynamic", table, DYNAMIC, "dynamic")
        with self.at("dynamic", "rule"):
            rule = word(table.get("rule", base.rule))
            require(f"dynamic: no rule {rule!r}", rule, scale_rule_names())
        with self.at("dynamic", "scale"):
            scale = str(dtype(word(table.get("scale", base.scale))))
        with self.at("dynamic", "ops"):
            ops = texts(table.get("ops", base.ops))
            require_ops(ops)
        with self.at("dynamic", "bounds"):
            bounds = table.get("bounds", base.bounds)
            if bounds is None:
                return Dynamic(rule, scale, ops)
            numbers = bounds if isinstance(bounds, (list, tuple)) else ()
            if len(numbers) != 2 or not all(type(n) is int for n in numbers):
                raise ParseError("dynamic: bounds are two integers, such as [0, 127]")
        return Dynamic(rule, scale, ops, (numbers[0], numbers[1]))

    def rounding(self) -> dict[str, str]:
        """Returns how a quantize that no kernel absorbs rounds, by storage."""
        out = {}
        for storage, how in self.table("rounding").items():
            with self.at("rounding", storage):
                dtype(storage)
                out[storage] = word(how)
                require(f"rounding: no rounding {how!r} of {storage}", out[storage], ROUND_MODES)
        return out

    def version(self) -> None:
        with self.at("version"):
            version = self.data.get("version", VERSION)
            if version != VERSION:
                raise ParseError(
                    f"it is a target file of version {version}; this QIR reads {VERSION}"
                )

    def base(self) -> Capability | None:
        """Returns the table that this file extends."""
        extended = self.text("extends")
        if not extended:
            return None
        files_above = (*self.above, self.path.resolve())
        with self.at("extends"):
            if extended.endswith(SUFFIX):
                other = self.path.parent / extended
                # Resolved, so that links and `..` do not hide a circle.
                if other.resolve() in files_above:
                    raise ParseError(f"it extends {extended}, which extends it, in a circle")
                if not other.is_file():
                    raise ParseError(f"there is no file {extended} next to it")
                return load(other, self.installed, files_above)
            if self.installed is None:
                raise ParseError(
                    f"extends {extended!r}: name a file next to it, such as 'base{SUFFIX}'"
                )
            try:
                return self.installed(extended)
            except PluginError as error:
                raise ParseError(str(error)) from error

    def rows(self, table: str) -> list[Mapping[str, object]]:
        entries = self.data.get(table, [])
        with self.at(table):
            if not isinstance(entries, list) or not all(isinstance(row, dict) for row in entries):
                raise ParseError(f"{table} is written [[{table}]]")
        return entries

    def known(
        self, what: str, present: Collection[str], allowed: Collection[str], *above: str | int
    ) -> None:
        for key in present:
            with self.at(*above, key):
                require(f"no {what} {key!r}", key, allowed)

    def named(self, table: str, row: Mapping[str, object], index: int) -> tuple[str, ...]:
        """Returns the ops that a row is about."""
        if "op" not in row:
            raise ParseError(f"[[{table}]] says no op")
        with self.at(table, index, "op"):
            ops = texts(row["op"])
            require_ops(ops)
            return ops

    # -- rows ---------------------------------------------------------------------------------

    def take_op(self, row: Mapping[str, object], index: int) -> None:
        """Adds a row, or puts it in the place of the one of the same op."""
        ops = self.named("op", row, index)
        when = self.values("op", row, index, ops)
        for op in ops:
            self.ops[op] = OpCapability(
                op,
                self.slots(op, row, index, "slots"),
                self.listed(op, row, index, "share"),
                self.listed(op, row, index, "constant"),
                when or None,
                self.slots(op, row, index, "computed"),
                self.word("op", row, index, "unasked"),
                self.ranks(op, row, index),
            )
            # A new row takes its op out of what is float always; floats with conditions stay.
            self.floats = [each for each in self.floats if each.op != op or each.when]

    def slots(
        self, op: str, row: Mapping[str, object], index: int, key: str
    ) -> dict[str, tuple[Scheme, ...]]:
        with self.at("op", index, key):
            schemes_by_slot = row.get(key, {})
            if not isinstance(schemes_by_slot, dict):
                raise ParseError(f"{op}: {key} is a table")
        out: dict[str, tuple[Scheme, ...]] = {}
        for slot, schemes in schemes_by_slot.items():
            with self.at("op", index, key, slot):
                out |= slots_of(op, {slot: schemes})
        return out

    def ranks(self, op: str, row: Mapping[str, object], index: int) -> dict[str, int]:
        with self.at("op", index, "ranks"):
            ranks = row.get("ranks", {})
            if not isinstance(ranks, dict) or not all(type(v) is int for v in ranks.values()):
                raise ParseError(f"{op}: ranks are a table of slots and whole numbers")
        for slot in ranks:
            with self.at("op", index, "ranks", slot):
                require_slot(op, slot)
        return dict(ranks)

    def listed(self, op: str, row: Mapping[str, object], index: int, key: str) -> tuple[str, ...]:
        """Returns the slots of an op that a key lists."""
        with self.at("op", index, key):
            slots = texts(row.get(key, ()))
        for position, slot in enumerate(slots):
            with self.at("op", index, key, position):
                require_slot(op, slot)
        return slots

    def word(self, table: str, row: Mapping[str, object], index: int, key: str) -> str:
        with self.at(table, index, key):
            return word(row.get(key, ""))

    def flag(
        self, table: str, row: Mapping[str, object], index: int, key: str, usual: bool
    ) -> bool:
        with self.at(table, index, key):
            value = row.get(key, usual)
            if not isinstance(value, bool):
                raise ParseError(f"{key} is true or false, not {value!r}")
            return value

    def values(
        self, table: str, row: Mapping[str, object], index: int, ops: tuple[str, ...]
    ) -> dict[str, tuple[str | int | float | bool, ...]]:
        """Returns the attributes of `when` and their values; some op that the row is about has
        each."""
        with self.at(table, index, "when"):
            attributes = values_of(row.get("when", {}))
        for name in attributes:
            with self.at(table, index, "when", name):
                require_attributes(ops, [name])
        return attributes

    def take_chain(self, row: Mapping[str, object], index: int) -> None:
        chain = self.chain("chain", row, index)
        self.chains[chain] = self.flag("chain", row, index, "cuts", True)
        result, summand = (self.schemes(row, index, key) for key in ("result", "summand"))
        last_reader_alone = self.flag("chain", row, index, "last_reader", False)
        self.rows_of_chains[chain] = ChainCapability(
            result, summand, last_reader_alone, self.values("chain", row, index, chain)
        )

    def schemes(self, row: Mapping[str, object], index: int, key: str) -> tuple[Scheme, ...]:
        with self.at("chain", index, key):
            return schemes_of(row.get(key, ()))

    def chain(self, table: str, row: Mapping[str, object], index: int) -> tuple[str, ...]:
        if "chain" not in row:
            raise ParseError(f"[[{table}]] says no chain")
        with self.at(table, index, "chain"):
            ops = texts(row["chain"])
            require_ops(ops)
            return ops

    def take_float(self, row: Mapping[str, object], index: int) -> None:
        """Keeps an op in float: always, and then its row goes, or where attributes are so."""
        ops = self.named("float", row, index)
        when = self.values("float", row, index, ops)
        for op in ops:
            self.floats.append(OpCondition(op, self.reason("float", row, index), when))
            # What is float always needs no integer row, which would contradict it.
            if not when:
                self.ops.pop(op, None)

    def take_defect(self, row: Mapping[str, object], index: int) -> None:
        ops = self.named("defect", row, index)
        when = self.values("defect", row, index, ops)
        for op in ops:
            self.defects.append(Defect(op, self.reason("defect", row, index), when))

    def reason(self, table: str, row: Mapping[str, object], index: int) -> str:
        if "reason" not in row:
            raise ParseError(f"[[{table}]] says no reason")
        return self.word(table, row, index, "reason")

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


__all__ = ["SUFFIX", "VERSION", "Installed", "load", "load_extended", "schema_text"]
